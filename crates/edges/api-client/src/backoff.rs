//! How long is the wait before the next attempt?

use std::time::Duration;

/// Waits that double from a first to a longest one, each up to half as long again by chance, so that
/// many clients of a restarted server do not all return in the same instant.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Waits between these two.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Something worked: the next failure waits shortest again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after one more failure. `chance` is between 0 and 1.
    pub fn next(&mut self, chance: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        let base = doubled.min(self.longest);
        base + base.mul_f64(chance.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_longest_and_start_over_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(300));
        let waits: Vec<u128> = (0..5).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 300, 300]);
        backoff.reset();
        assert_eq!(backoff.next(1.0), Duration::from_millis(75));
    }
}
