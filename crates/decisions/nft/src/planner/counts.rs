//! How many Services share an element?

use std::collections::HashMap;
use std::hash::Hash;

/// One user more or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Add,
    Remove,
}

impl Step {
    pub fn from(self, count: u32) -> u32 {
        match self {
            Self::Add => count + 1,
            Self::Remove => count.saturating_sub(1),
        }
    }
}

/// Counts by key. As part of an update it holds the new counts of the keys that changed.
#[derive(Clone, Debug)]
pub(super) struct Counts<K>(HashMap<K, u32>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Copy + Eq + Hash + Ord> Counts<K> {
    fn get(&self, key: K) -> u32 {
        self.0.get(&key).copied().unwrap_or(0)
    }

    /// Notes one user more or less, starting from `base` for keys not touched yet.
    pub fn step(&mut self, base: &Self, key: K, by: Step) {
        let count = self.0.entry(key).or_insert_with(|| base.get(key));
        *count = by.from(*count);
    }

    /// The keys of this update with their counts before and after, in order.
    pub fn changes(&self, base: &Self) -> Vec<(K, u32, u32)> {
        let mut changes: Vec<(K, u32, u32)> = self
            .0
            .iter()
            .map(|(key, after)| (*key, base.get(*key), *after))
            .collect();
        changes.sort_unstable();
        changes
    }

    /// Takes over the counts of an update.
    pub fn replace(&mut self, update: Self) {
        for (key, count) in update.0 {
            if count == 0 {
                self.0.remove(&key);
            } else {
                self.0.insert(key, count);
            }
        }
    }

    /// The keys with any users.
    pub fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.0.keys().copied()
    }
}
