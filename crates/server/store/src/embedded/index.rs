//! Which keys exist at revision R, and which old versions may be forgotten?
//!
//! Pure and in memory. Only keys and places are kept here, values stay on disk.
//!
//! Invariants:
//! - The versions of a key are in revision order.
//! - For every revision from `compacted` on, the version visible then is still listed.

use crate::{Range, Revision, StoreError};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The revision of a store that was never written, as in etcd, so that "0" can mean "before
/// everything" to clients.
pub const FIRST: u64 = 1;

/// Where a version is stored: its revision and its place within that revision's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At {
    pub revision: u64,
    pub index: u32,
}

impl From<(u64, u32)> for At {
    fn from((revision, index): (u64, u32)) -> Self {
        Self { revision, index }
    }
}

/// One version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub at: At,
    /// The revision that created the key; of no meaning for a removal.
    pub created: u64,
    /// False for a removal.
    pub live: bool,
}

/// A version that nobody can read once the history before `due` is forgotten.
#[derive(Debug)]
struct Garbage {
    due: u64,
    key: Arc<str>,
    at: At,
}

/// What a range read has to fetch.
#[derive(Debug, PartialEq, Eq)]
pub struct Selection {
    pub entries: Vec<(Arc<str>, Version)>,
    pub at: u64,
    pub remaining: u64,
}

/// All keys with the versions that can still be read.
#[derive(Debug)]
pub struct Index {
    keys: BTreeMap<Arc<str>, Vec<Version>>,
    /// In order of `due`, because versions are inserted in revision order.
    garbage: VecDeque<Garbage>,
    newest: u64,
    compacted: u64,
}

impl Index {
    /// An index without keys, at the given point of history.
    pub fn new(newest: u64, compacted: u64) -> Self {
        Self {
            keys: BTreeMap::new(),
            garbage: VecDeque::new(),
            newest: newest.max(FIRST),
            compacted,
        }
    }

    /// The newest published revision.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The oldest revision that can be read.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Adds a version. Versions come in the order of their places.
    pub fn insert(&mut self, key: Arc<str>, version: Version) {
        let key = match self.keys.get_key_value(&key) {
            Some((known, _)) => Arc::clone(known),
            None => key,
        };
        let due = version.at.revision;
        // Most keys have one version, and a list would begin with room for four.
        let versions = self.keys.entry(Arc::clone(&key));
        let versions = versions.or_insert_with(|| Vec::with_capacity(1));
        if let Some(last) = versions.last().filter(|last| last.live) {
            let at = last.at;
            self.garbage.push_back(Garbage {
                due,
                key: Arc::clone(&key),
                at,
            });
        }
        versions.push(version);
        if !version.live {
            let at = version.at;
            self.garbage.push_back(Garbage { due, key, at });
        }
        self.newest = self.newest.max(due);
    }

    /// The version of a key that exists now.
    pub fn live(&self, key: &str) -> Option<Version> {
        self.keys.get(key)?.last().copied().filter(|version| version.live)
    }

    /// Says whether history after `revision` is complete, for reads and watches alike.
    pub fn check(&self, revision: u64) -> Result<(), StoreError> {
        if revision > self.newest {
            return Err(StoreError::Future {
                asked: Revision(revision),
                newest: Revision(self.newest),
            });
        }
        if revision < self.compacted {
            return Err(StoreError::Compacted {
                asked: Revision(revision),
                oldest: Revision(self.compacted),
            });
        }
        Ok(())
    }

