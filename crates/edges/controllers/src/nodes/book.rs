//! Which node holds which pod address ranges?
//!
//! The nodes themselves are the only record: a new process reads them all before it gives out
//! anything. A range that was decided on is held for its node until the node shows it, shows another
//! or is gone, so a write whose answer was lost is repeated with the same range.

use super::ranges::{ClusterRange, Pool, Range};
use pointsman_model::Text;
use std::collections::BTreeMap;

/// Nodes and their ranges.
#[derive(Debug)]
pub(super) struct Book {
    pools: Vec<Pool>,
    nodes: BTreeMap<Text, Holder>,
}

#[derive(Debug)]
struct Holder {
    uid: Text,
    ranges: Vec<Range>,
    /// The node shows its ranges.
    written: bool,
}

/// What is to be done for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Assignment {
    /// It has its ranges, or is gone.
    Nothing,
    /// To be written to the node with this uid.
    Write { uid: Text, ranges: Vec<Range> },
    /// This range has no piece left.
    Exhausted { uid: Text, range: ClusterRange },
}

/// What a node turned out to need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Nothing to do.
    Settled,
    /// The node has no ranges.
    Wants,
    /// The node holds ranges that another node holds too; nobody can take them away.
    Doubled(Vec<Range>),
}

impl Book {
    pub fn new(ranges: &[ClusterRange]) -> Self {
        Self {
            pools: ranges.iter().copied().map(Pool::new).collect(),
            nodes: BTreeMap::new(),
        }
    }

    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Takes in a node. Texts that are no ranges hold nothing.
    pub fn see(&mut self, name: &Text, uid: &Text, texts: &[Text]) -> Sight {
        if self.nodes.get(name).is_some_and(|holder| holder.uid != *uid) {
            // Another node of the same name: the first one went away unseen.
            self.gone(name);
        }
        let shown: Vec<Range> = texts.iter().filter_map(|text| text.parse().ok()).collect();
        let holder = self.nodes.entry(name.clone()).or_insert_with(|| Holder {
            uid: uid.clone(),
            ranges: Vec::new(),
            written: false,
        });
        if texts.is_empty() {
            return Sight::Wants;
        }
        holder.written = true;
        if holder.ranges == shown {
            return Sight::Settled;
        }
        let before = std::mem::replace(&mut holder.ranges, shown.clone());
        for pool in &mut self.pools {
            before.iter().for_each(|range| pool.release(range));
        }
        let doubled: Vec<Range> = shown
            .into_iter()
            .filter(|range| !hold(&mut self.pools, range))
            .collect();
        if doubled.is_empty() {
            Sight::Settled
        } else {
            Sight::Doubled(doubled)
        }
    }

    /// A node is gone; returns whether it held something.
    pub fn gone(&mut self, name: &str) -> bool {
        let Some(holder) = self.nodes.remove(name) else {
            return false;
        };
        for pool in &mut self.pools {
            holder.ranges.iter().for_each(|range| pool.release(range));
        }
        !holder.ranges.is_empty()
    }

    /// Decides what a node gets: one range of each pool, or nothing at all.
    pub fn assign(&mut self, name: &str) -> Assignment {
        let Some(holder) = self.nodes.get_mut(name).filter(|holder| !holder.written) else {
            return Assignment::Nothing;
        };
        let uid = holder.uid.clone();
        if holder.ranges.is_empty() {
            let mut taken = Vec::new();
            for index in 0..self.pools.len() {
                if let Some(range) = self.pools[index].take() {
                    taken.push(range);
                    continue;
                }
                for (pool, range) in self.pools.iter_mut().zip(&taken) {
                    pool.release(range);
                }
                let range = *self.pools[index].range();
                return Assignment::Exhausted { uid, range };
            }
            holder.ranges = taken;
        }
        Assignment::Write {
            uid,
            ranges: holder.ranges.clone(),
        }
    }
}

