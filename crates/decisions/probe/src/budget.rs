//! How much may all probes of a node cost together?
//!
//! Two limits, checks per second and CPU time of the probing thread, give one factor by which every
//! period is stretched. Being the same for all it is fair: nobody's probes are dropped for the
//! sake of somebody else's.

use std::time::Duration;

/// The largest factor. Beyond it, even whole-second probes would be minutes apart.
const MAX_STRETCH: f64 = 100.0;
/// How much of the way back to the wanted factor one window goes; the way up is taken at once, so
/// that the factor does not swing.
const RELEASE: f64 = 0.25;

/// What all probes together may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Checks per second.
    pub checks_per_second: f64,
    /// CPU seconds per second.
    pub cpu_share: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            checks_per_second: 20_000.0,
            cpu_share: 0.5,
        }
    }
}

/// What was measured in one stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// How long it was.
    pub elapsed: Duration,
    /// CPU time spent on probing in it.
    pub cpu: Duration,
    /// Checks per second that the probes ask for, before any stretching.
    pub demand: f64,
}

/// The factor by which all periods are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    limits: Limits,
    for_cpu: f64,
    stretch: f64,
}

impl Budget {
    /// A budget that has not been exceeded yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            for_cpu: 1.0,
            stretch: 1.0,
        }
    }

    /// The factor in force, at least 1.
    pub fn stretch(&self) -> f64 {
        self.stretch
    }

    /// Takes a measurement and returns the factor for the next window.
    pub fn measure(&mut self, window: Window) -> f64 {
        let for_rate = ratio(window.demand, self.limits.checks_per_second);
        let share = ratio(window.cpu.as_secs_f64(), window.elapsed.as_secs_f64());
        // The cost was paid at the factor in force; this is the factor at which it would have been
        // the limit.
        let wanted = (self.stretch * ratio(share, self.limits.cpu_share)).clamp(1.0, MAX_STRETCH);
        self.for_cpu = if wanted > self.for_cpu {
            wanted.min(self.for_cpu * 2.0)
        } else {
            self.for_cpu + (wanted - self.for_cpu) * RELEASE
        };
        if self.for_cpu < 1.01 {
            self.for_cpu = 1.0;
        }
        self.stretch = self.for_cpu.max(for_rate).clamp(1.0, MAX_STRETCH);
        self.stretch
    }
}

fn ratio(value: f64, limit: f64) -> f64 {
    if limit > 0.0 && value.is_finite() {
        value.max(0.0) / limit
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The CPU share and checks per second after many windows in which a check costs `cost`.
    fn settle(limits: Limits, demand: f64, cost: f64) -> (f64, f64) {
        let mut budget = Budget::new(limits);
        let mut seen = (0.0, 0.0);
        for _ in 0..200 {
            let rate = demand / budget.stretch();
            seen = (rate * cost, rate);
            budget.measure(Window {
                elapsed: SECOND,
                cpu: SECOND.mul_f64(rate * cost),
                demand,
            });
        }
        seen
    }

    #[test]
    fn nothing_is_stretched_below_the_limits() {
        let limits = Limits {
            checks_per_second: 1000.0,
            cpu_share: 0.5,
        };
        assert_eq!(settle(limits, 900.0, 0.0001).1, 900.0);
    }

    #[test]
    fn the_factor_goes_back_to_one_when_the_load_is_gone() {
        let mut budget = Budget::new(Limits {
            checks_per_second: 100.0,
            cpu_share: 0.1,
        });
        for _ in 0..10 {
            budget.measure(Window {
                elapsed: SECOND,
                cpu: SECOND,
                demand: 1000.0,
            });
        }
        assert!(budget.stretch() >= 10.0);
        for _ in 0..60 {
            budget.measure(Window {
                elapsed: SECOND,
                cpu: Duration::ZERO,
                demand: 10.0,
            });
        }
        assert_eq!(budget.stretch(), 1.0);
    }

    #[test]
    fn an_empty_window_measures_nothing() {
        let mut budget = Budget::new(Limits::default());
        let nothing = Window {
            elapsed: Duration::ZERO,
            cpu: SECOND,
            demand: f64::NAN,
        };
        assert_eq!(budget.measure(nothing), 1.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn any_load_settles_at_its_limits(
            demand in 1.0f64..50_000.0, cost in 0.000_001f64..0.001, share in 0.05f64..1.0, rate in 10.0f64..50_000.0
        ) {
            let limits = Limits { checks_per_second: rate, cpu_share: share };
            let (used, checks) = settle(limits, demand, cost);
            let needed = (demand / rate).max(demand * cost / share);
            prop_assume!(needed < MAX_STRETCH);
            prop_assert!(used <= share * 1.02, "{used} of {share}");
            prop_assert!(checks <= rate * 1.001);
            // And no more is taken away than needed.
            prop_assert!(checks >= 0.95 * demand / needed.max(1.0));
        }
    }
}
