//! What may a writer ask for, and how does it end?

use crate::{Entry, Revision, StoreError};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a transaction requires of a key before it may commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key must not exist.
    Absent,
    /// The key's last write must be this one.
    Revision(Revision),
    /// The key must exist, whatever its revision.
    Present,
}

/// One effect of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes the value.
    Put(Arc<str>, Bytes),
    /// Removes the key; nothing happens if it is absent.
    Delete(Arc<str>),
}

/// Checks and effects that happen together or not at all. At most one effect per key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub expect: Vec<(Arc<str>, Expect)>,
    /// What happens then. At most 120 effects, so that any engine can carry it.
    pub ops: Vec<Op>,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All effects are durable, under this revision.
    Committed(Revision),
    /// An expectation did not hold; nothing happened. Each failed key comes with its present entry.
    Refused(Vec<(Arc<str>, Option<Entry>)>),
}

/// The most effects one transaction may have. Etcd's default limit is 128 operations, and a refused
/// transaction also reads its failed keys.
pub const MAX_OPS: usize = 120;

impl Transaction {
    /// Says what is wrong with the transaction itself, whatever the store holds.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.ops.len() > MAX_OPS || self.expect.len() > MAX_OPS {
            return Err(StoreError::Invalid(format!(
                "{} effects and {} expectations, at most {MAX_OPS} of each",
                self.ops.len(),
                self.expect.len()
            )));
        }
        let mut keys = BTreeSet::new();
        for op in &self.ops {
            let key = op.key();
            if key.is_empty() {
                return Err(StoreError::Invalid("a key is empty".into()));
            }
            if !keys.insert(key) {
                return Err(StoreError::Invalid(format!("two effects on key {key:?}")));
            }
        }
        Ok(())
    }
}

impl Op {
    /// The key this effect is about.
    pub fn key(&self) -> &Arc<str> {
        match self {
            Op::Put(key, _) | Op::Delete(key) => key,
        }
    }
}
