//! What time is it on the other machine?
//!
//! The collector compares the answer with its own clock, halfway between its question and the answer.

use pointsman_model::Moment;
use serde::Deserialize;

/// Where a programmer answers.
pub const PATH: &str = "/clock";

/// The most bytes of an answer that are worth reading.
pub const LONGEST: usize = 1024;

/// The answer of a clock that shows `now`.
pub fn encode(now: Moment) -> String {
    format!("{{\"time\":\"{now}\"}}")
}

/// Reads an answer; `None` for anything else.
pub fn decode(answer: &[u8]) -> Option<Moment> {
    #[derive(Deserialize)]
    struct Clock {
        time: String,
    }
    let clock: Clock = serde_json::from_slice(answer).ok()?;
    Moment::parse(&clock.time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_a_clock_shows_is_what_is_read(micros in 0..1i64 << 55) {
            prop_assert_eq!(decode(encode(Moment(micros)).as_bytes()), Some(Moment(micros)));
        }

        #[test]
        fn any_bytes_are_a_time_or_none(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn anything_but_a_time_is_refused() {
        assert_eq!(
            decode(br#"{"time":"1970-01-01T00:00:01Z"}"#),
            Some(Moment(1_000_000))
        );
        for bad in ["", "{}", r#"{"time":5}"#, r#"{"time":"now"}"#] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
