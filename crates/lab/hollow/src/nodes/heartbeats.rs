//! What do many nodes send?

use super::object::{NodeNumber, Nodes, conditions};
use pointsman_api_client::{ApiError, Client, Patch, Resource};
use serde::de::IgnoredAny;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Requests under way at the same time.
const SENDERS: usize = 32;

/// Where node leases live.
const LEASES: &str = "kube-node-lease";

/// The heartbeats of all hollow nodes.
#[derive(Clone)]
pub struct Heartbeats {
    client: Client,
    nodes: Nodes,
    sent: Arc<AtomicU64>,
}

impl Heartbeats {
    pub fn new(client: Client, nodes: Nodes) -> Self {
        Self {
            client,
            nodes,
            sent: Arc::default(),
        }
    }

    /// Creates all nodes and their leases; those that are there stay.
    pub async fn create(&self) -> Result<(), ApiError> {
        // The server makes its own namespaces a moment after it is ready.
        let path = format!("/api/v1/namespaces/{LEASES}");
        while self.client.get_path::<IgnoredAny>(&path).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut tasks = JoinSet::new();
        for sender in 0..SENDERS {
            let beats = self.clone();
            tasks.spawn(async move {
                for node in beats.nodes.all().skip(sender).step_by(SENDERS) {
                    beats.register(node).await?;
                }
                Ok(())
            });
        }
        tasks.join_all().await.into_iter().collect()
    }

    async fn register(&self, node: NodeNumber) -> Result<(), ApiError> {
        let name = node.name();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name },
            "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now() },
        });
        for (api, object) in [
            (self.client.api(Resource::NODES, None), node.object()),
            (self.client.api(Resource::LEASES, Some(LEASES)), lease),
        ] {
            match api.create::<IgnoredAny>(object.to_string().into_bytes()).await {
                Ok(_) | Err(ApiError::AlreadyExists(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends heartbeats at an even pace for so long; returns how many.
    pub async fn beat(&self, renewals: Duration, reports: Duration, time: Duration) -> u64 {
        self.sent.store(0, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        for (period, is_lease) in [(renewals, true), (reports, false)] {
            let gap = period.as_secs_f64() / self.nodes.count() as f64;
            for sender in 0..SENDERS {
                let beats = self.clone();
                tasks.spawn(async move {
                    let begin = Instant::now();
                    let mut number = sender;
                    loop {
                        let at = Duration::from_secs_f64(gap * number as f64);
                        if at >= time {
                            return;
                        }
                        tokio::time::sleep_until(begin + at).await;
                        beats.send(beats.nodes.at(number), is_lease).await;
                        number += SENDERS;
                    }
                });
            }
        }
        tasks.join_all().await;
        self.sent.load(Ordering::Relaxed)
    }

    async fn send(&self, node: NodeNumber, is_lease: bool) {
        let done = if is_lease {
            let api = self.client.api(Resource::LEASES, Some(LEASES));
            let patch = json!({ "spec": { "renewTime": now() } });
            let patch = Patch::Merge(patch.to_string().into_bytes());
            api.patch::<IgnoredAny>(&node.name(), patch).await
        } else {
            let api = self.client.api(Resource::NODES, None);
            let patch = json!({ "status": { "conditions": conditions() } });
            let patch = Patch::Strategic(patch.to_string().into_bytes());
            api.patch_status::<IgnoredAny>(&node.name(), patch).await
        };
        if done.is_ok() {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}
