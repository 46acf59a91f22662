//! Which endpoints does an EndpointSlice hold?

use std::net::IpAddr;

use pointsman_model::{Few, Moment, Text, parse_ip};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::interner::Interner;
use crate::metadata::{All, Metadata};
use crate::names;
use crate::port::Protocol;
use crate::read::{non_empty, nullable};

/// Kind of addresses in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum AddressType {
    /// IPv4.
    #[default]
    IPv4,
    /// IPv6.
    IPv6,
    /// Anything this controller never writes (FQDN, and "IP" of old).
    Other,
}

impl AddressType {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::IPv4 } else { Self::IPv6 }
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::IPv4 => "IPv4",
            Self::IPv6 => "IPv6",
            Self::Other => "Other",
        }
    }
}

impl<'de> Deserialize<'de> for AddressType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match String::deserialize(deserializer)?.as_str() {
            "IPv4" => Self::IPv4,
            "IPv6" => Self::IPv6,
            _ => Self::Other,
        })
    }
}

/// A port of a slice. The order of the fields makes equal port sets equal when sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPort {
    /// Name, possibly empty.
    pub name: Text,
    pub protocol: Protocol,
    /// Number in the pod; absent only in slices edited by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Text>,
}

/// The conditions of an endpoint as they are written; `None` is "not written".
///
/// What an unwritten one means is decided by the methods, as KEP-1672 says it: `ready` unset is true,
/// `serving` unset is whatever `ready` is, `terminating` unset is false. (kube-proxy reads an unset
/// `serving` as true; docs/seeds.md lists the difference.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Passes its readiness checks, terminating or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

impl EndpointConditions {
    /// May get traffic.
    pub fn is_ready(self) -> bool {
        self.ready.unwrap_or(true)
    }

    /// Passes its readiness checks, terminating or not.
    pub fn is_serving(self) -> bool {
        self.serving.unwrap_or(self.is_ready())
    }

    /// Is being deleted.
    pub fn is_terminating(self) -> bool {
        self.terminating.unwrap_or(false)
    }

    /// The same as the data path keeps it.
    pub fn resolved(self) -> pointsman_model::Conditions {
        pointsman_model::Conditions {
            ready: self.is_ready(),
            serving: self.is_serving(),
            terminating: self.is_terminating(),
        }
    }

    /// The one word that says these conditions in the churn counters.
    pub fn label(self) -> &'static str {
        match (self.ready, self.serving, self.terminating) {
            (_, Some(true), Some(true)) => "serving-terminating",
            (_, _, Some(true)) => "terminating",
            (Some(true), _, _) => "ready",
            _ => "not-ready",
        }
    }
}

/// The pod behind an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub namespace: Text,
    pub name: Text,
    pub uid: Text,
}

impl Serialize for PodRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("PodRef", 4)?;
        object.serialize_field("kind", "Pod")?;
        object.serialize_field("namespace", &*self.namespace)?;
        object.serialize_field("name", &*self.name)?;
        object.serialize_field("uid", &*self.uid)?;
        object.end()
    }
}

/// Who should prefer an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hints {
    pub zones: Box<[Text]>,
    pub nodes: Box<[Text]>,
}

#[derive(Serialize, Deserialize)]
struct RawHint<T> {
    name: T,
}

impl Serialize for Hints {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let named = |names: &[Text]| {
            names
                .iter()
                .map(|name| RawHint {
                    name: name.to_string(),
                })
                .collect::<Vec<_>>()
        };
        let fields = usize::from(!self.zones.is_empty()) + usize::from(!self.nodes.is_empty());
        let mut object = serializer.serialize_struct("Hints", fields)?;
        if !self.zones.is_empty() {
            object.serialize_field("forZones", &named(&self.zones))?;
        }
        if !self.nodes.is_empty() {
            object.serialize_field("forNodes", &named(&self.nodes))?;
        }
        object.end()
    }
}

/// One endpoint of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Addresses, sorted; normally one.
    #[serde(serialize_with = "as_list")]
    pub addresses: Few<IpAddr>,
    pub conditions: EndpointConditions,
    /// Host name, for DNS of headless Services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Text>,
    /// Node of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Text>,
    /// Zone of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<Text>,
    /// The pod; absent when a hand-made endpoint points at something else.
    #[serde(rename = "targetRef", skip_serializing_if = "Option::is_none")]
    pub target: Option<PodRef>,
    /// Who should prefer it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Box<Hints>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawSlice")]
pub struct EndpointSlice {
    /// With all annotations: a mirrored slice carries those of its Endpoints.
    pub metadata: Metadata<All>,
    pub address_type: AddressType,
    pub ports: Box<[EndpointPort]>,
    /// In stored order.
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// The name of the Service that this slice says it belongs to, in its own namespace.
    pub fn service_name(&self) -> Option<&str> {
        self.metadata.labels.get(names::SERVICE_NAME_LABEL)
    }

