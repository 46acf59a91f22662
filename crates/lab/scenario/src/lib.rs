//! `pointsman scenario`: the test scenario that the SLI's definition leaves open.
//!
//! A documented load on a running cluster, and the SLI that a collector reports for it beside the truth,
//! taken from packets: a prober in the namespace of every node sees when connections really change.
//!
//! Pods that are measured are real: agents run and probe them, and everything from the probe's result on is as
//! in any cluster. Pods of the churn are objects whose readiness the scenario itself decides, as an agent would.

mod changes;
mod cluster;
mod figures;
mod gates;
mod jitter;
mod loads;
mod objects;
mod packets;
mod report;
mod rolling;
mod spread;
mod steps;

use anyhow::bail;
use changes::Changes;
use cluster::{Cluster, NAMESPACE};
use figures::{Bounds, Figures};
use gates::Gates;
pub use jitter::Jitter;
use report::Collector;
pub use rolling::{Gate, Rolling};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use steps::{Counts, Step, steps};

use pointsman_cluster::claim::{Known, Record, look_up};
use pointsman_cluster::own_faults;
use pointsman_cluster::progress::Output;

/// What load, on which cluster.
pub struct Config {
    /// The cluster, started with `pointsman up`.
    pub name: String,
    /// For whom output is written.
    pub output: Output,
    /// What is done to it.
    pub load: Load,
}

/// What is done to the cluster.
pub enum Load {
    /// Changes of all kinds, measured.
    Mixed(Mixed),
    /// Rolling updates under requests from every node.
    Rolling(Rolling),
}

/// The mixed load.
pub struct Mixed {
    /// Decides the order of changes and the churn.
    pub seed: u64,
    /// Services that are there besides the measured ones, with one endpoint each that nobody runs.
    pub services: usize,
    /// Measured pods on each node, with a Service each.
    pub pods_per_node: usize,
    /// Readiness flips that are measured.
    pub flips: usize,
    /// Services that are created, given another port and deleted.
    pub lives: usize,
    /// Rolling updates that are measured.
    pub rolls: usize,
    /// Scale-ups that are measured, from no pod to three.
    pub scale_ups: usize,
    /// Readiness flips of pods that nobody runs each second, all the while.
    pub churn: u32,
    /// Programmers without a kernel besides the nodes' own.
    pub hollow: usize,
    /// Pause before each measured change.
    pub pause: Duration,
    /// X, which the SLI of the load may not exceed. Without it, it follows the number of programmers.
    pub objective: Option<Duration>,
    /// The difference between truth and report that is allowed at the 99th percentile, besides what the machine's own
    /// delays make of it.
    pub error_bound: Duration,
    /// The least coverage that is allowed, from 0 to 1.
    pub coverage_bound: f64,
}

/// Plays a scenario and prints what came of it. Everything it made is removed again.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let record = running_cluster(&config.name)?;
    let (table, json, mut violations) = match config.load {
        Load::Rolling(rolling) => {
            let outcome = rolling::run(record.clone(), rolling).await?;
            (outcome.table(), outcome.json(), outcome.violations())
        }
        Load::Mixed(load) => {
            let bounds = Bounds {
                error: load.error_bound,
                coverage: load.coverage_bound,
            };
            let figures = mixed(record.clone(), &load).await?;
            (figures.table(), figures.json(bounds), figures.violations(bounds))
        }
    };
    violations.extend(own_faults::of_cluster(&record, &[]).await?);
    print(config.output, &table, &json)?;
    if !violations.is_empty() {
        bail!("{}", violations.join("; "));
    }
    Ok(())
}

fn running_cluster(name: &str) -> anyhow::Result<Record> {
    let record = match look_up(name)? {
        Known::Running(record) => record,
        Known::Dead(_) | Known::Unknown => {
            bail!("no cluster named {name:?} runs; start one with `pointsman up`")
        }
    };
    if record.nodes.is_empty() {
        bail!("the cluster has no nodes; start it with `pointsman up --nodes 3`");
    }
    Ok(record)
}

async fn mixed(record: Record, load: &Mixed) -> anyhow::Result<Figures> {
    let mut cluster = Cluster::enter(record).await?;
    let outcome = match cluster.add_others(load.services).await {
        Ok(()) => measure(&cluster, load).await,
        Err(error) => Err(error),
    };
    cluster.remove().await;
    outcome
}

async fn measure(cluster: &Cluster, load: &Mixed) -> anyhow::Result<Figures> {
    let follow = async |hollow| Collector::start(&cluster.record, hollow, load.objective).await;
    let before = follow(0).await?;
    let mut gates = Gates::start(&cluster.client, &cluster.record, NAMESPACE).await?;
    let mut changes = Changes::prepare(cluster, &before, load.pods_per_node, load.pause).await?;
    let mut random = fastrand::Rng::with_seed(load.seed);
    let churn = tokio::spawn(cluster.churn(load.churn, random.fork()));
    // The first changes find everything cold, also the probers.
    for number in [0, 0] {
        changes.flip(number).await?;
    }
    changes.figures.forget();
    // The load is a window of its own: its collectors count nothing of what happened before they were there.
    let collector = follow(0).await?;
    let with_hollow = match load.hollow {
        0 => None,
        count => Some((count, follow(count).await?)),
    };
    changes.collector = &collector;
    let jitter = Jitter::start();
    let counts = Counts {
        flips: load.flips,
        lives: load.lives,
        rolls: load.rolls,
        scale_ups: load.scale_ups,
        pods: load.pods_per_node * cluster.record.nodes.len(),
    };
    for step in steps(counts, &mut random) {
        match step {
            Step::Flip(pod) => changes.flip(pod).await?,
            Step::Life(pod) => changes.life(pod).await?,
            Step::Roll => changes.roll().await?,
            Step::ScaleUp => changes.scale_up().await?,
        }
        gates.collect().await?;
    }
    churn.abort();
    let mut figures = std::mem::take(&mut changes.figures);
    figures.jitter = jitter.stop();
    drop(changes);
    before.stop().await;
    figures.sli = collector.sli().await?;
    if let Some((count, collector)) = with_hollow {
        figures.hollow = Some((count, collector.sli().await?));
        collector.stop().await;
    }
    figures.gates = std::mem::take(&mut gates.opened);
    figures.load = json!({ "seed": load.seed, "nodes": cluster.record.nodes.len(), "services": load.services,
        "podsPerNode": load.pods_per_node, "churnPerSecond": load.churn, "hollow": load.hollow });
    collector.stop().await;
    Ok(figures)
}

fn print(output: Output, table: &str, json: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        Output::Text => out.write_all(table.as_bytes())?,
        Output::Json => writeln!(out, "{json}")?,
    }
    Ok(out.flush()?)
}
