//! What is set up for the scenario, and how is it removed?

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jiff::Timestamp;
use pointsman_api_client::{Api, ApiError, Client, DeleteOptions, Patch, Resource, Source, connect};
use pointsman_cluster::pod_program::PodProgram;
use pointsman_cluster::rollout::{self, is_rolled_out};
use pointsman_objects::Pod;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};

use super::objects;
use pointsman_cluster::claim::Record;

/// Where everything is made.
pub const NAMESPACE: &str = "pointsman-scenario";
/// A Node that no agent runs: its pods are the scenario's to speak for.
const NODE: &str = "pointsman-scenario";
/// How often that Node says that it is well.
const HEARTBEAT: Duration = Duration::from_secs(5);
const NAMESPACES: Resource = Resource::core("namespaces");
/// Objects that are written at the same time.
const AT_ONCE: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);

/// A pod that an agent runs, and the Service in front of it.
#[derive(Clone, Debug)]
pub struct Target {
    /// The name of both.
    pub name: String,
    /// Where the pod listens.
    pub pod: SocketAddr,
    /// Where the Service is.
    pub service: SocketAddr,
}

/// The cluster with a namespace for the scenario.
pub struct Cluster {
    pub record: Record,
    pub client: Client,
    /// Our own program.
    pub program: PathBuf,
    /// The same, as pods run it.
    pub served: PodProgram,
    /// Pods that nobody runs, behind a Service each.
    others: Vec<String>,
    beating: Option<AbortHandle>,
}

impl Cluster {
    /// Makes the namespace.
    pub async fn enter(record: Record) -> anyhow::Result<Self> {
        let source = Source::Kubeconfig(record.kubeconfig.clone());
        let client = connect::connect(&source, "pointsman-scenario").await?;
        let program = std::env::current_exe().context("finding our own program")?;
        let served = PodProgram::on(&record, &program)?;
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        client
            .api(NAMESPACES, None)
            .create::<Value>(namespace.to_string())
            .await
            .context("making a namespace; one that is left from an earlier run has to go first")?;
        Ok(Self {
            record,
            client,
            program,
            served,
            others: Vec::new(),
            beating: None,
        })
    }

