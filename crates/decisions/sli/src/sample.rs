//! Which changes are worth a trace?
//!
//! All that were slow, and a share of the others: enough to see what is normal. The choice depends on the change alone, so
//! that two collectors of a cluster choose the same.

use std::time::Duration;

use crate::fold::Change;
use crate::history::latency;

/// How changes are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Of those that were not slow, from 0 to 1.
    pub share: f64,
}

impl Sampling {
    /// Whether a change that is everywhere gets a trace. Slow is what took longer than the objective.
    pub fn keeps(&self, change: &Change, objective: Duration) -> bool {
        let Some(took) = latency(change) else {
            return false;
        };
        let drawn = mixed(change.what.revision) as f64 / u64::MAX as f64;
        took > objective || drawn < self.share
    }
}

/// A number that looks random and is the same for the same version (the last step of MurmurHash3).
pub fn mixed(revision: u64) -> u64 {
    let mut value = revision.wrapping_add(0x9E37_79B9_7F4A_7C15);
    value = (value ^ (value >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    value = (value ^ (value >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    value ^ (value >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::change;

    #[test]
    fn all_slow_changes_and_a_share_of_the_others_are_chosen() {
        let sampling = Sampling { share: 0.1 };
        let objective = Duration::from_millis(100);
        let chosen = |took: [i64; 4]| {
            let chosen = (0..10_000).filter(|n| sampling.keeps(&change(*n, 0, took), objective));
            chosen.count()
        };
        assert_eq!(chosen([1, 1, 1, 98]), 10_000, "one millisecond too slow");
        let others = chosen([1, 1, 1, 97]);
        assert!((900..1100).contains(&others), "{others}");
        let mut open = change(1, 0, [1, 1, 1, 1]);
        open.all = None;
        assert!(
            !Sampling { share: 1.0 }.keeps(&open, objective),
            "its time is not known yet"
        );
    }
}
