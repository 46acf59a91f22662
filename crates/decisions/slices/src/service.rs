//! What does the slice controller need to know about a Service?

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::slice::AddressType;
use crate::text::{Interner, Labels, Text, non_empty, nullable};
use crate::time::Moment;

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
}

impl ServiceKey {
    /// The key made of these two.
    pub fn new(namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP, the default.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// A protocol we do not know; matches nothing we would write.
    Other,
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("" | "TCP") => Self::Tcp,
            Some("UDP") => Self::Udp,
            Some("SCTP") => Self::Sctp,
            Some(_) => Self::Other,
        })
    }
}

/// Where a Service port leads in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// This number, whatever the pod declares.
    Number(i32),
    /// The pod's port of this name and of the same protocol.
    Name(Text),
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name, empty for a lone unnamed port.
    pub name: Text,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port or name in the pod.
    pub target: TargetPort,
    /// Application protocol.
    pub app_protocol: Option<Text>,
}

/// How hints are chosen for a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficMode {
    /// No hints.
    #[default]
    None,
    /// The topology annotation: endpoints spread over zones by CPU.
    Auto,
    /// `trafficDistribution: PreferClose`, the old name of `PreferSameZone`.
    PreferClose,
    /// `trafficDistribution: PreferSameZone`.
    PreferSameZone,
    /// `trafficDistribution: PreferSameNode`.
    PreferSameNode,
}

impl TrafficMode {
    /// The `topology` label of `endpointslices_changed_per_sync`.
    pub fn topology_label(self) -> &'static str {
        if self == Self::Auto { "Auto" } else { "Disabled" }
    }

    /// The `traffic_distribution` label of the metrics; empty without one.
    pub fn distribution_label(self) -> &'static str {
        match self {
            Self::None | Self::Auto => "",
            Self::PreferClose => "PreferClose",
            Self::PreferSameZone => "PreferSameZone",
            Self::PreferSameNode => "PreferSameNode",
        }
    }
}

/// The fields of a Service that decide its slices.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawService")]
pub struct Service {
    /// Namespace and name.
    pub key: ServiceKey,
    /// Unique id, for owner references.
    pub uid: Text,
    /// Resource version, 0 when it is not a number.
    pub revision: u64,
    /// Labels, mirrored to the slices.
    pub labels: Labels,
    /// Pods it selects; absent means that somebody else makes its endpoints.
    pub selector: Option<Labels>,
    /// `type: ExternalName`: no endpoints.
    pub external_name: bool,
    /// `clusterIP` is `None`, the way to ask for a headless Service.
    pub cluster_ip_none: bool,
    /// `clusterIP` is empty or `None`.
    pub headless: bool,
    /// Families to make slices for, in the Service's order.
    pub families: Box<[AddressType]>,
    /// Unready addresses are published as ready.
    pub publish_not_ready: bool,
    /// Ports, in the Service's order.
    pub ports: Box<[ServicePort]>,
    /// How hints are chosen.
    pub traffic: TrafficMode,
    /// When it was created.
    pub created: Option<Moment>,
    /// It is being deleted.
    pub deleting: bool,
}

impl Service {
    /// Whether this controller makes slices for the Service at all.
    pub fn wants_slices(&self) -> bool {
        !self.external_name && self.selector.is_some()
    }

    /// Whether two versions differ in nothing that slices or Endpoints show.
    pub fn same_outcome(&self, other: &Service) -> bool {
        let neutral = |service: &Service| Service {
            revision: 0,
            ..service.clone()
        };
        neutral(self) == neutral(other)
    }

