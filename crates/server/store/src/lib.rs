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

pub mod backup;
pub mod embedded;
mod entry;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod event;
mod range;
mod transaction;

pub use entry::{Entry, Revision};
pub use error::StoreError;
pub use event::{Batch, Event};
pub use range::{Page, Range};
pub use transaction::{Expect, MAX_OPS, Op, Outcome, Transaction};

use std::future::Future;
use std::pin::Pin;

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

    /// How the engine's own tools back it up; none if [`backup::write`] does.
    fn own_backup(&self) -> Option<&'static str> {
        None
    }

    /// Forgets history before `revision`: older ranges and watches answer "too old" from now on.
    fn compact(&self, revision: Revision) -> Answer<'_, ()>;
}
