//! What is written down about a pod, so that the next agent finds it?

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::shim::{protocol::file, write_record};
use crate::{SandboxSpec, VolumeSource};

/// A pod's record, `sandbox.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// What was asked for, without the bytes of files.
    pub spec: SandboxSpec,
    /// The pod's addresses.
    pub addresses: Vec<IpAddr>,
    /// When it was made.
    pub created_at: SystemTime,
    /// Which start of the machine it was made in; nothing of it survives the next one.
    pub boot: String,
}

impl SandboxRecord {
    /// Forgets file contents: they are in their volumes, and may be secret.
    pub fn new(mut spec: SandboxSpec, addresses: Vec<IpAddr>, created_at: SystemTime) -> io::Result<Self> {
        for volume in &mut spec.volumes {
            if let VolumeSource::Files(files) = &mut volume.source {
                files.files.clear();
            }
        }
        Ok(Self {
            spec,
            addresses,
            created_at,
            boot: boot()?,
        })
    }
}

/// What the agent needs to know of a container, `container.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub log: PathBuf,
    /// The labels, as given.
    pub labels: BTreeMap<String, String>,
}

impl ContainerRecord {
    /// The name of its file in the container's directory.
    pub const FILE: &str = "container.json";
}

/// Writes a record that readers see whole or not at all.
pub fn write(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    write_record(&File::open(directory)?, name, record)
}

/// Reads a record; `None` if there is none, or none that we understand.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Locks a container's directory; `None` if its shim, or an agent that starts it, holds the lock.
///
/// The lock belongs to the open file, which the shim inherits. So it is free when both have gone.
pub fn lock(directory: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(directory.join(file::LOCK))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Names this start of the machine.
pub fn boot() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim_end().to_owned())
}
