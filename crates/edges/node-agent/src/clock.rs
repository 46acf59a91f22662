//! What time is it, on both clocks?

use jiff::Timestamp;
use pointsman_pod_lifecycle::Now;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Reads both clocks; the monotonic one counts from the agent's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Now {
        Now {
            wall: Timestamp::now(),
            mono: self.0.elapsed(),
        }
    }

    /// The instant of a time on the monotonic clock; one beyond all that clocks can show is a year away.
    pub(crate) fn instant(self, mono: Duration) -> Instant {
        let year = Duration::from_secs(365 * 24 * 3600);
        self.0.checked_add(mono).unwrap_or_else(|| Instant::now() + year)
    }
}

/// A time of the system's clock; what cannot be told is 1970.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH)
}
