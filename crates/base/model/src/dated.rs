//! When did a change begin, and how well is that known?

use crate::Moment;

/// How well the beginning of a change is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dated {
    /// Somebody wrote it down in microseconds.
    Exact,
    /// Somebody wrote down the second, and our watch delivered it after its end: the change counts from there.
    Second,
    /// It counts from when our watch delivered it: nobody wrote anything down, or only the second in which it came.
    Watch,
}

impl Dated {
    pub const ALL: [Self; 3] = [Self::Exact, Self::Second, Self::Watch];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Second => "second",
            Self::Watch => "watch",
        }
    }

    /// How well a time is known that somebody wrote down.
    pub fn of(written_down: Option<Moment>) -> Self {
        match written_down {
            None => Self::Watch,
            Some(at) if at == at.start_of_second() => Self::Second,
            Some(_) => Self::Exact,
        }
    }
}

/// The beginning of a change. The earlier of two is the lesser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Began {
    pub at: Moment,
    pub dated: Dated,
}

impl Began {
    /// The beginning of a change that somebody dated `written_down`, and that a watch delivered at `seen`: the
    /// latest moment that both allow.
    ///
    /// It happened before it was seen, and before the end of a second that was written down. So no change counts
    /// from before it happened, and what is left out is what passed until the watch delivered it, never more
    /// than a second where one was written down, and nothing where microseconds were.
    pub fn of(written_down: Option<Moment>, seen: Moment) -> Self {
        let dated = Dated::of(written_down);
        let latest = match dated {
            Dated::Second => written_down.map(Moment::end_of_second),
            _ => written_down,
        };
        match latest.filter(|at| *at <= seen) {
            Some(at) => Self { at, dated },
            None => Self::seen(seen),
        }
    }

    /// The beginning of a change that nobody wrote down.
    pub fn seen(at: Moment) -> Self {
        let dated = Dated::Watch;
        Self { at, dated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn microseconds_count_unless_they_lie_ahead_of_our_clock() {
        let (stamp, seen) = (Moment(5_000_100), Moment(5_006_000));
        let exact = Began {
            at: stamp,
            dated: Dated::Exact,
        };
        assert_eq!(Began::of(Some(stamp), seen), exact);
        assert_eq!(Began::of(None, seen), Began::seen(seen));
        assert_eq!(Began::of(Some(Moment(5_007_000)), seen), Began::seen(seen));
    }

    #[test]
    fn a_second_ends_where_it_ends_or_where_the_watch_delivered_the_change() {
        let second = Some(Moment::from_seconds(5));
        let within = Moment(5_900_000);
        assert_eq!(Began::of(second, within), Began::seen(within));
        let ended = Began {
            at: Moment(5_999_999),
            dated: Dated::Second,
        };
        assert_eq!(Began::of(second, Moment(6_003_000)), ended);
        assert_eq!(Began::of(second, Moment(9_000_000)), ended);
    }

    proptest! {
        /// What counts is never before the truth, never after the watch, and for a second off by less than one.
        #[test]
        fn whatever_was_written_down_the_truth_allows_what_counts(
            truth in 1_000_000_000_i64..1_010_000_000, delay in 0_i64..5_000_000, kind in 0_usize..3,
        ) {
            let (truth, seen) = (Moment(truth), Moment(truth + delay));
            let written_down = [Some(truth), Some(truth.start_of_second()), None][kind];
            let began = Began::of(written_down, seen);
            prop_assert!(truth <= began.at && began.at <= seen);
            let hidden = began.at.since(truth);
            prop_assert!(kind == 2 || hidden < Duration::from_secs(1));
            prop_assert!(kind != 0 || began.dated != Dated::Exact || hidden.is_zero());
        }
    }
}
