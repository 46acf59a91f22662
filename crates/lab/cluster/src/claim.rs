//! Which clusters are there on this machine, and does one run?
//!
//! Each cluster has a directory below `/run/pointsman` (or the user's own run directory) with a lock, held
//! as long as the cluster runs, and a record for the other commands. The kernel lets go of the lock however
//! the process ends, so that a dead cluster is never taken for a running one.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What other commands need to know about a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// The cluster's name.
    pub name: String,
    /// The process that runs it.
    pub pid: u32,
    /// Whether it lives in a user namespace, whose first process is that one.
    pub rootless: bool,
    /// Where its data lives.
    pub data_dir: PathBuf,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The kubeconfig that the cluster is merged into, if it is.
    pub merged: Option<PathBuf>,
    /// The API server.
    pub server: String,
    /// Where the controllers serve their health, if they do.
    pub controllers: Option<SocketAddr>,
    /// Where the DNS serves its health, if there is one.
    pub dns: Option<SocketAddr>,
    /// The page, if there is one.
    pub page: Option<String>,
    /// Where nodes and pods ask the shutdown gate, if there is one.
    pub gate: Option<SocketAddr>,
    pub nodes: Vec<NodeRecord>,
    /// Whether nodes have a containerd each.
    pub containerd: bool,
    /// How the nodes' proxies write rules.
    pub proxy_mode: String,
    /// Where the addresses of pods are from, as flags take it.
    pub pod_range: String,
    /// Whether everything served once.
    pub ready: bool,
}

impl Record {
    /// The process whose namespaces have to be entered to see the cluster from here.
    pub fn elsewhere(&self) -> Option<u32> {
        // Inside, the user is root.
        (self.rootless && !rustix::process::geteuid().is_root()).then_some(self.pid)
    }
}

/// What other commands need to know about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// The name of the Node.
    pub name: String,
    /// Its network namespace.
    pub namespace: String,
    pub address: std::net::Ipv4Addr,
}

/// The right to run the cluster of this name, as long as the value lives.
#[derive(Debug)]
pub struct Claim {
    dir: PathBuf,
    /// What an earlier run recorded, if it did not end well.
    pub earlier: Option<Record>,
    _lock: File,
}

impl Claim {
    /// Takes the name, unless a running cluster has it.
    pub fn take(name: &str) -> anyhow::Result<Self> {
        let dir = run_dir().join(name);
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let lock = open_lock(&dir)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                earlier: read(&dir),
                dir,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => {
                let pid = read(&dir).map_or(0, |record| record.pid);
                bail!(
                    "a cluster named {name:?} runs already (process {pid}); stop it with `pointsman down --name {name}`, or choose another --name"
                )
            }
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", dir.display()))
            }
        }
    }

    /// Tells other commands about the cluster.
    pub fn write(&self, record: &Record) -> anyhow::Result<()> {
        let path = self.dir.join("record.json");
        let draft = self.dir.join("record.json.new");
        fs::write(&draft, serde_json::to_vec_pretty(record)?)
            .and_then(|()| fs::rename(&draft, &path))
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Forgets the cluster. Its data stays.
    pub fn release(self) -> anyhow::Result<()> {
        let dir = &self.dir;
        fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
        // Goes with the last cluster; while others run it is not empty.
        let _ = fs::remove_dir(run_dir());
        Ok(())
    }
}

/// What is known about a cluster, and whether it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Running(Record),
    /// It died, and left things behind.
    Dead(Record),
    /// Nothing is known about it.
    Unknown,
}

/// Looks a cluster up.
pub fn look_up(name: &str) -> anyhow::Result<Known> {
    let dir = run_dir().join(name);
    if !dir.is_dir() {
        return Ok(Known::Unknown);
    }
    let record = read(&dir).unwrap_or_default();
    // A cluster that ends meanwhile removes its directory, in which nothing may appear then.
    let lock = match File::open(dir.join("lock")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Known::Unknown),
        opened => opened.with_context(|| format!("opening the lock in {}", dir.display()))?,
    };
    // A reader shares the lock, so that two readers do not take each other for the cluster.
    match lock.try_lock_shared() {
        Ok(()) => Ok(Known::Dead(record)),
        Err(TryLockError::WouldBlock) => Ok(Known::Running(record)),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("locking {}", dir.display())),
    }
}

/// The names of all clusters that run or left something behind, in order.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(run_dir()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// Waits until the cluster does not run any more.
pub fn wait_until_stopped(name: &str, patience: Duration) -> anyhow::Result<bool> {
    let started = Instant::now();
    while let Known::Running(_) = look_up(name)? {
        if started.elapsed() > patience {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Held while addresses are chosen, so that two clusters that start together choose different ones.
pub fn lock_addresses() -> anyhow::Result<File> {
    let dir = run_dir();
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    // The directory itself: a file in it would be left behind.
    let lock = File::open(&dir).with_context(|| format!("opening {}", dir.display()))?;
    lock.lock()
        .with_context(|| format!("locking {}", dir.display()))?;
    Ok(lock)
}

fn open_lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let options = File::options().create(true).append(true).open(&path);
    options.with_context(|| format!("opening {}", path.display()))
}

fn read(dir: &Path) -> Option<Record> {
    let text = fs::read(dir.join("record.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Root's clusters are known to everybody; others keep theirs to themselves.
pub fn run_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/run/pointsman");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => Path::new(&dir).join("pointsman"),
        None => std::env::temp_dir().join(format!("pointsman-{}", rustix::process::geteuid().as_raw())),
    }
}
