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
mod loads;
mod objects;
mod packets;
mod report;
mod rolling;
mod spread;
mod steps;

use anyhow::bail;
use changes::Changes;
use clap::{Args, Subcommand};
use cluster::{Cluster, NAMESPACE};
use figures::{Bounds, Figures};
use gates::Gates;
use report::Collector;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use steps::{Counts, Step, steps};

use crate::duration;
use crate::up::claim::{Known, Record, look_up};
use crate::up::plan;
use crate::up::progress::Output;

/// What load, on which cluster.
#[derive(Args)]
#[command(after_help = "\
Needs root, and a cluster that `pointsman up` runs. Everything that is made is removed again.

Exit codes: 0 all is within its bounds, 1 it is not, or the scenario could not be played, 2 wrong usage.")]
pub struct Flags {
    /// The cluster, started with `pointsman up`.
    #[arg(long, global = true, value_name = "NAME", default_value = "pointsman", value_parser = plan::check_name)]
    name: String,
    /// For whom output is written.
    #[arg(long, global = true, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    mixed: Mixed,
    #[command(subcommand)]
    other: Option<Other>,
}

#[derive(Subcommand)]
enum Other {
    /// Replace the pods of a Deployment under load from every node, and count lost requests.
    Rolling(rolling::Flags),
}

/// The mixed load.
#[derive(Args)]
struct Mixed {
    /// Decides the order of changes and the churn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Services that are there besides the measured ones, with one endpoint each that nobody runs.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    services: usize,
    /// Measured pods on each node, with a Service each.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pods_per_node: usize,
    /// Readiness flips that are measured.
    #[arg(long, value_name = "N", default_value_t = 200)]
    flips: usize,
    /// Services that are created, given another port and deleted.
    #[arg(long, value_name = "N", default_value_t = 30)]
    lives: usize,
    /// Rolling updates that are measured.
    #[arg(long, value_name = "N", default_value_t = 30)]
    rolls: usize,
    /// Scale-ups that are measured, from no pod to three.
    #[arg(long, value_name = "N", default_value_t = 15)]
    scale_ups: usize,
    /// Readiness flips of pods that nobody runs each second, all the while.
    #[arg(long, value_name = "N", default_value_t = 10)]
    churn: u32,
    /// Programmers without a kernel besides the nodes' own.
    #[arg(long, value_name = "N", default_value_t = 0)]
    hollow: usize,
    /// Pause before each measured change.
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = duration::parse)]
    pause: Duration,
    /// The difference between truth and report that is allowed at the 99th percentile.
    #[arg(long, value_name = "DURATION", default_value = "2ms", value_parser = duration::parse)]
    error_bound: Duration,
    /// The least coverage that is allowed, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    coverage_bound: f64,
}

/// Plays a scenario and prints what came of it. Everything it made is removed again.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let record = running_cluster(&flags.name)?;
    let (table, json, violations) = match flags.other {
        Some(Other::Rolling(rolling)) => {
            let outcome = rolling::run(record, rolling).await?;
            (outcome.table(), outcome.json(), outcome.violations())
        }
        None => {
            let bounds = Bounds {
                error: flags.mixed.error_bound,
                coverage: flags.mixed.coverage_bound,
            };
            let figures = mixed(record, &flags.mixed).await?;
            (figures.table(), figures.json(bounds), figures.violations(bounds))
        }
    };
    print(flags.output, &table, &json)?;
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

async fn mixed(record: Record, flags: &Mixed) -> anyhow::Result<Figures> {
    let mut cluster = Cluster::enter(record).await?;
    let outcome = match cluster.add_others(flags.services).await {
        Ok(()) => measure(&cluster, flags).await,
        Err(error) => Err(error),
    };
    cluster.remove().await;
    outcome
}

async fn measure(cluster: &Cluster, flags: &Mixed) -> anyhow::Result<Figures> {
    let collector = Collector::start(&cluster.record, 0).await?;
    let with_hollow = match flags.hollow {
        0 => None,
        count => Some((count, Collector::start(&cluster.record, count).await?)),
    };
    let mut gates = Gates::start(&cluster.client, &cluster.record, NAMESPACE).await?;
    let mut changes = Changes::prepare(cluster, &collector, flags.pods_per_node, flags.pause).await?;
    let mut random = fastrand::Rng::with_seed(flags.seed);
    let churn = tokio::spawn(cluster.churn(flags.churn, random.fork()));
    // The first changes find everything cold, also the probers.
    for number in [0, 0] {
        changes.flip(number).await?;
    }
    changes.figures.forget();
    let counts = Counts {
        flips: flags.flips,
        lives: flags.lives,
        rolls: flags.rolls,
        scale_ups: flags.scale_ups,
        pods: flags.pods_per_node * cluster.record.nodes.len(),
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
    drop(changes);
    figures.sli = collector.sli().await?;
    if let Some((count, collector)) = with_hollow {
        figures.hollow = Some((count, collector.sli().await?));
        collector.stop().await;
    }
    figures.gates = std::mem::take(&mut gates.opened);
    figures.load = json!({ "seed": flags.seed, "nodes": cluster.record.nodes.len(), "services": flags.services,
        "podsPerNode": flags.pods_per_node, "churnPerSecond": flags.churn, "hollow": flags.hollow });
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
