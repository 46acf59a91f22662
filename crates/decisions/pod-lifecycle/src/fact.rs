//! What can become known about a pod?

use crate::storage::DiskUse;
use crate::unit::Exit;
use jiff::Timestamp;
use pointsman_probe::Kind;
use std::net::IpAddr;
use std::time::Duration;

/// Both clocks: the wall's for what people read, and one that never jumps for waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
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
    SandboxFailed { message: String },
    /// The sandbox is gone, though nobody asked for that.
    SandboxLost,
    /// Something about one run of a container.
    Container {
        name: String,
        run: u32,
        fact: ContainerFact,
    },
    /// So much of the disk the pod uses.
    DiskUsed(DiskUse),
    /// The gate answered, or failed to.
    GateOpened,
    /// The sandbox was removed.
    TornDown,
    /// The sandbox could not be removed.
    TearDownFailed { message: String },
}

/// What became known about one run of a container.
#[derive(Clone, Debug, PartialEq)]
pub enum ContainerFact {
    Started {
        at: Timestamp,
    },
    /// It cannot be started as things are; the attempt does not count.
    Refused {
        reason: String,
        message: String,
    },
    /// It could not be started; the attempt counts as a run that failed with this exit code.
    StartFailed {
        code: i32,
        message: String,
    },
    /// It has ended.
    Exited(Exit),
    /// The post-start hook is over.
    PostStart(Result<(), String>),
    /// The pre-stop hook is over.
    PreStop(Result<(), String>),
    /// A probe has a verdict.
    Probed {
        kind: Kind,
        healthy: bool,
        at: Timestamp,
    },
}

impl ContainerFact {
    /// The same as a fact about the pod.
    pub fn about(self, container: impl Into<String>, run: u32) -> Fact {
        Fact::Container {
            name: container.into(),
            run,
            fact: self,
        }
    }
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
    pub name: String,
    /// Which run, counted from 0.
    pub run: u32,
    pub started_at: Timestamp,
    /// How it ended, if it did.
    pub exit: Option<Exit>,
}
