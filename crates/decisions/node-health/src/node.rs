//! What does the controller need to know about a node and its lease?

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::taint::Taint;

/// Shared immutable text.
pub type Text = Arc<str>;

/// A condition type that this controller reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionKind {
    /// Ready.
    Ready,
    /// MemoryPressure.
    MemoryPressure,
    /// DiskPressure.
    DiskPressure,
    /// PIDPressure.
    PidPressure,
    /// NetworkUnavailable.
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

    /// The type on the wire.
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

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody knows.
    Unknown,
}

/// A condition of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Type.
    pub kind: ConditionKind,
    /// Status.
    pub status: Status,
    /// Last heartbeat as the node wrote it; only compared, never read.
    pub heartbeat: Text,
    /// A node lifecycle controller wrote it, not the node.
    pub by_controller: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawNode")]
pub struct Node {
    /// Name.
    pub name: Text,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Region and zone in one key; empty when there are none.
    pub zone: Text,
    /// Does not count for the state of its zone.
    pub excluded: bool,
    /// Cordoned.
    pub unschedulable: bool,
    /// Conditions that matter.
    pub conditions: Vec<Condition>,
    /// Taints.
    pub taints: Vec<Taint>,
}

impl Node {
    /// A condition.
    pub fn condition(&self, kind: ConditionKind) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The status of the Ready condition, if there is one.
    pub fn ready(&self) -> Option<Status> {
        self.condition(ConditionKind::Ready)
            .map(|condition| condition.status)
    }
}

/// A node's lease.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "RawLease")]
pub struct Lease {
    /// The node's name.
    pub node: Text,
    /// Resource version, 0 when it is not a number.
    pub revision: u64,
    /// Renewal time as the node wrote it; only compared, never read.
    pub renewed: Text,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNode {
    metadata: RawMetadata,
    #[serde(deserialize_with = "nullable")]
    spec: RawSpec,
    #[serde(deserialize_with = "nullable")]
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMetadata {
    name: String,
    resource_version: String,
    creation_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "nullable")]
    labels: RawLabels,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLabels {
    #[serde(rename = "topology.kubernetes.io/zone")]
    zone: Option<String>,
    #[serde(rename = "topology.kubernetes.io/region")]
    region: Option<String>,
    #[serde(rename = "failure-domain.beta.kubernetes.io/zone")]
    old_zone: Option<String>,
    #[serde(rename = "failure-domain.beta.kubernetes.io/region")]
    old_region: Option<String>,
    #[serde(rename = "node.kubernetes.io/exclude-disruption")]
    excluded: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawSpec {
    unschedulable: bool,
    #[serde(deserialize_with = "nullable")]
    taints: Vec<Taint>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawStatus {
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<RawCondition>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawCondition {
    r#type: String,
    status: String,
    reason: Option<String>,
    last_heartbeat_time: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawLease {
    metadata: RawMetadata,
    #[serde(deserialize_with = "nullable")]
    spec: RawLeaseSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawLeaseSpec {
    renew_time: Option<String>,
}

impl From<RawNode> for Node {
    fn from(raw: RawNode) -> Self {
        let labels = raw.metadata.labels;
        let zone = labels.old_zone.or(labels.zone).unwrap_or_default();
        let region = labels.old_region.or(labels.region).unwrap_or_default();
        let zone = if zone.is_empty() && region.is_empty() {
            String::new()
        } else {
            format!("{region}:\0:{zone}")
        };
        Self {
            name: raw.metadata.name.into(),
            created: raw.metadata.creation_timestamp,
            zone: zone.into(),
            excluded: labels.excluded.is_some(),
            unschedulable: raw.spec.unschedulable,
            conditions: raw
                .status
                .conditions
                .into_iter()
                .filter_map(Condition::from_wire)
                .collect(),
            taints: raw.spec.taints,
        }
    }
}

impl Condition {
    fn from_wire(raw: RawCondition) -> Option<Self> {
        Some(Self {
            kind: ConditionKind::parse(&raw.r#type)?,
            status: match raw.status.as_str() {
                "True" => Status::True,
                "False" => Status::False,
                _ => Status::Unknown,
            },
            heartbeat: raw.last_heartbeat_time.unwrap_or_default().into(),
            by_controller: matches!(
                raw.reason.as_deref(),
                Some("NodeStatusUnknown" | "NodeStatusNeverUpdated")
            ),
        })
    }
}

impl From<RawLease> for Lease {
    fn from(raw: RawLease) -> Self {
        Self {
            node: raw.metadata.name.into(),
            revision: raw.metadata.resource_version.parse().unwrap_or(0),
            renewed: raw.spec.renew_time.unwrap_or_default().into(),
        }
    }
}

/// Reads `null` as the default value.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
