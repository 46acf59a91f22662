//! What does the classic Endpoints object of a Service say?

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pointsman_model::{Labels, Moment, Text, parse_ip};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::endpoint_slice::{EndpointPort, PodRef};
use crate::names::TRIGGER_TIME_ANNOTATION;
use crate::port::Protocol;
use crate::read::{labels, non_empty, nullable};

/// Annotation on objects that list fewer addresses than there are.
pub const OVER_CAPACITY_ANNOTATION: &str = "endpoints.kubernetes.io/over-capacity";
/// Label that names the controller of an Endpoints object.
pub const MANAGED_BY_LABEL: &str = "endpoints.kubernetes.io/managed-by";
/// Our value of [`MANAGED_BY_LABEL`]: the upstream controller's, whose place we take.
pub const CONTROLLER_NAME: &str = "endpoint-controller";

/// One address. Ordered by address, then by pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    pub ip: IpAddr,
    /// Host name, for DNS of headless Services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Text>,
    /// Node of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Text>,
    #[serde(rename = "targetRef", skip_serializing_if = "Option::is_none")]
    pub target: Option<PodRef>,
}

/// Addresses that share their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subset {
    pub ports: Box<[EndpointPort]>,
    /// Addresses that may get traffic.
    pub addresses: BTreeSet<Address>,
    /// Addresses that may not.
    pub not_ready: BTreeSet<Address>,
}

/// Label on Endpoints that are not mirrored.
const SKIP_MIRROR_LABEL: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Annotation of Endpoints that only served to elect a leader.
const LEADER_ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";
/// What `kubectl apply` keeps for itself.
const APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An Endpoints object, as it should be or as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawEndpoints")]
pub struct Endpoints {
    pub labels: Labels,
    /// Subsets by their ports.
    pub subsets: BTreeSet<Subset>,
    /// Addresses were left out.
    pub truncated: bool,
    /// The version this was read from; empty for an object that is not there yet.
    pub resource_version: Text,
    /// Whether a trigger time is set now.
    pub has_trigger_time: bool,
    pub uid: Text,
    /// Annotations that a mirror of it carries.
    pub annotations: Labels,
    /// Somebody elects a leader with it; there is nothing else in it.
    pub elects_leader: bool,
    /// How many addresses cannot be read.
    pub invalid: usize,
}

impl Endpoints {
    /// Whether its author wants it to show in slices too, where no selector makes them.
    pub fn may_be_mirrored(&self) -> bool {
        !self.elects_leader && self.labels.get(SKIP_MIRROR_LABEL) != Some("true")
    }

    /// Whether `existing` already says the same.
    pub fn shown_by(&self, existing: &Endpoints) -> bool {
        self.labels == existing.labels
            && self.subsets == existing.subsets
            && self.truncated == existing.truncated
    }

    /// The merge patch (or, without an existing object, the whole object to POST) that makes the
    /// Endpoints of a Service say this.
    pub fn body(
        &self,
        namespace: &str,
        name: &str,
        existing: Option<&Endpoints>,
        trigger: Option<Moment>,
    ) -> Vec<u8> {
        let mut labels: BTreeMap<&str, Option<&str>> =
            self.labels.iter().map(|(k, v)| (k, Some(v))).collect();
        let mut annotations: BTreeMap<&str, Option<String>> = BTreeMap::new();
        let set = |wanted: Option<String>, present: bool| (wanted.is_some() || present).then_some(wanted);
        let trigger = set(
            trigger.map(|moment| moment.to_string()),
            existing.is_some_and(|e| e.has_trigger_time),
        );
        let capacity = set(
            self.truncated.then(|| "truncated".into()),
            existing.is_some_and(|e| e.truncated),
        );
        annotations.extend(trigger.map(|value| (TRIGGER_TIME_ANNOTATION, value)));
        annotations.extend(capacity.map(|value| (OVER_CAPACITY_ANNOTATION, value)));
        let mut metadata = json!({ "name": name, "namespace": namespace });
        if let Some(existing) = existing {
            let gone = existing
                .labels
                .iter()
                .filter(|(key, _)| self.labels.get(key).is_none());
            labels.extend(gone.map(|(key, _)| (key, None)));
            metadata["resourceVersion"] = (&*existing.resource_version).into();
        }
        metadata["labels"] = json!(labels);
        if !annotations.is_empty() {
            metadata["annotations"] = json!(annotations);
        }
        let subsets: Vec<RawSubsetOut<'_>> = self.subsets.iter().map(RawSubsetOut::from).collect();
        let object =
            json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets });
        object.to_string().into_bytes()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RawSubsetOut<'a> {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    addresses: &'a BTreeSet<Address>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    not_ready_addresses: &'a BTreeSet<Address>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    ports: &'a [EndpointPort],
}

