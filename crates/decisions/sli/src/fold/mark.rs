//! What does one programmer say about itself?

use crate::moment::Moment;

/// A watched collection whose changes programmers write to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Services.
    Services,
    /// EndpointSlices.
    Slices,
}

impl Resource {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Services, Self::Slices];

    /// The plural in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Slices => "endpointslices",
        }
    }
}

/// Up to which version of each collection everything is done; 0 where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Services.
    pub services: u64,
    /// EndpointSlices.
    pub slices: u64,
}

impl Marks {
    /// The mark of one collection.
    pub fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Services => self.services,
            Resource::Slices => self.slices,
        }
    }

    pub(super) fn highest(&self) -> u64 {
        self.services.max(self.slices)
    }

    /// Whether either mark is lower than in `other`.
    pub(super) fn below(&self, other: &Self) -> bool {
        self.services < other.services || self.slices < other.slices
    }
}

/// One line of a programmer's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Grows with each start of the programmer.
    pub generation: i64,
    /// What its watches have told it.
    pub received: Marks,
    /// What is part of a batch on its way to the kernel.
    pub planned: Marks,
    /// What is in its kernel.
    pub committed: Marks,
    /// When it wrote the line, by its own clock.
    pub time: Moment,
}

/// Where a change waits on a programmer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The programmer says nothing at all.
    Silent,
    /// Its watch has not told it.
    Watch,
    /// It knows, and has not begun to write.
    Plan,
    /// It is writing.
    Kernel,
}

impl Stage {
    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Watch => "watch",
            Self::Plan => "plan",
            Self::Kernel => "kernel",
        }
    }
}

/// Why a line is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The mark went back without a restart.
    Backwards,
    /// The mark is far beyond anything that was ever written.
    Future,
    /// The line comes from a process that has been replaced.
    Stale,
    /// The programmer is not known, or no longer.
    Unknown,
}

impl Fault {
    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Backwards => "backwards",
            Self::Future => "future",
            Self::Stale => "stale",
            Self::Unknown => "unknown",
        }
    }
}
