//! How do pods of the cluster find names?
//!
//! The DNS server runs on the host's end of the cable to the fabric. Pods know it by the tenth cluster address, as they
//! do in most clusters, so that its way is that of any Service.

use crate::plan::Plan;
use crate::up::Config;
use anyhow::Context;
use pointsman_api_client::{Api, ApiError, Client, Patch, Resource};
use pointsman_collector::Listed;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

/// Where it answers on the host; 53 is often taken there.
const PORT: u16 = 10053;
const METRICS_PORT: u16 = 9153;
const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// Who wrote the slice, so that no controller of slices takes it for its own.
const WRITER: &str = "pointsman-up";

/// Where it serves its health.
pub fn health_address(plan: &Plan) -> SocketAddr {
    SocketAddr::new(plan.host_address().address(), METRICS_PORT)
}

/// The name and URL by which the collector follows it: answers are one more thing that has to be up to date everywhere.
pub fn programmer(plan: &Plan) -> Listed {
    Listed {
        name: "dns".to_owned(),
        url: format!("http://{}", health_address(plan)),
    }
}

/// The flags of the role.
pub fn arguments(config: &Config, plan: &Plan) -> Vec<OsString> {
    vec![
        "--kubeconfig".into(),
        config.data_dir.join("kubeconfigs/dns.kubeconfig").into(),
        format!("--bind-address={}:{PORT}", plan.host_address().address()).into(),
        format!("--metrics-listen={}", health_address(plan)).into(),
        "--client-ca-file".into(),
        config.data_dir.join("pki/ca.crt").into(),
    ]
}

/// Makes the Service that leads to it, and returns the address that pods are told.
pub async fn publish(client: &Client, plan: &Plan) -> anyhow::Result<IpAddr> {
    let services = client.api(Resource::SERVICES, Some(NAMESPACE));
    let service = find_or_create(&services, plan)
        .await
        .context("the Service of the DNS")?;
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    let address = address
        .parse()
        .context("the Service of the DNS has no cluster address")?;
    // Somebody who has given it a selector runs a DNS server of their own.
    if service["spec"]["selector"].is_null() {
        let slices = client.api(Resource::ENDPOINT_SLICES, Some(NAMESPACE));
        apply(&slices, &slice(plan))
            .await
            .context("the endpoints of the DNS")?;
    }
    Ok(address)
}

async fn find_or_create(services: &Api, plan: &Plan) -> Result<Value, ApiError> {
    match services.get(NAME).await {
        Err(ApiError::NotFound(_)) => {}
        found => return found,
    }
    let wanted = service(Some(plan.dns_address().into()));
    match services.create(wanted.to_string()).await {
        // Older data may have given the address to another Service: any other will do.
        Err(error @ ApiError::Refused(_)) => {
            tracing::warn!(%error, "the usual address of the DNS is taken");
            services.create(service(None).to_string()).await
        }
        created => created,
    }
}

async fn apply(api: &Api, object: &Value) -> Result<(), ApiError> {
    match api.create::<IgnoredAny>(object.to_string()).await {
        Err(ApiError::AlreadyExists(_)) => {
            let patch = Patch::Merge(object.to_string().into_bytes());
            api.patch::<IgnoredAny>(NAME, patch).await.map(drop)
        }
        created => created.map(drop),
    }
}

fn service(address: Option<IpAddr>) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": NAMESPACE, "name": NAME,
            "labels": { "k8s-app": "kube-dns" },
        },
        "spec": { "ports": [
            { "name": "dns", "port": 53, "protocol": "UDP", "targetPort": PORT },
            { "name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": PORT },
        ] },
    });
    if let Some(address) = address {
        service["spec"]["clusterIP"] = json!(address);
    }
    service
}

fn slice(plan: &Plan) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": NAMESPACE, "name": NAME,
            "labels": {
                "kubernetes.io/service-name": NAME,
                "endpointslice.kubernetes.io/managed-by": WRITER,
            },
        },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": [plan.host_address().address()], "conditions": { "ready": true } }],
        "ports": [
            { "name": "dns", "port": PORT, "protocol": "UDP" },
            { "name": "dns-tcp", "port": PORT, "protocol": "TCP" },
        ],
    })
}
