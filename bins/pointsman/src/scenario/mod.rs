//! `pointsman scenario`: the test scenario that the SLI's definition leaves open.
//!
//! A documented load on a running cluster, and the SLI that a collector reports for it beside the truth,
//! taken from packets: a prober in the namespace of every node sees when connections really change.
//!
//! Pods are objects whose readiness the scenario itself decides, as an agent would, in the microsecond that
//! it writes down. Their addresses are on the nodes' loopback links, where something listens. So the whole
//! path is real from the pod's status on: API server, slice controller, watches, proxies, kernels.

mod cluster;
mod figures;
mod packets;

use anyhow::bail;
use clap::Args;
use cluster::{Cluster, Pod};
use figures::{Figures, Sample};
use packets::Probers;
use std::io::Write;
use std::time::Duration;

use crate::duration;
use crate::up::claim::{Known, look_up};
use crate::up::plan;

/// What load, on which cluster.
#[derive(Args)]
pub struct Flags {
    /// The cluster, started with `pointsman up`.
    #[arg(long, value_name = "NAME", default_value = "pointsman", value_parser = plan::check_name)]
    name: String,
    /// Services that are there besides the measured ones, each with one endpoint.
    #[arg(long, value_name = "N", default_value_t = 100)]
    services: usize,
    /// Readiness flips that are measured.
    #[arg(long, value_name = "N", default_value_t = 200)]
    flips: usize,
    /// Pause between two measured flips.
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = duration::parse)]
    pause: Duration,
    /// Readiness flips of other pods each second, all the while.
    #[arg(long, value_name = "N", default_value_t = 10)]
    churn: u32,
}

/// Runs the load and prints what came of it. Everything it made is removed again.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let record = match look_up(&flags.name)? {
        Known::Running(record) => record,
        Known::Dead(_) | Known::Unknown => bail!(
            "no cluster named {:?} runs; start one with `pointsman up`",
            flags.name
        ),
    };
    if record.nodes.is_empty() {
        bail!("the cluster has no nodes; start it with `pointsman up --nodes 3`");
    }
    let cluster = Cluster::prepare(record, flags.services).await?;
    let outcome = measure(&cluster, &flags).await;
    cluster.remove().await;
    let figures = outcome?;
    let mut out = std::io::stdout();
    out.write_all(figures.table().as_bytes())?;
    Ok(())
}

async fn measure(cluster: &Cluster, flags: &Flags) -> anyhow::Result<Figures> {
    let probers = Probers::start(&cluster.record)?;
    let churn = tokio::spawn(cluster.churn(flags.churn));
    let mut figures = Figures::default();
    // The first flips find everything cold, also the probers.
    let warm_up = 5;
    for number in 0..flags.flips + warm_up {
        let pod: &Pod = &cluster.measured[number % cluster.measured.len()];
        let ready = (number / cluster.measured.len()).is_multiple_of(2);
        let watching = probers.watch(pod.service_address, ready);
        // Probers have to have seen the state before, or the first packet would seem to be the change.
        tokio::time::sleep(flags.pause).await;
        let flipped = cluster.flip(pod, ready).await?;
        let seen = watching.finish(Duration::from_secs(10)).await;
        let reported = cluster.reported(pod, flipped).await?;
        if number < warm_up {
            continue;
        }
        for (node, truth) in seen {
            figures.samples.push(Sample {
                truth: truth.map(|truth| truth.since(flipped)),
                width: truth.map_or(Duration::ZERO, |truth| truth.width),
                reported: reported.nodes.get(&node).copied(),
            });
        }
        figures.everywhere.extend(reported.most);
    }
    churn.abort();
    figures.sli = cluster.sli().await?;
    Ok(figures)
}
