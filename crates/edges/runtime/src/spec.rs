//! What should run, with everything resolved?
//!
//! A runtime never looks anything up: references to ConfigMaps, field paths and `$(NAME)` are gone, ids
//! are numbers, and files are bytes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{ContainerId, PodUid, Security, VolumeName};

/// Everything the containers of a pod share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// The pod's unique id.
    pub pod: PodUid,
    /// The pod's namespace, for people and log paths only.
    pub namespace: String,
    /// The pod's name, for people and log paths only.
    pub name: String,
    /// What `hostname` says inside.
    pub hostname: String,
    /// The domain in which that is a name of the pod, if there is one; `/etc/hosts` says so.
    pub domain: Option<String>,
    /// Which network the pod sees.
    pub network: Network,
    /// Ports of the node that lead into the pod, where the runtime can do that.
    #[serde(default)]
    pub ports: Vec<HostPort>,
    /// Extra lines of `/etc/hosts`.
    pub host_aliases: Vec<HostAlias>,
    /// The content of `/etc/resolv.conf`; the host's own if `None`.
    pub resolv_conf: Option<String>,
    /// What containers may mount.
    pub volumes: Vec<VolumeSpec>,
    /// The group that owns the volumes' files (`fsGroup`).
    pub volume_group: Option<u32>,
    /// Opaque to the runtime; [`crate::Runtime::list`] returns it.
    pub labels: BTreeMap<String, String>,
}

/// Which network a pod sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// A namespace of its own with an address of the node's range.
    Own,
    Host,
}

/// A port of the node that leads into a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    pub protocol: Protocol,
    pub port: u16,
    /// At this address of the node; at all of them if `None`.
    pub address: Option<IpAddr>,
    /// Where it leads.
    pub container_port: u16,
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// One line of `/etc/hosts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAlias {
    pub address: IpAddr,
    pub names: Vec<String>,
}

/// A named set of files of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// The name that mounts refer to.
    pub name: VolumeName,
    /// Where its files come from.
    pub source: VolumeSource,
}

/// Where the files of a volume come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeSource {
    /// An empty directory that lives as long as the pod (`emptyDir`).
    Scratch {
        /// What holds it.
        medium: Medium,
        /// The most bytes it may hold; enforced for [`Medium::Memory`] only.
        size_limit: Option<u64>,
    },
    /// Given files (`configMap`, `secret`, `downwardAPI`, `projected`); always read-only inside.
    Files(FileSet),
    /// A file or directory of the host that exists (`hostPath`).
    Host(PathBuf),
}

/// What holds a scratch volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    /// The disk below the runtime's root directory.
    Disk,
    Memory,
}

/// Files by their path relative to the volume, such as `config.yaml` or `certs/ca.pem`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSet {
    /// The files. A path is relative and has no `..`; one that is not is refused.
    pub files: BTreeMap<String, FileContent>,
    /// Whether they are secret and must not reach a disk.
    #[serde(default)]
    pub in_memory: bool,
}

/// One given file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContent {
    pub bytes: Vec<u8>,
    /// Its permission bits, such as `0o644`.
    pub mode: u32,
    /// The user it belongs to; root if `None`.
    #[serde(default)]
    pub owner: Option<u32>,
}

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Which run of which container.
    pub id: ContainerId,
    /// The image; what else a runtime accepts is its own business, and a refusal says so.
    pub image: String,
    /// When the image is fetched.
    pub pull: Pull,
    /// The program and its first arguments; the image's if empty. The program is looked up in the `PATH` of
    /// [`Self::env`].
    pub command: Vec<String>,
    /// What follows [`Self::command`]; if both are empty, the image's.
    pub args: Vec<String>,
    /// The whole environment. A later value for a name wins.
    pub env: Vec<(String, String)>,
    /// The directory the program starts in; the image's if `None`, which is `/` for `host`.
    pub working_dir: Option<PathBuf>,
    /// Who it runs as.
    pub user: User,
    /// What is mounted where.
    pub mounts: Vec<MountSpec>,
    /// What it may use.
    pub limits: Limits,
    /// What it is kept from.
    pub security: Security,
    /// A file the program may write its termination message to; the runtime mounts it and reads it after the exit.
    pub termination_message: Option<PathBuf>,
    /// What clients can attach to besides its output.
    pub attachable: Attachable,
    /// Opaque to the runtime; [`crate::Runtime::list`] returns it.
    pub labels: BTreeMap<String, String>,
}

/// What a program has for clients that attach to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachable {
    /// It reads what they send; without it, it reads nothing.
    pub stdin: bool,
    /// Its input ends with the first client's.
    pub stdin_once: bool,
    /// It has a terminal.
    pub tty: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The user id; the image's own user if `None`, which is root for `host`.
    pub uid: Option<u32>,
    /// The primary group id.
    pub gid: Option<u32>,
    /// The supplementary group ids.
    pub groups: Vec<u32>,
    /// Whether a container is refused that would run as root.
    pub never_root: bool,
}

/// When an image is fetched (`imagePullPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pull {
    Always,
    #[default]
    IfNotPresent,
    Never,
}

/// One volume in a container's file tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSpec {
    /// A volume of the sandbox.
    pub volume: VolumeName,
    /// Where it appears: an absolute path, which need not exist on the host.
    pub path: PathBuf,
    /// A file or directory within the volume; the whole volume if `None`. A missing one is made as a
    /// directory in a scratch volume.
    pub sub_path: Option<PathBuf>,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// What a container may use. A limit that cannot be enforced is refused, unless the runtime's configuration says
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
}

/// A signal by its number on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signal(pub i32);

impl Signal {
    /// Asks a program to stop.
    pub const TERM: Self = Self(15);
    /// Ends a process without asking.
    pub const KILL: Self = Self(9);

    /// Reads `SIGTERM` or `TERM`, the spelling of `lifecycle.stopSignal`.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("SIG").unwrap_or(name);
        let index = NAMES.iter().position(|known| *known == name)?;
        i32::try_from(index + 1).ok().map(Self)
    }
}

/// The names of Linux' signals from 1 on (x86-64 and aarch64 agree).
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// A command to run inside a running container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// After this long the command and all it started are killed; `None` waits forever.
    pub timeout: Option<Duration>,
    /// How many bytes of its output are kept; the rest is read and dropped.
    pub output_cap: usize,
}

impl ExecRequest {
    /// The kubelet keeps 10 KiB of a probe's output.
    pub const OUTPUT_CAP: usize = 10 * 1024;

    /// A request with the usual output cap.
    pub fn new(command: Vec<String>, timeout: Option<Duration>) -> Self {
        Self {
            command,
            timeout,
            output_cap: Self::OUTPUT_CAP,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_known_by_name_with_and_without_the_prefix() {
        assert_eq!(Signal::from_name("SIGTERM"), Some(Signal::TERM));
        assert_eq!(Signal::from_name("KILL"), Some(Signal::KILL));
        assert_eq!(Signal::from_name("SIGUSR1"), Some(Signal(10)));
        assert_eq!(Signal::from_name("SIGSYS"), Some(Signal(31)));
        assert_eq!(Signal::from_name("SIGNOTHING"), None);
    }
}
