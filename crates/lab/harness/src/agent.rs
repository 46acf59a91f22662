//! How does a test get an API server, a node and its agent in one process?

use crate::{SOON, eventually};
use pointsman_api_client::connect::connect;
use pointsman_api_client::{ApiError, Client, DeleteOptions, Event, Patch, Resource, Scope, Source, Watcher};
use pointsman_api_server::auth::kubeconfig;
use pointsman_api_server::auth::pki::Pki;
use pointsman_api_server::{Running, StoreChoice, start};
use pointsman_node_agent::gate::Gate;
use pointsman_node_agent::node::{Frequency, Identity};
use pointsman_node_agent::{Config, run};
use pointsman_probe_io::{Config as ProbeConfig, Reading};
use pointsman_rules::strategy::{ClusterSettings, IpRange};
use pointsman_runtime::fake::FakeRuntime;
use pointsman_runtime::{ContainerId, ContainerName, PodUid, Runtime};
use pointsman_telemetry::Registry;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// An API server, and the runtime of its only node.
pub struct Cluster {
    home: TempDir,
    server: Option<Running>,
    address: SocketAddr,
    pub client: Client,
    pub runtime: Arc<FakeRuntime>,
    /// The gate of agents started from now on.
    pub gate: Option<Gate>,
    /// How agents started from now on probe.
    pub probes: ProbeConfig,
    /// How agents started from now on read probes.
    pub reading: Reading,
}

/// A running agent.
pub struct Agent {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Agent {
    /// Stops it; pods stay.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.task.await.unwrap();
    }
}

/// Everything that a pod was seen as.
pub struct Changes {
    seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Changes {
    /// What was seen so far, without repetitions.
    pub async fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// Waits for the first look.
    pub async fn started(&self) {
        eventually("the first look", async || {
            (!self.seen().await.is_empty()).then_some(())
        })
        .await;
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn server_config(data_dir: PathBuf, listen: SocketAddr) -> pointsman_api_server::Config {
    pointsman_api_server::Config {
        data_dir,
        listen,
        also_listen: Vec::new(),
        advertise: None,
        store: StoreChoice::Embedded,
        gates: pointsman_model::FeatureGates::default(),
        plugins: Default::default(),
        cluster: ClusterSettings {
            service_ranges: vec![IpRange {
                network: "10.96.0.0".parse().unwrap(),
                prefix: 16,
            }],
            node_ports: (30000, 32767),
        },
        tolerations: pointsman_rules::admission::tolerations::TolerationSeconds {
            not_ready: 300,
            unreachable: 300,
        },
        token_file: None,
        accounts: Default::default(),
        publish_root_ca: true,
        anonymous: true,
        extra_sans: Vec::new(),
        tls_files: None,
        client_ca_file: None,
        kubelet_certificate_authority: None,
        max_requests_inflight: 400,
        max_mutating_requests_inflight: 200,
        event_ttl: Duration::from_secs(3600),
        compaction_interval: Duration::from_secs(300),
        audit: None,
    }
}

impl Cluster {
    pub async fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let server = start(server_config(home.path().join("data"), any)).await.unwrap();
        let client = connect(&Source::Kubeconfig(server.kubeconfig.clone()), "test")
            .await
            .unwrap();
        Self {
            address: server.address,
            server: Some(server),
            client,
            runtime: Arc::new(FakeRuntime::new()),
            gate: None,
            probes: ProbeConfig::default(),
            reading: Reading::default(),
            home,
        }
    }

    pub async fn stop_server(&mut self) {
        self.server.take().unwrap().stop().await;
    }

    pub async fn start_server(&mut self) {
        let config = server_config(self.home.path().join("data"), self.address);
        self.server = Some(start(config).await.unwrap());
    }

    /// Starts an agent as the role that it has in a cluster.
    pub async fn agent(&self) -> Agent {
        let data = self.home.path().join("data");
        let now = SystemTime::now();
        let pki = Pki::open(&data.join("pki"), now).unwrap();
        let url = format!("https://{}", self.address);
        let kubeconfig = kubeconfig::write_node(&pki, &data, "n1", &url, pki.ca_pem(), now).unwrap();
        let config = Config {
            dns: pointsman_node_agent::ClusterDns::default(),
            source: Source::Kubeconfig(kubeconfig),
            identity: Identity {
                name: "n1".into(),
                addresses: vec!["192.0.2.1".parse().unwrap()],
                port: 10250,
                labels: BTreeMap::new(),
                taints: Vec::new(),
                max_pods: 110,
                version: "v1".into(),
                runtime: "pointsman://1".into(),
            },
            root_dir: self.home.path().to_owned(),
            listen: None,
            client_ca: Vec::new(),
            serving: None,
            lenient: None,
            cluster_ranges: Vec::new(),
            pod_ranges: Vec::new(),
            frequency: Frequency::DEFAULT,
            own_report_period: None,
            asks_peers: false,
            lease_duration: Duration::from_secs(40),
            refresh: Duration::from_millis(200),
            gate: self.gate.clone(),
            routes: false,
            probes: self.probes,
            reading: self.reading.clone(),
            shown: Value::Null,
        };
        let (stop, stopping) = watch::channel(false);
        let runtime: Arc<dyn Runtime> = self.runtime.clone();
        let task = tokio::spawn(async move {
            run(config, runtime, Registry::new(), stopping).await.unwrap();
        });
        Agent { stop, task }
    }

    pub async fn node(&self) -> Option<Value> {
        self.client.api(Resource::NODES, None).get("n1").await.ok()
    }

    pub async fn lease(&self) -> Result<Value, ApiError> {
        let api = self.client.api(Resource::LEASES, Some("kube-node-lease"));
        api.get("n1").await
    }

    /// Replaces a ConfigMap's data.
    pub async fn reconfigure(&self, namespace: &str, name: &str, data: Value) {
        let api = self.client.api(Resource::core("configmaps"), Some(namespace));
        let patch = Patch::Merge(json!({ "data": data }).to_string().into_bytes());
        let _: Value = api.patch(name, patch).await.unwrap();
    }

    /// Gives the node addresses for its pods, as the controllers do.
    pub async fn give_range(&self, range: &str) {
        let patch = json!({ "spec": { "podCIDR": range, "podCIDRs": [range] } });
        self.patch_node(&patch).await;
    }

    pub async fn label_node(&self, key: &str, value: &str) {
        self.patch_node(&json!({ "metadata": { "labels": { key: value } } }))
            .await;
    }

    async fn patch_node(&self, patch: &Value) {
        let api = self.client.api(Resource::NODES, None);
        eventually("the node is patched", async || {
            let patch = Patch::Merge(patch.to_string().into_bytes());
            api.patch::<Value>("n1", patch).await.ok()
        })
        .await;
    }

    /// Writes a ConfigMap.
    pub async fn configure(&self, namespace: &str, name: &str, data: Value) {
        let map =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data });
        let api = self.client.api(Resource::core("configmaps"), Some(namespace));
        let _: Value = api.create(map.to_string().into_bytes()).await.unwrap();
    }

