//! When did something happen, by the collector's clock?

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub i64);

impl Moment {
    /// The time from `earlier` to this moment; zero if it lies after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The moment so much later.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(micros(wait)))
    }

    /// The moment so much earlier.
    #[must_use]
    pub fn before(self, wait: Duration) -> Self {
        Self(self.0.saturating_sub(micros(wait)))
    }
}

/// Whole microseconds of a duration.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards_or_overflow() {
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
        assert_eq!(Moment(9).since(Moment(5)), Duration::from_micros(4));
        assert_eq!(Moment(i64::MAX).after(Duration::MAX), Moment(i64::MAX));
    }
}
