//! The Deployment and the Service of the demonstration.

use super::Stage;
use crate::pod_program::PodProgram;
use crate::rollout::{self, is_rolled_out};
use anyhow::{Context, bail};
use pointsman_api_client::{ApiError, Client, DeleteOptions, Patch, Resource, Scope};
use pointsman_objects::names::SERVICE_NAME_LABEL;
use pointsman_objects::{Node, Pod};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The name of both, and the label of the pods.
pub const NAME: &str = "demo-web";
/// Where pods listen.
pub const POD_PORT: u16 = 8080;
/// The number of pods.
pub const REPLICAS: u64 = 4;
const NAMESPACE: &str = "default";
/// How long a rollout may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Creates what is missing, and brings up to date what an earlier demonstration left.
pub async fn create(stage: &Stage) -> anyhow::Result<()> {
    let program = PodProgram::of_host(&stage.program);
    let deployment = rollout::deployment(NAME, &program, POD_PORT, REPLICAS);
    apply(&stage.client, Resource::DEPLOYMENTS, &deployment).await?;
    apply(&stage.client, Resource::SERVICES, &service()).await
}

/// Forgets the latency profile of an earlier demonstration, so that a lost node is noticed within seconds.
pub async fn forget_profile(client: &Client) -> anyhow::Result<()> {
    const CONFIG_NODES: Resource = Resource::new("config.openshift.io", "v1", "nodes");
    let config_maps = || client.api(Resource::core("configmaps"), Some("kube-system"));
    // What is asked for goes first: nobody writes the others then.
    for (api, name) in [
        (client.api(CONFIG_NODES, None), "cluster"),
        (config_maps(), "pointsman-latency-profile"),
    ] {
        match api.delete(name, &DeleteOptions::default()).await {
            Ok(()) | Err(ApiError::NotFound(_)) => {}
            Err(error) => return Err(error).with_context(|| format!("deleting {name}")),
        }
    }
    // Without keys the flags hold again; if it were deleted, its settings would stay in force.
    for name in ["pointsman-node", "pointsman-controllers", "pointsman-apiserver"] {
        let no_keys = Patch::Merge(br#"{"data":null}"#.to_vec());
        match config_maps().patch::<Value>(name, no_keys).await {
            Ok(_) | Err(ApiError::NotFound(_)) => {}
            Err(error) => return Err(error).with_context(|| format!("clearing {name}")),
        }
    }
    let empty = json!({"apiVersion": "config.openshift.io/v1", "kind": "Node", "metadata": {"name": "cluster"}, "spec": {}});
    let created = client
        .api(CONFIG_NODES, None)
        .create::<Value>(empty.to_string())
        .await;
    created.map(drop).context("asking for no profile")
}

/// Changes the pods' template, so that all pods are replaced one by one.
pub async fn change_template(client: &Client) -> anyhow::Result<()> {
    let stamp = format!("{}", jiff::Timestamp::now());
    let patch = json!({"spec": {"template": {"metadata": {"annotations": {"demo/changed-at": stamp}}}}});
    let patch = Patch::Merge(patch.to_string().into_bytes());
    let deployments = client.api(Resource::DEPLOYMENTS, Some(NAMESPACE));
    deployments.patch::<Value>(NAME, patch).await?;
    Ok(())
}

/// Waits until all pods are of the newest template and available, and none of an older one is left.
pub async fn wait_for_rollout(client: &Client) -> anyhow::Result<()> {
    let started = Instant::now();
    let deployments = client.api(Resource::DEPLOYMENTS, Some(NAMESPACE));
    loop {
        let deployment: Value = deployments.get(NAME).await?;
        let pods = pods(client).await?;
        if is_rolled_out(&deployment) && pods.len() as u64 == REPLICAS && pods.iter().all(is_well) {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            bail!(
                "the pods are not all ready after {PATIENCE:?}: {}",
                deployment["status"]
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The Service's cluster address.
pub async fn cluster_address(client: &Client) -> anyhow::Result<IpAddr> {
    let service: Value = client.api(Resource::SERVICES, Some(NAMESPACE)).get(NAME).await?;
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    address.parse().context("the Service has no cluster address")
}

/// Whether a pod serves and stays.
pub fn is_well(pod: &Pod) -> bool {
    pod.is_ready() && !pod.is_terminating()
}

/// The pods of the demonstration, in order of name.
pub async fn pods(client: &Client) -> anyhow::Result<Vec<Pod>> {
    Ok(rollout::pods(client, NAMESPACE, NAME).await?)
}

/// Whether a pod on this node is among the endpoints that are used.
pub async fn sends_to(client: &Client, node: &str) -> anyhow::Result<bool> {
    let mut scope = Scope::all(Resource::ENDPOINT_SLICES).labels(&format!("{SERVICE_NAME_LABEL}={NAME}"));
    scope.namespace = Some(NAMESPACE.to_owned());
    let slices: Vec<Value> = client.list(&scope).await?;
    let endpoints = slices
        .iter()
        .filter_map(|slice| slice["endpoints"].as_array())
        .flatten();
    let mut there = endpoints.filter(|endpoint| endpoint["nodeName"] == *node);
    Ok(there.any(|endpoint| endpoint["conditions"]["ready"] == true))
}

/// Whether the Node says that it is ready.
pub async fn is_node_ready(client: &Client, node: &str) -> anyhow::Result<bool> {
    let node: Node = client.api(Resource::NODES, None).get(node).await?;
    Ok(node.is_ready())
}

async fn apply(client: &Client, resource: Resource, object: &Value) -> anyhow::Result<()> {
    let api = client.api(resource, Some(NAMESPACE));
    let created = api.create::<Value>(object.to_string()).await;
    if let Err(ApiError::AlreadyExists(_)) = created {
        let patch = Patch::Merge(object.to_string().into_bytes());
        api.patch::<Value>(NAME, patch).await?;
        return Ok(());
    }
    created.map(drop).with_context(|| format!("creating {NAME}"))
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"port": 80, "targetPort": POD_PORT}]},
    })
}
