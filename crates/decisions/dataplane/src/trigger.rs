//! When did the change happen that we are about to program?
//!
//! The slice controller writes the time of the oldest change behind a slice update into an annotation.
//! Each update gives one sample, observed when the kernel has the rules. A sync that fails gives its
//! samples back, so that the time spent retrying is part of the latency instead of vanishing from it.

use std::fmt;
use std::time::Duration;

use pointsman_model::{ServiceName, SliceName};

/// The annotation that carries the trigger time of an EndpointSlice.
pub const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// A moment in microseconds since 1970, by the clock of whoever wrote the annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TriggerTime(pub i64);

impl TriggerTime {
    /// Reads RFC 3339 with an optional fraction; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(Self::from)
    }

    /// The time from this moment until `now`; zero if the clocks disagree the other way round.
    pub fn elapsed(self, now: Self) -> Duration {
        Duration::from_micros(u64::try_from(now.0.saturating_sub(self.0)).unwrap_or(0))
    }
}

impl From<jiff::Timestamp> for TriggerTime {
    fn from(timestamp: jiff::Timestamp) -> Self {
        Self(timestamp.as_microsecond())
    }
}

impl fmt::Display for TriggerTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(timestamp) => timestamp.fmt(f),
            Err(_) => write!(f, "{} us", self.0),
        }
    }
}

/// One sample waiting to be observed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trigger {
    /// The slice whose update carried it; its deletion discards the sample.
    pub slice: SliceName,
    /// The Service concerned.
    pub service: ServiceName,
    /// When the change happened.
    pub at: TriggerTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trigger_times_keep_microseconds_and_refuse_other_text() {
        let time = TriggerTime::parse("2024-01-01T00:00:00.000123Z").unwrap();
        assert_eq!(time.0 % 1_000_000, 123);
        assert_eq!(
            TriggerTime::parse("2024-01-01T01:00:00+01:00"),
            TriggerTime::parse("2024-01-01T00:00:00Z")
        );
        assert_eq!(TriggerTime::parse("yesterday"), None);
    }

    #[test]
    fn a_trigger_from_the_future_has_waited_no_time() {
        assert_eq!(TriggerTime(5_000).elapsed(TriggerTime(1_000)), Duration::ZERO);
        assert_eq!(
            TriggerTime(1_000).elapsed(TriggerTime(5_000)),
            Duration::from_micros(4_000)
        );
    }
}
