//! What does one programmer say about itself, and what of it is believed?

/// Where a change waits on a programmer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The programmer says nothing at all.
    Silent,
    /// Its watch has not delivered the change.
    Watch,
    /// It knows, and has not begun to write.
    Plan,
    /// It is writing.
    Kernel,
}

impl Stage {
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
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Backwards => "backwards",
            Self::Future => "future",
            Self::Stale => "stale",
            Self::Unknown => "unknown",
        }
    }
}