    /// Whether the slice is the slice controller's business.
    pub fn managed_by_us(&self) -> bool {
        self.metadata.labels.get(names::MANAGED_BY_LABEL) == Some(names::SLICE_CONTROLLER)
    }

    /// Whether the slice is the mirroring controller's business.
    pub fn mirrored_by_us(&self) -> bool {
        self.metadata.labels.get(names::MANAGED_BY_LABEL) == Some(names::MIRRORING_CONTROLLER)
    }

    /// When the change behind it happened, if it says so.
    pub fn trigger(&self) -> Option<Moment> {
        self.metadata.annotated_moment(names::TRIGGER_TIME_ANNOTATION)
    }

    /// Uids of the Services that own it.
    pub fn owners(&self) -> impl Iterator<Item = &Text> {
        let owners = self.metadata.owner_references.iter();
        owners
            .filter(|owner| &*owner.api_version == "v1" && &*owner.kind == "Service")
            .map(|owner| &owner.uid)
    }

    /// Shares what repeats from slice to slice.
    pub fn intern(&mut self, interner: &mut Interner) {
        interner.share_metadata(&mut self.metadata);
        let texts = &mut interner.texts;
        for port in &mut self.ports {
            texts.share(&mut port.name);
            texts.share_option(&mut port.app_protocol);
        }
        for endpoint in &mut self.endpoints {
            texts.share_option(&mut endpoint.node_name);
            texts.share_option(&mut endpoint.zone);
            if let Some(target) = &mut endpoint.target {
                texts.share(&mut target.namespace);
            }
            if let Some(hints) = &mut endpoint.hints {
                hints
                    .zones
                    .iter_mut()
                    .chain(&mut hints.nodes)
                    .for_each(|text| texts.share(text));
            }
        }
    }
}

fn as_list<S: Serializer>(addresses: &[IpAddr], serializer: S) -> Result<S::Ok, S::Error> {
    addresses.serialize(serializer)
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSlice {
    metadata: Metadata<All>,
    address_type: AddressType,
    #[serde(deserialize_with = "nullable")]
    ports: Vec<RawPort>,
    #[serde(deserialize_with = "nullable")]
    endpoints: Vec<RawEndpoint>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawPort {
    name: Option<String>,
    protocol: Protocol,
    port: Option<i32>,
    app_protocol: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawEndpoint {
    #[serde(deserialize_with = "nullable")]
    addresses: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    conditions: EndpointConditions,
    hostname: Option<String>,
    node_name: Option<String>,
    zone: Option<String>,
    target_ref: Option<RawTarget>,
    hints: Option<RawHints>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawTarget {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawHints {
    #[serde(deserialize_with = "nullable")]
    for_zones: Vec<RawHint<String>>,
    #[serde(deserialize_with = "nullable")]
    for_nodes: Vec<RawHint<String>>,
}

impl From<RawSlice> for EndpointSlice {
    fn from(raw: RawSlice) -> Self {
        let mut ports: Vec<EndpointPort> = raw.ports.into_iter().map(EndpointPort::from).collect();
        ports.sort();
        let mut endpoints: Vec<Endpoint> = raw.endpoints.into_iter().map(Endpoint::from).collect();
        // The block was made for raw endpoints, which are larger, and for more of them than there are.
        endpoints.shrink_to_fit();
        Self {
            metadata: raw.metadata,
            address_type: raw.address_type,
            ports: ports.into(),
            endpoints,
        }
    }
}

impl From<RawPort> for EndpointPort {
    fn from(raw: RawPort) -> Self {
        Self {
            name: raw.name.unwrap_or_default().into(),
            protocol: raw.protocol,
            port: raw.port,
            app_protocol: non_empty(raw.app_protocol),
        }
    }
}

impl From<RawEndpoint> for Endpoint {
    fn from(raw: RawEndpoint) -> Self {
        // An address we cannot read leaves the list shorter, so the endpoint matches no pod and goes.
        let mut addresses: Vec<IpAddr> = raw
            .addresses
            .iter()
            .filter_map(|text| parse_ip(text).ok())
            .collect();
        addresses.sort();
        let names = |raw: Vec<RawHint<String>>| raw.into_iter().map(|hint| hint.name.into()).collect();
        Self {
            addresses: addresses.into_iter().collect(),
            conditions: raw.conditions,
            hostname: non_empty(raw.hostname),
            node_name: non_empty(raw.node_name),
            zone: non_empty(raw.zone),
            target: raw
                .target_ref
                .filter(|target| target.kind == "Pod")
                .map(|target| PodRef {
                    namespace: target.namespace.into(),
                    name: target.name.into(),
                    uid: target.uid.into(),
                }),
            hints: raw.hints.map(|hints| {
                Box::new(Hints {
                    zones: names(hints.for_zones),
                    nodes: names(hints.for_nodes),
                })
            }),
        }
    }
}
