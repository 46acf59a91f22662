//! Which values does a profile set, and which of them make no sense?

use pointsman_model::duration;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// How often a node reports its status (kubelet: `nodeStatusUpdateFrequency`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReportPeriod(Duration);

/// How long a node may stay silent before it is called unreachable (controller manager:
/// `--node-monitor-grace-period`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GracePeriod(pub Duration);

/// How long new pods stay on a node with a taint (API server: `--default-not-ready-toleration-seconds`
/// and `--default-unreachable-toleration-seconds`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tolerations {
    /// On a node that says itself that it is not ready.
    pub not_ready: u64,
    /// On a node that fell silent.
    pub unreachable: u64,
}

/// One value for each component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Values {
    /// Of every node.
    pub report: ReportPeriod,
    /// Of the controller manager.
    pub grace: GracePeriod,
    /// Of the API server.
    pub tolerations: Tolerations,
}

/// A value that no component could use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidValue {
    /// Not in Go's form.
    #[error("{0:?} is not a duration such as 10s or 2m")]
    NotADuration(String),
    /// Nodes cannot report without a pause.
    #[error("a report period must be longer than zero")]
    NoPause,
    /// Not a count of seconds.
    #[error("{0:?} is not a number of seconds")]
    NotSeconds(String),
}

impl ReportPeriod {
    /// A period longer than zero.
    pub fn try_new(period: Duration) -> Result<Self, InvalidValue> {
        if period.is_zero() {
            return Err(InvalidValue::NoPause);
        }
        Ok(Self(period))
    }

    /// Of so many whole seconds; fails to compile into a constant if there are none.
    pub const fn seconds(seconds: u64) -> Self {
        assert!(seconds > 0, "a report period must be longer than zero");
        Self(Duration::from_secs(seconds))
    }

    /// Reads Go's form.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        Self::try_new(parse(text)?)
    }

    /// As a duration.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl GracePeriod {
    /// Of so many whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Reads Go's form.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        Ok(Self(parse(text)?))
    }
}

impl Tolerations {
    /// The same for both taints.
    pub const fn both(seconds: u64) -> Self {
        Self {
            not_ready: seconds,
            unreachable: seconds,
        }
    }

    /// Reads one of the two numbers.
    pub fn parse_seconds(text: &str) -> Result<u64, InvalidValue> {
        text.parse()
            .map_err(|_| InvalidValue::NotSeconds(text.to_owned()))
    }
}

impl Values {
    /// The usual units, for tables.
    pub const fn new(report_seconds: u64, grace_seconds: u64, toleration_seconds: u64) -> Self {
        Self {
            report: ReportPeriod::seconds(report_seconds),
            grace: GracePeriod::seconds(grace_seconds),
            tolerations: Tolerations::both(toleration_seconds),
        }
    }

    /// From a node's last sign of life to the eviction of a new pod without tolerations of its own:
    /// the seed's 340 s, 3 min and 6 min.
    pub fn time_to_evict(&self) -> Duration {
        self.grace.0 + Duration::from_secs(self.tolerations.unreachable)
    }
}

fn parse(text: &str) -> Result<Duration, InvalidValue> {
    duration::parse(text).ok_or_else(|| InvalidValue::NotADuration(text.to_owned()))
}

impl fmt::Display for ReportPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&duration::short(self.0))
    }
}

impl fmt::Display for GracePeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&duration::short(self.0))
    }
}

impl fmt::Display for Tolerations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.not_ready == self.unreachable {
            f.pad(&format!("{}s", self.not_ready))
        } else {
            f.pad(&format!("{}s/{}s", self.not_ready, self.unreachable))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_without_sense_are_refused() {
        assert_eq!(ReportPeriod::parse("0s"), Err(InvalidValue::NoPause));
        assert!(ReportPeriod::parse("soon").is_err());
        assert!(Tolerations::parse_seconds("-1").is_err());
        assert_eq!(GracePeriod::parse("2m0s"), Ok(GracePeriod::seconds(120)));
    }

    #[test]
    fn eviction_takes_the_sums_of_the_specification() {
        let seconds = |values: Values| values.time_to_evict().as_secs();
        assert_eq!(seconds(Values::new(10, 40, 300)), 340);
        assert_eq!(seconds(Values::new(20, 120, 60)), 180);
        assert_eq!(seconds(Values::new(60, 300, 60)), 360);
    }
}
