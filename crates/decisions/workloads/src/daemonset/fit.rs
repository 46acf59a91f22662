//! Which nodes does a DaemonSet's pod fit?

use pointsman_objects::taint::Effect;
use pointsman_objects::{Node, Pod};

use crate::scheduler::{selects, tolerates};

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

/// Judges a node by a pod of the set.
pub(super) fn fit(pod: &Pod, node: &Node) -> Fit {
    let stands = |effect: Effect| {
        let taints = node.taints.iter();
        taints
            .filter(|taint| taint.effect == effect)
            .all(|taint| tolerates(pod, taint))
    };
    if !selects(pod, node) || !stands(Effect::NoExecute) {
        Fit::Leave
    } else if stands(Effect::NoSchedule) {
        Fit::Run
    } else {
        Fit::Stay
    }
}

/// The node that a daemon's pod is on, or is made for.
pub fn target(pod: &Pod) -> Option<&str> {
    let terms = pod.common.node_affinity.iter().flat_map(|terms| terms.iter());
    let fields = terms.flat_map(|term| &term.match_fields);
    let named = fields
        .filter(|field| field.key == "metadata.name" && field.operator == "In")
        .find_map(|field| field.values.first());
    pod.node_name.as_deref().or(named.map(String::as_str))
}
