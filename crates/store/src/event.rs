//! What does a watch tell?

use crate::{Entry, Revision};
use bytes::Bytes;
use std::sync::Arc;

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
