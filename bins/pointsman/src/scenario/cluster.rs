//! What is set up for the scenario, and how is it changed?

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jiff::Timestamp;
use pointsman_api_client::{Client, DeleteOptions, Patch, Resource, Source, connect};
use pointsman_collector::{Config, Running, start};
use pointsman_fabric::{Netns, Prefix};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::plain_http;
use crate::up::claim::Record;

const NAMESPACE: &str = "pointsman-scenario";
/// A Node that no agent runs: its pods are the scenario's to speak for.
const NODE: &str = "pointsman-scenario";
/// How often that Node says that it is well.
const HEARTBEAT: Duration = Duration::from_secs(5);
const NAMESPACES: Resource = Resource::core("namespaces");
/// Services whose changes are measured, in turn.
const MEASURED: usize = 6;
/// Pods of the scenario have the last addresses of a node's range.
const FIRST_ADDRESS: u8 = 240;
const PORT: u16 = 8080;

/// A pod that is an object, and the Service in front of it.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    address: Ipv4Addr,
    pub service_address: SocketAddr,
}

/// What the collector says of one change.
#[derive(Debug, Default)]
pub struct Reported {
    /// Time from the trigger to each node's kernel.
    pub nodes: BTreeMap<String, Duration>,
    /// Time until 99 % of the nodes had it.
    pub most: Option<Duration>,
}

/// The cluster with everything in place.
pub struct Cluster {
    pub record: Record,
    pub measured: Vec<Pod>,
    others: Vec<Pod>,
    client: Client,
    collector: Running,
    beating: AbortHandle,
}

