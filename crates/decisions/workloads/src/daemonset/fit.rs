//! Which nodes does a DaemonSet's pod fit, and what does it look like there?

use serde_json::{Value, json};

use super::{DaemonSet, HASH_LABEL};
use crate::pod::Pod;
use crate::scheduler::{Node, selects, tolerates};
use crate::template;

/// Taints that every daemon tolerates (upstream's list): it belongs to the node, whatever its state.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// Tolerated besides by those that use the node's own network.
const OWN_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// What a node is to a DaemonSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// A pod should run there.
    Run,
    /// A pod that is there may stay, but none comes.
    Stay,
    /// No pod may be there.
    Leave,
}

/// Judges a node.
pub(super) fn fit(set: &DaemonSet, node: &Node) -> Fit {
    let spec = with_tolerations(&set.spec.template);
    let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap_or_default();
    let stands = |effect: &str| {
        let taints = node.spec.taints.iter();
        taints
            .filter(|taint| &*taint.effect == effect)
            .all(|taint| tolerates(&pod, taint))
    };
    if !selects(&pod, node) || !stands("NoExecute") {
        Fit::Leave
    } else if stands("NoSchedule") {
        Fit::Run
    } else {
        Fit::Stay
    }
}

/// The node that a daemon's pod is on, or is made for.
pub fn target(pod: &Pod) -> Option<&str> {
    let required = &pod.spec.affinity.node_affinity;
    let terms = required
        .required_during_scheduling_ignored_during_execution
        .as_ref();
    let fields = terms
        .into_iter()
        .flat_map(|selector| &selector.node_selector_terms)
        .flat_map(|term| &term.match_fields);
    let named = fields
        .filter(|field| field.key == "metadata.name" && field.operator == "In")
        .find_map(|field| field.values.first());
    pod.node().or(named.map(String::as_str))
}

/// The pod to create for a node. The scheduler places it there and nowhere else.
pub fn new_pod(set: &DaemonSet, node: &str) -> Value {
    let metadata = &set.metadata;
    let owner = metadata.as_owner("DaemonSet");
    let hash = template::hash(&set.spec.template, 0);
    let labelled = template::with_label(&set.spec.template, HASH_LABEL, &hash);
    let mut pod = template::pod(&labelled, &metadata.namespace, &metadata.name, &owner);
    let mut spec = with_tolerations(&set.spec.template);
    for path in ["/affinity", "/affinity/nodeAffinity"] {
        let (parent, field) = path.rsplit_once('/').expect("both have one");
        let parent = spec.pointer_mut(parent).expect("it was made before");
        if !parent[field].is_object() {
            parent[field] = json!({});
        }
    }
    let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    // What the template requires of nodes was judged already, for this node.
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({ "nodeSelectorTerms": [{ "matchFields": [field] }] });
    pod["spec"] = spec;
    pod
}

/// The template's spec with what every daemon tolerates.
fn with_tolerations(template: &Value) -> Value {
    let spec = template.get("spec").filter(|spec| spec.is_object());
    let mut spec = spec.cloned().unwrap_or_else(|| json!({}));
    let own_network = spec["hostNetwork"] == true;
    let more = TOLERATED
        .iter()
        .chain([&OWN_NETWORK].into_iter().filter(|_| own_network));
    let more = more.map(|(key, effect)| json!({ "key": key, "operator": "Exists", "effect": effect }));
    let own = spec["tolerations"].as_array().cloned().unwrap_or_default();
    spec["tolerations"] = own.into_iter().chain(more).collect();
    spec
}
