//! What does the store hold?

use bytes::Bytes;
use std::fmt;
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
    pub key: Arc<str>,
    /// The value as it was written.
    pub value: Bytes,
    /// The revision of the write that made this value.
    pub revision: Revision,
    /// The revision of the write that created the key.
    pub created: Revision,
}
