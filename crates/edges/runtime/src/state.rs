//! What runs, what has ended, and how?

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::{ContainerId, ContainerName, PodUid, VolumeName};

/// What a pod's containers share, once it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// The pod's addresses, IPv4 first; empty for a pod on the node's network.
    pub addresses: Vec<IpAddr>,
    /// A path that names the pod's network namespace; `None` for a pod on the node's network.
    pub netns: Option<PathBuf>,
    /// When it was made.
    pub created_at: SystemTime,
}

/// A pod the runtime knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodState {
    pub pod: PodUid,
    /// Its namespace, as given.
    pub namespace: String,
    /// Its name, as given.
    pub name: String,
    /// What its containers share; `None` if it was lost, for example by a reboot.
    pub sandbox: Option<Sandbox>,
    /// Its containers, every attempt that was not removed, in order of name and attempt.
    pub containers: Vec<ContainerState>,
    /// The labels of the sandbox, as given.
    pub labels: BTreeMap<String, String>,
}

/// A run of a container the runtime knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerState {
    pub id: ContainerId,
    /// Whether it runs.
    pub status: ContainerStatus,
    /// Where its output goes, in the CRI log format. A full file is renamed to end in `.1`.
    pub log: PathBuf,
    /// The labels, as given.
    pub labels: BTreeMap<String, String>,
}

/// Whether a container runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerStatus {
    /// Its main process runs.
    Running {
        /// The main process.
        pid: u32,
        /// When it was started.
        started_at: SystemTime,
    },
    /// Its main process has ended, and so has everything it started.
    Exited(Exit),
}

impl ContainerStatus {
    /// When the main process was started.
    pub fn started_at(&self) -> SystemTime {
        match self {
            Self::Running { started_at, .. } => *started_at,
            Self::Exited(exit) => exit.started_at,
        }
    }
}

/// What a pod has on disk, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Scratch volumes on disk.
    pub volumes: BTreeMap<VolumeName, u64>,
    /// Of each container all logs, and what it wrote besides volumes where that is on disk.
    pub containers: BTreeMap<ContainerName, u64>,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 plus the signal if one ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Who or what ended it, as far as known.
    pub cause: ExitCause,
    /// When it was started.
    pub started_at: SystemTime,
    /// When it ended.
    pub finished_at: SystemTime,
    /// What the program wrote into its termination message file, at most 4 KiB.
    pub message: Option<String>,
}

/// Why a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCause {
    /// The main process returned, or a signal ended it.
    Ended,
    /// The kernel killed it for want of memory.
    OutOfMemory,
    /// Nobody saw it end: the machine restarted, or the process that watched it was killed. The code is
    /// then 137 and the time of the end is when this was noticed.
    Lost,
}

/// What happened to a pod; sent once for each start and each end of a container, and once for each lost sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// The main process runs.
    Started {
        container: ContainerId,
        /// When it was started.
        at: SystemTime,
    },
    /// The main process has ended.
    Exited { container: ContainerId, exit: Exit },
    /// What the pod's containers share is gone, though nobody asked for that. They may still run.
    SandboxLost { pod: PodUid },
}

/// What came of a command run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutcome {
    /// How it ended.
    pub end: ExecEnd,
    /// What it wrote to stdout and stderr, interleaved as read, up to the cap.
    pub output: Vec<u8>,
    /// Whether it wrote more than the cap.
    pub truncated: bool,
}

/// How a command run in a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecEnd {
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// It took too long; it and everything it started was killed.
    TimedOut,
}
