//! A stand-in for a kubelet, and a record of all that happened to a pod.

use pointsman_api_client::connect::connect;
use pointsman_api_client::{Client, Event, Patch, Resource, Scope, Source, Watcher};
use pointsman_harness::Server;
use pointsman_probe_only::{ANNOTATION, Config};
use pointsman_telemetry::Registry;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use pointsman_probe_only::GATE;

/// The condition of our gate.
pub fn condition(pod: &Value) -> Option<Value> {
    let conditions = pod["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == GATE)
        .cloned()
}

/// Whether the gate is open, if anybody has said so.
pub fn status_of(pod: &Value) -> Option<bool> {
    condition(pod).map(|condition| condition["status"] == "True")
}

#[derive(Clone)]
pub struct Cluster {
    client: Client,
    source: Source,
}

impl Cluster {
    pub async fn connect(server: &Server) -> Self {
        let source = Source::Kubeconfig(server.kubeconfig());
        let client = connect(&source, "stand-in").await.unwrap();
        Self { client, source }
    }

    /// Starts the agent under test.
    pub async fn agent(&self, node: &str) -> Agent {
        let config = Config {
            node_name: node.to_owned(),
            probes: Default::default(),
            reading: Default::default(),
        };
        let client = connect(&self.source, "pointsman-probe-only").await.unwrap();
        let (stop, stopping) = watch::channel(false);
        let task = tokio::spawn(async move {
            pointsman_probe_only::run(config, client, &Registry::new(), stopping)
                .await
                .unwrap();
        });
        Agent { stop, task }
    }

    /// Starts the agent under test as a process, as it is started beside a kubelet; its metrics are at this port.
    pub fn process(&self, port: u16, flags: &[&str]) -> tokio::process::Child {
        let Source::Kubeconfig(kubeconfig) = &self.source else {
            unreachable!("it is connected by a kubeconfig")
        };
        tokio::process::Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args(["node", "--probe-only", "--node-name=n1", "--kubeconfig"])
            .arg(kubeconfig)
            .arg(format!("--probe-only-listen=127.0.0.1:{port}"))
            .args(flags)
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    /// Creates a pod of node n1 with this annotation, whose container listens on this port.
    pub async fn pod(&self, name: &str, annotation: Option<&str>, port: u16, gate: bool) {
        let annotations = annotation
            .map(|text| json!({ ANNOTATION: text }))
            .unwrap_or_default();
        let gates = if gate {
            json!([{ "conditionType": GATE }])
        } else {
            json!([])
        };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "nodeName": "n1", "readinessGates": gates,
                "containers": [{
                    "name": "web", "image": "web", "ports": [{ "name": "web", "containerPort": port }],
                }],
            },
        });
        let api = self.client.api(Resource::PODS, Some("default"));
        api.create::<Value>(pod.to_string().into_bytes()).await.unwrap();
    }

    pub async fn get(&self, name: &str) -> Value {
        self.client
            .api(Resource::PODS, Some("default"))
            .get(name)
            .await
            .unwrap()
    }

    /// Changes one condition of a pod's status.
    pub async fn meddle(&self, name: &str, condition: Value) {
        self.patch(name, &json!({ "status": { "conditions": [condition] } }))
            .await;
    }

    async fn patch(&self, name: &str, patch: &Value) -> Value {
        let api = self.client.api(Resource::PODS, Some("default"));
        let patch = Patch::Strategic(patch.to_string().into_bytes());
        api.patch_status(name, patch).await.unwrap()
    }

    pub async fn has_event(&self, pod: &str, reason: &str) -> bool {
        let list: Value = self
            .client
            .get_path("/api/v1/namespaces/default/events")
            .await
            .unwrap();
        let events = list["items"].as_array().cloned().unwrap_or_default();
        events
            .iter()
            .any(|event| event["involvedObject"]["name"] == pod && event["reason"] == reason)
    }

    /// Records every version of a pod from now on.
    pub fn follow(&self, name: &str) -> History {
        let scope = Scope::all(Resource::PODS).fields(&format!("metadata.name={name}"));
        let mut watcher = Watcher::<Value>::new(self.client.clone(), scope);
        let versions: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = versions.clone();
        let task = tokio::spawn(async move {
            loop {
                if let Event::Applied { object, .. } = watcher.next().await {
                    seen.lock().unwrap().push(object);
                }
            }
        });
        History { versions, task }
    }
}

pub struct Agent {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Agent {
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.task.await.unwrap();
    }
}

pub struct History {
    versions: Arc<Mutex<Vec<Value>>>,
    task: JoinHandle<()>,
}

impl History {
    pub fn versions(&self) -> Vec<Value> {
        self.versions.lock().unwrap().clone()
    }

    /// Asserts that whatever the stand-in did not write changed nothing but our condition.
    pub fn check(&self, own: &BTreeSet<String>) {
        let versions = self.versions();
        let mut others = 0;
        for pair in versions.windows(2) {
            let version = pair[1]["metadata"]["resourceVersion"].as_str().unwrap();
            if !own.contains(version) {
                others += 1;
                assert_eq!(
                    without_ours(&pair[0]),
                    without_ours(&pair[1]),
                    "version {version}"
                );
            }
        }
        assert!((4..40).contains(&others), "{others} writes of the agent");
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A pod without what the agent may change.
fn without_ours(pod: &Value) -> Value {
    let mut rest = pod.clone();
    let metadata = rest["metadata"].as_object_mut().unwrap();
    metadata.remove("resourceVersion");
    metadata.remove("managedFields");
    // Our condition may be the first one: no conditions and none but ours are the same.
    let conditions = &mut rest["status"]["conditions"];
    if conditions.is_null() {
        *conditions = json!([]);
    }
    let conditions = conditions.as_array_mut().unwrap();
    conditions.retain(|condition| condition["type"] != GATE);
    rest
}

/// Owns a pod's status and rewrites it all the time, as a busy kubelet might.
pub struct Kubelet {
    stop: watch::Sender<bool>,
    task: JoinHandle<BTreeSet<String>>,
}

impl Kubelet {
    pub async fn start(cluster: &Cluster, name: &str) -> Self {
        Self::start_at(cluster, name, jiff::Timestamp::now()).await
    }

    /// The container started at this time.
    pub async fn start_at(cluster: &Cluster, name: &str, started: jiff::Timestamp) -> Self {
        let (stop, stopping) = watch::channel(false);
        let (cluster, name) = (cluster.clone(), name.to_owned());
        let task = tokio::spawn(async move {
            let mut written = BTreeSet::new();
            for count in 0.. {
                if *stopping.borrow() {
                    break;
                }
                let status = json!({ "status": {
                    "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }],
                    "message": format!("{count}"),
                    "conditions": [
                        { "type": "ContainersReady", "status": if count % 2 == 0 { "True" } else { "False" } },
                        { "type": "Ready", "status": "False", "reason": format!("Round{count}") },
                    ],
                    "containerStatuses": [{
                        "name": "web", "image": "web", "imageID": "", "ready": true, "restartCount": 0,
                        "containerID": "stand-in://1", "state": { "running": { "startedAt": started.to_string() } },
                    }],
                } });
                let pod = cluster.patch(&name, &status).await;
                written.insert(pod["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            written
        });
        Self { stop, task }
    }

    /// Stops; returns the versions that it wrote.
    pub async fn stop(self) -> BTreeSet<String> {
        self.stop.send_replace(true);
        self.task.await.unwrap()
    }
}