    /// Finds the entries of a range.
    pub fn select(&self, range: &Range) -> Result<Selection, StoreError> {
        let at = range.at.map_or(self.newest, |revision| revision.0);
        self.check(at)?;
        let prefix = range.prefix.as_str();
        let start = match range.after.as_deref() {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut visible = self
            .keys
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter_map(|(key, versions)| Some((key, visible_at(versions, at)?)));
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let entries = visible
            .by_ref()
            .take(limit)
            .map(|(key, version)| (Arc::clone(key), version))
            .collect();
        let remaining = visible.count() as u64;
        Ok(Selection {
            entries,
            at,
            remaining,
        })
    }

    /// Forgets history before `revision`.
    pub fn compact(&mut self, revision: u64) {
        self.compacted = self.compacted.max(revision);
    }

    /// Up to `limit` versions that nobody can read any more, oldest first.
    pub fn due(&self, limit: usize) -> Vec<At> {
        self.garbage
            .iter()
            .take(limit)
            .take_while(|garbage| garbage.due <= self.compacted)
            .map(|garbage| garbage.at)
            .collect()
    }

    /// Drops the first `count` versions that [`Index::due`] listed.
    pub fn forget(&mut self, count: usize) {
        for garbage in self.garbage.drain(..count) {
            let Some(versions) = self.keys.get_mut(&garbage.key) else {
                continue;
            };
            versions.retain(|version| version.at != garbage.at);
            if versions.is_empty() {
                self.keys.remove(&garbage.key);
            } else if versions.capacity() > 4 * versions.len() {
                versions.shrink_to_fit();
            }
        }
        if self.garbage.capacity() > 4 * self.garbage.len().max(1024) {
            self.garbage.shrink_to_fit();
        }
    }
}

fn visible_at(versions: &[Version], at: u64) -> Option<Version> {
    let version = versions.iter().rev().find(|version| version.at.revision <= at)?;
    version.live.then_some(*version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(revision: u64, created: u64) -> Version {
        Version {
            at: At { revision, index: 0 },
            created,
            live: true,
        }
    }

    fn removal(revision: u64) -> Version {
        Version {
            at: At { revision, index: 0 },
            created: 0,
            live: false,
        }
    }

    fn keys(index: &Index, at: u64) -> Vec<String> {
        let range = Range {
            prefix: String::new(),
            after: None,
            limit: 0,
            at: Some(Revision(at)),
        };
        let selection = index.select(&range).expect("the revision is kept");
        selection.entries.iter().map(|(key, _)| key.to_string()).collect()
    }

    #[test]
    fn each_revision_shows_its_own_keys() {
        let mut index = Index::new(0, 0);
        index.insert("a".into(), put(2, 2));
        index.insert("b".into(), put(3, 3));
        index.insert("a".into(), removal(4));
        assert_eq!(keys(&index, 1), Vec::<String>::new());
        assert_eq!(keys(&index, 2), ["a"]);
        assert_eq!(keys(&index, 3), ["a", "b"]);
        assert_eq!(keys(&index, 4), ["b"]);
    }

    #[test]
    fn compaction_lists_superseded_versions_before_the_removal_that_ended_the_key() {
        let mut index = Index::new(0, 0);
        index.insert("a".into(), put(2, 2));
        index.insert("a".into(), put(3, 2));
        index.insert("a".into(), removal(4));
        index.insert("b".into(), put(5, 5));
        assert!(index.due(10).is_empty(), "nothing is due before a compaction");
        index.compact(4);
        let due: Vec<u64> = index.due(10).iter().map(|at| at.revision).collect();
        assert_eq!(due, [2, 3, 4]);
        index.forget(3);
        assert_eq!(keys(&index, 4), Vec::<String>::new());
        assert_eq!(index.keys.len(), 1, "a removed key leaves nothing behind");
    }

    #[test]
    fn reading_on_starts_after_the_given_key_even_if_it_is_gone() {
        let mut index = Index::new(0, 0);
        for (revision, key) in [(2, "p/a"), (3, "p/c"), (4, "q/a")] {
            index.insert(key.into(), put(revision, revision));
        }
        let range = Range {
            prefix: "p/".into(),
            after: Some("p/b".into()),
            limit: 5,
            at: None,
        };
        let selection = index.select(&range).expect("the newest can be read");
        assert_eq!(selection.entries.len(), 1);
        assert_eq!(&*selection.entries[0].0, "p/c");
        assert_eq!(selection.remaining, 0);
    }
}
