//! What time is it, for a decision?

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the caller's monotonic clock, in nanoseconds from an origin of its choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// The time from `earlier` to this point; nothing if `earlier` is later.
    pub fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The latest of the points that lie whole periods after this one and not after `now`.
    pub fn advanced(self, period: Duration, now: Tick) -> Tick {
        let period = nanos(period).max(1);
        let behind = now.0.saturating_sub(self.0);
        Tick(self.0 + behind / period * period)
    }
}

impl Add<Duration> for Tick {
    type Output = Tick;

    fn add(self, length: Duration) -> Tick {
        Tick(self.0.saturating_add(nanos(length)))
    }
}

impl Sub<Duration> for Tick {
    type Output = Tick;

    fn sub(self, length: Duration) -> Tick {
        Tick(self.0.saturating_sub(nanos(length)))
    }
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
