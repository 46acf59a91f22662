//! Which objects does a run need, and how are they read?

use anyhow::Context;
use pointsman_api_client::{Client, Resource, Scope};
use pointsman_cluster::pod_program::PodProgram;
use pointsman_cluster::rollout;
use pointsman_objects::names::SERVICE_NAME_LABEL;
use pointsman_objects::{EndpointSlice, Pod};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The name of the Deployment and the Service that get traffic, and the label of the pods.
pub const SERVICE: &str = "web";
/// Where pods listen.
pub const POD_PORT: u16 = 8080;
/// The number of pods in the beginning.
pub const REPLICAS: u64 = 4;
/// Where everything is.
pub const NAMESPACE: &str = "default";
/// Where an object keeps the number of its last write.
pub const NUMBER: &str = "faults.pointsman.io/number";
/// The label of what runs make besides.
pub const LABEL: &str = "faults.pointsman.io/made";
pub const CONFIG_MAPS: Resource = Resource::core("configmaps");

/// The slices of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slices {
    /// The newest version of them.
    pub version: u64,
    /// Pods that are ready.
    pub ready: BTreeSet<String>,
    /// Pods that may get requests: ready ones, and those that serve until they end.
    pub listed: BTreeSet<String>,
}

/// Creates the Deployment and the Service.
pub async fn create(client: &Client, program: &PodProgram) -> anyhow::Result<()> {
    let deployment = rollout::deployment(SERVICE, program, POD_PORT, REPLICAS).to_string();
    let deployments = client.api(Resource::DEPLOYMENTS, Some(NAMESPACE));
    let _: Value = deployments
        .create(deployment)
        .await
        .context("making the Deployment")?;
    let services = client.api(Resource::SERVICES, Some(NAMESPACE));
    let service = service(SERVICE, &json!({})).to_string();
    let _: Value = services.create(service).await.context("making the Service")?;
    Ok(())
}

/// A Service in front of the pods.
pub fn service(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": labels, "annotations": {NUMBER: "1"}},
        "spec": {"selector": {"app": SERVICE}, "ports": [{"port": 80, "targetPort": POD_PORT}]},
    })
}

/// Reads the slices of a Service.
pub async fn slices(client: &Client, service: &str) -> anyhow::Result<Slices> {
    let selector = format!("{SERVICE_NAME_LABEL}={service}");
    let scope = Scope::all(Resource::ENDPOINT_SLICES).labels(&selector);
    let slices: Vec<EndpointSlice> = client.list(&scope).await?;
    Ok(fold_slices(&slices))
}

/// What several slices list together.
pub fn fold_slices<'a>(all: impl IntoIterator<Item = &'a EndpointSlice>) -> Slices {
    let mut slices = Slices::default();
    for slice in all {
        slices.version = slices.version.max(slice.metadata.revision().0);
        for endpoint in &slice.endpoints {
            let Some(pod) = &endpoint.target else { continue };
            if endpoint.conditions.is_ready() {
                slices.ready.insert(pod.name.to_string());
            }
            if endpoint.conditions.is_ready() || endpoint.conditions.is_serving() {
                slices.listed.insert(pod.name.to_string());
            }
        }
    }
    slices
}

/// The pods of the Deployment.
pub async fn pods(client: &Client) -> anyhow::Result<Vec<Pod>> {
    Ok(rollout::pods(client, NAMESPACE, SERVICE).await?)
}

/// The numbers that all objects of the run hold, by kind and name.
pub async fn numbers(client: &Client) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for kind in ["configmaps", "services"] {
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/{kind}?labelSelector={}",
            LABEL.replace('/', "%2F")
        );
        let list: Value = client.get_path(&path).await?;
        for object in items(&list) {
            let name = format!("{kind}/{}", text(&object["metadata"]["name"]));
            found.insert(name, number(object).unwrap_or(0));
        }
    }
    let deployments = client.api(Resource::DEPLOYMENTS, Some(NAMESPACE));
    let deployment: Value = deployments.get(SERVICE).await?;
    if let Some(number) = number(&deployment) {
        found.insert(format!("deployments/{SERVICE}"), number);
    }
    Ok(found)
}

/// The number of an object's last write.
pub fn number(object: &Value) -> Option<u64> {
    object["metadata"]["annotations"][NUMBER].as_str()?.parse().ok()
}

/// An object's version.
pub fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// The objects of a list.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// A string, or nothing.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_serve_until_they_end_may_get_requests_but_unready_ones_may_not() {
        let endpoint = |name: &str, ready: bool, serving: bool| {
            json!({"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": name},
                "conditions": {"ready": ready, "serving": serving, "terminating": !ready && serving}})
        };
        let slices: Vec<EndpointSlice> = serde_json::from_value(json!([
            {"metadata": {"resourceVersion": "7"}, "addressType": "IPv4", "endpoints": [endpoint("a", true, true)]},
            {"metadata": {"resourceVersion": "5"}, "addressType": "IPv4",
                "endpoints": [endpoint("b", false, true), endpoint("c", false, false)]},
        ]))
        .unwrap();
        let slices = fold_slices(&slices);
        assert_eq!(slices.version, 7);
        assert_eq!(slices.ready, ["a".to_owned()].into());
        assert_eq!(slices.listed, ["a".to_owned(), "b".to_owned()].into());
    }
}
