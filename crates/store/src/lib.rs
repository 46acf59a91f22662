//! Where do objects live, and what changed since revision R?
//!
//! A [`Store`] is an ordered map from keys to byte values with one revision counter for the whole
//! store, in the manner of etcd. It knows nothing of Kubernetes and nothing of HTTP.
//!
//! Invariants, for every engine:
//! - Every committed transaction that changes something gets a revision greater than all before it;
//!   a revision is never reused, also after a crash.
//! - A commit that was answered with `Ok` survives `kill -9` and power loss.
//! - A watch from revision R delivers every event with a revision greater than R exactly once, in
//!   order, all events of one revision together, or ends with [`StoreError::Compacted`].
//! - A range at revision R shows exactly the state after R, or fails with [`StoreError::Compacted`].

use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A point in the store's history. Zero is before the first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A key and its value at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Arc<str>,
    /// The value as it was written.
    pub value: Bytes,
    /// The revision of the write that made this value.
    pub revision: Revision,
    /// The revision of the write that created the key.
    pub created: Revision,
}

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

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The key has a new value; `previous` is the value it replaced.
    Put {
        /// The new state.
        entry: Entry,
        /// The state before, if the key existed.
        previous: Option<Bytes>,
    },
    /// The key is gone.
    Delete {
        /// The key.
        key: Arc<str>,
        /// The last value.
        previous: Bytes,
        /// The revision of the removal.
        revision: Revision,
    },
}

/// A step of a watch: all events of one or more consecutive revisions, then the revision up to which
/// the watch is complete. A batch without events is progress alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Changes in revision order.
    pub events: Vec<Event>,
    /// Everything up to and including this revision has been delivered.
    pub complete_to: Revision,
}

/// A page of a range read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries in key order.
    pub entries: Vec<Entry>,
    /// The revision that was read.
    pub at: Revision,
    /// How many entries of the range follow after this page.
    pub remaining: u64,
}

/// What a range read covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Keys must start with this.
    pub prefix: String,
    /// Keys must be greater than this, for reading on after a page.
    pub after: Option<String>,
    /// At most so many entries; zero means all.
    pub limit: usize,
    /// The revision to read; `None` reads the newest, linearizably.
    pub at: Option<Revision>,
}

/// Why a store could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The revision is older than the history kept.
    #[error("revision {asked} is compacted; the oldest kept is {oldest}")]
    Compacted {
        /// The revision that was asked for.
        asked: Revision,
        /// The oldest revision that can still be read.
        oldest: Revision,
    },
    /// The revision has not happened yet.
    #[error("revision {asked} is in the future; the newest is {newest}")]
    Future {
        /// The revision that was asked for.
        asked: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// The disk is full: reads go on, this write did not happen.
    #[error("no space left for the store")]
    Full,
    /// The engine cannot be reached now; whether a write happened is unknown.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The data on disk or an answer of the engine is not what it must be.
    #[error("the store is damaged: {0}")]
    Damaged(String),
}

/// A boxed future, so that engines can stand behind `dyn Store`.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A running watch.
pub trait Watch: Send {
    /// The next batch. After an error the watch is over. Cancel-safe.
    fn next(&mut self) -> Answer<'_, Batch>;
}

/// A durable, revisioned, ordered map. See the crate documentation for what every engine promises.
pub trait Store: Send + Sync {
    /// The newest committed revision, linearizably: never older than a commit answered before.
    fn revision(&self) -> Answer<'_, Revision>;

    /// Reads a range of keys.
    fn range(&self, range: Range) -> Answer<'_, Page>;

    /// Commits a transaction, durably.
    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome>;

    /// Watches all keys below `prefix` for changes after `from`.
    fn watch(&self, prefix: String, from: Revision) -> Answer<'_, Box<dyn Watch>>;

    /// Asks every running watch to report progress soon, even if nothing changes below its prefix.
    fn request_progress(&self) -> Answer<'_, ()>;

    /// Forgets history before `revision`: older ranges and watches answer "too old" from now on.
    fn compact(&self, revision: Revision) -> Answer<'_, ()>;
}
