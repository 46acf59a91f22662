//! May this pod be stopped now?
//!
//! A pod under deletion gets its stop signal when the slice that takes it out of use is in the kernel of
//! every programmer that counts, or when a bounded wait is over: a silent node must not block deletions. A
//! programmer that has been silent or stalled for long is not worth the whole bound of every deletion: the
//! answer names it after [`OVERDUE_WAIT`], as soon as all others have the slice.

use std::time::Duration;

use pointsman_protocol::gate::Outcome;
use pointsman_protocol::watermark::HEARTBEAT;

use crate::endpoints::Requirement;

/// How long a gate waits for programmers that are overdue: one heartbeat, so that one that just came back is
/// noticed.
pub const OVERDUE_WAIT: Duration = HEARTBEAT;

/// What a gate looks at.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// What is known of the deletion that the gate is for.
    pub deletion: Deletion,
    /// What has to be everywhere.
    pub requirement: Requirement,
    /// Whether too little is known yet: endpoints or programmers may still turn up.
    pub may_appear: bool,
    /// Whether any programmer that counts has ever reported a mark.
    pub reported: bool,
    /// The lowest mark for slices of all programmers that count; none if there are none.
    pub lowest: Option<u64>,
    /// The lowest of those that are not overdue; none if there are none.
    pub lowest_punctual: Option<u64>,
    /// How long the gate has been asked.
    pub waited: Duration,
    /// The longest wait.
    pub bound: Duration,
}

/// What is known of the deletion that a gate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// Whether there is one, and of which pod, is still to be seen: whoever asks may be ahead of our watch.
    Unsettled,
    /// All that whoever asks can know of is known here, too.
    Settled,
    /// The API server itself says that nothing is being deleted.
    None,
}

/// Whether the gate opens, and why.
pub fn decide(situation: &Situation) -> Option<Outcome> {
    let over = situation.waited >= situation.bound;
    let may_change = situation.may_appear && !over;
    // Programmers that are known and never reported may still be connecting, unless they are overdue.
    let nobody = !situation.reported && situation.lowest_punctual.is_none();
    let has = |lowest: Option<u64>, revision| lowest.is_none_or(|lowest| lowest >= revision);
    match situation.deletion {
        Deletion::Unsettled => return over.then_some(Outcome::Bound),
        Deletion::None => return Some(Outcome::NotDeleting),
        Deletion::Settled => {}
    }
    match situation.requirement {
        Requirement::Nothing => (!may_change).then_some(Outcome::NoEndpoints),
        _ if nobody => (!may_change).then_some(Outcome::NoProgrammers),
        Requirement::Revision(revision) if has(situation.lowest, revision) => Some(Outcome::Everywhere),
        _ if over => Some(Outcome::Bound),
        Requirement::Revision(revision)
            if has(situation.lowest_punctual, revision) && situation.waited >= OVERDUE_WAIT =>
        {
            Some(Outcome::Bound)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_protocol::gate::DEFAULT_BOUND;

    fn situation(requirement: Requirement, lowest: u64, waited_ms: u64) -> Situation {
        Situation {
            deletion: Deletion::Settled,
            requirement,
            may_appear: false,
            reported: true,
            lowest: Some(lowest),
            lowest_punctual: Some(lowest),
            waited: Duration::from_millis(waited_ms),
            bound: DEFAULT_BOUND,
        }
    }

    #[test]
    fn a_gate_opens_when_the_slice_is_everywhere_and_not_before() {
        let needs = Requirement::Revision(10);
        assert_eq!(decide(&situation(needs, 9, 0)), None);
        assert_eq!(decide(&situation(needs, 10, 0)), Some(Outcome::Everywhere));
        assert_eq!(decide(&situation(Requirement::Unmarked, 10, 0)), None);
    }

    #[test]
    fn a_gate_never_waits_longer_than_its_bound() {
        for needs in [Requirement::Revision(10), Requirement::Unmarked] {
            assert_eq!(decide(&situation(needs, 9, 4_999)), None);
            assert_eq!(decide(&situation(needs, 9, 5_000)), Some(Outcome::Bound));
        }
        // What is everywhere at the last moment is everywhere.
        let last = situation(Requirement::Revision(10), 10, 5_000);
        assert_eq!(decide(&last), Some(Outcome::Everywhere));
    }

    #[test]
    fn pods_that_nobody_sends_traffic_to_do_not_wait() {
        let nothing = situation(Requirement::Nothing, 0, 0);
        assert_eq!(decide(&nothing), Some(Outcome::NoEndpoints));
        let perhaps = Situation {
            may_appear: true,
            ..nothing
        };
        assert_eq!(decide(&perhaps), None);
        let lonely = Situation {
            reported: false,
            lowest: None,
            lowest_punctual: None,
            ..situation(Requirement::Revision(1), 0, 0)
        };
        assert_eq!(decide(&lonely), Some(Outcome::NoProgrammers));
        let starting = Situation {
            may_appear: true,
            ..lonely
        };
        assert_eq!(decide(&starting), None);
        // Those that are known and have never said a word are not waited for either, once that is old.
        let mute = Situation {
            lowest: Some(0),
            ..lonely
        };
        assert_eq!(decide(&mute), Some(Outcome::NoProgrammers));
        let connecting = Situation {
            lowest_punctual: Some(0),
            ..mute
        };
        assert_eq!(decide(&connecting), None);
    }

    #[test]
    fn a_version_that_is_everywhere_means_nothing_before_the_deletion_is_seen() {
        let passed = |deletion, waited_ms| Situation {
            deletion,
            ..situation(Requirement::Revision(10), 10, waited_ms)
        };
        assert_eq!(decide(&passed(Deletion::Unsettled, 4_999)), None);
        assert_eq!(decide(&passed(Deletion::Unsettled, 5_000)), Some(Outcome::Bound));
        assert_eq!(decide(&passed(Deletion::Settled, 0)), Some(Outcome::Everywhere));
        assert_eq!(decide(&passed(Deletion::None, 0)), Some(Outcome::NotDeleting));
    }

    #[test]
    fn one_that_is_overdue_costs_every_gate_a_heartbeat_and_not_its_bound() {
        let overdue = |punctual, waited_ms| Situation {
            lowest_punctual: punctual,
            ..situation(Requirement::Revision(10), 3, waited_ms)
        };
        assert_eq!(decide(&overdue(Some(10), 999)), None, "it may just come back");
        assert_eq!(decide(&overdue(Some(10), 1_000)), Some(Outcome::Bound));
        assert_eq!(
            decide(&overdue(Some(9), 4_999)),
            None,
            "another one is on its way"
        );
        assert_eq!(
            decide(&overdue(None, 1_000)),
            Some(Outcome::Bound),
            "all are overdue"
        );
        let unmarked = Situation {
            requirement: Requirement::Unmarked,
            ..overdue(Some(10), 4_999)
        };
        assert_eq!(decide(&unmarked), None, "the slice is not written yet");
        let back = Situation {
            lowest: Some(10),
            ..overdue(Some(10), 1_000)
        };
        assert_eq!(decide(&back), Some(Outcome::Everywhere));
    }
}
