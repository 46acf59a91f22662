//! On which node should a pod run?
//!
//! A small scheduler: it keeps pods off nodes that cannot take them and spreads the rest. It does not
//! weigh CPU or memory; a cluster that needs that runs kube-scheduler and switches this one off.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use crate::meta::nullable;
use crate::pod::{Labels, NodeSelector, NodeSelectorTerm, Pod, Toleration};
use crate::selector::LabelSource;

/// Pods a node takes when it does not say (the kubelet's default).
const DEFAULT_POD_LIMIT: usize = 110;

/// A node, as far as placing pods goes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata.
    pub metadata: NodeMetadata,
    /// Spec.
    #[serde(deserialize_with = "nullable")]
    pub spec: NodeSpec,
    /// Status.
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

/// A node's metadata.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeMetadata {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: Labels,
}

/// A node's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Cordoned.
    pub unschedulable: bool,
    /// Taints.
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

/// A node's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Conditions.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<NodeCondition>,
    /// What pods may use.
    #[serde(deserialize_with = "nullable")]
    pub allocatable: Allocatable,
}

/// A condition of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeCondition {
    /// Type.
    pub r#type: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub status: Box<str>,
}

/// What pods may use of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Allocatable {
    /// Number of pods, as text.
    pub pods: Option<Box<str>>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key.
    pub key: Box<str>,
    /// Value.
    pub value: Box<str>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Box<str>,
}

/// How the pods that are placed already load the nodes.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pods: HashMap<String, usize>,
    of_owner: HashMap<(String, String), usize>,
}

impl Load {
    /// Counts the pods that are on a node and not at their end.
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut load = Self::default();
        for pod in pods.into_iter().filter(|pod| !pod.finished()) {
            if let Some(node) = pod.node() {
                load.add(pod, node);
            }
        }
        load
    }

    /// A pod was placed on a node.
    pub fn add(&mut self, pod: &Pod, node: &str) {
        *self.pods.entry(node.to_owned()).or_default() += 1;
        if let Some(owner) = pod.controller_uid() {
            *self
                .of_owner
                .entry((owner.to_owned(), node.to_owned()))
                .or_default() += 1;
        }
    }

    /// A pod on a node ended or went away.
    pub fn remove(&mut self, pod: &Pod, node: &str) {
        if let Some(count) = self.pods.get_mut(node) {
            *count = count.saturating_sub(1);
        }
        let siblings = pod
            .controller_uid()
            .map(|owner| (owner.to_owned(), node.to_owned()));
        if let Some(count) = siblings.and_then(|key| self.of_owner.get_mut(&key)) {
            *count = count.saturating_sub(1);
        }
    }

    fn on(&self, node: &str) -> usize {
        self.pods.get(node).copied().unwrap_or(0)
    }

    fn siblings(&self, pod: &Pod, node: &str) -> usize {
        let key = pod
            .controller_uid()
            .map(|owner| (owner.to_owned(), node.to_owned()));
        key.and_then(|key| self.of_owner.get(&key)).copied().unwrap_or(0)
    }
}

/// Whether the pod waits for this scheduler.
pub fn is_pending(pod: &Pod) -> bool {
    pod.node().is_none()
        && pod.active()
        && pod.spec.scheduling_gates.is_empty()
        && matches!(
            pod.spec.scheduler_name.as_deref(),
            None | Some("" | "default-scheduler")
        )
}

/// Picks the node with the fewest pods of the same owner, then the fewest pods, then the first name.
/// The error is the message for the pod's `PodScheduled` condition.
pub fn place<'a>(
    pod: &Pod,
    nodes: impl IntoIterator<Item = &'a Node>,
    load: &Load,
) -> Result<&'a str, String> {
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<((usize, usize, usize), &str)> = None;
    let mut total = 0;
    for node in nodes {
        total += 1;
        let name = node.metadata.name.as_str();
        if let Some(refusal) = refusal(pod, node, load) {
            *refusals.entry(refusal).or_default() += 1;
            continue;
        }
        let avoid = node
            .spec
            .taints
            .iter()
            .filter(|taint| &*taint.effect == "PreferNoSchedule" && !tolerates(pod, taint));
        let score = ((avoid.count(), load.siblings(pod, name), load.on(name)), name);
        if best.is_none_or(|best| score < best) {
            best = Some(score);
        }
    }
    best.map(|(_, name)| name).ok_or_else(|| {
        let reasons: Vec<String> = refusals
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        let reasons = if reasons.is_empty() {
            "no nodes".to_owned()
        } else {
            reasons.join(", ")
        };
        format!("0/{total} nodes are available: {reasons}.")
    })
}

/// Why a node cannot take a pod.
fn refusal(pod: &Pod, node: &Node, load: &Load) -> Option<String> {
    let ready = node
        .status
        .conditions
        .iter()
        .any(|c| &*c.r#type == "Ready" && &*c.status == "True");
    if !ready {
        return Some("node(s) were not ready".into());
    }
    if node.spec.unschedulable && !tolerates(pod, &taint("node.kubernetes.io/unschedulable", "NoSchedule")) {
        return Some("node(s) were unschedulable".into());
    }
    let hard = |taint: &&Taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute");
    if let Some(taint) = node
        .spec
        .taints
        .iter()
        .filter(hard)
        .find(|taint| !tolerates(pod, taint))
    {
        return Some(format!(
            "node(s) had untolerated taint {{{}: {}}}",
            taint.key, taint.value
        ));
    }
    if !selects(pod, node) {
        return Some("node(s) didn't match Pod's node affinity/selector".into());
    }
    let limit = node
        .status
        .allocatable
        .pods
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(DEFAULT_POD_LIMIT);
    (load.on(&node.metadata.name) >= limit).then(|| "Too many pods".into())
}

/// Whether a pod's node selector and required affinity allow a node.
pub(crate) fn selects(pod: &Pod, node: &Node) -> bool {
    let selected = pod
        .spec
        .node_selector
        .iter()
        .all(|(key, value)| node.metadata.labels.label(key) == Some(value));
    let required = &pod
        .spec
        .affinity
        .node_affinity
        .required_during_scheduling_ignored_during_execution;
    selected && required.as_ref().is_none_or(|selector| affine(selector, node))
}

fn affine(selector: &NodeSelector, node: &Node) -> bool {
    let name = BTreeMap::from([("metadata.name".to_owned(), node.metadata.name.clone())]);
    let holds = |term: &NodeSelectorTerm| {
        // A term that asks for nothing matches nothing.
        !(term.match_expressions.is_empty() && term.match_fields.is_empty())
            && term
                .match_expressions
                .iter()
                .all(|requirement| requirement.holds(&node.metadata.labels))
            && term
                .match_fields
                .iter()
                .all(|requirement| requirement.holds(&name))
    };
    selector.node_selector_terms.iter().any(holds)
}

fn taint(key: &str, effect: &str) -> Taint {
    Taint {
        key: key.into(),
        value: "".into(),
        effect: effect.into(),
    }
}

/// Whether a pod tolerates a taint.
pub(crate) fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    pod.spec
        .tolerations
        .iter()
        .any(|toleration| covers(toleration, taint))
}

/// Whether a toleration covers a taint.
pub fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let exists = &*toleration.operator == "Exists";
    let key = toleration.key == taint.key || (toleration.key.is_empty() && exists);
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    key && effect && (exists || toleration.value == taint.value)
}
