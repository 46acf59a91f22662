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

impl Event {
    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Event::Put { entry, .. } => entry.revision,
            Event::Delete { revision, .. } => *revision,
        }
    }

    /// The key that changed.
    pub fn key(&self) -> &Arc<str> {
        match self {
            Event::Put { entry, .. } => &entry.key,
            Event::Delete { key, .. } => key,
        }
    }

    /// How many bytes of values the event carries, the old and the new.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Event::Put { entry, previous } => entry.value.len() + previous.as_ref().map_or(0, Bytes::len),
            Event::Delete { previous, .. } => previous.len(),
        }
    }
}
