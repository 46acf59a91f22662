//! Which parts of Services and EndpointSlices does a proxy read?
//!
//! Proxies parse every Service and slice of the cluster on every node and keep neither: these shapes live
//! only until domain values are made of them, hold texts where the text has to be named when it is wrong,
//! and skip everything else.

use std::collections::BTreeMap;

use pointsman_model::Moment;
use serde::{Deserialize, Deserializer};

use crate::endpoint_slice::EndpointConditions;
use crate::metadata::filtered;
use crate::names;
use crate::read::{moment, nullable};
use crate::write_time::{believed, newest};

/// The metadata the proxy reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub namespace: String,
    pub name: String,
    pub resource_version: String,
    #[serde(rename = "creationTimestamp", deserialize_with = "moment")]
    pub created: Option<Moment>,
    /// The last write of any field manager.
    #[serde(rename = "managedFields", deserialize_with = "newest")]
    pub managed: Option<Moment>,
    /// Those of them that anything here reads.
    #[serde(deserialize_with = "known_keys")]
    pub labels: BTreeMap<String, String>,
    /// Those of them that anything here reads.
    #[serde(deserialize_with = "known_keys")]
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// When this version was written, as [`crate::WriteTimes::written`] has it.
    pub fn written(&self) -> Option<Moment> {
        let stamp = self.annotations.get(names::CHANGE_TIME_ANNOTATION);
        let second = self.created.max(self.managed);
        believed(stamp.and_then(|text| Moment::parse(text)), second).or(second)
    }
}

/// A core/v1 Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: ServiceStatus,
}

/// The spec of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub cluster_ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub ip_families: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ServicePort>,
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    pub external_ips: Vec<String>,
    pub external_traffic_policy: Option<String>,
    pub internal_traffic_policy: Option<String>,
    pub session_affinity: Option<String>,
    pub session_affinity_config: Option<SessionAffinityConfig>,
    #[serde(deserialize_with = "nullable")]
    pub load_balancer_source_ranges: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub health_check_node_port: i64,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    pub protocol: Option<String>,
    pub port: i64,
    #[serde(deserialize_with = "nullable")]
    pub node_port: i64,
}

/// Settings of session affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// Settings of affinity by client address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    pub timeout_seconds: Option<i64>,
}

/// The status of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: LoadBalancerStatus,
}

/// What the load balancer reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<Ingress>,
}

/// One way into the load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ingress {
    pub ip: String,
    pub ip_mode: Option<String>,
}

/// A discovery.k8s.io/v1 EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    pub metadata: Metadata,
    pub address_type: String,
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub conditions: EndpointConditions,
    pub node_name: Option<String>,
    pub hints: Option<EndpointHints>,
}

/// Where its traffic should come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    #[serde(deserialize_with = "nullable")]
    pub for_zones: Vec<NamedHint>,
    #[serde(deserialize_with = "nullable")]
    pub for_nodes: Vec<NamedHint>,
}

/// A zone or node named by a hint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NamedHint {
    pub name: String,
}

/// A port of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
}

/// A networking.k8s.io/v1 ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    pub spec: ServiceCidrSpec,
}

/// The spec of a ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    #[serde(deserialize_with = "nullable")]
    pub cidrs: Vec<String>,
}

/// The labels and annotations that mean something to a proxy.
const KNOWN_KEYS: [&str; 5] = [
    names::PROXY_NAME_LABEL,
    names::HEADLESS_LABEL,
    names::SERVICE_NAME_LABEL,
    names::TRIGGER_TIME_ANNOTATION,
    names::CHANGE_TIME_ANNOTATION,
];

fn known_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    filtered(deserializer, |key| KNOWN_KEYS.contains(&key))
}
