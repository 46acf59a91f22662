//! On which node should a pod run?
//!
//! A small scheduler: it keeps pods off nodes that cannot take them and spreads the rest. It does not
//! weigh CPU or memory; a cluster that needs that runs kube-scheduler and switches this one off.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use pointsman_model::Text;
use pointsman_objects::pod::NodeSelectorTerm;
use pointsman_objects::taint::{Effect, Taint};
use pointsman_objects::{Node, Pod};

/// Pods a node takes when it does not say (the kubelet's default).
const DEFAULT_POD_LIMIT: usize = 110;
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// How the pods that are placed already load the nodes.
#[derive(Clone, Debug, Default)]
pub struct Load {
    pods: HashMap<Text, usize>,
    of_owner: HashMap<(Text, Text), usize>,
}

impl Load {
    /// Counts the pods that are on a node and not at their end.
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut load = Self::default();
        for pod in pods.into_iter().filter(|pod| !pod.is_finished()) {
            if let Some(node) = &pod.node_name {
                load.add(pod, node);
            }
        }
        load
    }

    /// A pod was placed on a node.
    pub fn add(&mut self, pod: &Pod, node: &Text) {
        *self.pods.entry(node.clone()).or_default() += 1;
        if let Some(key) = with_owner(pod, node) {
            *self.of_owner.entry(key).or_default() += 1;
        }
    }

    /// A pod on a node ended or went away.
    pub fn remove(&mut self, pod: &Pod, node: &Text) {
        take_one(&mut self.pods, node);
        if let Some(key) = with_owner(pod, node) {
            take_one(&mut self.of_owner, &key);
        }
    }

    fn on(&self, node: &str) -> usize {
        self.pods.get(node).copied().unwrap_or(0)
    }

    fn siblings(&self, pod: &Pod, node: &Text) -> usize {
        let key = with_owner(pod, node);
        key.and_then(|key| self.of_owner.get(&key)).copied().unwrap_or(0)
    }
}

fn with_owner(pod: &Pod, node: &Text) -> Option<(Text, Text)> {
    Some((pod.metadata.controller()?.uid.clone(), node.clone()))
}

/// Counts one less, and forgets what is not there any more.
fn take_one<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Whether the pod waits for this scheduler.
pub fn is_pending(pod: &Pod) -> bool {
    pod.node_name.as_deref().is_none()
        && pod.is_active()
        && !pod.common.scheduling_gated
        && matches!(
            pod.common.scheduler_name.as_deref(),
            None | Some("" | "default-scheduler")
        )
}

/// Picks the node with the fewest pods of the same owner, then the fewest pods, then the first name.
/// The error is the message for the pod's `PodScheduled` condition.
pub fn place<'a>(
    pod: &Pod,
    nodes: impl IntoIterator<Item = &'a Node>,
    load: &Load,
) -> Result<&'a Text, String> {
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<((usize, usize, usize), &Text)> = None;
    let mut total = 0;
    for node in nodes {
        total += 1;
        let name = &node.metadata.name;
        if let Some(refusal) = refusal(pod, node, load) {
            *refusals.entry(refusal).or_default() += 1;
            continue;
        }
        let avoid = node
            .taints
            .iter()
            .filter(|taint| taint.effect == Effect::PreferNoSchedule && !tolerates(pod, taint));
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
    if !node.is_ready() {
        return Some("node(s) were not ready".into());
    }
    if node.unschedulable && !tolerates(pod, &Taint::new(UNSCHEDULABLE, Effect::NoSchedule)) {
        return Some("node(s) were unschedulable".into());
    }
    let hard = |taint: &&Taint| matches!(taint.effect, Effect::NoSchedule | Effect::NoExecute);
    if let Some(taint) = node
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
    let limit = node.pod_limit.unwrap_or(DEFAULT_POD_LIMIT);
    (load.on(&node.metadata.name) >= limit).then(|| "Too many pods".into())
}

/// Whether a pod's node selector and required affinity allow a node.
pub(crate) fn selects(pod: &Pod, node: &Node) -> bool {
    let labels = &node.metadata.labels;
    let selected = pod
        .common
        .node_selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value));
    selected
        && pod
            .common
            .node_affinity
            .as_ref()
            .is_none_or(|terms| affine(terms, node))
}

fn affine(terms: &[NodeSelectorTerm], node: &Node) -> bool {
    let field = |key: &str| (key == "metadata.name").then_some(&*node.metadata.name);
    let holds = |term: &NodeSelectorTerm| {
        let (labels, fields) = (&term.match_expressions, &term.match_fields);
        // A term that asks for nothing matches nothing.
        !(labels.is_empty() && fields.is_empty())
            && labels
                .iter()
                .all(|it| it.holds(node.metadata.labels.get(&it.key)))
            && fields.iter().all(|it| it.holds(field(&it.key)))
    };
    terms.iter().any(holds)
}

/// Whether a pod tolerates a taint.
pub(crate) fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    pod.common
        .tolerations
        .iter()
        .any(|toleration| toleration.covers(taint))
}
