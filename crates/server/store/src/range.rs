//! What does a read cover, and what does it give?

use crate::{Entry, Revision};

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
