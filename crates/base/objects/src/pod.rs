//! What does the cluster know about a pod?
//!
//! Controllers and the collector keep every pod of the cluster, so this is small: what repeats within a
//! template is shared once [`Pod::intern`] has seen it. The node that runs the pod reads more
//! ([`crate::pod_manifest`]).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pointsman_model::{Few, Labels, Moment, Text};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::condition::{Condition, ConditionStatus, RawCondition};
use crate::interner::Interner;
use crate::metadata::Metadata;
use crate::names::{CHANGE_TIME_ANNOTATION, DELETION_COST_ANNOTATION};
use crate::port::Protocol;
use crate::read::{addresses, labels, non_empty, nullable};
use crate::taint::Toleration;

/// A named container port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedPort {
    /// Name that a Service's target port may use.
    pub name: Text,
    pub protocol: Protocol,
    pub port: i32,
}

/// A pod's phase, in the order of how soon such pods are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Not all containers were started yet; also what an absent phase means.
    #[default]
    Pending,
    /// The node cannot be asked.
    Unknown,
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, some badly.
    Failed,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Unknown => "Unknown",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether it never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl<'de> Deserialize<'de> for Phase {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("" | "Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) => Self::Unknown,
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "RawPod")]
pub struct Pod {
    pub metadata: Metadata,
    /// Node, once scheduled.
    pub node_name: Option<Text>,
    pub hostname: Option<Text>,
    pub common: Arc<Common>,
    pub phase: Phase,
    /// Addresses from `status.podIPs`.
    pub ips: Few<IpAddr>,
    pub ready_condition: Option<Condition>,
    pub scheduled_condition: Option<Condition>,
    /// Most restarts of any container.
    pub restarts: u32,
}

/// What the pods of one template have in common, as a rule: one block for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Common {
    pub subdomain: Option<Text>,
    /// Absent means the default scheduler.
    pub scheduler_name: Option<Text>,
    /// Labels the node must have.
    pub node_selector: Labels,
    /// Terms of which one must hold for the node, from the required node affinity.
    pub node_affinity: Option<Box<[NodeSelectorTerm]>>,
    pub tolerations: Box<[Toleration]>,
    /// Something outside holds the scheduling back.
    pub scheduling_gated: bool,
    /// Ports by name: containers in order, then restartable init containers.
    pub named_ports: Box<[NamedPort]>,
}

/// Requirements on a node that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// On the node's labels.
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<Requirement>,
    /// On the node's fields; only `metadata.name` exists.
    #[serde(deserialize_with = "nullable")]
    pub match_fields: Vec<Requirement>,
}

