//! What does the classic Endpoints object of a Service say, for readers that know nothing newer?

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::desired::{PortSet, hostname, ports};
use crate::pod::{Pod, parse_ip};
use crate::service::{Protocol, Service};
use crate::slice::{AddressType, EndpointPort, HEADLESS_LABEL, PodRef, TRIGGER_TIME_ANNOTATION};
use crate::text::{Labels, Text, non_empty, nullable};
use crate::time::Moment;

/// Most addresses that one Endpoints object lists.
pub const MAX_ADDRESSES: usize = 1000;
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
    /// Address.
    pub ip: IpAddr,
    /// Host name, for DNS of headless Services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Text>,
    /// Node of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Text>,
    /// The pod.
    #[serde(rename = "targetRef", skip_serializing_if = "Option::is_none")]
    pub target: Option<PodRef>,
}

/// Addresses that share their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subset {
    /// Ports, sorted.
    pub ports: Box<[EndpointPort]>,
    /// Addresses that may get traffic.
    pub addresses: BTreeSet<Address>,
    /// Addresses that may not.
    pub not_ready: BTreeSet<Address>,
}

/// An Endpoints object, as it should be or as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawEndpoints")]
pub struct Endpoints {
    /// Labels.
    pub labels: Labels,
    /// Subsets by their ports.
    pub subsets: BTreeSet<Subset>,
    /// Addresses were left out.
    pub truncated: bool,
    /// The version this was read from; empty for an object that is not there yet.
    pub resource_version: Text,
    /// Whether a trigger time is set now.
    pub has_trigger_time: bool,
}

/// What the Endpoints object of a Service should say; `None` when it is not ours to write.
pub fn desired(service: &Service, pods: &[&Pod]) -> Option<Endpoints> {
    if !service.wants_slices() {
        return None;
    }
    let mut by_ports: BTreeMap<PortSet, Subset> = BTreeMap::new();
    for pod in pods {
        let Some(address) = address(service, pod) else {
            continue;
        };
        let ports = ports(service, pod);
        // A pod that offers none of the ports is no endpoint here; without any ports, only a
        // headless Service has endpoints.
        if ports.is_empty() && !(service.ports.is_empty() && service.cluster_ip_none) {
            continue;
        }
        let subset = by_ports.entry(ports).or_insert_with_key(|ports| Subset {
            ports: ports.clone(),
            ..Subset::default()
        });
        if service.publish_not_ready || pod.ready {
            subset.addresses.insert(address);
        } else {
            subset.not_ready.insert(address);
        }
    }
    let mut subsets: Vec<Subset> = by_ports.into_values().collect();
    let truncated = truncate(&mut subsets);
    let mirrored = service
        .labels
        .iter()
        .filter(|(key, _)| ![MANAGED_BY_LABEL, HEADLESS_LABEL].contains(key));
    let headless = service.headless.then_some((HEADLESS_LABEL, ""));
    Some(Endpoints {
        labels: Labels::new(
            mirrored
                .chain([(MANAGED_BY_LABEL, CONTROLLER_NAME)])
                .chain(headless),
        ),
        subsets: subsets.into_iter().collect(),
        truncated,
        ..Endpoints::default()
    })
}

impl Endpoints {
    /// Whether `existing` already says the same.
    pub fn shown_by(&self, existing: &Endpoints) -> bool {
        self.labels == existing.labels
            && self.subsets == existing.subsets
            && self.truncated == existing.truncated
    }

    /// The merge patch (or, without an existing object, the whole object to POST) that makes the
    /// Endpoints of the Service say this.
    pub fn body(&self, service: &Service, existing: Option<&Endpoints>, trigger: Option<Moment>) -> Vec<u8> {
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
        let mut metadata = json!({ "name": &*service.key.name, "namespace": &*service.key.namespace });
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

fn address(service: &Service, pod: &Pod) -> Option<Address> {
    if !pod.has_endpoint() || (pod.terminating() && !service.publish_not_ready) {
        return None;
    }
    let family = service.families.first()?;
    Some(Address {
        ip: pod
            .ips
            .iter()
            .copied()
            .find(|ip| AddressType::of(*ip) == *family)?,
        hostname: hostname(pod, service).cloned(),
        node_name: pod.node_name.clone(),
        target: Some(PodRef {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }),
    })
}

/// Cuts down to [`MAX_ADDRESSES`], ready ones first, each subset by its share.
fn truncate(subsets: &mut [Subset]) -> bool {
    let ready: usize = subsets.iter().map(|subset| subset.addresses.len()).sum();
    let not_ready: usize = subsets.iter().map(|subset| subset.not_ready.len()).sum();
    if ready + not_ready <= MAX_ADDRESSES {
        return false;
    }
    let cut_ready = ready > MAX_ADDRESSES;
    let (room, total) = if cut_ready {
        (MAX_ADDRESSES, ready)
    } else {
        (MAX_ADDRESSES - ready, not_ready)
    };
    let mut left = room;
    for subset in subsets {
        if cut_ready {
            subset.not_ready.clear();
        }
        let addresses = if cut_ready {
            &mut subset.addresses
        } else {
            &mut subset.not_ready
        };
        let share = (addresses.len() * room).div_ceil(total).min(left);
        let last = addresses.iter().nth(share).cloned();
        if let Some(last) = last {
            addresses.split_off(&last);
        }
        left -= addresses.len();
    }
    true
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
    labels: Labels,
    resource_version: String,
    #[serde(deserialize_with = "nullable")]
    annotations: RawAnnotations,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawAnnotations {
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    trigger: Option<String>,
    #[serde(rename = "endpoints.kubernetes.io/over-capacity")]
    capacity: Option<String>,
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
        Self {
            labels: raw.metadata.labels,
            subsets: raw.subsets.into_iter().map(Subset::from).collect(),
            truncated: raw.metadata.annotations.capacity.is_some(),
            resource_version: raw.metadata.resource_version.into(),
            has_trigger_time: raw.metadata.annotations.trigger.is_some(),
        }
    }
}

impl From<RawSubset> for Subset {
    fn from(raw: RawSubset) -> Self {
        let addresses = |raw: Vec<RawAddress>| {
            raw.into_iter().filter_map(|raw| {
                Some(Address {
                    ip: parse_ip(&raw.ip)?,
                    hostname: non_empty(raw.hostname),
                    node_name: non_empty(raw.node_name),
                    target: raw.target_ref.map(|target| PodRef {
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
