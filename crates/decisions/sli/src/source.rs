//! Which samples did a programmer add since it was last asked?
//!
//! Programmers count for ever and begin anew when they restart; the collector may have been away. What a
//! reading adds is the difference to the last one, or everything if the counters began anew in between.

use std::time::Duration;

use crate::pool::Pool;
use pointsman_model::Moment;

/// One reading of a programmer's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// When it was read.
    pub at: Moment,
    /// When the programmer started, if it says so.
    pub started: Option<Moment>,
    /// All samples that it has counted since.
    pub counted: Pool,
}

/// What a reading adds to what was known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addition {
    pub samples: Pool,
    /// How much of the time since the last reading they cover.
    pub covered: Duration,
    /// The counters began anew, so that samples may be lost.
    pub restarted: bool,
}

/// Starts are reported in hundredths of a second, and clocks are adjusted.
const SAME_START: Duration = Duration::from_secs(2);

/// What `reading` adds to `before`. Without a former reading, only what was counted since `known_since`
/// is new, which is known only of programmers that started later.
pub fn addition(before: Option<&Reading>, reading: &Reading, known_since: Moment) -> Addition {
    let Some(before) = before else {
        let started = reading.started.filter(|started| *started >= known_since);
        return started.map_or_else(Addition::default, |started| Addition {
            samples: reading.counted.clone(),
            covered: reading.at.since(started),
            restarted: false,
        });
    };
    let gap = reading.at.since(before.at);
    let same = match (before.started, reading.started) {
        (Some(one), Some(other)) => one.since(other).max(other.since(one)) <= SAME_START,
        _ => true,
    };
    let more = same.then(|| reading.counted.since(&before.counted)).flatten();
    match more {
        Some(samples) => Addition {
            samples,
            covered: gap,
            restarted: false,
        },
        // The end of the former process is lost; the new one has counted since it started.
        None => Addition {
            samples: reading.counted.clone(),
            covered: reading
                .started
                .map_or(Duration::ZERO, |at| reading.at.since(at))
                .min(gap),
            restarted: true,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Span;

    fn reading(at: i64, started: i64, millis: &[u64]) -> Reading {
        let mut counted = Pool::default();
        for high in millis {
            counted.add(
                Span {
                    low: (high - 1) * 1000,
                    high: high * 1000,
                },
                1,
            );
        }
        Reading {
            at: Moment(at * 1_000_000),
            started: Some(Moment(started * 1_000_000)),
            counted,
        }
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_reading_adds_what_the_last_one_had_not() {
        let before = reading(100, 0, &[5]);
        let added = addition(Some(&before), &reading(110, 0, &[5, 5, 9]), Moment(0));
        assert_eq!(
            (added.samples.count(), added.covered, added.restarted),
            (2, seconds(10), false)
        );
    }

    #[test]
    fn a_restart_is_noticed_by_its_time_even_if_the_counters_grew() {
        let before = reading(100, 0, &[5]);
        let added = addition(Some(&before), &reading(110, 104, &[5, 5]), Moment(0));
        assert_eq!(
            (added.samples.count(), added.covered, added.restarted),
            (2, seconds(6), true)
        );
    }

    #[test]
    fn a_restart_is_noticed_by_counters_that_went_back() {
        let mut before = reading(100, 0, &[5, 5, 7]);
        before.started = None;
        let mut after = reading(110, 0, &[5]);
        after.started = None;
        let added = addition(Some(&before), &after, Moment(0));
        assert_eq!(
            (added.samples.count(), added.covered, added.restarted),
            (1, seconds(0), true)
        );
    }

    #[test]
    fn what_happened_before_we_looked_is_not_ours() {
        let old = addition(None, &reading(100, 0, &[5]), Moment(50_000_000));
        assert_eq!(old, Addition::default());
        let new = addition(None, &reading(100, 60, &[5]), Moment(50_000_000));
        assert_eq!((new.samples.count(), new.covered), (1, seconds(40)));
    }
}
