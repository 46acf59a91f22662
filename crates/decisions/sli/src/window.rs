//! Which samples are from the last five minutes?

use std::collections::VecDeque;
use std::time::Duration;

use pointsman_model::Moment;

use crate::micros;
use crate::pool::Pool;

/// The seed's window.
pub const WINDOW: Duration = Duration::from_secs(300);
/// Samples leave the window in steps of this length.
pub const SLOT: Duration = Duration::from_secs(5);

/// Samples and coverage of the last five minutes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// In order of their numbers.
    pub slots: VecDeque<Slot>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slot {
    /// Slots since 1970.
    pub number: i64,
    pub samples: Pool,
    /// Seconds of programmers that passed.
    pub expected_seconds: f64,
    /// Seconds of programmers that samples cover.
    pub covered_seconds: f64,
}

impl Window {
    /// Adds samples, and the time of programmers that they cover.
    pub fn add(&mut self, now: Moment, samples: &Pool, covered: Duration) {
        let slot = self.slot(now);
        slot.samples.merge(samples);
        slot.covered_seconds += covered.as_secs_f64();
    }

    /// So much time of programmers passed, measured or not.
    pub fn expect(&mut self, now: Moment, expected: Duration) {
        self.slot(now).expected_seconds += expected.as_secs_f64();
    }

    /// All samples of the window that ends now.
    pub fn samples(&self, now: Moment) -> Pool {
        let mut all = Pool::default();
        self.current(now).for_each(|slot| all.merge(&slot.samples));
        all
    }

    /// Seconds of programmers in the window: those covered by samples, and all.
    pub fn coverage(&self, now: Moment) -> (f64, f64) {
        let add = |(covered, expected), slot: &Slot| {
            (covered + slot.covered_seconds, expected + slot.expected_seconds)
        };
        self.current(now).fold((0.0, 0.0), add)
    }

    fn current(&self, now: Moment) -> impl Iterator<Item = &Slot> {
        let (first, last) = (oldest(now), number(now));
        self.slots
            .iter()
            .filter(move |slot| (first..=last).contains(&slot.number))
    }

    fn slot(&mut self, now: Moment) -> &mut Slot {
        let wanted = number(now);
        let first = oldest(now);
        // A clock that was set back leaves slots of the future behind; they go when time reaches them.
        self.slots.retain(|slot| slot.number >= first);
        let at = self.slots.partition_point(|slot| slot.number < wanted);
        if self.slots.get(at).is_none_or(|slot| slot.number != wanted) {
            let slot = Slot {
                number: wanted,
                ..Slot::default()
            };
            self.slots.insert(at, slot);
        }
        &mut self.slots[at]
    }
}

fn number(now: Moment) -> i64 {
    now.0.div_euclid(micros(SLOT))
}

fn oldest(now: Moment) -> i64 {
    number(now) - (WINDOW.as_secs() / SLOT.as_secs()) as i64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Span;

    fn one(millis: u64) -> Pool {
        let mut pool = Pool::default();
        pool.add(Span::exact(Duration::from_millis(millis)), 1);
        pool
    }

    fn at(seconds: i64) -> Moment {
        Moment(seconds * 1_000_000)
    }

    #[test]
    fn samples_leave_after_five_minutes() {
        let mut window = Window::default();
        for second in 0..1000 {
            window.add(at(second), &one(second as u64), Duration::from_secs(1));
        }
        let samples = window.samples(at(999));
        assert_eq!(samples.count(), 300);
        assert_eq!(samples.quantile(0.0).unwrap().low, Duration::from_millis(700));
        assert_eq!(window.samples(at(1300)).count(), 0);
        assert!(window.slots.len() <= 60);
    }

    #[test]
    fn a_clock_that_jumps_loses_no_more_than_it_must() {
        let mut window = Window::default();
        window.add(at(10_000), &one(1), Duration::ZERO);
        window.add(at(9_000), &one(2), Duration::ZERO);
        assert_eq!(window.samples(at(9_000)).count(), 1);
        window.add(at(10_010), &one(3), Duration::ZERO);
        assert_eq!(window.samples(at(10_010)).count(), 2);
    }
}
