//! Who asks whom?
//!
//! Nodes stand in [`RINGS`] rings, in each by another hash of their names, and every node is asked by the
//! node before it in each ring. So everybody who knows the Nodes computes the same, a node is asked by
//! [`RINGS`] others and asks as many, and one that comes or goes changes the tasks of its neighbours only.
//! Rendezvous hashing would give every node as many observers, but some of 5,000 observers would have
//! 17 nodes to ask; here nobody has more than a few above the mean.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use pointsman_model::Text;

/// How many nodes ask about a node, in clusters that have so many others.
pub const RINGS: usize = 6;

/// All nodes that ask and are asked.
#[derive(Clone, Debug, Default)]
pub struct Rings {
    rings: [BTreeSet<(u64, Text)>; RINGS],
}

/// Who asks about one node. The two halves share nobody: what one suspects, the other has to confirm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observers {
    all: Vec<Text>,
}

impl Observers {
    /// Those whose suspicion comes first.
    pub fn first(&self) -> &[Text] {
        &self.all[..self.all.len().div_ceil(2)]
    }

    /// Those who have to confirm it.
    pub fn confirming(&self) -> &[Text] {
        &self.all[self.all.len().div_ceil(2)..]
    }

    pub fn all(&self) -> &[Text] {
        &self.all
    }
}

impl Rings {
    /// Adds a node. False when it was there.
    pub fn insert(&mut self, name: &Text) -> bool {
        let mut new = false;
        for (index, ring) in self.rings.iter_mut().enumerate() {
            new |= ring.insert((place(index, name), name.clone()));
        }
        new
    }

    /// Removes a node. False when it was not there.
    pub fn remove(&mut self, name: &str) -> bool {
        let mut known = false;
        for (index, ring) in self.rings.iter_mut().enumerate() {
            known |= ring.remove(&(place(index, name), name.into()));
        }
        known
    }

    pub fn len(&self) -> usize {
        self.rings[0].len()
    }

    pub fn is_empty(&self) -> bool {
        self.rings[0].is_empty()
    }

    /// Who asks about this node: in every ring the nearest before it that does not already ask.
    pub fn observers(&self, name: &str) -> Observers {
        let mut all: Vec<Text> = Vec::with_capacity(RINGS);
        let name = Text::from(name);
        for (index, ring) in self.rings.iter().enumerate() {
            let own = (place(index, &name), name.clone());
            let before = ring.range(..&own).rev();
            let around = ring.range((Excluded(&own), Unbounded)).rev();
            let free = |text: &&Text| !all.contains(*text);
            let found = before.chain(around).map(|(_, name)| name).find(free);
            all.extend(found.cloned());
        }
        Observers { all }
    }

    /// Whom this node asks.
    pub fn peers(&self, name: &str) -> Vec<Text> {
        let mut peers = BTreeSet::new();
        for (index, ring) in self.rings.iter().enumerate() {
            let own = (place(index, name), Text::from(name));
            let after = ring.range((Excluded(&own), Unbounded));
            let around = ring.range(..&own);
            // A node passes over at most those that it has in the rings before.
            peers.extend(after.chain(around).take(RINGS).map(|(_, name)| name.clone()));
        }
        peers.retain(|peer| self.observers(peer).all.iter().any(|text| **text == *name));
        peers.into_iter().collect()
    }
}

/// A node's place in a ring: FNV-1a of its name, mixed with the ring's number as SplitMix64 does. Agents and
/// controllers of different versions have to agree on it, so it never changes.
fn place(ring: usize, name: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = hash.wrapping_add((ring as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn rings(count: usize) -> Rings {
        let mut rings = Rings::default();
        for index in 0..count {
            rings.insert(&format!("node-{index}").into());
        }
        rings
    }

    fn asks(rings: &Rings) -> BTreeMap<Text, Vec<Text>> {
        let nodes = rings.rings[0].iter().map(|(_, name)| name.clone());
        nodes.map(|name| (name.clone(), rings.peers(&name))).collect()
    }

    #[test]
    fn places_never_change() {
        assert_eq!(place(0, "node-1"), 10_712_326_326_059_668_029);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn whom_a_node_asks_and_who_asks_about_it_are_two_views_of_one_thing(count in 0usize..60) {
            let rings = rings(count);
            for (asker, peers) in asks(&rings) {
                prop_assert!(!peers.contains(&asker), "nobody asks itself");
            }
            for (_, name) in &rings.rings[0] {
                let observers = rings.observers(name);
                prop_assert_eq!(observers.all().len(), RINGS.min(count - 1));
                let distinct: BTreeSet<_> = observers.all().iter().collect();
                prop_assert_eq!(distinct.len(), observers.all().len());
                for observer in observers.all() {
                    prop_assert!(rings.peers(observer).contains(name), "{observer} does not ask {name}");
                }
            }
        }

        #[test]
        fn a_node_that_comes_and_goes_again_changes_little_and_leaves_no_trace(count in 8usize..80) {
            let mut rings = rings(count);
            let before = asks(&rings);
            let new: Text = "new".into();
            prop_assert!(rings.insert(&new) && !rings.insert(&new));
            let with = asks(&rings);
            let changed = before.iter().filter(|(name, peers)| with[*name] != **peers).count();
            prop_assert!(changed <= RINGS * 6, "{changed} of {count} nodes ask others now");
            prop_assert!(rings.remove("new") && !rings.remove("new"));
            prop_assert_eq!(asks(&rings), before);
        }
    }

    #[test]
    fn nobody_of_2000_has_much_more_to_ask_than_the_others() {
        let rings = rings(2000);
        let most = asks(&rings).into_values().map(|peers| peers.len()).max();
        assert!(most <= Some(RINGS + 2), "{most:?}");
    }
}
