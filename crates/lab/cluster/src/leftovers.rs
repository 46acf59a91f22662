//! What is left of a cluster that stopped or died, and how does it go?

use super::claim::Record;
use super::containers;
use super::nodes::root_dir;
use super::plan::{host_link, is_namespace_of};
use anyhow::{Context, bail};
use pointsman_fabric::{FabricError, Netns, RUN_DIR};
use pointsman_runtime::Runtime;
use pointsman_runtime::process::{Config, ProcessRuntime};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::time::{Duration, Instant};

/// How long killed processes may take to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was removed, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Processes that were killed.
    pub processes: usize,
    /// Pods with everything they had.
    pub pods: usize,
    pub namespaces: usize,
    /// Links of the host.
    pub links: usize,
    /// Names of namespaces that have to stay, with nothing behind them; the next start uses them again.
    pub hidden: Vec<String>,
    /// What could not be removed now, a sentence each.
    pub remaining: Vec<String>,
}

impl Removed {
    /// Whether there was nothing.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            processes,
            pods,
            namespaces,
            links,
            hidden,
            remaining,
        } = self;
        write!(
            f,
            "{processes} processes, {pods} pods, {namespaces} namespaces, {links} links"
        )?;
        if !hidden.is_empty() {
            let names = hidden.join(", ");
            write!(
                f,
                "; the names {names} stay in {RUN_DIR}, hidden below a mount that another program made over it"
            )?;
        }
        if !remaining.is_empty() {
            write!(f, "; not removed: {}", remaining.join("; "))?;
        }
        Ok(())
    }
}

/// Kills every process in the cluster's namespaces and removes pods, namespaces and the host's link. Does
/// nothing if there is nothing, goes on past what fails, and can be repeated. The record of the last run says
/// where pods may be.
pub async fn remove(cluster: &str, record: &Record) -> Removed {
    let mut removed = Removed::default();
    // What a container runtime has needs it to go; killed alone, its programs would stay.
    for node in record.nodes.iter().filter(|_| record.containerd) {
        match containers::remove_pods(record, node).await {
            Ok(pods) => removed.pods += pods,
            Err(error) => removed.remains(format_args!("the containers of {}: {error:#}", node.name)),
        }
    }
    let names: Vec<String> = Netns::names()
        .unwrap_or_else(|error| {
            removed.remains(error);
            Vec::new()
        })
        .into_iter()
        .filter(|name| is_namespace_of(cluster, name))
        .collect();
    let namespaces: Vec<Netns> = names.iter().filter_map(|name| Netns::named(name).ok()).collect();
    match kill_all(&namespaces) {
        Ok(processes) => removed.processes = processes,
        Err(error) => removed.remains(format_args!("{error:#}")),
    }
    for node in &record.nodes {
        // An agent that is gone does not mind if we take its place.
        match remove_pods(record, &node.name, &node.namespace).await {
            Ok(pods) => removed.pods += pods,
            Err(error) => removed.remains(format_args!("the pods of {}: {error:#}", node.name)),
        }
    }
    for name in &names {
        match Netns::delete(name) {
            Ok(there) => removed.namespaces += usize::from(there),
            Err(FabricError::Shadowed { .. }) => removed.hidden.push(name.clone()),
            Err(error) => removed.remains(error),
        }
    }
    for namespace in namespaces
        .iter()
        .filter(|one| removed.hidden.iter().any(|name| name == one.label()))
    {
        if let Err(error) = strip(namespace) {
            removed.remaining.push(error.to_string());
        }
    }
    drop(namespaces);
    // The cable would go with the fabric's namespace, but only after a while.
    let host = Netns::current().and_then(|host| host.network());
    match host.and_then(|mut host| host.delete_link(&host_link(cluster))) {
        Ok(there) => removed.links = usize::from(there),
        Err(error) => removed.remains(error),
    }
    removed
}

/// Removes the links of a namespace that itself has to stay.
fn strip(namespace: &Netns) -> Result<(), FabricError> {
    let mut network = namespace.network()?;
    for link in network.links()?.iter().filter(|link| link.name != "lo") {
        network.delete_link(&link.name)?;
    }
    Ok(())
}

impl Removed {
    fn remains(&mut self, what: impl fmt::Display) {
        self.remaining.push(what.to_string());
    }
}

async fn remove_pods(record: &Record, node: &str, namespace: &str) -> anyhow::Result<usize> {
    let root = root_dir(&record.data_dir, node);
    if !root.exists() {
        return Ok(0);
    }
    let runtime = ProcessRuntime::open(Config {
        node_netns: Netns::named(namespace).ok(),
        ..Config::new(root)
    })
    .await?;
    let pods = runtime.list().await?;
    for pod in &pods {
        runtime.remove_pod(&pod.pod).await?;
    }
    runtime.close();
    Ok(pods.len())
}

/// Kills everything in the namespaces, also what is started meanwhile, and says how much there was.
fn kill_all(namespaces: &[Netns]) -> anyhow::Result<usize> {
    if namespaces.is_empty() {
        return Ok(0);
    }
    let started = Instant::now();
    let mut killed = std::collections::BTreeSet::new();
    loop {
        let alive = Netns::processes(namespaces)?;
        if alive.is_empty() {
            return Ok(killed.len());
        }
        if started.elapsed() > PATIENCE {
            bail!("processes {alive:?} do not end although they were killed");
        }
        for pid in alive {
            let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
                continue;
            };
            match kill_process(target, Signal::KILL) {
                Ok(()) => drop(killed.insert(pid)),
                Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).with_context(|| format!("killing process {pid}")),
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
