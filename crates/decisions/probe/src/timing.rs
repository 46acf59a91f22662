//! How often does a probe run, and how long may it take?

use std::time::Duration;

/// A second: periods below it are the ones that fall back after success.
const SECOND: Duration = Duration::from_secs(1);
/// What an absent timeout means upstream.
const DEFAULT_TIMEOUT: Duration = SECOND;

/// Seconds and offsets of a probe added up, in milliseconds, with defaults applied. Sums may be
/// nonsense: they come from an API server that may not have validated them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// From the container's start to the first check.
    pub initial_delay: i64,
    /// Between checks.
    pub period: i64,
    /// Between checks once the probe succeeded, if `period` is below a second.
    pub settled_period: i64,
    /// The longest a check may take.
    pub timeout: i64,
    /// Successes in a row that make a success; 0 counts as 1.
    pub success_threshold: i64,
    /// Failures in a row that make a failure; 0 counts as 3.
    pub failure_threshold: i64,
}

/// The shortest periods that are honoured, whatever a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floors {
    /// For checks that start a process.
    pub exec: Duration,
    /// For checks over the network.
    pub network: Duration,
}

impl Default for Floors {
    /// KEP-3066, Risks and Mitigations.
    fn default() -> Self {
        Self {
            exec: Duration::from_millis(500),
            network: Duration::from_millis(200),
        }
    }
}

/// The timing of one probe. Every value of it can be used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub(crate) initial_delay: Duration,
    pub(crate) period: Duration,
    pub(crate) settled_period: Duration,
    pub(crate) timeout: Duration,
    pub(crate) success_threshold: u32,
    pub(crate) failure_threshold: u32,
    pub(crate) floor: Duration,
}

impl Timing {
    /// Makes usable timing of any sums: a period is at least `floor`, a negative delay is none, and
    /// a timeout that leaves no time is a second.
    pub fn clamped(sums: Sums, floor: Duration) -> Self {
        let length = |millis: i64| Duration::from_millis(u64::try_from(millis).unwrap_or(0));
        let count = |given: i64, default: u32| match u32::try_from(given) {
            Ok(0) | Err(_) => default,
            Ok(count) => count,
        };
        let floor = floor.max(Duration::from_millis(1));
        let period = length(sums.period).max(floor);
        let timeout = length(sums.timeout);
        Self {
            initial_delay: length(sums.initial_delay),
            period,
            settled_period: length(sums.settled_period).max(period),
            timeout: if timeout.is_zero() {
                DEFAULT_TIMEOUT
            } else {
                timeout
            },
            success_threshold: count(sums.success_threshold, 1),
            failure_threshold: count(sums.failure_threshold, 3),
            floor,
        }
    }

    /// The longest a check may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The time between checks; `settled` says that the policy no longer grants a sub-second one.
    pub fn period(&self, settled: bool) -> Duration {
        if settled { self.settled_period } else { self.period }
    }

    /// Whether the period changes at all after a success.
    pub fn is_sub_second(&self) -> bool {
        self.period < SECOND
    }
}

/// When a sub-second period applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Until the container's first success, as KEP-3066 says.
    #[default]
    UntilFirstSuccess,
    /// Whenever the verdict is not success, so also after a failure.
    WhileWaitingForSuccess,
    /// Always.
    Always,
}

impl Policy {
    /// Every policy with its name in flags and configuration.
    pub const NAMES: [(&'static str, Policy); 3] = [
        ("until-first-success", Policy::UntilFirstSuccess),
        ("while-waiting-for-success", Policy::WhileWaitingForSuccess),
        ("always", Policy::Always),
    ];
}

/// The name is not one of [`Policy::NAMES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);

impl std::fmt::Display for UnknownPolicy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = Policy::NAMES.map(|(name, _)| name).join(", ");
        write!(out, "unknown probe policy {:?}; known: {names}", self.0)
    }
}

impl std::error::Error for UnknownPolicy {}

impl std::str::FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::NAMES
            .into_iter()
            .find(|(name, _)| *name == text)
            .map(|(_, policy)| policy)
            .ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// What the whole node asks of every probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// When sub-second periods apply.
    pub policy: Policy,
    /// The factor by which all periods are stretched, at least 1; see [`crate::Budget`].
    pub stretch: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            stretch: 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sums = Sums {
        initial_delay: 0,
        period: 10_000,
        settled_period: 10_000,
        timeout: 1000,
        success_threshold: 0,
        failure_threshold: 0,
    };

    #[test]
    fn nonsense_from_an_api_server_becomes_usable_timing() {
        let nonsense = Sums {
            initial_delay: -5,
            period: -1,
            settled_period: i64::MIN,
            timeout: 0,
            success_threshold: -2,
            failure_threshold: i64::MAX,
        };
        let timing = Timing::clamped(nonsense, Floors::default().network);
        assert_eq!(timing.initial_delay, Duration::ZERO);
        assert_eq!(timing.period, Duration::from_millis(200));
        assert_eq!(timing.settled_period, Duration::from_millis(200));
        assert_eq!(timing.timeout, Duration::from_secs(1));
        assert_eq!((timing.success_threshold, timing.failure_threshold), (1, 3));
    }

    #[test]
    fn each_handler_has_its_floor_and_longer_periods_stay() {
        let fast = Sums {
            period: 10,
            settled_period: 1000,
            ..PLAIN
        };
        let floors = Floors::default();
        assert_eq!(
            Timing::clamped(fast, floors.network).period,
            Duration::from_millis(200)
        );
        assert_eq!(
            Timing::clamped(fast, floors.exec).period,
            Duration::from_millis(500)
        );
        assert_eq!(
            Timing::clamped(PLAIN, floors.exec).period,
            Duration::from_secs(10)
        );
    }

    #[test]
    fn policies_are_known_by_name() {
        for (name, policy) in Policy::NAMES {
            assert_eq!(name.parse(), Ok(policy));
        }
        let refused = "sometimes".parse::<Policy>().map_err(|error| error.to_string());
        assert_eq!(
            refused,
            Err("unknown probe policy \"sometimes\"; known: until-first-success, \
                 while-waiting-for-success, always"
                .to_owned())
        );
    }
}