/// One requirement on one label or field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Requirement {
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`; node affinity also has `Gt` and `Lt`.
    pub operator: String,
    /// Values the operator works on.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl Requirement {
    /// Whether a label with this value satisfies the requirement; an unknown operator never holds.
    pub fn holds(&self, value: Option<&str>) -> bool {
        let listed = value.is_some_and(|value| self.values.iter().any(|known| known == value));
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => self.compare(value).is_some_and(|(have, bound)| have > bound),
            "Lt" => self.compare(value).is_some_and(|(have, bound)| have < bound),
            _ => false,
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

impl Pod {
    /// Whether the pod passes its readiness checks.
    pub fn is_ready(&self) -> bool {
        self.ready_condition
            .is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// When readiness last changed, as exactly as somebody wrote it down: the agent's annotation when it
    /// tells the same second as the condition, only finer. An annotation of another second belongs to
    /// another change: somebody else wrote the condition since.
    pub fn ready_changed(&self) -> Option<Moment> {
        let changed = self.ready_condition?.changed?;
        let exact = self.metadata.annotated_moment(CHANGE_TIME_ANNOTATION);
        Some(
            exact
                .filter(|exact| exact.start_of_second() == changed)
                .unwrap_or(changed),
        )
    }

    /// Since when the pod is ready, in whole seconds.
    pub fn ready_since(&self) -> Option<Moment> {
        self.ready_condition.filter(|_| self.is_ready())?.changed
    }

    /// When the pod will have been ready for `minimum`: a time not after `now` means it is available.
    pub fn available_at(&self, minimum: Duration) -> Option<Moment> {
        match self.ready_since() {
            Some(since) => Some(since.after(minimum)),
            None => (self.is_ready() && minimum.is_zero()).then_some(Moment(i64::MIN)),
        }
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.is_terminating()
    }

    /// Whether the pod ran to its end.
    pub fn is_finished(&self) -> bool {
        self.phase.is_final()
    }

    /// Whether the pod runs or will run: not at its end, and not being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_finished() && !self.is_terminating()
    }

    /// Whether the pod can be an endpoint of any Service that selects it.
    pub fn has_endpoint(&self) -> bool {
        !self.is_finished() && !self.ips.is_empty()
    }

    /// When the pod itself last changed as far as endpoints go, by its own account.
    pub fn last_change(&self) -> Option<Moment> {
        self.ready_changed().max(self.metadata.deletion_requested())
    }

    /// The controlling owner's uid.
    pub fn controller_uid(&self) -> Option<&str> {
        self.metadata.controller().map(|owner| &*owner.uid)
    }

    /// The deletion cost; nonsense counts as 0.
    pub fn deletion_cost(&self) -> i32 {
        let cost = self.metadata.annotations.get(DELETION_COST_ANNOTATION);
        cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
    }

    /// Shares what repeats from pod to pod.
    pub fn intern(&mut self, interner: &mut Interner) {
        interner.share_metadata(&mut self.metadata);
        interner.texts.share_option(&mut self.node_name);
        interner.share_common(&mut self.common);
    }

    /// Bytes on the heap that are this pod's own, what interning shares not counted.
    pub fn own_heap_bytes(&self) -> usize {
        let text = |text: &Text| text.len() + 16;
        text(&self.metadata.name)
            + text(&self.metadata.uid)
            + self.metadata.resource_version.len()
            + self.metadata.annotations.heap_bytes()
            + size_of_val(&*self.metadata.owner_references)
            + self.hostname.as_ref().map_or(0, text)
            + if self.ips.len() == 1 {
                0
            } else {
                size_of_val(&*self.ips)
            }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawPod {
    metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    spec: RawSpec,
    #[serde(deserialize_with = "nullable")]
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    node_name: Option<String>,
    hostname: Option<String>,
    subdomain: Option<String>,
    scheduler_name: Option<String>,
    #[serde(deserialize_with = "labels")]
    node_selector: Labels,
    #[serde(deserialize_with = "nullable")]
    affinity: RawAffinity,
    #[serde(deserialize_with = "nullable")]
    tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "nullable")]
    scheduling_gates: Vec<IgnoredAny>,
    #[serde(deserialize_with = "nullable")]
    containers: Vec<RawContainer>,
    #[serde(deserialize_with = "nullable")]
    init_containers: Vec<RawContainer>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawAffinity {
    #[serde(deserialize_with = "nullable")]
    node_affinity: RawNodeAffinity,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawNodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<RawNodeSelector>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawNodeSelector {
    #[serde(deserialize_with = "nullable")]
    node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawContainer {
    restart_policy: Option<String>,
    #[serde(deserialize_with = "nullable")]
    ports: Vec<RawPort>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawPort {
    name: Option<String>,
    protocol: Protocol,
    container_port: i32,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    phase: Phase,
    #[serde(rename = "podIPs", deserialize_with = "nullable")]
    pod_ips: Vec<RawIp>,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<RawCondition>,
    #[serde(deserialize_with = "nullable")]
    container_statuses: Vec<RawContainerStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawIp {
    ip: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawContainerStatus {
    #[serde(deserialize_with = "nullable")]
    restart_count: u32,
}

impl From<RawPod> for Pod {
    fn from(raw: RawPod) -> Self {
        let RawPod {
            metadata,
            spec,
            status,
        } = raw;
        let sidecars = spec
            .init_containers
            .into_iter()
            .filter(|container| container.restart_policy.as_deref() == Some("Always"));
        let ports = spec
            .containers
            .into_iter()
            .chain(sidecars)
            .flat_map(|container| container.ports);
        let affinity = spec.affinity.node_affinity.required;
        Self {
            metadata,
            node_name: non_empty(spec.node_name),
            hostname: non_empty(spec.hostname),
            common: Arc::new(Common {
                subdomain: non_empty(spec.subdomain),
                scheduler_name: non_empty(spec.scheduler_name),
                node_selector: spec.node_selector,
                node_affinity: affinity.map(|selector| selector.node_selector_terms.into()),
                tolerations: spec.tolerations.into(),
                scheduling_gated: !spec.scheduling_gates.is_empty(),
                named_ports: ports
                    .filter_map(|port| {
                        Some(NamedPort {
                            name: non_empty(port.name)?,
                            protocol: port.protocol,
                            port: port.container_port,
                        })
                    })
                    .collect(),
            }),
            phase: status.phase,
            ips: addresses(status.pod_ips.iter().map(|raw| raw.ip.as_str())),
            ready_condition: RawCondition::find(&status.conditions, "Ready"),
            scheduled_condition: RawCondition::find(&status.conditions, "PodScheduled"),
            restarts: status
                .container_statuses
                .iter()
                .map(|status| status.restart_count)
                .max()
                .unwrap_or(0),
        }
    }
}
