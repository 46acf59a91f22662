//! What do the agent and a container's shim say to each other?
//!
//! The agent writes a [`Launch`] into the container's directory and starts the shim, which answers with
//! one [`Report`] on its standard output. From then on the shim listens on a socket in that directory. A
//! connection carries one [`Request`] and one [`Reply`], each a frame: its length in four bytes, low byte
//! first, then JSON. The output of an exec follows its reply as it is. Descriptors of streams come with
//! [`Reply::Opened`]; the connection then stays open, and what was started goes with it.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::mounts::Share;
use crate::{Attachable, ExecEnd, Security, StartFailure};

/// Names of files in a container's directory.
pub mod file {
    /// What the shim is to start: a [`Launch`](super::Launch).
    pub const LAUNCH: &str = "launch.json";
    /// Who runs: a [`Running`](super::Running).
    pub const RUNNING: &str = "running.json";
    /// How it ended: an [`Exit`](crate::Exit).
    pub const EXIT: &str = "exit.json";
    /// Locked as long as the shim, or an agent about to start it, lives.
    pub const LOCK: &str = "lock";
    /// Where the shim listens.
    pub const SOCKET: &str = "socket";
    /// What the program may write its termination message to.
    pub const TERMINATION: &str = "termination-message";
    /// Where the shim mounts the container's root, seen by nobody else.
    pub const ROOT: &str = "root";
}

/// Who a program runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// Everything a shim needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// The directory the program starts in.
    pub working_dir: PathBuf,
    /// Who it runs as.
    pub user: Ids,
    /// What it is kept from.
    pub security: Security,
    /// What `hostname` says.
    pub hostname: Option<String>,
    /// The network namespace to enter.
    pub netns: Option<PathBuf>,
    /// The cgroups to join.
    pub cgroup: Option<CgroupPaths>,
    /// What is mounted where, in this order.
    pub binds: Vec<Bind>,
    /// What the program sees as `/`.
    pub root: Root,
    /// The host's mounts that it sees besides, parents first, if its root is a layer.
    pub shares: Vec<Share>,
    /// The runtime's own directory, which containers do not see.
    pub hidden: PathBuf,
    /// The log file.
    pub log: PathBuf,
    /// How large it may grow before it is renamed to `.1`.
    pub log_limit: u64,
    /// What clients can attach to besides its output.
    #[serde(default)]
    pub attachable: Attachable,
}

/// Where a container's processes are counted and killed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CgroupPaths {
    /// For the shims of the pod, so that they outlive what they watch.
    pub shim: PathBuf,
    /// For the container.
    pub container: PathBuf,
    /// Groups of version 1 that limit the container, where the host's controllers are there.
    pub limits: Vec<PathBuf>,
}

/// A file or directory that appears in the container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bind {
    /// On the host.
    pub source: PathBuf,
    /// Within the source; may not leave it, whatever symbolic links say.
    pub sub_path: Option<PathBuf>,
    /// Whether a missing `sub_path` is made, as a directory.
    pub make_sub_path: bool,
    /// In the container.
    pub target: PathBuf,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// What a container sees as `/`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Root {
    /// The host's files under a layer of its own: what it writes is seen by nobody else and goes with it.
    Layer {
        /// How many bytes the layer may hold, in memory.
        size: u64,
    },
    /// The host's files themselves.
    Host,
}

/// What became of the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The program runs.
    Started(Running),
    /// It does not.
    Failed {
        /// What was wrong.
        reason: StartFailure,
        message: String,
    },
}

/// Who runs since when.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// The main process.
    pub pid: u32,
    /// When it was started.
    pub started_at: SystemTime,
}

/// What the agent asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Keep the connection open until the container has ended and its end is written down.
    Watch,
    /// Send a signal to the main process.
    Signal(i32),
    /// Kill everything in the container.
    Kill,
    /// Run a command.
    Exec {
        /// The program and its arguments.
        command: Vec<String>,
        /// Milliseconds until everything it started is killed.
        timeout_ms: Option<u64>,
        /// Bytes of output to keep.
        output_cap: usize,
    },
    /// Run a command whose streams the agent holds. It is killed when the connection ends.
    Open {
        /// The program and its arguments.
        command: Vec<String>,
        /// Whether there is input.
        stdin: bool,
        /// Whether it has a terminal, which is all of its streams.
        tty: bool,
    },
    /// Show what the main process writes from now on, until the connection ends.
    Attach {
        /// Whether input is sent, too.
        stdin: bool,
    },
}

/// What the shim answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Watch`], at once.
    Watching(Running),
    /// The signal was sent.
    Done,
    /// The main process has ended.
    NotRunning,
    /// The command has ended; its output follows.
    Exec {
        end: ExecEnd,
        /// Whether more was written than kept.
        truncated: bool,
        /// How many bytes follow.
        output_len: usize,
    },
    /// To [`Request::Open`], with descriptors: the terminal, or input (if there is one), output, errors. Followed by
    /// [`Reply::Exec`] without output at the end. To [`Request::Attach`]: the terminal or the input, if there is one,
    /// output, and errors unless there is a terminal.
    Opened,
    /// The command could not be started.
    CannotStart {
        /// What was wrong.
        reason: StartFailure,
        message: String,
    },
}

/// No request or reply is larger; a longer frame is not one of ours.
pub const FRAME_MAX: usize = 4 << 20;

/// Writes a value as a frame.
pub fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, value)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Takes a value and the length of its frame from the front of `bytes`; `None` if it is not all there.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<Option<(T, usize)>> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*head) as usize;
    if length > FRAME_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the frame is too long",
        ));
    }
    match rest.get(..length) {
        Some(body) => Ok(Some((serde_json::from_slice(body)?, 4 + length))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_back_once_it_is_whole() {
        let request = Request::Exec {
            command: vec!["true".into()],
            timeout_ms: Some(500),
            output_cap: 10,
        };
        let frame = encode(&request).unwrap();
        for cut in 0..frame.len() {
            assert_eq!(decode::<Request>(&frame[..cut]).unwrap(), None);
        }
        assert_eq!(decode(&frame).unwrap(), Some((request, frame.len())));
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        assert!(decode::<Request>(&[255; 8]).is_err());
        assert!(decode::<Request>(b"\x02\0\0\0{}").is_err());
    }
}
