//! What does a Service ask for?

use std::net::IpAddr;

use pointsman_model::{Labels, Text, parse_ip};
use serde::Deserialize;

use crate::endpoint_slice::AddressType;
use crate::interner::Interner;
use crate::metadata::Metadata;
use crate::names;
use crate::port::Protocol;
use crate::read::{labels, non_empty, nullable};

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
    pub protocol: Protocol,
    /// The port of the cluster address.
    pub number: i32,
    /// Port or name in the pod.
    pub target: TargetPort,
    pub app_protocol: Option<Text>,
}

/// How hints are chosen for a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficMode {
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

/// A Service: what decides its slices and what people see of it. Proxies read more of it
/// ([`crate::compact::Service`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawService")]
pub struct Service {
    pub metadata: Metadata,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`; absent means the first.
    pub kind: Option<Text>,
    /// `None` for a headless Service; empty until the API server has given one.
    pub cluster_ip: Box<str>,
    /// The cluster addresses of all families; those that are no addresses are left out.
    pub cluster_ips: Box<[IpAddr]>,
    /// The name that a Service of type ExternalName stands for; otherwise it means nothing.
    pub external_name: Box<str>,
    /// Pods it selects; absent means that somebody else makes its endpoints. The API turns an empty
    /// selector into an absent one.
    pub selector: Option<Labels>,
    /// Families to make slices for, in the Service's order.
    pub families: Box<[AddressType]>,
    /// Unready addresses are published as ready.
    pub publish_not_ready: bool,
    /// In the Service's order.
    pub ports: Box<[ServicePort]>,
    /// How hints are chosen.
    pub traffic: TrafficMode,
}

impl Service {
    pub fn is_external_name(&self) -> bool {
        self.kind.as_deref() == Some("ExternalName")
    }

    /// The way to ask for a headless Service.
    pub fn asks_for_no_cluster_ip(&self) -> bool {
        &*self.cluster_ip == "None"
    }

    /// It has no cluster address, asked for or not.
    pub fn is_headless(&self) -> bool {
        matches!(&*self.cluster_ip, "" | "None")
    }

    /// Whether the slice controller makes slices for the Service at all.
    pub fn wants_slices(&self) -> bool {
        !self.is_external_name() && self.selector.is_some()
    }

    /// Whether our proxies make rules for it.
    pub fn is_programmed(&self) -> bool {
        let foreign = self.metadata.labels.contains_key(names::PROXY_NAME_LABEL);
        !foreign && !self.is_headless() && !self.is_external_name()
    }

    /// Shares what repeats from Service to Service.
    pub fn intern(&mut self, interner: &mut Interner) {
        let texts = &mut interner.texts;
        texts.share(&mut self.metadata.namespace);
        texts.share_option(&mut self.kind);
        for port in &mut self.ports {
            texts.share(&mut port.name);
            texts.share_option(&mut port.app_protocol);
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawService {
    metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    spec: RawSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    r#type: Option<String>,
    #[serde(deserialize_with = "labels")]
    selector: Labels,
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    cluster_ip: Box<str>,
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    cluster_ips: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    external_name: Box<str>,
    #[serde(deserialize_with = "nullable")]
    ip_families: Vec<String>,
    #[serde(deserialize_with = "nullable")]
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
        Self {
            kind: non_empty(spec.r#type),
            selector: (!spec.selector.is_empty()).then_some(spec.selector),
            families: families(&spec.ip_families, &spec.cluster_ip),
            publish_not_ready: spec.publish_not_ready_addresses,
            traffic: traffic_mode(&metadata, spec.traffic_distribution.as_deref()),
            ports: spec.ports.into_iter().map(ServicePort::from).collect(),
            cluster_ips: addresses(&spec.cluster_ips, &spec.cluster_ip),
            external_name: spec.external_name,
            cluster_ip: spec.cluster_ip,
            metadata,
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
            number: raw.port,
            target,
            app_protocol: non_empty(raw.app_protocol),
        }
    }
}

/// Addresses as written, else (objects of an old server) the first one.
fn addresses(written: &[String], cluster_ip: &str) -> Box<[IpAddr]> {
    let all: Box<[IpAddr]> = written.iter().filter_map(|text| parse_ip(text).ok()).collect();
    match all.is_empty() {
        true => parse_ip(cluster_ip).ok().into_iter().collect(),
        false => all,
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
fn traffic_mode(metadata: &Metadata, distribution: Option<&str>) -> TrafficMode {
    let annotations = &metadata.annotations;
    let annotation = annotations
        .get(names::TOPOLOGY_HINTS_ANNOTATION)
        .or_else(|| annotations.get(names::TOPOLOGY_MODE_ANNOTATION));
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