/// Holds a range in every pool, since it may reach into more than one. False when another holds part of
/// it too.
fn hold(pools: &mut [Pool], range: &Range) -> bool {
    let mut alone = true;
    for pool in pools {
        alone &= pool.hold(range);
    }
    alone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(text: &str) -> Book {
        Book::new(&ClusterRange::parse_list(text, 24, 64).unwrap())
    }

    fn see(book: &mut Book, name: &str, uid: &str, ranges: &[&str]) -> Sight {
        let ranges: Vec<Text> = ranges.iter().map(|range| (*range).into()).collect();
        book.see(&name.into(), &uid.into(), &ranges)
    }

    fn assigned(book: &mut Book, name: &str) -> String {
        match book.assign(name) {
            Assignment::Nothing => "nothing".into(),
            Assignment::Exhausted { range, .. } => format!("{range} is exhausted"),
            Assignment::Write { ranges, .. } => {
                let texts: Vec<String> = ranges.iter().map(Range::to_string).collect();
                texts.join(" ")
            }
        }
    }

    #[test]
    fn a_new_process_gives_out_only_what_no_node_shows() {
        let mut book = book("10.244.0.0/22,fd00::/62");
        assert_eq!(see(&mut book, "new", "1", &[]), Sight::Wants);
        assert_eq!(
            see(&mut book, "old", "2", &["10.244.0.0/24", "fd00::/64"]),
            Sight::Settled
        );
        assert_eq!(assigned(&mut book, "new"), "10.244.1.0/24 fd00:0:0:1::/64");
        assert_eq!(assigned(&mut book, "old"), "nothing");
        assert_eq!(assigned(&mut book, "unknown"), "nothing");
    }

    #[test]
    fn a_write_whose_answer_was_lost_is_repeated_and_not_changed() {
        let mut book = book("10.244.0.0/22");
        see(&mut book, "a", "1", &[]);
        assert_eq!(assigned(&mut book, "a"), "10.244.0.0/24");
        see(&mut book, "a", "1", &[]);
        assert_eq!(assigned(&mut book, "a"), "10.244.0.0/24");
        see(&mut book, "b", "2", &[]);
        assert_eq!(assigned(&mut book, "b"), "10.244.1.0/24");
        assert_eq!(see(&mut book, "a", "1", &["10.244.0.0/24"]), Sight::Settled);
        assert_eq!(assigned(&mut book, "a"), "nothing");
    }

    #[test]
    fn somebody_elses_choice_is_accepted_and_ours_is_free_again() {
        let mut book = book("10.244.0.0/23");
        see(&mut book, "a", "1", &[]);
        assert_eq!(assigned(&mut book, "a"), "10.244.0.0/24");
        see(&mut book, "a", "1", &["10.244.1.0/24"]);
        see(&mut book, "b", "2", &[]);
        assert_eq!(assigned(&mut book, "b"), "10.244.0.0/24");
    }

    #[test]
    fn ranges_of_nodes_that_are_gone_or_replaced_are_given_out_again() {
        let mut book = book("10.244.0.0/24,fd00::/64");
        see(&mut book, "a", "1", &["10.244.0.0/24", "fd00::/64"]);
        see(&mut book, "b", "2", &[]);
        assert_eq!(assigned(&mut book, "b"), "10.244.0.0/24 is exhausted");
        assert_eq!(see(&mut book, "a", "9", &[]), Sight::Wants);
        assert_eq!(assigned(&mut book, "b"), "10.244.0.0/24 fd00::/64");
        assert!(book.gone("b") && !book.gone("b"));
        assert_eq!(assigned(&mut book, "a"), "10.244.0.0/24 fd00::/64");
    }

    #[test]
    fn two_holders_of_one_range_are_reported_and_it_is_kept_from_others() {
        let mut book = book("10.244.0.0/24");
        see(&mut book, "a", "1", &["10.244.0.0/24"]);
        let doubled = see(&mut book, "b", "2", &["10.244.0.0/24"]);
        assert_eq!(doubled, Sight::Doubled(vec!["10.244.0.0/24".parse().unwrap()]));
        book.gone("a");
        see(&mut book, "c", "3", &[]);
        assert_eq!(assigned(&mut book, "c"), "10.244.0.0/24 is exhausted");
    }

    #[test]
    fn one_exhausted_family_takes_nothing_of_the_other() {
        let mut book = book("10.244.0.0/22,fd00::/64");
        see(&mut book, "a", "1", &["10.244.0.0/24", "fd00::/64"]);
        see(&mut book, "b", "2", &[]);
        assert_eq!(assigned(&mut book, "b"), "fd00::/64 is exhausted");
        assert_eq!(book.pools()[0].held(), 1);
    }
}
