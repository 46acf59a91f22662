//! What does a node say about itself?

use std::net::IpAddr;

use pointsman_model::{Moment, Quantity, Text, parse_ip};
use serde::Deserialize;
use serde_json::Value;

use crate::condition::{ConditionStatus, RawCondition};
use crate::interner::Interner;
use crate::metadata::Metadata;
use crate::names;
use crate::read::nullable;
use crate::taint::Taint;

/// Far above any machine, and far below where a sum over a cluster could overflow.
const MOST_CPU_MILLIS: u64 = 1_000_000_000_000;

/// A condition type that we read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionKind {
    Ready,
    MemoryPressure,
    DiskPressure,
    PidPressure,
    NetworkUnavailable,
}

impl ConditionKind {
    /// The conditions that a silent node loses. A network may work without its agent.
    pub const REPORTED: [Self; 4] = [
        Self::Ready,
        Self::MemoryPressure,
        Self::DiskPressure,
        Self::PidPressure,
    ];

    /// The type as the API spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::MemoryPressure => "MemoryPressure",
            Self::DiskPressure => "DiskPressure",
            Self::PidPressure => "PIDPressure",
            Self::NetworkUnavailable => "NetworkUnavailable",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let all = [
            Self::Ready,
            Self::MemoryPressure,
            Self::DiskPressure,
            Self::PidPressure,
            Self::NetworkUnavailable,
        ];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// A condition of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    pub kind: ConditionKind,
    pub status: ConditionStatus,
    /// Last heartbeat as the node wrote it; only compared, never read.
    pub heartbeat: Text,
    pub changed: Option<Moment>,
    /// A node lifecycle controller wrote it, not the node.
    pub by_controller: bool,
}

/// What kind of address a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    Internal,
    External,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawNode")]
pub struct Node {
    pub metadata: Metadata,
    /// The ranges of its pods, as written; objects older than dual stack have only one.
    pub pod_cidrs: Box<[Text]>,
    pub unschedulable: bool,
    pub taints: Box<[Taint]>,
    /// The conditions that matter, in the node's order.
    pub conditions: Box<[NodeCondition]>,
    /// Internal and external IP addresses, in the node's order.
    pub addresses: Box<[(AddressKind, IpAddr)]>,
    /// Allocatable CPU in thousandths; 0 when unknown.
    pub cpu_millis: u64,
    /// How many pods it takes, if it says so.
    pub pod_limit: Option<usize>,
}

impl Node {
    pub fn condition(&self, kind: ConditionKind) -> Option<&NodeCondition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The status of the Ready condition, if there is one.
    pub fn ready(&self) -> Option<ConditionStatus> {
        self.condition(ConditionKind::Ready)
            .map(|condition| condition.status)
    }

    pub fn is_ready(&self) -> bool {
        self.ready() == Some(ConditionStatus::True)
    }

    /// Its agent does not report any more, says a node lifecycle controller: by the condition, which comes
    /// first, or by the taint.
    pub fn is_unreachable(&self) -> bool {
        let unreachable = |taint: &Taint| &*taint.key == names::UNREACHABLE_TAINT;
        self.ready() == Some(ConditionStatus::Unknown) || self.taints.iter().any(unreachable)
    }

    /// Somebody writes load-balancing rules on it, as on any node that does not deny it.
    pub fn is_programmed(&self) -> bool {
        self.metadata.labels.get(names::PROGRAMMER_LABEL) != Some("none")
    }

    /// The zone that endpoints and hints name.
    pub fn zone(&self) -> Option<&str> {
        self.metadata
            .labels
            .get(names::ZONE_LABEL)
            .filter(|zone| !zone.is_empty())
    }

    /// Region and zone in one key, for judging the nodes of a zone together; empty when there are none.
    pub fn failure_domain(&self) -> String {
        let label = |old, new| {
            let labels = &self.metadata.labels;
            labels.get(old).or_else(|| labels.get(new)).unwrap_or_default()
        };
        let zone = label(names::OLD_ZONE_LABEL, names::ZONE_LABEL);
        let region = label(names::OLD_REGION_LABEL, names::REGION_LABEL);
        if zone.is_empty() && region.is_empty() {
            String::new()
        } else {
            format!("{region}:\0:{zone}")
        }
    }

