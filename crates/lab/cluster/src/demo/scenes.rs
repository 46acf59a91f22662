//! What happens, by itself, one after the other?

use super::Stage;
use super::generators::{Generators, TIMEOUT};
use super::objects::{self, POD_PORT};
use crate::network;
use crate::plain_http;
use anyhow::{Context, bail};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long a scene may wait for what it waits for.
const PATIENCE: Duration = Duration::from_secs(90);
/// After so long without an answer from a pod, nobody sends to it any more.
const QUIET: Duration = Duration::from_millis(1500);
const STEP: Duration = Duration::from_millis(20);

/// The scenes in their order.
pub const ALL: &[Scene] = &[
    Scene::Steady,
    Scene::RollingUpdate,
    Scene::UnreadyPod,
    Scene::LostNode,
    Scene::Profile,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Nothing happens, for comparison.
    Steady,
    /// All pods are replaced, one by one.
    RollingUpdate,
    /// A pod says that it is not ready, and a while later that it is.
    UnreadyPod,
    /// The cable of a node is cut, and mended when everybody knows.
    LostNode,
    /// The cluster becomes more patient with its nodes.
    Profile,
}

impl Scene {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "nothing happens",
            Self::RollingUpdate => "rolling update",
            Self::UnreadyPod => "a pod turns unready",
            Self::LostNode => "a node is cut off",
            Self::Profile => "profile change",
        }
    }

    /// The node whose own requests do not count: it is cut off.
    pub fn excluded(self) -> Option<&'static str> {
        (self == Self::LostNode).then_some(VICTIM)
    }

    /// Plays the scene and says, in a few words, what was seen.
    pub async fn play(self, stage: &Stage, loads: &mut Generators) -> anyhow::Result<String> {
        match self {
            Self::Steady => {
                tokio::time::sleep(Duration::from_secs(3)).await;
                Ok("3 s".to_owned())
            }
            Self::RollingUpdate => rolling_update(stage).await,
            Self::UnreadyPod => unready_pod(stage, loads).await,
            Self::LostNode => lost_node(stage, loads).await,
            Self::Profile => profile(stage).await,
        }
    }
}

/// The node that is cut off.
const VICTIM: &str = "n3";

async fn rolling_update(stage: &Stage) -> anyhow::Result<String> {
    let started = Instant::now();
    objects::change_template(&stage.client).await?;
    objects::wait_for_rollout(&stage.client).await?;
    Ok(format!(
        "{} pods replaced in {}",
        objects::REPLICAS,
        seconds(started.elapsed())
    ))
}

async fn unready_pod(stage: &Stage, loads: &Generators) -> anyhow::Result<String> {
    let pods = objects::pods(&stage.client).await?;
    let pod = pods
        .into_iter()
        .find(objects::is_well)
        .context("no pod is ready")?;
    let address = SocketAddr::new(*pod.ips.first().context("the pod has no address")?, POD_PORT);
    let name = &pod.metadata.name;
    let switch = async |path: &str| {
        let answer = plain_http::get(address, path, Duration::from_secs(2)).await;
        answer.with_context(|| format!("asking pod {name} for {path}"))
    };
    let readiness = async |wanted: bool| {
        until("the pod's readiness changes", async || {
            let pods = objects::pods(&stage.client).await?;
            Ok(pods
                .iter()
                .any(|other| other.metadata.name == *name && other.is_ready() == wanted))
        })
        .await
    };
    let off = Instant::now();
    switch("/ready/off").await?;
    readiness(false).await?;
    let noticed = off.elapsed();
    until("nobody sends to the pod", async || {
        let last = loads.last_answer(name);
        Ok(last.is_none_or(|last| last.elapsed() > QUIET))
    })
    .await?;
    let last = loads.last_answer(name).unwrap_or(off);
    let out = last.saturating_duration_since(off);
    switch("/ready/on").await?;
    readiness(true).await?;
    Ok(format!(
        "probe noticed after {}, last request after {}",
        millis(noticed),
        millis(out)
    ))
}

async fn lost_node(stage: &Stage, loads: &Generators) -> anyhow::Result<String> {
    let nodes = stage.plan.nodes();
    let Some(victim) = nodes.iter().find(|node| node.name == VICTIM) else {
        return Ok("left out: needs 3 nodes".to_owned());
    };
    let cut = Instant::now();
    network::set_cable(&stage.plan, &victim.port, false)?;
    let withdrawn = until("nobody is sent to its pods", async || {
        Ok(!objects::sends_to(&stage.client, VICTIM).await?)
    })
    .await;
    let out = cut.elapsed();
    // Everybody knows. Requests that were under way fail within their time; any later one would mean that
    // rules still lead to the node.
    tokio::time::sleep(TIMEOUT + Duration::from_millis(500)).await;
    let before = loads.lost(VICTIM);
    let noticed = until("the node is called unreachable", async || {
        Ok(!objects::is_node_ready(&stage.client, VICTIM).await?)
    })
    .await;
    let unready = until("its pods are called unready", async || {
        let pods = objects::pods(&stage.client).await?;
        Ok(pods
            .iter()
            .all(|pod| pod.node_name.as_deref() != Some(VICTIM) || !pod.is_ready()))
    })
    .await;
    let known = cut.elapsed();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = loads.lost(VICTIM) - before;
    network::set_cable(&stage.plan, &victim.port, true)?;
    withdrawn.and(noticed).and(unready)?;
    until("the node is back", async || {
        let pods = objects::pods(&stage.client).await?;
        let is_back = objects::is_node_ready(&stage.client, VICTIM).await?;
        Ok(is_back && pods.iter().filter(|pod| objects::is_well(pod)).count() as u64 == objects::REPLICAS)
    })
    .await?;
    // What the node itself sent while it was cut off ends within its time, and must not count as the next scene's.
    tokio::time::sleep(TIMEOUT).await;
    Ok(format!(
        "out of use after {}, called unreachable after {}; lost later: {after}",
        seconds(out),
        seconds(known)
    ))
}

async fn profile(stage: &Stage) -> anyhow::Result<String> {
    let started = Instant::now();
    let mut command = tokio::process::Command::new(&stage.program);
    command.args(["profile", "apply", "medium", "--timeout=90s", "--kubeconfig"]);
    command
        .arg(&stage.kubeconfig)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command.output().await.context("running `pointsman profile`")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{}", errors.lines().last().unwrap_or("the change failed"));
    }
    Ok(format!(
        "MediumUpdateAverageReaction everywhere in {}",
        seconds(started.elapsed())
    ))
}

/// Asks again and again until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let started = Instant::now();
    while !is_so().await? {
        if started.elapsed() > PATIENCE {
            bail!("{what}: not within {PATIENCE:?}");
        }
        tokio::time::sleep(STEP).await;
    }
    Ok(())
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn millis(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}
