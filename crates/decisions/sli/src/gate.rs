//! May this pod be stopped now?
//!
//! A pod under deletion gets its stop signal when the slice that takes it out of use is in the kernel of
//! every live programmer, or when a bounded wait is over: a silent node must not block deletions.

use std::time::Duration;

use pointsman_protocol::gate::Outcome;

use crate::endpoints::Requirement;

/// What a gate looks at.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// What has to be everywhere.
    pub requirement: Requirement,
    /// Whether too little is known yet: endpoints or programmers may still turn up.
    pub may_appear: bool,
    /// Programmers that count.
    pub live: usize,
    /// Their lowest mark for slices.
    pub lowest: u64,
    /// How long the gate has been asked.
    pub waited: Duration,
    /// The longest wait.
    pub bound: Duration,
}

/// Whether the gate opens, and why.
pub fn decide(situation: &Situation) -> Option<Outcome> {
    let over = situation.waited >= situation.bound;
    match situation.requirement {
        Requirement::Nothing if over || !situation.may_appear => Some(Outcome::NoEndpoints),
        Requirement::Nothing => None,
        _ if situation.live == 0 && (over || !situation.may_appear) => Some(Outcome::NoProgrammers),
        _ if situation.live == 0 => None,
        Requirement::Revision(revision) if situation.lowest >= revision => Some(Outcome::Everywhere),
        _ if over => Some(Outcome::Bound),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_protocol::gate::DEFAULT_BOUND;

    fn situation(requirement: Requirement, lowest: u64, waited_ms: u64) -> Situation {
        Situation {
            requirement,
            may_appear: false,
            live: 3,
            lowest,
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
            live: 0,
            ..situation(Requirement::Revision(1), 0, 0)
        };
        assert_eq!(decide(&lonely), Some(Outcome::NoProgrammers));
        let starting = Situation {
            may_appear: true,
            ..lonely
        };
        assert_eq!(decide(&starting), None);
    }
}