impl Cluster {
    /// Makes Services and pods, and starts a collector of its own.
    pub async fn prepare(record: Record, services: usize) -> anyhow::Result<Self> {
        let source = Source::Kubeconfig(record.kubeconfig.clone());
        let client = connect::connect(&source, "pointsman-scenario").await?;
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        client
            .api(NAMESPACES, None)
            .create::<Value>(namespace.to_string())
            .await
            .context("making a namespace; one that is left from an earlier run has to go first")?;
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE },
            "spec": { "unschedulable": true } });
        let nodes = client.api(Resource::NODES, None);
        nodes
            .create::<Value>(node.to_string())
            .await
            .context("making a Node for the pods")?;
        let beating = tokio::spawn(beat(client.clone()));
        let own = record.data_dir.join("kubeconfigs/sli.kubeconfig");
        let collector = start(Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            scrape_interval: Duration::from_secs(1),
            ..Config::new(Source::Kubeconfig(own))
        })
        .await?;
        let mut cluster = Self {
            record,
            measured: Vec::new(),
            others: Vec::new(),
            client,
            collector,
            beating: beating.abort_handle(),
        };
        let backends = cluster.backends().await?;
        for number in 0..MEASURED + services {
            let pod = cluster.pod(number, backends[number % backends.len()]).await?;
            if number < MEASURED {
                cluster.measured.push(pod);
            } else {
                cluster.flip(&pod, true).await?;
                cluster.others.push(pod);
            }
        }
        cluster.wait_until_followed().await?;
        Ok(cluster)
    }

    /// Puts one address of each node's range on its loopback link, with a listener behind it.
    async fn backends(&self) -> anyhow::Result<Vec<Ipv4Addr>> {
        let mut backends = Vec::new();
        for node in &self.record.nodes {
            let object: Value = self.client.api(Resource::NODES, None).get(&node.name).await?;
            let range = object["spec"]["podCIDR"].as_str().unwrap_or_default();
            let network: Ipv4Addr = range
                .split('/')
                .next()
                .and_then(|address| address.parse().ok())
                .with_context(|| format!("node {} has no range for pods yet", node.name))?;
            let [a, b, c, _] = network.octets();
            let address = Ipv4Addr::new(a, b, c, FIRST_ADDRESS);
            let namespace = Netns::named(&node.namespace)?;
            namespace.network()?.add_address("lo", Prefix::host(address))?;
            let listener = namespace.run(move || TcpListener::bind((address, PORT)))??;
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    drop(stream);
                }
            });
            backends.push(address);
        }
        Ok(backends)
    }

    async fn pod(&self, number: usize, address: Ipv4Addr) -> anyhow::Result<Pod> {
        let name = format!("web-{number}");
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "selector": { "app": name }, "ports": [{ "port": 80, "targetPort": PORT }] } });
        let service: Value = self.api(Resource::SERVICES).create(service.to_string()).await?;
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
            "spec": { "nodeName": NODE, "containers": [{ "name": "web", "image": "host" }] } });
        let _: Value = self.api(Resource::PODS).create(pod.to_string()).await?;
        let cluster_ip: IpAddr = service["spec"]["clusterIP"]
            .as_str()
            .unwrap_or_default()
            .parse()?;
        Ok(Pod {
            name,
            address,
            service_address: SocketAddr::new(cluster_ip, 80),
        })
    }

    /// Makes a pod ready or not; returns the moment that was written down.
    pub async fn flip(&self, pod: &Pod, ready: bool) -> anyhow::Result<Timestamp> {
        flip(&self.client, pod, ready).await
    }

    /// Flips the other pods in turn, so many times a second, for ever.
    pub fn churn(&self, rate: u32) -> impl Future<Output = ()> + Send + use<> {
        let (client, others) = (self.client.clone(), self.others.clone());
        async move {
            if rate == 0 || others.is_empty() {
                return;
            }
            let mut turns = tokio::time::interval(Duration::from_secs(1) / rate);
            for number in 0usize.. {
                turns.tick().await;
                let ready = number / others.len() % 2 == 1;
                if let Err(error) = flip(&client, &others[number % others.len()], ready).await {
                    tracing::debug!(%error, "a pod of the churn could not be changed");
                }
            }
        }
    }

    /// What the collector says of the change of a pod at this moment, once all nodes have it.
    pub async fn reported(&self, pod: &Pod, flipped: Timestamp) -> anyhow::Result<Reported> {
        let service = format!("{NAMESPACE}/{}", pod.name);
        let triggered = format!("{flipped:.6}");
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let state = self.state().await?;
            let changes = state["changes"].as_array().into_iter().flatten();
            let mut ours =
                changes.filter(|change| change["service"] == *service && change["triggered"] == *triggered);
            let change = ours.find(|change| !change["allAfterSeconds"].is_null());
            if let Some(change) = change {
                let nodes = change["nodes"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|node| {
                        let after = node["afterSeconds"].as_f64()?;
                        Some((node["name"].as_str()?.to_owned(), Duration::from_secs_f64(after)))
                    });
                return Ok(Reported {
                    nodes: nodes.collect(),
                    most: change["mostAfterSeconds"].as_f64().map(Duration::from_secs_f64),
                });
            }
            if Instant::now() > deadline {
                return Ok(Reported::default());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The SLI as the collector sees it, after one more reading of all metrics.
    pub async fn sli(&self) -> anyhow::Result<Value> {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        Ok(self.state().await?["sli"].take())
    }

    async fn wait_until_followed(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let state = self.state().await?;
            let live = state["programmers"]["live"].as_u64() == Some(self.record.nodes.len() as u64);
            if live && state["summary"]["level"] == "ok" {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the nodes' proxies cannot be followed: {}", state["programmers"]);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn state(&self) -> anyhow::Result<Value> {
        let patience = Duration::from_secs(5);
        let (_, text) = plain_http::get(self.collector.address, "/api/v1/state", patience).await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Removes what was made. What cannot be removed is said, and goes with the namespace.
    pub async fn remove(self) {
        let options = DeleteOptions::default();
        // Nobody runs them, so nobody would tell that they have ended.
        for pod in self.measured.iter().chain(&self.others) {
            let at_once = DeleteOptions::default().without_grace();
            if let Err(error) = self.api(Resource::PODS).delete(&pod.name, &at_once).await {
                tracing::warn!(%error, pod = pod.name, "a pod could not be removed");
            }
        }
        if let Err(error) = self
            .client
            .api(NAMESPACES, None)
            .delete(NAMESPACE, &options)
            .await
        {
            tracing::warn!(%error, "the scenario's namespace could not be removed");
        }
        self.beating.abort();
        if let Err(error) = self
            .client
            .api(Resource::NODES, None)
            .delete(NODE, &options)
            .await
        {
            tracing::warn!(%error, "the scenario's Node could not be removed");
        }
        for node in &self.record.nodes {
            let lo = |namespace: Netns| -> anyhow::Result<()> {
                for pod in &self.measured {
                    let address = Prefix::host(pod.address).address().to_string();
                    namespace
                        .command("ip")
                        .args(["addr", "del", &format!("{address}/32"), "dev", "lo"])
                        .output()?;
                }
                Ok(())
            };
            if let Err(error) = Netns::named(&node.namespace)
                .map_err(anyhow::Error::from)
                .and_then(lo)
            {
                tracing::warn!(%error, node = node.name, "an address could not be removed");
            }
        }
        self.collector.stop().await;
    }

    fn api(&self, resource: Resource) -> pointsman_api_client::Api {
        self.client.api(resource, Some(NAMESPACE))
    }
}

/// Says for ever that the Node is well, or else its pods would be taken for lost.
async fn beat(client: Client) {
    let mut turns = tokio::time::interval(HEARTBEAT);
    loop {
        turns.tick().await;
        let now = format!("{:.0}", Timestamp::now());
        let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now,
            "lastTransitionTime": now });
        let patch = json!({ "status": { "conditions": [ready] } });
        let patch = Patch::Merge(patch.to_string().into_bytes());
        let api = client.api(Resource::NODES, None);
        if let Err(error) = api.patch_status::<Value>(NODE, patch).await {
            tracing::warn!(%error, "the scenario's Node could not say that it is well");
        }
    }
}

async fn flip(client: &Client, pod: &Pod, ready: bool) -> anyhow::Result<Timestamp> {
    let now = Timestamp::from_microsecond(Timestamp::now().as_microsecond())?;
    let status = if ready { "True" } else { "False" };
    let address = pod.address.to_string();
    let patch = json!({
        "metadata": { "annotations": { "pointsman.io/last-change-time": format!("{now:.6}") } },
        "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": format!("{now:.0}") }] },
    });
    let api = client.api(Resource::PODS, Some(NAMESPACE));
    let patch = Patch::Merge(patch.to_string().into_bytes());
    let _: Value = api.patch_status(&pod.name, patch).await?;
    Ok(now)
}