    /// Carries a control-plane label.
    pub fn is_control_plane(&self) -> bool {
        let labels = &self.metadata.labels;
        labels.contains_key(names::CONTROL_PLANE_LABEL) || labels.contains_key(names::MASTER_LABEL)
    }

    /// Does not count for the state of its zone.
    pub fn is_excluded_from_disruption(&self) -> bool {
        self.metadata.labels.contains_key(names::EXCLUDE_DISRUPTION_LABEL)
    }

    /// The pool that latency profiles may name; empty when there is none.
    pub fn pool(&self) -> &str {
        self.metadata.labels.get(names::POOL_LABEL).unwrap_or_default()
    }

    pub fn internal_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses_of(AddressKind::Internal)
    }

    /// The addresses of a kind, in the node's order.
    pub fn addresses_of(&self, kind: AddressKind) -> impl Iterator<Item = IpAddr> {
        self.addresses
            .iter()
            .filter(move |address| address.0 == kind)
            .map(|address| address.1)
    }

    /// The node is being deleted, or the autoscaler announced its removal.
    pub fn is_leaving(&self) -> bool {
        let announced = |taint: &Taint| &*taint.key == names::AUTOSCALER_TAINT;
        self.metadata.is_terminating() || self.taints.iter().any(announced)
    }

    /// Shares what repeats from node to node.
    pub fn intern(&mut self, interner: &mut Interner) {
        interner.texts.share(&mut self.metadata.name);
        for taint in &mut self.taints {
            interner.texts.share(&mut taint.key);
            interner.texts.share(&mut taint.value);
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNode {
    metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    spec: RawSpec,
    #[serde(deserialize_with = "nullable")]
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<Text>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<Text>>,
    #[serde(deserialize_with = "nullable")]
    unschedulable: bool,
    #[serde(deserialize_with = "nullable")]
    taints: Vec<Taint>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawStatus {
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<RawCondition>,
    #[serde(deserialize_with = "nullable")]
    addresses: Vec<RawAddress>,
    #[serde(deserialize_with = "nullable")]
    allocatable: RawAllocatable,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawAddress {
    r#type: String,
    address: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawAllocatable {
    cpu: Option<Value>,
    pods: Option<Value>,
}

impl From<RawNode> for Node {
    fn from(raw: RawNode) -> Self {
        let RawNode {
            metadata,
            spec,
            status,
        } = raw;
        let one = spec.pod_cidr.into_iter().filter(|range| !range.is_empty());
        Self {
            metadata,
            pod_cidrs: spec.pod_cidrs.unwrap_or_else(|| one.collect()).into(),
            unschedulable: spec.unschedulable,
            taints: spec.taints.into(),
            conditions: status.conditions.into_iter().filter_map(condition).collect(),
            addresses: status.addresses.iter().filter_map(address).collect(),
            cpu_millis: quantity(status.allocatable.cpu.as_ref())
                .and_then(Quantity::to_millis)
                .filter(|millis| *millis <= MOST_CPU_MILLIS)
                .unwrap_or(0),
            pod_limit: quantity(status.allocatable.pods.as_ref())
                .and_then(Quantity::to_units)
                .and_then(|units| units.try_into().ok()),
        }
    }
}

fn condition(raw: RawCondition) -> Option<NodeCondition> {
    Some(NodeCondition {
        kind: ConditionKind::parse(raw.r#type.as_deref()?)?,
        status: raw.status,
        heartbeat: raw.last_heartbeat_time.unwrap_or_default().into(),
        changed: raw.changed,
        by_controller: matches!(
            raw.reason.as_deref(),
            Some("NodeStatusUnknown" | "NodeStatusNeverUpdated")
        ),
    })
}

fn address(raw: &RawAddress) -> Option<(AddressKind, IpAddr)> {
    let kind = match raw.r#type.as_str() {
        "InternalIP" => AddressKind::Internal,
        "ExternalIP" => AddressKind::External,
        _ => return None,
    };
    Some((kind, parse_ip(&raw.address).ok()?))
}

/// Quantities are texts or numbers.
fn quantity(value: Option<&Value>) -> Option<Quantity> {
    match value? {
        Value::String(text) => Quantity::parse(text),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => None,
    }
}