impl<'a> From<&'a Subset> for RawSubsetOut<'a> {
    fn from(subset: &'a Subset) -> Self {
        Self {
            addresses: &subset.addresses,
            not_ready_addresses: &subset.not_ready,
            ports: &subset.ports,
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawEndpoints {
    metadata: RawMetadata,
    #[serde(deserialize_with = "nullable")]
    subsets: Vec<RawSubset>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    #[serde(deserialize_with = "labels")]
    labels: Labels,
    resource_version: String,
    uid: String,
    #[serde(deserialize_with = "labels")]
    annotations: Labels,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSubset {
    #[serde(deserialize_with = "nullable")]
    addresses: Vec<RawAddress>,
    #[serde(deserialize_with = "nullable")]
    not_ready_addresses: Vec<RawAddress>,
    #[serde(deserialize_with = "nullable")]
    ports: Vec<RawPort>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawAddress {
    ip: String,
    hostname: Option<String>,
    node_name: Option<String>,
    target_ref: Option<RawTarget>,
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
struct RawPort {
    name: Option<String>,
    protocol: Protocol,
    port: i32,
    app_protocol: Option<String>,
}

impl From<RawEndpoints> for Endpoints {
    fn from(raw: RawEndpoints) -> Self {
        let annotations = raw.metadata.annotations;
        let lists = raw
            .subsets
            .iter()
            .flat_map(|subset| [&subset.addresses, &subset.not_ready_addresses]);
        let unreadable = |address: &&RawAddress| parse_ip(&address.ip).is_err();
        let kept = |name: &str| ![TRIGGER_TIME_ANNOTATION, APPLIED_ANNOTATION].contains(&name);
        Self {
            labels: raw.metadata.labels,
            invalid: lists.flatten().filter(unreadable).count(),
            subsets: raw.subsets.into_iter().map(Subset::from).collect(),
            truncated: annotations.contains_key(OVER_CAPACITY_ANNOTATION),
            resource_version: raw.metadata.resource_version.into(),
            has_trigger_time: annotations.contains_key(TRIGGER_TIME_ANNOTATION),
            uid: raw.metadata.uid.into(),
            elects_leader: annotations.contains_key(LEADER_ANNOTATION),
            annotations: Labels::new(annotations.iter().filter(|(name, _)| kept(name))),
        }
    }
}

impl RawTarget {
    fn is_pod(&self) -> bool {
        matches!(self.kind.as_str(), "Pod" | "")
    }
}

impl From<RawSubset> for Subset {
    fn from(raw: RawSubset) -> Self {
        let addresses = |raw: Vec<RawAddress>| {
            raw.into_iter().filter_map(|raw| {
                Some(Address {
                    ip: parse_ip(&raw.ip).ok()?,
                    hostname: non_empty(raw.hostname),
                    node_name: non_empty(raw.node_name),
                    target: raw.target_ref.filter(RawTarget::is_pod).map(|target| PodRef {
                        namespace: target.namespace.into(),
                        name: target.name.into(),
                        uid: target.uid.into(),
                    }),
                })
            })
        };
        let mut ports: Vec<EndpointPort> = raw
            .ports
            .into_iter()
            .map(|raw| EndpointPort {
                name: raw.name.unwrap_or_default().into(),
                protocol: raw.protocol,
                port: Some(raw.port),
                app_protocol: non_empty(raw.app_protocol),
            })
            .collect();
        ports.sort();
        Self {
            ports: ports.into(),
            addresses: addresses(raw.addresses).collect(),
            not_ready: addresses(raw.not_ready_addresses).collect(),
        }
    }
}
