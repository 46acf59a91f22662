//! Agents that report and follow their settings, without nodes behind them.

use pointsman_api_client::{ApiError, Client, Patch, Resource};
use pointsman_harness::cluster::Cluster;
use pointsman_latency_profile::{GracePeriod, ReportPeriod, Verdict};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const PAUSE: Duration = Duration::from_millis(100);
const ANNOUNCED: &str = "pointsman.io/node-status-update-frequency";

/// A few agents; they end with it.
pub struct Agents {
    names: Vec<String>,
    tasks: JoinSet<()>,
    /// Agents that do not follow changes any more.
    pub deaf: Arc<AtomicBool>,
}

impl Agents {
    /// Registers nodes `n1`.. and starts an agent for each. The last one can be made deaf.
    pub async fn start(cluster: &Cluster, count: usize) -> Self {
        let names: Vec<String> = (1..=count).map(|number| format!("n{number}")).collect();
        let mut tasks = JoinSet::new();
        let deaf = Arc::new(AtomicBool::new(false));
        for name in &names {
            cluster.node(name, "a").await;
            announce(&cluster.client, name, "10s").await.unwrap();
            let deaf = (Some(name) == names.last()).then(|| deaf.clone());
            tasks.spawn(work(cluster.client.clone(), name.clone(), deaf));
        }
        Self { names, tasks, deaf }
    }

    /// What every node announces.
    pub async fn announced(&self, client: &Client) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for name in &self.names {
            let node: Value = client.api(Resource::NODES, None).get(name).await.unwrap();
            let text = node["metadata"]["annotations"][ANNOUNCED].as_str();
            all.insert(text.unwrap_or("-").to_owned());
        }
        all
    }

    /// Fails if an agent found itself in an unsafe state.
    pub fn check(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            ended.unwrap();
        }
    }
}

/// One agent: reports, and takes up what the ConfigMap says, a longer period announced before it is used.
async fn work(client: Client, name: String, deaf: Option<Arc<AtomicBool>>) {
    let mut period = "10s".to_owned();
    let mut ticks = 0u32;
    loop {
        // The server may be gone for a while; nothing changes meanwhile.
        let _ = step(&client, &name, &mut period, deaf.as_deref()).await;
        if ticks.is_multiple_of(20) {
            let _ = heartbeat(&client, &name).await;
        }
        ticks += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn step(
    client: &Client,
    name: &str,
    period: &mut String,
    deaf: Option<&AtomicBool>,
) -> Result<(), ApiError> {
    if let Some(wanted) = configured(client).await?
        && wanted != *period
        && !deaf.is_some_and(|deaf| deaf.load(Ordering::Relaxed))
    {
        announce(client, name, &wanted).await?;
        *period = wanted;
    }
    // The grace period in force has to leave room for what is used here.
    let api = client.api(Resource::core("configmaps"), Some("kube-system"));
    let map: Value = match api.get("pointsman-controllers").await {
        Err(ApiError::NotFound(_)) => return Ok(()),
        other => other?,
    };
    let announced = &map["metadata"]["annotations"]["pointsman.io/observed-node-monitor-grace-period"];
    if let Some(grace) = announced.as_str() {
        let verdict = Verdict::of(
            ReportPeriod::parse(period).unwrap(),
            GracePeriod::parse(grace).unwrap(),
        );
        assert!(
            verdict.is_safe(),
            "{name} reports every {period} and has {grace}: {verdict}"
        );
    }
    Ok(())
}

async fn configured(client: &Client) -> Result<Option<String>, ApiError> {
    let api = client.api(Resource::core("configmaps"), Some("kube-system"));
    match api.get::<Value>("pointsman-node").await {
        Ok(map) => Ok(map["data"]["nodeStatusUpdateFrequency"]
            .as_str()
            .map(str::to_owned)),
        Err(ApiError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn announce(client: &Client, name: &str, period: &str) -> Result<(), ApiError> {
    let patch = json!({ "metadata": { "annotations": { ANNOUNCED: period } } });
    let patch = Patch::Merge(patch.to_string().into_bytes());
    client
        .api(Resource::NODES, None)
        .patch::<Value>(name, patch)
        .await
        .map(drop)
}

async fn heartbeat(client: &Client, name: &str) -> Result<(), ApiError> {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let now = pointsman_model::Moment::from_seconds(since.as_secs() as i64).to_string();
    let ready = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": now });
    let patch = json!({ "status": { "conditions": [ready] } });
    let patch = Patch::Strategic(patch.to_string().into_bytes());
    client
        .api(Resource::NODES, None)
        .patch_status::<Value>(name, patch)
        .await
        .map(drop)
}
