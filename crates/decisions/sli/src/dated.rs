//! When did a change begin, and how well is that known?

use std::time::Duration;

use pointsman_model::Moment;

/// How well the beginning of a change is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dated {
    /// Somebody wrote it down in microseconds.
    Exact,
    /// Somebody wrote down the second: the change is up to a second younger than it looks.
    Second,
    /// Nobody did: it counts from when our watch delivered it, and took longer than it looks.
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

/// When an object was written that our watch delivered at `seen`: the time that its server wrote down,
/// unless when we saw it is nearer to the truth.
pub fn write(written_down: Option<Moment>, seen: Moment) -> (Option<Moment>, Dated) {
    let believed = written_down.filter(|at| match Dated::of(Some(*at)) {
        Dated::Second => seen.since(*at) > Duration::from_secs(1),
        _ => *at <= seen,
    });
    (believed, Dated::of(believed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_microseconds_win_over_our_watch() {
        let (stamp, seen) = (Moment(5_000_100), Moment(5_006_000));
        assert_eq!(write(Some(stamp), seen), (Some(stamp), Dated::Exact));
        assert_eq!(write(None, seen), (None, Dated::Watch));
        let ahead = Moment(5_007_000);
        assert_eq!(
            write(Some(ahead), seen),
            (None, Dated::Watch),
            "its clock is ahead of ours"
        );
    }

    #[test]
    fn a_second_counts_only_when_we_saw_the_write_later_than_its_end() {
        let second = Moment::from_seconds(5);
        assert_eq!(write(Some(second), Moment(5_900_000)), (None, Dated::Watch));
        assert_eq!(
            write(Some(second), Moment(9_000_000)),
            (Some(second), Dated::Second)
        );
    }
}
