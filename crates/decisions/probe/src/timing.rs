//! How often does a probe run, and how long may it take?

use crate::Kind;
use pointsman_objects::pod_manifest::{self, Action};
use pointsman_objects::probe::{Handler, Millis, Shortest};
use std::time::Duration;

/// The shortest times that are honoured, whatever a probe asks for and whoever has validated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floors {
    /// For checks that start a process.
    pub exec: Shortest,
    /// For checks over the network.
    pub network: Shortest,
    /// For liveness, whatever the handler.
    pub liveness: Shortest,
}

impl Default for Floors {
    fn default() -> Self {
        Self {
            exec: Handler::Exec.shortest(),
            network: Handler::HttpGet.shortest(),
            liveness: Shortest::LIVENESS,
        }
    }
}

impl Floors {
    /// The same for every probe: for tests and measurements of the prober itself.
    pub fn uniform(milliseconds: i64) -> Self {
        let all = Shortest {
            period: Millis(milliseconds),
            timeout: Millis(milliseconds),
        };
        Self {
            exec: all,
            network: all,
            liveness: all,
        }
    }

    fn of(&self, kind: Kind, probe: &pod_manifest::Probe) -> Shortest {
        let handler = match probe.action() {
            Some(Action::Exec(_)) => self.exec,
            _ => self.network,
        };
        match kind {
            Kind::Readiness | Kind::Startup => handler,
            Kind::Liveness => self.liveness,
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
    /// Makes usable timing of any probe, also of one that no API server has validated: periods and timeouts are at
    /// least the floor, a negative delay is none, and absent thresholds are upstream's.
    pub fn of(kind: Kind, probe: &pod_manifest::Probe, floors: Floors) -> Self {
        let length = |millis: Millis| millis.to_duration().unwrap_or_default();
        let count = |given: i64, default: u32| match u32::try_from(given) {
            Ok(0) | Err(_) => default,
            Ok(count) => count,
        };
        let floors = floors.of(kind, probe);
        let floor = length(floors.period).max(Duration::from_millis(1));
        let sums = probe.effective();
        let period = length(sums.period).max(floor);
        Self {
            initial_delay: length(sums.initial_delay),
            period,
            settled_period: length(sums.settled_period).max(period),
            timeout: length(sums.timeout).max(length(floors.timeout)),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
            floor,
        }
    }

    /// The longest a check may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether it asks for a period below a second, and is granted one at least at first.
    pub fn is_sub_second(&self) -> bool {
        self.period < Duration::from_secs(1)
    }

    /// The time between checks; `settled` says that the policy no longer grants a sub-second one.
    pub fn period(&self, settled: bool) -> Duration {
        if settled { self.settled_period } else { self.period }
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

    use pointsman_objects::pod_manifest::{Exec, Probe};

    #[test]
    fn nonsense_from_an_api_server_becomes_usable_timing() {
        let nonsense = Probe {
            initial_delay_seconds: -5,
            period_seconds: -1,
            timeout_seconds: 1,
            timeout_milliseconds: -1000,
            success_threshold: -2,
            failure_threshold: i64::MAX,
            ..Probe::default()
        };
        let timing = Timing::of(Kind::Readiness, &nonsense, Floors::default());
        assert_eq!(timing.initial_delay, Duration::ZERO);
        assert_eq!(timing.period, Duration::from_millis(200));
        assert_eq!(timing.settled_period, Duration::from_millis(200));
        assert_eq!(timing.timeout, Duration::from_millis(100));
        assert_eq!((timing.success_threshold, timing.failure_threshold), (1, 3));
    }

    #[test]
    fn each_handler_has_its_floor_and_longer_periods_stay() {
        let fast = Probe {
            period_seconds: 1,
            period_milliseconds: -990,
            ..Probe::default()
        };
        let exec = |probe: &Probe| Probe {
            exec: Some(Exec::default()),
            ..probe.clone()
        };
        let period = |probe: &Probe| Timing::of(Kind::Startup, probe, Floors::default()).period;
        assert_eq!(period(&fast), Duration::from_millis(200));
        assert_eq!(period(&exec(&fast)), Duration::from_millis(500));
        assert_eq!(period(&exec(&Probe::default())), Duration::from_secs(10));
    }

    #[test]
    fn liveness_has_a_second_at_least_so_that_nothing_is_restarted_for_a_moment_s_delay() {
        let hasty = Probe {
            period_seconds: 1,
            period_milliseconds: -800,
            timeout_seconds: 1,
            timeout_milliseconds: -999,
            ..Probe::default()
        };
        let times = |kind| {
            let timing = Timing::of(kind, &hasty, Floors::default());
            (timing.period, timing.timeout)
        };
        let second = Duration::from_secs(1);
        assert_eq!(times(Kind::Liveness), (second, second));
        let [period, timeout] = [200, 100].map(Duration::from_millis);
        assert_eq!(times(Kind::Readiness), (period, timeout));
        assert_eq!(times(Kind::Startup), (period, timeout));
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
