//! How far is another machine's clock from ours?
//!
//! A question and its answer enclose the moment at which the other clock was read, so halfway between
//! them the error is at most half the round trip. Of the last measurements the quickest counts. Between
//! measurements clocks drift; disciplined ones by far less than this error.

use std::collections::VecDeque;
use std::time::Duration;

use pointsman_model::Moment;

/// Measurements that are kept.
const KEPT: usize = 12;
/// Older ones say too little about now.
const MEMORY: Duration = Duration::from_secs(180);

/// The distance between two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// Microseconds by which the other clock is ahead.
    pub ahead: i64,
    /// The largest error that remains.
    pub error: Duration,
}

impl Offset {
    /// Whole milliseconds to take off samples, if the distance is worth it and certain.
    pub fn correction_millis(&self) -> i64 {
        let distance = Duration::from_micros(self.ahead.unsigned_abs());
        if distance < Duration::from_millis(1) || distance <= self.error {
            return 0;
        }
        (self.ahead + self.ahead.signum() * 500) / 1000
    }
}

/// Measurements of one clock.
#[derive(Clone, Debug, Default)]
pub struct Clock(VecDeque<(Moment, i64, Duration)>);

impl Clock {
    /// Takes in a measurement.
    pub fn measured(&mut self, now: Moment, ahead: i64, round_trip: Duration) {
        self.0.push_back((now, ahead, round_trip));
        let old = |at: Moment| now.since(at) > MEMORY;
        while self.0.len() > KEPT || self.0.front().is_some_and(|(at, ..)| old(*at)) {
            self.0.pop_front();
        }
    }

    /// The best that is known; `None` before the first measurement.
    pub fn offset(&self) -> Option<Offset> {
        let best = self.0.iter().min_by_key(|(_, _, round_trip)| *round_trip)?;
        Some(Offset {
            ahead: best.1,
            error: best.2 / 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn the_error_is_at_most_half_the_round_trip(
            truth in -10_000_000i64..10_000_000,
            trips in prop::collection::vec((0i64..50_000, 0i64..50_000), 1..20),
        ) {
            let mut clock = Clock::default();
            for (at, (there, back)) in trips.iter().enumerate() {
                let asked = at as i64 * 1_000_000;
                let read = asked + there + truth;
                let middle = asked + (there + back) / 2;
                let round_trip = Duration::from_micros((there + back) as u64);
                clock.measured(Moment(asked), read - middle, round_trip);
            }
            let offset = clock.offset().unwrap();
            let wrong = Duration::from_micros((offset.ahead - truth).unsigned_abs());
            prop_assert!(wrong <= offset.error + Duration::from_micros(1), "{offset:?} {truth}");
        }
    }

    #[test]
    fn only_distances_that_are_certain_are_corrected() {
        let offset = |ahead, error_micros| Offset {
            ahead,
            error: Duration::from_micros(error_micros),
        };
        assert_eq!(offset(900, 10).correction_millis(), 0);
        assert_eq!(offset(5_600, 8_000).correction_millis(), 0);
        assert_eq!(offset(5_600, 300).correction_millis(), 6);
        assert_eq!(offset(-5_600, 300).correction_millis(), -6);
    }

    #[test]
    fn old_measurements_are_forgotten() {
        let mut clock = Clock::default();
        clock.measured(Moment(0), 7, Duration::from_micros(1));
        clock.measured(Moment(0).after(MEMORY * 2), 9, Duration::from_millis(5));
        assert_eq!(clock.offset().unwrap().ahead, 9);
    }
}
