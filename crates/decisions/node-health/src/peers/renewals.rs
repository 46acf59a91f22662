//! Which delivery of a Lease is a sign of life of its holder?
//!
//! A Lease is also delivered when a list is read again, and when somebody else writes to it. Only a new time of renewal
//! counts, whatever the holder's clock says. Of a Lease that is seen for the first time the clocks have to tell whether it
//! was renewed lately: what it says may have been written before a power cut.

use std::collections::HashMap;
use std::time::Duration;

use pointsman_model::{Moment, Text};

/// When each Lease was last renewed, by its holder's clock.
#[derive(Clone, Debug, Default)]
pub struct Renewals {
    seen: HashMap<Text, Option<Moment>>,
}

impl Renewals {
    /// Whether the Lease of `node` was renewed since it was last delivered; the first time, whether it was renewed
    /// within `fresh` of now.
    pub fn observe(&mut self, node: &Text, renewed: Option<Moment>, now: Moment, fresh: Duration) -> bool {
        match self.seen.insert(node.clone(), renewed) {
            Some(before) => before != renewed,
            None => renewed.is_some_and(|renewed| {
                let apart = now.as_micros().abs_diff(renewed.as_micros());
                u128::from(apart) <= fresh.as_micros()
            }),
        }
    }

    pub fn remove(&mut self, node: &str) {
        self.seen.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Duration = Duration::from_secs(40);

    fn at(second: i64) -> Option<Moment> {
        Some(Moment::from_seconds(second))
    }

    #[test]
    fn only_a_new_time_of_renewal_is_a_sign_of_life() {
        let (mut renewals, node) = (Renewals::default(), Text::from("n1"));
        let now = Moment::from_seconds(1_000);
        let mut observe = |renewed| renewals.observe(&node, renewed, now, FRESH);
        assert!(observe(at(990)));
        assert!(!observe(at(990)), "it was delivered by another list");
        assert!(observe(at(995)));
        assert!(observe(at(500)), "its clock was set back");
        assert!(!observe(at(500)));
    }

    #[test]
    fn what_was_written_long_ago_says_nothing_until_it_is_renewed() {
        let (mut renewals, node) = (Renewals::default(), Text::from("n1"));
        let now = Moment::from_seconds(1_000);
        assert!(!renewals.observe(&node, at(959), now, FRESH));
        assert!(!renewals.observe(&node, at(959), now, FRESH));
        assert!(renewals.observe(&node, at(1_000), now, FRESH));
        renewals.remove("n1");
        assert!(!renewals.observe(&node, None, now, FRESH), "never renewed");
    }
}
