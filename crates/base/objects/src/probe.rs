//! How long does a probe wait, and how often does it run?
//!
//! Seconds and the signed millisecond offsets of KEP-3066 are summed after defaulting, so an absent
//! or zero `periodSeconds` counts as 10 s and an absent or zero `timeoutSeconds` as 1 s. API
//! validation and the node agent both use this arithmetic.

use crate::value::{at, int_at};
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// The probe fields that hold millisecond offsets.
pub const MILLISECOND_FIELDS: [&str; 3] = [
    "initialDelayMilliseconds",
    "periodMilliseconds",
    "timeoutMilliseconds",
];

/// The largest offset in either direction, so that whole seconds stay in the seconds field.
pub const MAX_OFFSET: i64 = 999;

/// A signed number of milliseconds: sums of seconds and offsets may be negative before validation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub i64);

impl Millis {
    /// Seconds plus a signed offset in milliseconds.
    pub fn sum(seconds: i64, offset: i64) -> Self {
        Self(seconds.saturating_mul(1000).saturating_add(offset))
    }

    /// The same length of time, or `None` if it is negative.
    pub fn to_duration(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_millis)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// How a probe checks. The cost of one check decides how often it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// A process in the container.
    Exec,
    /// An HTTP request.
    HttpGet,
    /// A TCP connection.
    TcpSocket,
    /// A gRPC health check.
    Grpc,
}

impl Handler {
    pub const ALL: [Handler; 4] = [Handler::Exec, Handler::HttpGet, Handler::TcpSocket, Handler::Grpc];

    /// The handler that `probe` names first, if it names one.
    pub fn of(probe: &Value) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|handler| at(probe, &[handler.field()]).is_some())
    }

    /// The field of the probe that holds this handler.
    pub fn field(self) -> &'static str {
        match self {
            Handler::Exec => "exec",
            Handler::HttpGet => "httpGet",
            Handler::TcpSocket => "tcpSocket",
            Handler::Grpc => "grpc",
        }
    }

    /// The shortest times for this handler. Periods are KEP-3066's (Risks and Mitigations). It leaves timeouts open:
    /// ours are ten times the time by which a check of a busy node begins late at p99, so that a healthy server
    /// is not called unhealthy by the prober's own delays; a process needs longer to start.
    pub fn shortest(self) -> Shortest {
        match self {
            Handler::Exec => Shortest {
                period: Millis(500),
                timeout: Millis(500),
            },
            Handler::HttpGet | Handler::TcpSocket | Handler::Grpc => Shortest {
                period: Millis(200),
                timeout: Millis(100),
            },
        }
    }
}

/// The shortest times that a probe may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortest {
    pub period: Millis,
    pub timeout: Millis,
}

impl Shortest {
    /// Liveness is not asked for in less than a second: what fails it restarts the container.
    pub const LIVENESS: Self = Self {
        period: Millis(1000),
        timeout: Millis(1000),
    };
}

/// The timing of one probe with defaults applied and offsets added. Not validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveProbe {
    /// How long after the container's start the first check runs.
    pub initial_delay: Millis,
    /// The time between checks.
    pub period: Millis,
    /// How long one check may take.
    pub timeout: Millis,
    /// The time between checks once the probe has succeeded: a sub-second period falls back to its
    /// whole seconds, any other period stays.
    pub settled_period: Millis,
}

/// What a probe says about its times: seconds and an offset in milliseconds each, 0 where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    pub initial_delay: (i64, i64),
    pub period: (i64, i64),
    pub timeout: (i64, i64),
}

impl EffectiveProbe {
    /// Reads the timing of `probe`, a Probe object as the API carries it.
    pub fn of(probe: &Value) -> Self {
        let number = |field| int_at(probe, &[field]).unwrap_or(0);
        Self::sum(Given {
            initial_delay: (number("initialDelaySeconds"), number("initialDelayMilliseconds")),
            period: (number("periodSeconds"), number("periodMilliseconds")),
            timeout: (number("timeoutSeconds"), number("timeoutMilliseconds")),
        })
    }

    /// Applies defaults and adds offsets.
    pub fn sum(given: Given) -> Self {
        let seconds = |given: i64, default| if given == 0 { default } else { given };
        let period_seconds = seconds(given.period.0, 10);
        let period = Millis::sum(period_seconds, given.period.1);
        Self {
            initial_delay: Millis::sum(given.initial_delay.0, given.initial_delay.1),
            period,
            timeout: Millis::sum(seconds(given.timeout.0, 1), given.timeout.1),
            settled_period: if period < Millis(1000) {
                Millis::sum(period_seconds, 0)
            } else {
                period
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn period(probe: Value) -> i64 {
        EffectiveProbe::of(&probe).period.0
    }

    #[test]
    fn the_examples_of_the_enhancement_proposal_add_up() {
        assert_eq!(
            period(json!({"periodSeconds": 1, "periodMilliseconds": 500})),
            1500
        );
        assert_eq!(
            period(json!({"periodSeconds": 2, "periodMilliseconds": -500})),
            1500
        );
        assert_eq!(
            period(json!({"periodSeconds": 1, "periodMilliseconds": -500})),
            500
        );
        assert_eq!(
            period(json!({"periodSeconds": 0, "periodMilliseconds": 500})),
            10_500
        );
        assert_eq!(period(json!({"periodMilliseconds": 500})), 10_500);
        assert_eq!(
            period(json!({"periodSeconds": 1, "periodMilliseconds": 400})),
            1400
        );
    }

    #[test]
    fn absent_offsets_leave_the_upstream_defaults() {
        let plain = EffectiveProbe::of(&json!({}));
        assert_eq!(plain.initial_delay, Millis(0));
        assert_eq!(plain.period, Millis(10_000));
        assert_eq!(plain.timeout, Millis(1000));
        assert_eq!(plain.settled_period, Millis(10_000));
        let timeout = EffectiveProbe::of(&json!({"timeoutSeconds": 0, "timeoutMilliseconds": -200})).timeout;
        assert_eq!(timeout, Millis(800));
    }

    #[test]
    fn a_sub_second_period_settles_at_whole_seconds_and_a_longer_one_stays() {
        let fast = EffectiveProbe::of(&json!({"periodSeconds": 1, "periodMilliseconds": -800}));
        assert_eq!((fast.period, fast.settled_period), (Millis(200), Millis(1000)));
        let slow = EffectiveProbe::of(&json!({"periodSeconds": 1, "periodMilliseconds": 500}));
        assert_eq!((slow.period, slow.settled_period), (Millis(1500), Millis(1500)));
    }

    #[test]
    fn negative_sums_have_no_duration() {
        let probe = EffectiveProbe::of(&json!({"initialDelayMilliseconds": -1}));
        assert_eq!(probe.initial_delay.to_duration(), None);
        assert_eq!(Millis(1500).to_duration(), Some(Duration::from_millis(1500)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_integers_sum_without_overflow(seconds: i64, offset: i64) {
            let probe = json!({
                "periodSeconds": seconds, "periodMilliseconds": offset,
                "timeoutSeconds": seconds, "timeoutMilliseconds": offset,
                "initialDelaySeconds": seconds, "initialDelayMilliseconds": offset,
            });
            let effective = EffectiveProbe::of(&probe);
            prop_assert_eq!(effective.initial_delay, Millis::sum(seconds, offset));
        }
    }
}