    /// Makes so many Services with a pod each that nobody runs, all of them ready.
    pub async fn add_others(&mut self, count: usize) -> anyhow::Result<()> {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE },
            "spec": { "unschedulable": true } });
        let nodes = self.client.api(Resource::NODES, None);
        nodes
            .create::<Value>(node.to_string())
            .await
            .context("making a Node for pods that nobody runs")?;
        self.beating = Some(tokio::spawn(beat(self.client.clone())).abort_handle());
        self.others = (0..count).map(|number| format!("other-{number}")).collect();
        let client = self.client.clone();
        each(&self.others, move |number, name| {
            let client = client.clone();
            async move {
                let api = |resource| client.api(resource, Some(NAMESPACE));
                let service = objects::service(&name, &name, 80, None);
                api(Resource::SERVICES)
                    .create::<Value>(service.to_string())
                    .await?;
                let pod = objects::spoken_for(&name, NODE);
                api(Resource::PODS).create::<Value>(pod.to_string()).await?;
                flip(&client, number, &name, true).await
            }
        })
        .await
    }

    /// Makes pods that agents run, so many on each node, with a Service each, and waits until they serve.
    pub async fn add_targets(&self, per_node: usize) -> anyhow::Result<Vec<Target>> {
        let mut addresses = Vec::new();
        for node in &self.record.nodes {
            for number in 0..per_node {
                let name = format!("web-{}-{number}", node.name);
                let pod = objects::served_pod(&name, &node.name, &self.served);
                let _: Value = self.api(Resource::PODS).create(pod.to_string()).await?;
                let service = self.add_service(&name, &name, 80, None).await?;
                addresses.push((name, service));
            }
        }
        let mut targets = Vec::new();
        for (name, service) in addresses {
            let address = self.wait_for(&name, || self.pod_address(&name)).await?;
            let pod = SocketAddr::new(address, objects::PORT);
            targets.push(Target { name, pod, service });
        }
        Ok(targets)
    }

    /// Makes a Service; returns where it is.
    pub async fn add_service(
        &self,
        name: &str,
        app: &str,
        port: u16,
        address: Option<Ipv4Addr>,
    ) -> anyhow::Result<SocketAddr> {
        let service = objects::service(name, app, port, address);
        let made: Value = self.api(Resource::SERVICES).create(service.to_string()).await?;
        let address: IpAddr = made["spec"]["clusterIP"].as_str().unwrap_or_default().parse()?;
        Ok(SocketAddr::new(address, port))
    }

    /// Makes a Deployment and a Service for it; returns where the Service is, once all pods are available.
    pub async fn add_deployment(&self, name: &str, replicas: u64) -> anyhow::Result<SocketAddr> {
        let deployment = rollout::deployment(name, &self.served, objects::PORT, replicas);
        let _: Value = self
            .api(Resource::DEPLOYMENTS)
            .create(deployment.to_string())
            .await?;
        let service = self.add_service(name, name, 80, None).await?;
        self.wait_for_rollout(name).await?;
        Ok(service)
    }

    /// Changes part of an object.
    pub async fn patch(&self, resource: Resource, name: &str, patch: &Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(patch.to_string().into_bytes());
        let _: Value = self.api(resource).patch(name, patch).await?;
        Ok(())
    }

    /// Waits until a Deployment has exactly the pods it should have.
    pub async fn wait_for_rollout(&self, name: &str) -> anyhow::Result<()> {
        let what = format!("the pods of {name}");
        self.wait_for(&what, || async {
            let deployment: Value = self.api(Resource::DEPLOYMENTS).get(name).await?;
            if !is_rolled_out(&deployment) {
                return Ok(None);
            }
            let pods = rollout::pods(&self.client, NAMESPACE, name).await?;
            Ok((deployment["spec"]["replicas"] == pods.len()).then_some(()))
        })
        .await
    }

    /// Flips pods that nobody runs in a random order, so many a second, for ever.
    pub fn churn(&self, rate: u32, mut random: fastrand::Rng) -> impl Future<Output = ()> + Send + use<> {
        let (client, others) = (self.client.clone(), self.others.clone());
        async move {
            if rate == 0 || others.is_empty() {
                return;
            }
            let mut ready = vec![true; others.len()];
            let mut turns = tokio::time::interval(Duration::from_secs(1) / rate);
            loop {
                turns.tick().await;
                let number = random.usize(..others.len());
                ready[number] = !ready[number];
                if let Err(error) = flip(&client, number, &others[number], ready[number]).await {
                    tracing::debug!(%error, "a pod of the churn could not be changed");
                }
            }
        }
    }

    /// The collection of this kind in the scenario's namespace.
    pub fn api(&self, resource: Resource) -> Api {
        self.client.api(resource, Some(NAMESPACE))
    }

    /// Removes what was made. What cannot be removed is said.
    pub async fn remove(self) {
        let client = self.client.clone();
        let at_once = move |_, name: String| {
            let client = client.clone();
            async move {
                // Nobody runs them, so nobody would report that they have ended.
                let options = DeleteOptions::default().without_grace();
                let pods = client.api(Resource::PODS, Some(NAMESPACE));
                Ok(pods.delete(&name, &options).await?)
            }
        };
        let outcome = async {
            each(&self.others, at_once).await?;
            let options = DeleteOptions::default();
            let namespaces = self.client.api(NAMESPACES, None);
            namespaces.delete(NAMESPACE, &options).await?;
            self.wait_for("the end of the namespace", || async {
                match namespaces.get::<Value>(NAMESPACE).await {
                    Err(ApiError::NotFound(_)) => Ok(Some(())),
                    _ => Ok(None),
                }
            })
            .await?;
            if let Some(beating) = &self.beating {
                beating.abort();
                self.client
                    .api(Resource::NODES, None)
                    .delete(NODE, &options)
                    .await?;
            }
            anyhow::Ok(())
        };
        if let Err(error) = outcome.await {
            tracing::warn!(
                error = format!("{error:#}"),
                "not everything of the scenario could be removed"
            );
        }
    }

    async fn pod_address(&self, name: &str) -> anyhow::Result<Option<IpAddr>> {
        let pod: Pod = self.api(Resource::PODS).get(name).await?;
        Ok(pod.ips.first().copied().filter(|_| pod.is_ready()))
    }

    async fn wait_for<T, F>(&self, what: &str, mut look: impl FnMut() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<Option<T>>>,
    {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("{what}: nothing within {PATIENCE:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Does something to each of many, some at a time.
async fn each<F>(names: &[String], act: impl Fn(usize, String) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for (number, name) in names.iter().enumerate() {
        if running.len() >= AT_ONCE {
            running.join_next().await.transpose()?.transpose()?;
        }
        running.spawn(act(number, name.clone()));
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
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

async fn flip(client: &Client, number: usize, name: &str, ready: bool) -> anyhow::Result<()> {
    let now = Timestamp::from_microsecond(Timestamp::now().as_microsecond())?;
    // An address of the range for benchmarks: nobody connects there.
    let [low, high] = [(number % 250) as u8, (number / 250 % 2) as u8];
    let address = Ipv4Addr::new(198, 18 + high, 0, low + 1);
    let patch = objects::status(address, ready, now);
    let patch = Patch::Merge(patch.to_string().into_bytes());
    let pods = client.api(Resource::PODS, Some(NAMESPACE));
    let _: Value = pods.patch_status(name, patch).await?;
    Ok(())
}
