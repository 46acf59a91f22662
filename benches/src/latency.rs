//! How long did things take?

use std::time::Duration;

/// Durations in microseconds; up to 71 minutes each.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    micros: Vec<u32>,
}

impl Latencies {
    /// Adds one duration.
    pub fn record(&mut self, duration: Duration) {
        self.micros
            .push(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX));
    }

    /// Adds all durations of `other`.
    pub fn merge(&mut self, other: Self) {
        self.micros.extend(other.micros);
    }

    /// How many durations there are.
    pub fn count(&self) -> usize {
        self.micros.len()
    }

    /// Sorts once, to be asked for quantiles.
    pub fn sorted(mut self) -> Quantiles {
        self.micros.sort_unstable();
        Quantiles { micros: self.micros }
    }
}

pub struct Quantiles {
    micros: Vec<u32>,
}

impl Quantiles {
    /// The smallest duration that at least `quantile` of all do not exceed, in milliseconds; zero if
    /// there is none.
    pub fn millis(&self, quantile: f64) -> f64 {
        let rank = (self.micros.len() as f64 * quantile).ceil() as usize;
        let at = rank.clamp(1, self.micros.len().max(1)) - 1;
        self.micros.get(at).map_or(0.0, |micros| f64::from(*micros) / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.clone().sorted().millis(0.99), 0.0);
        for millis in (1..=100).rev() {
            latencies.record(Duration::from_millis(millis));
        }
        let sorted = latencies.sorted();
        assert_eq!(
            (sorted.millis(0.5), sorted.millis(0.99), sorted.millis(1.0)),
            (50.0, 99.0, 100.0)
        );
    }
}
