//! What can become known about a pod?

use crate::unit::{Exit, ProbeKind};
use jiff::Timestamp;
use std::net::IpAddr;
use std::time::Duration;

/// Both clocks: the wall's for what people read, and one that never jumps for waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Wall clock.
    pub wall: Timestamp,
    /// Time since the agent started.
    pub mono: Duration,
}

/// What became known.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The sandbox is there.
    SandboxUp {
        /// The pod's addresses, the primary one first.
        ips: Vec<IpAddr>,
    },
    /// The sandbox could not be made.
    SandboxFailed {
        /// Why.
        message: String,
    },
    /// A container runs.
    Started {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
        /// Since when.
        at: Timestamp,
    },
    /// A container cannot be started as things are; the attempt does not count.
    Refused {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
        /// One word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// A container could not be started; the attempt counts as a run that failed.
    StartFailed {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
        /// The exit code to show.
        code: i32,
        /// A sentence.
        message: String,
    },
    /// A container has ended.
    Exited {
        /// Which.
        container: String,
        /// Which run.
        run: u32,
        /// How.
        exit: Exit,
    },
    /// The post-start hook is over.
    PostStart {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
        /// What went wrong, if anything.
        outcome: Result<(), String>,
    },
    /// The pre-stop hook is over.
    PreStop {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
        /// What went wrong, if anything.
        outcome: Result<(), String>,
    },
    /// A probe has a verdict.
    Probed {
        /// Of which container.
        container: String,
        /// Of which run.
        run: u32,
        /// Which probe.
        kind: ProbeKind,
        /// The verdict.
        healthy: bool,
        /// When it was reached.
        at: Timestamp,
    },
    /// The gate answered, or failed to.
    GateOpened,
    /// The sandbox is gone.
    TornDown,
    /// The sandbox could not be removed.
    TearDownFailed {
        /// Why.
        message: String,
    },
}

/// What the runtime has of a pod when an agent starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The addresses of the sandbox, if there is one.
    pub ips: Option<Vec<IpAddr>>,
    /// The last run of each container.
    pub containers: Vec<FoundContainer>,
}

/// A run that the runtime remembers.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundContainer {
    /// Name.
    pub name: String,
    /// Which run, counted from 0.
    pub run: u32,
    /// Start.
    pub started_at: Timestamp,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
}
