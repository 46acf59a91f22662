//! What do workloads need to know about a pod?

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::meta::{OwnerReference, nullable};
use crate::selector::{LabelSource, Requirement};

/// Labels in one sorted block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    /// All pairs, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl LabelSource for Labels {
    fn label(&self, key: &str) -> Option<&str> {
        let index = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        Some(&self.0[index].1)
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = Option::<std::collections::BTreeMap<Box<str>, Box<str>>>::deserialize(deserializer)?;
        Ok(Self(pairs.unwrap_or_default().into_iter().collect()))
    }
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata.
    pub metadata: PodMetadata,
    /// Spec.
    #[serde(deserialize_with = "nullable")]
    pub spec: PodSpec,
    /// Status.
    #[serde(deserialize_with = "nullable")]
    pub status: PodStatus,
}

/// A pod's metadata.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodMetadata {
    /// Namespace.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// Unique id.
    pub uid: Box<str>,
    /// When it was created.
    pub creation_timestamp: Option<Timestamp>,
    /// Set while it is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    /// Labels.
    pub labels: Labels,
    /// The annotations that matter.
    #[serde(deserialize_with = "nullable")]
    pub annotations: PodAnnotations,
    /// Owners.
    #[serde(deserialize_with = "nullable")]
    pub owner_references: Vec<OwnerReference>,
}

/// The annotations that matter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodAnnotations {
    /// How much the owner would miss this pod, compared to its siblings.
    #[serde(rename = "controller.kubernetes.io/pod-deletion-cost")]
    pub deletion_cost: Option<Box<str>>,
}

/// A pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Node, once scheduled.
    pub node_name: Option<Box<str>>,
    /// Scheduler that should place the pod.
    pub scheduler_name: Option<Box<str>>,
    /// Labels its node must have.
    pub node_selector: Labels,
    /// Taints it tolerates.
    #[serde(deserialize_with = "nullable")]
    pub tolerations: Vec<Toleration>,
    /// Affinities.
    #[serde(deserialize_with = "nullable")]
    pub affinity: Affinity,
    /// Readiness or scheduling gates still closed.
    #[serde(deserialize_with = "nullable")]
    pub scheduling_gates: Vec<serde::de::IgnoredAny>,
}

/// A tolerated taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Taint key; empty means all, with operator `Exists`.
    pub key: Box<str>,
    /// `Equal` (the default) or `Exists`.
    pub operator: Box<str>,
    /// Taint value.
    pub value: Box<str>,
    /// Taint effect; empty means all.
    pub effect: Box<str>,
}

/// Affinities; only required node affinity is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// Node affinity.
    #[serde(deserialize_with = "nullable")]
    pub node_affinity: NodeAffinity,
}

/// Node affinity; only the required part is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinity {
    /// Requirements when a pod is placed.
    pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

/// Terms of which one must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    /// The terms.
    #[serde(deserialize_with = "nullable")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// On the node's labels.
    #[serde(deserialize_with = "nullable")]
    pub match_expressions: Vec<Requirement>,
    /// On the node's fields; only `metadata.name` exists.
    #[serde(deserialize_with = "nullable")]
    pub match_fields: Vec<Requirement>,
}

/// A pod's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Phase.
    pub phase: Phase,
    /// The conditions that matter.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<PodCondition>,
    /// State of the containers.
    #[serde(deserialize_with = "nullable")]
    pub container_statuses: Vec<ContainerStatus>,
}

/// A pod's phase, in the order of how soon such pods are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Phase {
    /// Not all containers were started yet.
    #[default]
    Pending,
    /// The node cannot be asked.
    Unknown,
    /// Containers run.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, some badly.
    Failed,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Type.
    pub r#type: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub status: Box<str>,
    /// When the status last changed.
    pub last_transition_time: Option<Timestamp>,
}

/// State of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// How often it was restarted.
    pub restart_count: u32,
}

impl Pod {
    /// Whether the pod runs or will run: not at its end, and not being deleted.
    pub fn active(&self) -> bool {
        !self.finished() && !self.deleting()
    }

    /// Whether the pod ran to its end.
    pub fn finished(&self) -> bool {
        matches!(self.status.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether the pod is being deleted.
    pub fn deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the pod passes its readiness checks.
    pub fn ready(&self) -> bool {
        self.ready_condition()
            .is_some_and(|condition| &*condition.status == "True")
    }

    /// Since when the pod is ready.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.ready_condition()
            .filter(|condition| &*condition.status == "True")?
            .last_transition_time
    }

    /// When the pod will have been ready for `minimum`: a time not after `now` means it is available.
    pub fn available_at(&self, minimum: Duration) -> Option<Timestamp> {
        if !self.ready() {
            return None;
        }
        match self.ready_since() {
            Some(since) => since.checked_add(minimum).ok(),
            None => minimum.is_zero().then_some(Timestamp::MIN),
        }
    }

    /// The controlling owner's uid.
    pub fn controller_uid(&self) -> Option<&str> {
        crate::meta::controller(&self.metadata.owner_references).map(|owner| owner.uid.as_str())
    }

    /// The node, if there is one.
    pub fn node(&self) -> Option<&str> {
        self.spec.node_name.as_deref().filter(|name| !name.is_empty())
    }

    /// Most restarts of any container.
    pub fn restarts(&self) -> u32 {
        self.status
            .container_statuses
            .iter()
            .map(|status| status.restart_count)
            .max()
            .unwrap_or(0)
    }

    /// The deletion cost; nonsense counts as 0.
    pub fn deletion_cost(&self) -> i32 {
        self.metadata
            .annotations
            .deletion_cost
            .as_deref()
            .and_then(|cost| cost.parse().ok())
            .unwrap_or(0)
    }

    fn ready_condition(&self) -> Option<&PodCondition> {
        self.status
            .conditions
            .iter()
            .find(|condition| &*condition.r#type == "Ready")
    }
}
