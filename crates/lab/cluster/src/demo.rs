//! `pointsman up --demo`: what happens to requests while pods and nodes come and go?
//!
//! A Deployment behind a Service, a bounded load from every node, and then, by itself: a rolling update, a pod
//! that turns unready, a node that is cut off, a change of the latency profile. Each scene is counted on its
//! own, and a table at the end says what was lost and how fast the rules followed.

mod generators;
mod latency;
mod objects;
mod scenes;
mod summary;

use super::plan::Plan;
use super::progress::Progress;
use anyhow::Context;
use generators::Generators;
use pointsman_api_client::Client;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use summary::Summary;

/// Requests per second from each node.
const RATE: u32 = 20;

/// The stage of all scenes.
pub struct Stage {
    /// May do everything.
    pub client: Client,
    /// Where everything is.
    pub plan: Plan,
    /// Our own program, which also plays the pods.
    pub program: PathBuf,
    /// The administrator's kubeconfig, for commands.
    pub kubeconfig: PathBuf,
}

/// Plays all scenes and reports how they went. The Deployment and the Service stay.
pub async fn run(stage: Stage, progress: &Progress) -> anyhow::Result<()> {
    progress.note(format_args!(
        "\ndemo: 4 pods behind a Service, {RATE} new connections per second from every node"
    ));
    objects::forget_profile(&stage.client).await?;
    objects::create(&stage).await?;
    objects::wait_for_rollout(&stage.client)
        .await
        .context("waiting for the pods; `kubectl describe pods` says more")?;
    let service = SocketAddr::new(objects::cluster_address(&stage.client).await?, 80);
    let mut generators = Generators::start(&stage, service, RATE)?;
    generators.wait_for_answers().await?;
    let mut summary = Summary::default();
    let data_dir = stage.kubeconfig.parent().unwrap_or(Path::new(""));
    for scene in scenes::ALL {
        generators.take().await;
        let before = latency::read(data_dir, &stage.plan, scene.excluded()).await;
        let played = scene.play(&stage, &mut generators).await;
        // Requests that are under way belong to the scene.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let tallies = generators.take().await;
        let programming = latency::read(data_dir, &stage.plan, scene.excluded()).await;
        let programming = programming.since(&before);
        let row = summary.add(*scene, played, tallies, programming);
        progress.note(row);
    }
    generators.stop().await;
    progress.summary(&summary.render(), &summary.to_json());
    Ok(())
}
