//! May one more thing happen now?

use std::time::Duration;

/// A token bucket on the caller's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacer {
    rate: f64,
    burst: f64,
    tokens: f64,
    last: Duration,
}

impl Pacer {
    /// A full bucket of `burst` tokens that refills at `rate` tokens per second.
    pub fn new(rate: f64, burst: f64, now: Duration) -> Self {
        Self {
            rate,
            burst,
            tokens: burst,
            last: now,
        }
    }

    /// Goes on at another rate; tokens earned so far are kept.
    pub fn set(&mut self, rate: f64, burst: f64, now: Duration) {
        self.refill(now);
        (self.rate, self.burst) = (rate, burst);
        self.tokens = self.tokens.min(burst);
    }

    /// Takes a token if there is one. At a rate of 0 nothing happens at all, tokens or not.
    pub fn take(&mut self, now: Duration) -> bool {
        self.refill(now);
        // Ten tenths may add up to a little less than one.
        let allowed = self.rate > 0.0 && self.tokens >= 1.0 - 1e-9;
        if allowed {
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
        allowed
    }

    /// When the next token will be there.
    pub fn next(&self, now: Duration) -> Option<Duration> {
        if self.rate <= 0.0 {
            return None;
        }
        let missing = (1.0 - self.tokens).max(0.0) / self.rate;
        let wait = Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX);
        // Rounding must not wake anybody a moment too early, again and again.
        Some(
            self.last
                .saturating_add(wait)
                .saturating_add(Duration::from_micros(1))
                .max(now),
        )
    }

    fn refill(&mut self, now: Duration) {
        let earned = now.saturating_sub(self.last).as_secs_f64() * self.rate;
        self.tokens = (self.tokens + earned).min(self.burst);
        self.last = self.last.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_in_ten_seconds_is_one_in_ten_seconds() {
        let mut pacer = Pacer::new(0.1, 1.0, s(0));
        let taken: Vec<u64> = (0..60).filter(|second| pacer.take(s(*second))).collect();
        assert_eq!(taken, [0, 10, 20, 30, 40, 50]);
        assert!(!pacer.take(s(59)));
        let next = pacer.next(s(59)).expect("a time");
        assert!(pacer.take(next));
    }

    #[test]
    fn a_rate_of_zero_stops_and_a_new_rate_goes_on() {
        let mut pacer = Pacer::new(0.0, 1.0, s(0));
        assert!(!pacer.take(s(100)));
        assert_eq!(pacer.next(s(100)), None);
        pacer.set(1.0, 1.0, s(100));
        assert!(pacer.take(s(100)));
        assert!(!pacer.take(s(100)));
        assert!(!pacer.take(s(50)), "a clock that goes back earns nothing");
    }
}
