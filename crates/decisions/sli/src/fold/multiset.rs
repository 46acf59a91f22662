//! Which marks do the programmers have, counted?
//!
//! At any moment most programmers share a few marks near the newest, so a map from mark to count is
//! small whatever the size of the cluster: an update costs two lookups, the lowest mark is the first key,
//! and low percentiles are a few steps from it.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Multiset(BTreeMap<u64, usize>);

impl Multiset {
    pub fn insert(&mut self, mark: u64) {
        *self.0.entry(mark).or_default() += 1;
    }

    pub fn remove(&mut self, mark: u64) {
        if let Some(count) = self.0.get_mut(&mark) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&mark);
            }
        }
    }

    pub fn lowest(&self) -> Option<u64> {
        self.0.first_key_value().map(|(mark, _)| *mark)
    }

    /// How many are at this mark or above.
    pub fn at_least(&self, mark: u64) -> usize {
        self.0.range(mark..).map(|(_, count)| count).sum()
    }

    /// The `rank`-th lowest mark, counted from 1.
    pub fn ranked(&self, rank: usize) -> Option<u64> {
        let mut seen = 0;
        self.0.iter().find_map(|(mark, count)| {
            seen += count;
            (seen >= rank).then_some(*mark)
        })
    }
}

/// The marks of all programmers that count, and of those among them that are not overdue.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub all: Multiset,
    pub punctual: Multiset,
}

impl Marks {
    pub fn insert(&mut self, mark: u64, overdue: bool) {
        self.all.insert(mark);
        if !overdue {
            self.punctual.insert(mark);
        }
    }

    pub fn remove(&mut self, mark: u64, overdue: bool) {
        self.all.remove(mark);
        if !overdue {
            self.punctual.remove(mark);
        }
    }
}
