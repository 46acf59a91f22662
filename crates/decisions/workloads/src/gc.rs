//! Which pods are leftovers that nobody else will ever remove?

use std::collections::{BTreeMap, BTreeSet, HashSet};

use std::time::Duration;

use pointsman_model::Moment;
use pointsman_objects::Pod;

/// How long a node may be missing before its pods are orphans (upstream's 40 s).
const QUARANTINE: Duration = Duration::from_secs(40);
/// Finished pods that are kept for their logs (`--terminated-pod-gc-threshold`).
pub const DEFAULT_THRESHOLD: usize = 12_500;

/// Why a pod is removed, in upstream's words for the metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Its node is gone.
    Orphaned,
    /// It is being deleted and was never on a node.
    TerminatingUnscheduled,
    /// It is at its end, and there are too many such pods.
    Terminated,
}

impl Reason {
    /// The `reason` label of the metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Orphaned => "orphaned",
            Self::TerminatingUnscheduled => "terminating-unscheduled",
            Self::Terminated => "terminated",
        }
    }
}

/// A pod to remove at once, without grace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leftover {
    pub namespace: String,
    pub name: String,
    /// Unique id, to be sent as a precondition.
    pub uid: String,
    pub reason: Reason,
    /// The phase has to be set to Failed first: there is no agent left that would.
    pub mark_failed: bool,
}

/// Since when nodes that pods name are missing.
#[derive(Debug, Default)]
pub struct Quarantine(BTreeMap<String, Moment>);

impl Quarantine {
    /// Takes in which nodes are missing now; returns those that are for long enough. The edge asks the
    /// API server about these once more before it acts.
    pub fn observe<'a>(
        &mut self,
        pods: impl IntoIterator<Item = &'a Pod>,
        nodes: &HashSet<&str>,
        now: Moment,
    ) -> BTreeSet<String> {
        let missing: BTreeSet<&str> = pods
            .into_iter()
            .filter_map(|pod| pod.node_name.as_deref())
            .filter(|node| !nodes.contains(node))
            .collect();
        self.0.retain(|node, _| missing.contains(node.as_str()));
        for node in missing {
            self.0.entry(node.to_owned()).or_insert(now);
        }
        let over = self
            .0
            .iter()
            .filter(|(_, since)| now.since(**since) >= QUARANTINE);
        over.map(|(node, _)| node.clone()).collect()
    }
}

/// The pods to remove, in order. `gone` are the nodes known to be gone for good.
pub fn leftovers(pods: &[&Pod], gone: &BTreeSet<String>, threshold: usize) -> Vec<Leftover> {
    let mut leftovers = Vec::new();
    let mut finished: Vec<&Pod> = Vec::new();
    for pod in pods {
        if pod.node_name.as_deref().is_some_and(|node| gone.contains(node)) {
            leftovers.push(leftover(pod, Reason::Orphaned));
        } else if pod.is_terminating() && pod.node_name.as_deref().is_none() {
            leftovers.push(leftover(pod, Reason::TerminatingUnscheduled));
        } else if pod.is_finished() {
            finished.push(pod);
        }
    }
    // A threshold of 0 switches this off.
    if threshold > 0 && finished.len() > threshold {
        finished.sort_by(|a, b| {
            let age = |pod: &Pod| (pod.metadata.created, pod.metadata.name.clone());
            age(a).cmp(&age(b))
        });
        let surplus = finished.len() - threshold;
        leftovers.extend(
            finished[..surplus]
                .iter()
                .map(|pod| leftover(pod, Reason::Terminated)),
        );
    }
    leftovers
}

fn leftover(pod: &Pod, reason: Reason) -> Leftover {
    Leftover {
        namespace: pod.metadata.namespace.to_string(),
        name: pod.metadata.name.to_string(),
        uid: pod.metadata.uid.to_string(),
        reason,
        mark_failed: !pod.is_finished(),
    }
}