    pub async fn create(&self, pod: &Value) {
        let api = self.client.api(Resource::PODS, Some("default"));
        let _: Value = api.create(pod.to_string().into_bytes()).await.unwrap();
    }

    pub async fn pod(&self, name: &str) -> Result<Value, ApiError> {
        self.client.api(Resource::PODS, Some("default")).get(name).await
    }

    /// The pod, once it is as the test wants it.
    pub async fn pod_when(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + SOON;
        loop {
            let pod = self.pod(name).await;
            if let Ok(pod) = &pod
                && wanted(pod)
            {
                return pod.clone();
            }
            assert!(Instant::now() < deadline, "pod {name} is {pod:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn patch_status(&self, name: &str, patch: &Value) {
        let api = self.client.api(Resource::PODS, Some("default"));
        let patch = Patch::Strategic(patch.to_string().into_bytes());
        let _: Value = api.patch_status(name, patch).await.unwrap();
    }

    /// Asks for a pod's end.
    pub async fn delete(&self, name: &str) {
        let api = self.client.api(Resource::PODS, Some("default"));
        api.delete(name, &DeleteOptions::default()).await.unwrap();
    }

    /// Removes a pod's object, whatever the node says.
    pub async fn delete_now(&self, name: &str) {
        let api = self.client.api(Resource::PODS, Some("default"));
        let options = DeleteOptions::default().without_grace();
        api.delete(name, &options).await.unwrap();
    }

    /// Waits until the object is gone.
    pub async fn gone(&self, name: &str) {
        eventually(&format!("pod {name} is gone"), async || {
            matches!(self.pod(name).await, Err(ApiError::NotFound(_))).then_some(())
        })
        .await;
    }

    /// Everything that the runtime has.
    pub async fn running(&self) -> Vec<String> {
        let pods = self.runtime.list().await.unwrap();
        pods.into_iter().map(|pod| pod.name).collect()
    }

    /// The id of a container's run.
    pub fn container(&self, pod: &Value, name: &str, attempt: u32) -> ContainerId {
        ContainerId {
            pod: PodUid::try_new(pod["metadata"]["uid"].as_str().unwrap()).unwrap(),
            name: ContainerName::try_new(name).unwrap(),
            attempt,
        }
    }

    /// Follows what a pod is seen as.
    pub fn count_changes(&self, name: &str, look: impl Fn(&Value) -> String + Send + 'static) -> Changes {
        let scope = Scope::all(Resource::PODS).fields(&format!("metadata.name={name}"));
        let mut watcher = Watcher::<Value>::new(self.client.clone(), scope);
        let seen = Arc::new(Mutex::new(Vec::<String>::new()));
        let shared = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                if let Event::Applied { object, .. } = watcher.next().await {
                    let look = look(&object);
                    let mut seen = shared.lock().unwrap();
                    if seen.last() != Some(&look) {
                        seen.push(look);
                    }
                }
            }
        });
        Changes { seen, task }
    }
}
