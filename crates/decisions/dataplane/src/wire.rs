//! Which parts of the Kubernetes objects does a proxy read?
//!
//! Slim shapes for Service, EndpointSlice and Node: unknown fields are skipped while parsing, and a
//! missing or `null` list is an empty one. They live only until [`convert`](crate::convert) has made
//! domain values of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The metadata the proxy reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub namespace: String,
    pub name: String,
    pub resource_version: String,
    /// Those of them that anything here reads.
    #[serde(deserialize_with = "known_keys")]
    pub labels: BTreeMap<String, String>,
    /// Those of them that anything here reads.
    #[serde(deserialize_with = "known_keys")]
    pub annotations: BTreeMap<String, String>,
    pub deletion_timestamp: Option<String>,
}

/// A core/v1 Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    pub metadata: Metadata,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

/// The spec of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs", deserialize_with = "null_as_default")]
    pub cluster_ips: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub ip_families: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<ServicePort>,
    #[serde(rename = "externalIPs", deserialize_with = "null_as_default")]
    pub external_ips: Vec<String>,
    pub external_traffic_policy: Option<String>,
    pub internal_traffic_policy: Option<String>,
    pub session_affinity: Option<String>,
    pub session_affinity_config: Option<SessionAffinityConfig>,
    #[serde(deserialize_with = "null_as_default")]
    pub load_balancer_source_ranges: Vec<String>,
    pub health_check_node_port: i64,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    pub name: String,
    pub protocol: Option<String>,
    pub port: i64,
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
    pub load_balancer: LoadBalancerStatus,
}

/// What the load balancer reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    #[serde(deserialize_with = "null_as_default")]
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
    #[serde(deserialize_with = "null_as_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<EndpointPort>,
}

/// One endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: EndpointConditions,
    pub node_name: Option<String>,
    pub hints: Option<EndpointHints>,
}

/// Its health; a missing condition has the meaning of a healthy endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointConditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

/// Where its traffic should come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    #[serde(deserialize_with = "null_as_default")]
    pub for_zones: Vec<NamedHint>,
    #[serde(deserialize_with = "null_as_default")]
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

/// A core/v1 Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    pub metadata: Metadata,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

/// The spec of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    #[serde(rename = "podCIDRs", deserialize_with = "null_as_default")]
    pub pod_cidrs: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub taints: Vec<Taint>,
}

/// A taint of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
}

/// The status of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: Vec<NodeAddress>,
}

/// An address of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
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
    #[serde(deserialize_with = "null_as_default")]
    pub cidrs: Vec<String>,
}

/// Go writes an empty list or struct that has no `omitempty` as `null`.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The labels and annotations that mean something to a proxy.
const KNOWN_KEYS: [&str; 5] = [
    crate::convert::PROXY_NAME_LABEL,
    crate::convert::HEADLESS_LABEL,
    crate::convert::SERVICE_NAME_LABEL,
    crate::convert::ZONE_LABEL,
    crate::trigger::ANNOTATION,
];

/// Reads a map but for the entries that nobody asks for; in a large cluster they would be most of the work.
fn known_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct KnownKeys;

    #[derive(Deserialize)]
    struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

    impl<'de> Visitor<'de> for KnownKeys {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of texts")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<M: MapAccess<'de>>(self, mut entries: M) -> Result<Self::Value, M::Error> {
            let mut known = BTreeMap::new();
            while let Some(Key(key)) = entries.next_key()? {
                if KNOWN_KEYS.contains(&key.as_ref()) {
                    known.insert(key.into_owned(), entries.next_value()?);
                } else {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
            Ok(known)
        }
    }

    deserializer.deserialize_any(KnownKeys)
}
