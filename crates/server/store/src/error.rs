//! Why did the store refuse, and what should the caller do differently?

use crate::Revision;

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
    /// The engine has ended and must be opened again; whether the last writes happened is unknown.
    #[error("the store has ended: {0}")]
    Ended(String),
    /// The data on disk or an answer of the engine is not what it must be.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// A value is encrypted, or should be, and cannot be read.
    #[error("the store cannot be decrypted: {0}")]
    Sealed(String),
    /// Another process has the store open.
    #[error("{0} is in use by another process")]
    InUse(String),
    /// The data on disk is of a format that this release does not know.
    #[error(
        "the store has format {0}, which this release does not know: use the release that wrote it, or a later one"
    )]
    UnknownFormat(u64),
    /// The request itself is malformed: two effects on one key, too many effects, too large a value.
    #[error("the store cannot carry this request: {0}")]
    Invalid(String),
}
