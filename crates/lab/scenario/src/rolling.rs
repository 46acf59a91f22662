//! `pointsman scenario rolling`: are requests lost while pods are replaced?
//!
//! Pods end at once on SIGTERM and drain nothing, so that every connection that a node still sends to one is lost.
//! With the shutdown gate there are none, whoever asks it; without it there are some.

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
    /// The agent does not ask, a `preStop` hook does: for its Service, as hooks of any kubelet can.
    ServiceHook,
    /// The agent does not ask, a `preStop` hook does: for its pod, by `pointsman gate`.
    PodHook,
}

impl Gate {
    /// The word in flags and JSON.
    fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::ServiceHook => "service-hook",
            Self::PodHook => "pod-hook",
        }
    }
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
    let hook = hook(cluster, load.gate)?;
    let template = |round| match &hook {
        Some(hook) => objects::hooked(&cluster.served, round, hook),
        None => objects::replaced(&cluster.served, round, true),
    };
    if load.gate != Gate::On {
        for patch in [objects::ungated(), template(0)] {
            cluster.patch(Resource::DEPLOYMENTS, NAME, &patch).await?;
        }
        cluster
            .wait_for_rollout(NAME)
            .await
            .context("pods whose agent does not ask")?;
    }
    let mut gates = Gates::start(&cluster.client, &cluster.record, NAMESPACE).await?;
    let loads = Loads::start(&cluster.record, &cluster.program, service, load.rate).await?;
    let began = Instant::now();
    for round in 1..=load.updates {
        cluster
            .patch(Resource::DEPLOYMENTS, NAME, &template(round))
            .await?;
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

/// The `preStop` hook that asks the gate, if one does.
fn hook(cluster: &Cluster, gate: Gate) -> anyhow::Result<Option<Value>> {
    let address = || cluster.record.gate.context("the cluster has no shutdown gate");
    Ok(match gate {
        Gate::On | Gate::Off => None,
        Gate::ServiceHook => Some(objects::service_hook(address()?, NAMESPACE, NAME)),
        Gate::PodHook => Some(objects::pod_hook(address()?, &cluster.served)),
    })
}

impl Outcome {
    /// Why the run is not good enough; nothing if it is.
    pub fn violations(&self) -> Vec<String> {
        let lost = self.tally.lost();
        if self.load.gate != Gate::Off && lost > 0 {
            return vec![format!("{lost} requests failed although the gate was asked")];
        }
        Vec::new()
    }

    pub fn json(&self) -> Value {
        json!({
            "gate": self.load.gate.as_str(),
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
            Gate::ServiceHook => "asked by a hook, for its Service",
            Gate::PodHook => "asked by a hook, for its pod",
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
