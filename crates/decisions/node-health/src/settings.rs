//! How patient is the controller?

use std::time::Duration;

/// Every number an operator can set, changeable while the controller runs.
///
/// The defaults are kube-controller-manager's, with its long-standing grace period of 40 s (50 s since
/// 1.32). Marking pods it does not pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How often heartbeats are checked.
    pub monitor_period: Duration,
    /// How long a node may be silent.
    pub grace_period: Duration,
    /// How long a new node may take to report for the first time.
    pub startup_grace_period: Duration,
    /// Nodes per second that are tainted for eviction in a normal zone.
    pub eviction_rate: f64,
    /// The same in a large zone under partial disruption.
    pub secondary_eviction_rate: f64,
    /// A zone with more nodes than this is large.
    pub large_zone_threshold: usize,
    /// Share of nodes not ready from which a zone is partially disrupted.
    pub unhealthy_threshold: f64,
    /// Silent nodes per second whose pods are marked not ready in a normal zone.
    pub marking_rate: f64,
    /// Silent nodes whose pods may be marked at once in a normal zone.
    pub marking_burst: f64,
    /// Silent nodes per second whose pods are marked not ready in a disrupted zone.
    pub disrupted_marking_rate: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            monitor_period: Duration::from_secs(5),
            grace_period: Duration::from_secs(40),
            startup_grace_period: Duration::from_secs(60),
            eviction_rate: 0.1,
            secondary_eviction_rate: 0.01,
            large_zone_threshold: 50,
            unhealthy_threshold: 0.55,
            marking_rate: 10.0,
            marking_burst: 10.0,
            disrupted_marking_rate: 0.5,
        }
    }
}

/// Why settings were refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// Nodes would be called silent between two looks.
    #[error("the grace period ({grace:?}) must be at least the monitor period ({monitor:?})")]
    GraceTooShort {
        /// The grace period.
        grace: Duration,
        /// The monitor period.
        monitor: Duration,
    },
    /// A period of zero would never let go.
    #[error("the monitor period must be positive")]
    NoMonitorPeriod,
    /// A rate below zero or not a number.
    #[error("{0} must be zero or a positive number")]
    BadRate(&'static str),
    /// Not a share.
    #[error("the unhealthy threshold must be between 0 and 1")]
    BadThreshold,
}

impl Settings {
    /// Checks that the numbers make sense together.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.monitor_period.is_zero() {
            return Err(SettingsError::NoMonitorPeriod);
        }
        if self.grace_period < self.monitor_period {
            return Err(SettingsError::GraceTooShort {
                grace: self.grace_period,
                monitor: self.monitor_period,
            });
        }
        for (name, rate) in [
            ("the eviction rate", self.eviction_rate),
            ("the secondary eviction rate", self.secondary_eviction_rate),
            ("the marking rate", self.marking_rate),
            ("the marking burst", self.marking_burst),
            ("the disrupted marking rate", self.disrupted_marking_rate),
        ] {
            if !(rate.is_finite() && rate >= 0.0) {
                return Err(SettingsError::BadRate(name));
            }
        }
        if !(0.0..=1.0).contains(&self.unhealthy_threshold) {
            return Err(SettingsError::BadThreshold);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_that_make_sense_pass() {
        assert_eq!(Settings::default().validate(), Ok(()));
        let short = Settings {
            grace_period: Duration::from_secs(1),
            ..Settings::default()
        };
        assert!(matches!(
            short.validate(),
            Err(SettingsError::GraceTooShort { .. })
        ));
        let odd = Settings {
            eviction_rate: f64::NAN,
            ..Settings::default()
        };
        assert_eq!(odd.validate(), Err(SettingsError::BadRate("the eviction rate")));
        let much = Settings {
            unhealthy_threshold: 1.5,
            ..Settings::default()
        };
        assert_eq!(much.validate(), Err(SettingsError::BadThreshold));
    }
}
