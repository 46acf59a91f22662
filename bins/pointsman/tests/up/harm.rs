//! What can be done to the processes and cables of a node?

use crate::cluster::Cluster;
use pointsman_fabric::Netns;
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;

/// The process that plays a part, `node` or `proxy`, on a node.
pub fn process_of(cluster: &Cluster, node: &str, part: &str) -> Pid {
    let data = cluster.data_dir().canonicalize().unwrap().display().to_string();
    let is_it = |line: &str| {
        let mut words = line.split('\0');
        words.nth(1) == Some(part)
            && line.contains(&data)
            && words.any(|word| word.strip_suffix(node).is_some_and(|flag| flag.ends_with('=')))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let found = pids.find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_it(&String::from_utf8_lossy(&line))
    });
    let found = found.unwrap_or_else(|| panic!("{node} has no {part}"));
    Pid::from_raw(found).unwrap()
}

/// A process that was stopped in the middle of what it did; goes on when it is dropped.
pub struct Stopped(Pid);

impl Stopped {
    pub fn agent(cluster: &Cluster, node: &str) -> Self {
        Self::process(cluster, node, "node")
    }

    pub fn proxy(cluster: &Cluster, node: &str) -> Self {
        Self::process(cluster, node, "proxy")
    }

    fn process(cluster: &Cluster, node: &str, part: &str) -> Self {
        let pid = process_of(cluster, node, part);
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A failing test may have ended it.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A node whose agent and proxy were killed and stay dead: a directory in the place of their logs keeps
/// them from being started again.
pub struct Dead(Vec<PathBuf>);

impl Dead {
    pub fn node(cluster: &Cluster, node: &str) -> Self {
        let parts = ["node", "proxy"].map(|part| (process_of(cluster, node, part), part));
        let log = |part: &str| cluster.data_dir().join(format!("logs/{node}-{part}.log"));
        for (_, part) in parts {
            std::fs::rename(log(part), log(part).with_extension("old")).unwrap();
            std::fs::create_dir(log(part)).unwrap();
        }
        for (pid, _) in parts {
            kill_process(pid, Signal::KILL).unwrap();
        }
        Self(parts.map(|(_, part)| log(part)).into())
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        for log in &self.0 {
            // A failing test may have ended the cluster and its files.
            let _ = std::fs::remove_dir(log);
        }
    }
}

/// A node whose cable is cut; mended when it is dropped.
pub struct CutOff {
    fabric: Netns,
    port: String,
}

impl CutOff {
    pub fn node(cluster: &Cluster, node: &str) -> Self {
        let fabric = Netns::named(&format!("{}-fabric", cluster.name)).unwrap();
        fabric.network().unwrap().set_down(node).unwrap();
        Self {
            fabric,
            port: node.to_owned(),
        }
    }
}

impl Drop for CutOff {
    fn drop(&mut self) {
        // A failing test may have ended the cluster and its links.
        if let Ok(mut network) = self.fabric.network() {
            let _ = network.set_up(&self.port);
        }
    }
}
