//! Which cluster of `up`, and which of its nodes, does a command on this machine mean?
//!
//! A command that runs in a node's network (`pointsman exec n2 -- ...`) means that node. One that runs on the
//! host means the cluster whose kubeconfig it has, or the only one there is.

use crate::claim::{self, Known, NodeRecord, Record};
use crate::rootless;
use anyhow::{Context, bail};
use pointsman_api_client::connect::usual_kubeconfig;
use pointsman_api_client::kubeconfig;
use pointsman_fabric::Netns;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the caller says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    pub kubeconfig: Option<&'a Path>,
    pub node: Option<&'a str>,
    /// An address that the command is about.
    pub address: Option<IpAddr>,
}

/// A node of a cluster that `up` runs here.
#[derive(Clone, Debug)]
pub struct Place {
    pub cluster: Record,
    pub node: NodeRecord,
    /// Whether this process is in the node's network.
    pub here: bool,
    /// Whether nothing said that this node is meant.
    pub assumed: bool,
}

impl Place {
    /// How the API server is reached from the node.
    pub fn kubeconfig(&self) -> PathBuf {
        crate::nodes::proxy_kubeconfig(&self.cluster.data_dir)
    }

    /// This very command in the node's network, with more arguments, or where the cluster lives.
    pub fn enter(&self, more: impl IntoIterator<Item = OsString>) -> anyhow::Result<Command> {
        let same = std::env::args_os().skip(1);
        if let Some(pid) = self.cluster.elsewhere() {
            return rootless::inside(pid, same);
        }
        let program = std::env::current_exe().context("finding our own program")?;
        let mut command = Netns::named(&self.node.namespace)?.command(program);
        command.args(same).args(more);
        Ok(command)
    }
}

/// The place that is meant; `None` if it is in no cluster of `up`.
pub fn find(hints: Hints<'_>) -> anyhow::Result<Option<Place>> {
    let mut running = Vec::new();
    for name in claim::names() {
        if let Known::Running(record) = claim::look_up(&name)? {
            running.push(record);
        }
    }
    running
        .retain(|record| !record.nodes.is_empty() && hints.kubeconfig.is_none_or(|path| is_of(record, path)));
    if running.len() > 1
        && let Some(usual) = usual_kubeconfig().filter(|_| hints.kubeconfig.is_none())
        && running.iter().any(|record| is_of(record, &usual))
    {
        running.retain(|record| is_of(record, &usual));
    }
    let current = Netns::current().ok();
    let is_current = |node: &NodeRecord| match (&current, Netns::named(&node.namespace)) {
        (Some(current), Ok(node)) => node.is_same(current),
        _ => false,
    };
    for cluster in &running {
        if let Some(node) = cluster.nodes.iter().find(|node| is_current(node)) {
            let meant = hints.node.is_none_or(|name| name == node.name);
            return Ok(meant.then(|| place(cluster, node, true, false)));
        }
    }
    let cluster = match running.as_slice() {
        [] => return Ok(None),
        [only] => only,
        several => {
            let names: Vec<&str> = several.iter().map(|record| record.name.as_str()).collect();
            bail!(
                "several clusters run here ({}): name one by --kubeconfig",
                names.join(", ")
            );
        }
    };
    let of_address = |node: &&NodeRecord| hints.address == Some(IpAddr::V4(node.address));
    Ok(match hints.node {
        Some(name) => {
            let named = cluster.nodes.iter().find(|node| node.name == name);
            named.map(|node| place(cluster, node, false, false))
        }
        None => {
            let addressed = cluster.nodes.iter().find(of_address);
            let node = addressed.or(cluster.nodes.first());
            node.map(|node| {
                place(
                    cluster,
                    node,
                    false,
                    addressed.is_none() && cluster.nodes.len() > 1,
                )
            })
        }
    })
}

fn place(cluster: &Record, node: &NodeRecord, here: bool, assumed: bool) -> Place {
    Place {
        cluster: cluster.clone(),
        node: node.clone(),
        here,
        assumed,
    }
}

/// Whether a kubeconfig, or one of a list, is one that the cluster wrote or has the cluster as its current one.
fn is_of(record: &Record, path: &Path) -> bool {
    let is_own = |file: &Path| match (file.canonicalize(), record.data_dir.canonicalize()) {
        (Ok(file), Ok(data)) => file.starts_with(data),
        _ => false,
    };
    let leads =
        |file: &Path| kubeconfig::Cluster::read(file).is_ok_and(|cluster| cluster.server == record.server);
    std::env::split_paths(path).any(|file| is_own(&file) || leads(&file))
}
