//! `pointsman scenario rolling`: are requests lost while pods are replaced?
//!
//! Pods end at once on SIGTERM and have no `preStop` hook, so that every connection that a node still sends to
//! one is lost. With the shutdown gate there are none; without it there are some.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use pointsman_api_client::Resource;
use serde_json::{Value, json};

use super::cluster::{Cluster, NAMESPACE};
use super::figures::{outcomes, sli_row};
use super::gates::{Gates, Opened};
use super::loads::Loads;
use super::objects;
use super::spread::{Spread, cells};
use pointsman_cluster::claim::Record;
use pointsman_cluster::load::Tally;

const NAME: &str = "rolled";

/// How many updates, under what load.
pub struct Rolling {
    /// Rolling updates, one after the other.
    pub updates: u64,
    /// Pods of the Deployment.
    pub replicas: u64,
    /// New connections each second from every node.
    pub rate: u32,
    /// Whether pods wait at the shutdown gate.
    pub gate: Gate,
}

/// Whether pods wait at the shutdown gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// As it should be.
    #[default]
    On,
    /// They are stopped at once, by their annotation, to see what the gate is for.
    Off,
}

/// What came of the updates.
pub struct Outcome {
    load: Rolling,
    took: Duration,
    tally: Tally,
    gates: Opened,
    sli: Value,
}

/// Puts the load on the cluster and replaces its pods again and again.
pub async fn run(record: Record, load: Rolling) -> anyhow::Result<Outcome> {
    let cluster = Cluster::enter(record).await?;
    let outcome = measure(&cluster, load).await;
    cluster.remove().await;
    outcome
}

async fn measure(cluster: &Cluster, load: Rolling) -> anyhow::Result<Outcome> {
    let service = cluster.add_deployment(NAME, load.replicas).await?;
    if load.gate == Gate::Off {
        cluster
            .patch(Resource::DEPLOYMENTS, NAME, &objects::ungated())
            .await?;
        cluster
            .wait_for_rollout(NAME)
            .await
            .context("pods without a gate")?;
    }
    let mut gates = Gates::start(&cluster.client, &cluster.record, NAMESPACE).await?;
    let loads = Loads::start(&cluster.record, &cluster.program, service, load.rate).await?;
    let began = Instant::now();
    for round in 1..=load.updates {
        let template = objects::replaced(&cluster.program, round, true);
        cluster.patch(Resource::DEPLOYMENTS, NAME, &template).await?;
        cluster
            .wait_for_rollout(NAME)
            .await
            .with_context(|| format!("rolling update {round} of {}", load.updates))?;
        gates.collect().await?;
    }
    let took = began.elapsed();
    let tally = loads.finish().await?;
    let sli = gates.sli().await?;
    Ok(Outcome {
        load,
        took,
        tally,
        gates: std::mem::take(&mut gates.opened),
        sli,
    })
}

impl Outcome {
    /// Why the run is not good enough; nothing if it is.
    pub fn violations(&self) -> Vec<String> {
        let lost = self.tally.lost();
        if self.load.gate == Gate::On && lost > 0 {
            return vec![format!("{lost} requests failed although the gate was on")];
        }
        Vec::new()
    }

    pub fn json(&self) -> Value {
        json!({
            "gate": if self.load.gate == Gate::On { "on" } else { "off" },
            "updates": self.load.updates,
            "replicas": self.load.replicas,
            "seconds": self.took.as_secs_f64(),
            "requests": { "answered": self.tally.ok, "failed": self.tally.lost(), "reasons": self.tally.failed,
                "slowestMs": self.tally.slowest_ms },
            "gates": {
                "outcomes": self.gates.outcomes,
                "afterDeletion": Spread::of(self.gates.after_deletion.iter().copied()),
                "waited": Spread::of(self.gates.waited.iter().copied()),
            },
            "sli": { "pooled": self.sli["pooled"], "exact": self.sli["exact"] },
            "violations": self.violations(),
        })
    }

    /// Tables in Markdown, for people.
    pub fn table(&self) -> String {
        let gate = match self.load.gate {
            Gate::On => "on",
            Gate::Off => "off (pods are stopped at once)",
        };
        let reasons: Vec<String> = self
            .tally
            .failed
            .iter()
            .map(|(why, count)| format!("{count} {why}"))
            .collect();
        let mut out = String::from(
            "| shutdown gate | updates | pods each | seconds | requests answered | failed | why |\n\
             |---|--:|--:|--:|--:|--:|---|\n",
        );
        let _ = writeln!(
            out,
            "| {gate} | {} | {} | {:.0} | {} | {} | {} |",
            self.load.updates,
            self.load.replicas,
            self.took.as_secs_f64(),
            self.tally.ok,
            self.tally.lost(),
            reasons.join(", "),
        );
        out += "\n| ms | gates | p50 | p99 | slowest |\n|---|--:|--:|--:|--:|\n";
        for (name, times) in [
            (
                "deletion of a pod to its open gate (target: p99 100)",
                &self.gates.after_deletion,
            ),
            ("of that, the wait at the gate", &self.gates.waited),
        ] {
            let spread = Spread::of(times.iter().copied());
            let _ = writeln!(out, "| {name} | {} | {} |", times.len(), cells(spread));
        }
        out += "\n| SLI over 5 minutes | samples | p50 ms | p90 ms | p99 ms | coverage |\n|---|--:|--:|--:|--:|--:|\n";
        sli_row(&mut out, "pooled", &self.sli, "pooled");
        sli_row(&mut out, "exact", &self.sli, "exact");
        let _ = writeln!(out, "\nGates: {}.", outcomes(&self.gates));
        out
    }
}
