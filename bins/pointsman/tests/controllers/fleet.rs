//! How does a test get nodes that live and die?
//!
//! Kubelets are stood in for by one task that renews leases of the nodes that are alive.

use pointsman_api_client::{ApiError, Client, Patch, Resource};
use pointsman_harness::SOON;
use pointsman_harness::cluster::Cluster;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// How often a living node renews its lease.
const BEAT: Duration = Duration::from_millis(250);
const POLL: Duration = Duration::from_millis(20);

/// What the clock of a node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Right,
    /// Years ahead, and going backwards.
    Mad,
}

/// Nodes whose leases are renewed; they all die when it is dropped.
pub struct Fleet {
    client: Client,
    nodes: Arc<Mutex<BTreeMap<String, Life>>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Life {
    alive: bool,
    clock: Clock,
    last: Instant,
}

impl Fleet {
    pub fn new(cluster: &Cluster) -> Self {
        let nodes = Arc::new(Mutex::new(BTreeMap::<String, Life>::new()));
        let (client, beating) = (cluster.client.clone(), nodes.clone());
        let task = tokio::spawn(async move {
            let mut round = 0u64;
            loop {
                round += 1;
                let now: Vec<(String, Life)> = beating.lock().unwrap().clone().into_iter().collect();
                for (name, life) in now.into_iter().filter(|(_, life)| life.alive) {
                    if renew(&client, &name, life.clock, round).await.is_ok()
                        && let Some(life) = beating.lock().unwrap().get_mut(&name)
                    {
                        life.last = Instant::now();
                    }
                }
                tokio::time::sleep(BEAT).await;
            }
        });
        Self {
            client: cluster.client.clone(),
            nodes,
            task,
        }
    }

    /// A node that reports to be ready and goes on renewing its lease.
    pub async fn join(&self, cluster: &Cluster, name: &str, zone: &str, clock: Clock) {
        cluster.node(name, zone).await;
        renew(&self.client, name, clock, 0).await.unwrap();
        let life = Life {
            alive: true,
            clock,
            last: Instant::now(),
        };
        self.nodes.lock().unwrap().insert(name.to_owned(), life);
    }

    /// The node is cut off from now on; returns when it was last heard of.
    pub async fn silence(&self, name: &str) -> Instant {
        self.silence_all(&[name]).await;
        self.nodes.lock().unwrap()[name].last
    }

    /// All these are cut off in the same moment.
    pub async fn silence_all(&self, names: &[&str]) {
        for (name, life) in self.nodes.lock().unwrap().iter_mut() {
            life.alive &= !names.contains(&name.as_str());
        }
        // A renewal may be under way.
        tokio::time::sleep(BEAT).await;
    }

    /// The node is back and says how it is.
    pub async fn revive(&self, name: &str) {
        self.report(name, "True").await;
        self.nodes.lock().unwrap().get_mut(name).unwrap().alive = true;
    }

    /// What the node says about its readiness.
    pub async fn report(&self, name: &str, ready: &str) {
        let condition = json!({
            "type": "Ready", "status": ready, "reason": "KubeletSays", "lastHeartbeatTime": time(0),
        });
        let patch = json!({ "status": { "conditions": [condition] } });
        let patch = Patch::Strategic(patch.to_string().into_bytes());
        let api = self.client.api(Resource::NODES, None);
        let _: Value = api.patch_status(name, patch).await.unwrap();
    }

    pub async fn node(&self, name: &str) -> Node {
        let api = self.client.api(Resource::NODES, None);
        Node(api.get(name).await.unwrap())
    }

    /// Waits for a state of a node; returns it.
    pub async fn wait(&self, name: &str, what: &str, is: impl Fn(&Node) -> bool) -> Node {
        let deadline = Instant::now() + SOON;
        loop {
            let node = self.node(name).await;
            if is(&node) {
                return node;
            }
            assert!(Instant::now() < deadline, "{name} never {what}: {}", node.0);
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A node as the API has it.
#[derive(Debug)]
pub struct Node(pub Value);

impl Node {
    pub fn ready(&self) -> &str {
        let conditions = self.0["status"]["conditions"].as_array();
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Ready");
        ready.and_then(|ready| ready["status"].as_str()).unwrap_or("")
    }

    /// Taints as `unreachable:NoExecute`, in order.
    pub fn taints(&self) -> Vec<String> {
        let taints = self.0["spec"]["taints"].as_array();
        let mut taints: Vec<String> = taints
            .into_iter()
            .flatten()
            .map(|taint| {
                let key = taint["key"]
                    .as_str()
                    .unwrap()
                    .trim_start_matches("node.kubernetes.io/");
                format!("{key}:{}", taint["effect"].as_str().unwrap())
            })
            .collect();
        taints.sort();
        taints
    }

    pub fn evicts(&self) -> bool {
        self.taints().iter().any(|taint| taint.ends_with(":NoExecute"))
    }
}

async fn renew(client: &Client, name: &str, clock: Clock, round: u64) -> Result<(), ApiError> {
    let at = match clock {
        Clock::Right => time(0),
        Clock::Mad => time(2_000_000_000 - 86_400 * round),
    };
    let spec = json!({ "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": at });
    let api = client.api(Resource::LEASES, Some("kube-node-lease"));
    let patch = Patch::Merge(json!({ "spec": spec }).to_string().into_bytes());
    match api.patch::<Value>(name, patch).await {
        Err(ApiError::NotFound(_)) => {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": name }, "spec": spec,
            });
            api.create::<Value>(lease.to_string().into_bytes())
                .await
                .map(drop)
        }
        other => other.map(drop),
    }
}

/// Now and so many seconds, with six digits after the second.
fn time(ahead: u64) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let at = since + Duration::from_secs(ahead);
    let whole = jiff::Timestamp::from_microsecond(i64::try_from(at.as_micros()).unwrap()).unwrap();
    format!("{whole:.6}")
}
