//! When did something happen, to the microsecond?

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

/// A point in time, in microseconds since the Unix epoch, by the clock of whoever wrote it down.
///
/// Kubernetes keeps whole seconds in most places; trigger times carry as much as their source has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub i64);

impl Moment {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The moment this many whole seconds after the epoch.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Reads an RFC 3339 timestamp; digits past the microsecond are cut.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<Timestamp>().ok().map(Self::from)
    }

    /// The last microsecond of the second that this moment falls into.
    pub fn end_of_second(self) -> Self {
        Self(self.start_of_second().0.saturating_add(999_999))
    }

    /// The same second without its fraction.
    pub fn start_of_second(self) -> Self {
        Self(self.0.div_euclid(1_000_000).saturating_mul(1_000_000))
    }

    /// This moment moved back by whole seconds.
    pub fn minus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_sub(seconds.saturating_mul(1_000_000)))
    }

    /// How long after `earlier` this moment is; zero when it is not after it.
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

    /// The same as a calendar time; the epoch if it lies beyond the calendar.
    pub fn timestamp(self) -> Timestamp {
        Timestamp::from_microsecond(self.0).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// Whole microseconds of a duration.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl From<Timestamp> for Moment {
    fn from(timestamp: Timestamp) -> Self {
        Self(timestamp.as_microsecond())
    }
}

impl fmt::Display for Moment {
    /// RFC 3339 in UTC, with as many fractional digits as are not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timestamp().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_only_the_digits_that_matter() {
        for text in [
            "2026-11-15T19:00:00Z",
            "2026-11-15T19:00:00.5Z",
            "2026-11-15T19:00:00.000001Z",
        ] {
            assert_eq!(Moment::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            Moment::parse("2024-01-01T01:00:00+01:00"),
            Moment::parse("2024-01-01T00:00:00Z")
        );
        assert_eq!(Moment::parse("yesterday"), None);
    }

    #[test]
    fn seconds_have_a_start_and_an_end() {
        let moment = Moment::from_micros(1_500_000);
        assert_eq!(moment.start_of_second(), Moment::from_seconds(1));
        assert_eq!(moment.end_of_second(), Moment::from_micros(1_999_999));
    }

    #[test]
    fn time_does_not_run_backwards_or_overflow() {
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
        assert_eq!(Moment(9).since(Moment(5)), Duration::from_micros(4));
        assert_eq!(Moment(i64::MAX).after(Duration::MAX), Moment(i64::MAX));
    }
}
