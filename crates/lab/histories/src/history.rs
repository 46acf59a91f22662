//! What did each client ask, and what was it answered?

use std::collections::BTreeMap;

/// Time on the recorder's one clock.
pub type Nanos = u64;
/// A resource version.
pub type Revision = u64;

/// An object's place among the objects of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub usize);

/// Names a write. No two writes of a history have the same, so what is read says who wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u32);

/// What an object holds. A patch changes `write` only, so that a patch of a version that is no longer there shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content {
    pub write: WriteId,
    /// The last write that set the whole object.
    pub base: WriteId,
}

impl Content {
    /// After a write of the whole object.
    pub fn whole(write: WriteId) -> Self {
        Self { write, base: write }
    }
}

/// An object as the server showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    pub content: Content,
    pub revision: Revision,
}

/// How new a list has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Not older than anything that was answered before.
    Newest,
    /// `resourceVersion=0`: not older than anything that the same server answered before.
    Any,
    NotOlderThan(Revision),
    Exactly(Revision),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Create {
        key: Key,
        write: WriteId,
    },
    /// Replaces the object; if `expected` is given, only the version that this write made.
    Put {
        key: Key,
        write: WriteId,
        expected: Option<WriteId>,
    },
    Patch {
        key: Key,
        write: WriteId,
    },
    Delete {
        key: Key,
        expected: Option<WriteId>,
    },
    Get {
        key: Key,
    },
    List(Freshness),
}

impl Request {
    /// The id of what it writes into an object.
    pub fn write(&self) -> Option<WriteId> {
        match *self {
            Self::Create { write, .. } | Self::Put { write, .. } | Self::Patch { write, .. } => Some(write),
            Self::Delete { .. } | Self::Get { .. } | Self::List(_) => None,
        }
    }

    /// The object that it is about; a list is about all.
    pub fn key(&self) -> Option<Key> {
        match *self {
            Self::Create { key, .. }
            | Self::Put { key, .. }
            | Self::Patch { key, .. }
            | Self::Delete { key, .. }
            | Self::Get { key } => Some(key),
            Self::List(_) => None,
        }
    }

    /// Whether it can change anything.
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Get { .. } | Self::List(_))
    }
}

/// All objects at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub revision: Revision,
    pub objects: BTreeMap<Key, Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of a create, put or patch.
    Written(Seen),
    Deleted,
    /// Of a create: there is one already.
    Exists,
    /// The object is not the expected version.
    Conflict,
    Missing,
    Found(Seen),
    Listed(Listing),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub request: Request,
    /// The server that was asked.
    pub server: usize,
    pub start: Nanos,
    /// None if the answer was lost, or said that the outcome is unknown: the operation may have happened, or may
    /// happen at any later time.
    pub answer: Option<(Nanos, Answer)>,
}

/// Which objects a watch is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    /// Those whose last write has an even number (a label says so).
    Even,
}

impl Scope {
    pub fn covers(self, content: Content) -> bool {
        match self {
            Self::All => true,
            Self::Even => content.write.0.is_multiple_of(2),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Added(Key, Seen),
    Modified(Key, Seen),
    /// What was deleted, at the revision of the deletion.
    Deleted(Key, Seen),
    Bookmark(Revision),
    /// The bookmark after the initial events.
    InitialEnd(Revision),
}

impl Event {
    pub fn revision(&self) -> Revision {
        match self {
            Self::Added(_, seen) | Self::Modified(_, seen) | Self::Deleted(_, seen) => seen.revision,
            Self::Bookmark(revision) | Self::InitialEnd(revision) => *revision,
        }
    }

    /// The revision of the initial state, at its end.
    pub fn initial_end(&self) -> Option<Revision> {
        match self {
            Self::InitialEnd(revision) => Some(*revision),
            _ => None,
        }
    }
}

/// One stream of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    pub server: usize,
    pub scope: Scope,
    /// The revision to start after; none if the stream starts with the state of the server.
    pub from: Option<Revision>,
    /// Whether there were no objects before the revision to start after.
    pub from_the_start: bool,
    pub events: Vec<(Nanos, Event)>,
    /// A stream that was still open when the history ended must have brought everything up to here.
    pub must_reach: Option<Revision>,
}

impl Watch {
    /// Whether it covers everything from the beginning of a history, when there was nothing, to its end.
    pub fn is_complete(&self) -> bool {
        self.from_the_start && self.scope == Scope::All && self.must_reach.is_some()
    }
}

/// Everything that was recorded about a set of objects that nobody else writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// How many objects there are.
    pub keys: usize,
    pub operations: Vec<Operation>,
    pub watches: Vec<Watch>,
}
