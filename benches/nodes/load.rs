//! What do many kubelets send?

use pointsman_api_client::{Client, Patch, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Requests under way at the same time.
const SENDERS: usize = 32;

#[derive(Clone)]
pub struct Load {
    client: Client,
    nodes: usize,
    sent: Arc<AtomicU64>,
}

impl Load {
    pub fn new(client: Client, nodes: usize) -> Self {
        Self {
            client,
            nodes,
            sent: Arc::default(),
        }
    }

    /// Creates all nodes and their leases.
    pub async fn create(&self) {
        // The server makes its own namespaces a moment after it is ready.
        let path = "/api/v1/namespaces/kube-node-lease";
        while self.client.get_path::<IgnoredAny>(path).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut tasks = JoinSet::new();
        for sender in 0..SENDERS {
            let load = self.clone();
            tasks.spawn(async move {
                for number in (sender..load.nodes).step_by(SENDERS) {
                    let nodes = load.client.api(Resource::NODES, None);
                    let node = node(number).to_string().into_bytes();
                    let _: IgnoredAny = nodes.create(node).await.unwrap();
                    let lease = json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name(number) },
                        "spec": { "holderIdentity": name(number), "leaseDurationSeconds": 40, "renewTime": now() },
                    });
                    let leases = load.client.api(Resource::LEASES, Some("kube-node-lease"));
                    let _: IgnoredAny = leases.create(lease.to_string().into_bytes()).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
    }

    /// Whether the loops have taken from all nodes the taint that new ones come with, which is work of their start.
    pub async fn is_settled(&self) -> bool {
        let nodes: Value = self.client.get_path("/api/v1/nodes").await.unwrap();
        let mut nodes = nodes["items"].as_array().unwrap().iter();
        nodes.all(|node| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty))
    }

    /// Sends heartbeats at an even pace for so long; returns how many.
    pub async fn beat(&self, renewals: Duration, reports: Duration, time: Duration) -> u64 {
        self.sent.store(0, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        for (period, is_lease) in [(renewals, true), (reports, false)] {
            let gap = period.as_secs_f64() / self.nodes as f64;
            for sender in 0..SENDERS {
                let load = self.clone();
                tasks.spawn(async move {
                    let begin = Instant::now();
                    let mut number = sender;
                    loop {
                        let at = Duration::from_secs_f64(gap * number as f64);
                        if at >= time {
                            return;
                        }
                        tokio::time::sleep_until(begin + at).await;
                        load.send(number % load.nodes, is_lease).await;
                        number += SENDERS;
                    }
                });
            }
        }
        tasks.join_all().await;
        self.sent.load(Ordering::Relaxed)
    }

    async fn send(&self, number: usize, is_lease: bool) {
        let done = if is_lease {
            let api = self.client.api(Resource::LEASES, Some("kube-node-lease"));
            let patch = json!({ "spec": { "renewTime": now() } });
            let patch = Patch::Merge(patch.to_string().into_bytes());
            api.patch::<IgnoredAny>(&name(number), patch).await
        } else {
            let api = self.client.api(Resource::NODES, None);
            let patch = json!({ "status": { "conditions": conditions() } });
            let patch = Patch::Strategic(patch.to_string().into_bytes());
            api.patch_status::<IgnoredAny>(&name(number), patch).await
        };
        if done.is_ok() {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn name(number: usize) -> String {
    format!("node-{number:05}")
}

fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

fn conditions() -> Value {
    let beat = format!("{:.0}", jiff::Timestamp::now());
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": beat,
            "lastTransitionTime": "2026-01-01T00:00:00Z", "message": format!("kubelet says {reason}"),
        })
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        condition("Ready", "True", "KubeletReady"),
    ])
}

/// A node with about what a kubelet says of itself, images included.
fn node(number: usize) -> Value {
    let images: Vec<Value> = (0..20)
        .map(|image| {
            let name = format!("registry.example.org/team/service-{image}@sha256:{image:064}");
            json!({ "names": [name], "sizeBytes": 100_000_000 + image })
        })
        .collect();
    let resources = json!({ "cpu": "32", "memory": "131072Mi", "pods": "110", "ephemeral-storage": "500Gi" });
    let zone = format!("zone-{}", number % 3);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name(number), "labels": {
            "kubernetes.io/hostname": name(number), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "region",
        } },
        "status": {
            "capacity": resources, "allocatable": resources, "conditions": conditions(), "images": images,
            "addresses": [{ "type": "InternalIP", "address": format!("10.0.{}.{}", number / 250, number % 250 + 1) }],
            "nodeInfo": {
                "kubeletVersion": "v1.37.0", "kernelVersion": "6.18.0", "osImage": "Linux", "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.2.0", "operatingSystem": "linux", "bootID": "b",
                "machineID": "m", "systemUUID": "s", "kubeProxyVersion": "",
            },
        },
    })
}
