//! What is left of a cluster that stopped or died, and how does it go?

use super::claim::Record;
use super::nodes::root_dir;
use super::plan::{host_link, is_namespace_of};
use anyhow::{Context, bail};
use pointsman_fabric::Netns;
use pointsman_runtime::Runtime;
use pointsman_runtime::process::{Config, ProcessRuntime};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::time::{Duration, Instant};

/// How long killed processes may take to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Processes that were killed.
    pub processes: usize,
    /// Pods with everything they had.
    pub pods: usize,
    pub namespaces: usize,
    /// Links of the host.
    pub links: usize,
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
        } = self;
        write!(
            f,
            "{processes} processes, {pods} pods, {namespaces} namespaces, {links} links"
        )
    }
}

/// Kills every process in the cluster's namespaces and removes pods, namespaces and the host's link. Does
/// nothing if there is nothing, and can be repeated if it failed half way. The record of the last run says
/// where pods may be.
pub async fn remove(cluster: &str, record: &Record) -> anyhow::Result<Removed> {
    let mut removed = Removed::default();
    let names: Vec<String> = Netns::names()?
        .into_iter()
        .filter(|name| is_namespace_of(cluster, name))
        .collect();
    let namespaces: Vec<Netns> = names.iter().filter_map(|name| Netns::named(name).ok()).collect();
    removed.processes = kill_all(&namespaces)?;
    for node in &record.nodes {
        // An agent that is gone does not mind if we take its place.
        removed.pods += remove_pods(record, &node.name, &node.namespace)
            .await
            .with_context(|| format!("removing the pods of {}", node.name))?;
    }
    for name in &names {
        removed.namespaces += usize::from(Netns::delete(name)?);
    }
    drop(namespaces);
    // The cable would go with the fabric's namespace, but only after a while.
    let mut host = Netns::current()?.network()?;
    removed.links = usize::from(host.delete_link(&host_link(cluster))?);
    Ok(removed)
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
