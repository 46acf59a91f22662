//! When did something happen, to the microsecond?

use std::fmt;
use std::time::Duration;

/// A point in time, in microseconds since the Unix epoch.
///
/// Kubernetes keeps whole seconds in most places; trigger times carry as much as their source has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

impl Moment {
    /// The moment this many microseconds after the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The moment this many whole seconds after the epoch.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Reads an RFC 3339 timestamp; digits past the microsecond are cut.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>()
            .ok()
            .map(|timestamp| Self(timestamp.as_microsecond()))
    }

    /// The last microsecond of the second that this moment falls into.
    pub fn end_of_second(self) -> Self {
        Self(
            self.0
                .div_euclid(1_000_000)
                .saturating_mul(1_000_000)
                .saturating_add(999_999),
        )
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
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Moment {
    /// RFC 3339 in UTC, with as many fractional digits as are not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(timestamp) => timestamp.fmt(f),
            Err(_) => f.write_str("1970-01-01T00:00:00Z"),
        }
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
            assert_eq!(
                Moment::parse(text).map(|moment| moment.to_string()).as_deref(),
                Some(text)
            );
        }
        assert_eq!(Moment::parse("yesterday"), None);
    }

    #[test]
    fn seconds_have_a_start_and_an_end() {
        let moment = Moment::from_micros(1_500_000);
        assert_eq!(moment.start_of_second(), Moment::from_seconds(1));
        assert_eq!(moment.end_of_second(), Moment::from_micros(1_999_999));
        assert_eq!(moment.since(Moment::from_seconds(2)), Duration::ZERO);
    }
}
