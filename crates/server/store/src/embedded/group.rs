//! How do the transactions of one group end, seen one after the other?
//!
//! A group is what one disk commit carries. Each transaction sees the effects of those before it.
//! Pure: the writer carries the result to disk and answers.

use super::index::{At, Index, Version};
use crate::{Expect, Op, Revision, Transaction};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// One version to store.
#[derive(Clone, Debug)]
pub struct Write {
    pub at: At,
    pub key: Arc<str>,
    /// `None` removes the key.
    pub value: Option<Bytes>,
    pub created: u64,
    /// The version this one replaces.
    pub previous: Option<At>,
}

/// How one transaction ends if the group reaches the disk.
#[derive(Debug)]
pub enum Verdict {
    Committed(Revision),
    Refused(Vec<(Arc<str>, Option<Version>)>),
}

/// The transactions decided so far.
pub struct Group<'a> {
    index: &'a Index,
    pending: HashMap<Arc<str>, Option<Version>>,
    writes: Vec<Write>,
    newest: u64,
}

impl<'a> Group<'a> {
    /// A group on top of what is committed.
    pub fn new(index: &'a Index) -> Self {
        Self {
            index,
            pending: HashMap::new(),
            writes: Vec::new(),
            newest: index.newest(),
        }
    }

    /// Decides the next transaction.
    pub fn decide(&mut self, transaction: Transaction) -> Verdict {
        let failed: Vec<_> = transaction
            .expect
            .iter()
            .map(|(key, expect)| (key, expect, self.live(key)))
            .filter(|(_, expect, live)| !holds(**expect, *live))
            .map(|(key, _, live)| (Arc::clone(key), live))
            .collect();
        if !failed.is_empty() {
            return Verdict::Refused(failed);
        }
        let revision = self.newest + 1;
        let mut index = 0;
        for op in transaction.ops {
            index += u32::from(self.apply(At { revision, index }, op));
        }
        if index > 0 {
            self.newest = revision;
        }
        Verdict::Committed(Revision(self.newest))
    }

    /// All versions to store, in order.
    pub fn into_writes(self) -> Vec<Write> {
        self.writes
    }

    fn live(&self, key: &str) -> Option<Version> {
        match self.pending.get(key) {
            Some(version) => *version,
            None => self.index.live(key),
        }
    }

    /// Returns whether the effect changes anything.
    fn apply(&mut self, at: At, op: Op) -> bool {
        let before = self.live(op.key());
        let (key, value) = match op {
            Op::Put(key, value) => (key, Some(value)),
            Op::Delete(_) if before.is_none() => return false,
            Op::Delete(key) => (key, None),
        };
        let created = before.map_or(at.revision, |version| version.created);
        let live = value.is_some();
        let now = live.then_some(Version { at, created, live });
        self.pending.insert(Arc::clone(&key), now);
        let previous = before.map(|version| version.at);
        self.writes.push(Write {
            at,
            key,
            value,
            created,
            previous,
        });
        true
    }
}

fn holds(expect: Expect, live: Option<Version>) -> bool {
    match expect {
        Expect::Absent => live.is_none(),
        Expect::Present => live.is_some(),
        Expect::Revision(revision) => live.is_some_and(|version| version.at.revision == revision.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(key: &str) -> Transaction {
        Transaction {
            expect: vec![(key.into(), Expect::Absent)],
            ops: vec![Op::Put(key.into(), Bytes::new())],
        }
    }

    #[test]
    fn a_later_transaction_of_the_group_sees_the_earlier_ones() {
        let index = Index::new(9, 0);
        let mut group = Group::new(&index);
        assert!(matches!(
            group.decide(create("a")),
            Verdict::Committed(Revision(10))
        ));
        assert!(matches!(group.decide(create("a")), Verdict::Refused(_)));
        let remove = Transaction {
            expect: vec![("a".into(), Expect::Revision(Revision(10)))],
            ops: vec![Op::Delete("a".into())],
        };
        assert!(matches!(group.decide(remove), Verdict::Committed(Revision(11))));
        assert!(matches!(
            group.decide(create("a")),
            Verdict::Committed(Revision(12))
        ));
        assert_eq!(
            group.into_writes().len(),
            3,
            "the refused transaction left no trace"
        );
    }

    #[test]
    fn a_transaction_that_changes_nothing_takes_no_revision() {
        let index = Index::new(9, 0);
        let mut group = Group::new(&index);
        let remove = Transaction {
            expect: Vec::new(),
            ops: vec![Op::Delete("absent".into())],
        };
        assert!(matches!(group.decide(remove), Verdict::Committed(Revision(9))));
        assert!(matches!(
            group.decide(create("a")),
            Verdict::Committed(Revision(10))
        ));
    }
}