    /// Shares the texts that repeat from Service to Service.
    pub fn intern(&mut self, interner: &mut Interner) {
        interner.share(&mut self.key.namespace);
        for port in &mut self.ports {
            interner.share(&mut port.name);
            interner.share_option(&mut port.app_protocol);
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawService {
    metadata: RawMetadata,
    #[serde(deserialize_with = "nullable")]
    spec: RawSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    labels: Labels,
    #[serde(deserialize_with = "nullable")]
    annotations: RawAnnotations,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawAnnotations {
    #[serde(rename = "service.kubernetes.io/topology-aware-hints")]
    hints: Option<String>,
    #[serde(rename = "service.kubernetes.io/topology-mode")]
    mode: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    r#type: Option<String>,
    selector: Option<Labels>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(deserialize_with = "nullable")]
    ip_families: Vec<String>,
    publish_not_ready_addresses: bool,
    #[serde(deserialize_with = "nullable")]
    ports: Vec<RawPort>,
    traffic_distribution: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawPort {
    name: Option<String>,
    protocol: Protocol,
    port: i32,
    target_port: Option<RawTarget>,
    app_protocol: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawTarget {
    Number(i32),
    Name(String),
}

impl From<RawService> for Service {
    fn from(raw: RawService) -> Self {
        let RawService { metadata, spec } = raw;
        let cluster_ip = spec.cluster_ip.as_deref().unwrap_or("");
        Self {
            key: ServiceKey::new(metadata.namespace, metadata.name),
            uid: metadata.uid.into(),
            revision: metadata.resource_version.parse().unwrap_or(0),
            labels: metadata.labels,
            // The API turns an empty selector into an absent one; both mean "not ours".
            selector: spec.selector.filter(|selector| !selector.is_empty()),
            external_name: spec.r#type.as_deref() == Some("ExternalName"),
            cluster_ip_none: cluster_ip == "None",
            headless: matches!(cluster_ip, "" | "None"),
            families: families(&spec.ip_families, cluster_ip),
            publish_not_ready: spec.publish_not_ready_addresses,
            traffic: traffic_mode(&metadata.annotations, spec.traffic_distribution.as_deref()),
            ports: spec.ports.into_iter().map(ServicePort::from).collect(),
            created: metadata.creation_timestamp.as_deref().and_then(Moment::parse),
            deleting: metadata.deletion_timestamp.is_some(),
        }
    }
}

impl From<RawPort> for ServicePort {
    fn from(raw: RawPort) -> Self {
        let target = match raw.target_port {
            Some(RawTarget::Name(name)) if !name.is_empty() => TargetPort::Name(name.into()),
            Some(RawTarget::Number(number)) if number != 0 => TargetPort::Number(number),
            _ => TargetPort::Number(raw.port),
        };
        Self {
            name: raw.name.unwrap_or_default().into(),
            protocol: raw.protocol,
            target,
            app_protocol: non_empty(raw.app_protocol),
        }
    }
}

/// Families as written, else (objects of an old server) from the cluster address, else both.
fn families(written: &[String], cluster_ip: &str) -> Box<[AddressType]> {
    let mut families: Vec<AddressType> = Vec::with_capacity(2);
    for family in written {
        match family.as_str() {
            "IPv4" if !families.contains(&AddressType::IPv4) => families.push(AddressType::IPv4),
            "IPv6" if !families.contains(&AddressType::IPv6) => families.push(AddressType::IPv6),
            _ => {}
        }
    }
    if families.is_empty() {
        match cluster_ip.parse::<IpAddr>() {
            Ok(ip) => families.push(AddressType::of(ip)),
            Err(_) => families.extend([AddressType::IPv4, AddressType::IPv6]),
        }
    }
    families.into()
}

/// The annotation wins over the field, and its deprecated name over the newer one.
fn traffic_mode(annotations: &RawAnnotations, distribution: Option<&str>) -> TrafficMode {
    let annotation = annotations.hints.as_deref().or(annotations.mode.as_deref());
    if matches!(annotation, Some("Auto" | "auto")) {
        return TrafficMode::Auto;
    }
    match distribution {
        Some("PreferClose") => TrafficMode::PreferClose,
        Some("PreferSameZone") => TrafficMode::PreferSameZone,
        Some("PreferSameNode") => TrafficMode::PreferSameNode,
        _ => TrafficMode::None,
    }
}
