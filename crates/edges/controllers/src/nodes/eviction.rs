//! How do pods leave a tainted node?
//!
//! [`Evictor`] knows when. Before a pod is deleted its node is read from the API server: a watch that
//! lags behind, after an outage for instance, must not cost pods of a node that came back.

use super::Edge;
use super::metrics::EvictionMetrics;
use super::pods::{Pods, pod_subject};
use super::write::{delete_evicted, live_node};
use crate::writer::Writers;
use pointsman_api_client::ApiError;
use pointsman_api_client::events::Severity;
use pointsman_model::Text;
use pointsman_node_health::evict::{Eviction, Evictor, PodKey, key_of};
use pointsman_node_health::taint::{Stay, stay};
use pointsman_objects::names::{NOT_READY_TAINT, UNREACHABLE_TAINT};
use pointsman_objects::taint::Toleration;
use pointsman_objects::{Node, Pod};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Pods deleted at the same time (upstream has 8 workers).
const WRITERS: usize = 16;
/// Wait after a deletion that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The state of the loop.
pub(super) struct Evictions {
    edge: Edge,
    on: bool,
    evictor: Evictor,
    due: VecDeque<Eviction>,
    /// Pods that are being deleted, by uid; the watch has still to show it.
    going: HashMap<PodKey, Text>,
    pub writers: Writers<Done>,
    metrics: EvictionMetrics,
}

/// What became of one pod.
pub(super) struct Done {
    eviction: Eviction,
    outcome: Result<Fate, ApiError>,
}

/// Whether a pod had to go.
enum Fate {
    Deleted,
    Spared,
}

impl Evictions {
    pub fn new(edge: Edge, on: bool, metrics: EvictionMetrics) -> Self {
        Self {
            edge,
            on,
            evictor: Evictor::default(),
            due: VecDeque::new(),
            going: HashMap::new(),
            writers: Writers::new(WRITERS),
            metrics,
        }
    }

    /// Takes in a node and its taints.
    pub fn node_seen(&mut self, node: &Node, pods: &Pods, now: Duration) {
        if !self.on {
            return;
        }
        let name = &node.metadata.name;
        let on_node = pods.on(name);
        for pod in self.evictor.node_seen(name, &node.taints, on_node, now) {
            self.tell_spared(pods, &pod);
        }
    }

    /// A node is gone.
    pub fn node_gone(&mut self, node: &str) {
        self.evictor.node_gone(node);
    }

    /// Takes in a pod.
    pub fn pod_seen(&mut self, pod: &Pod, pods: &Pods, now: Duration) {
        let key = key_of(pod);
        if self
            .going
            .get(&key)
            .is_some_and(|uid| !pod.is_active() || *uid != pod.metadata.uid)
        {
            self.going.remove(&key);
        }
        if self.on
            && let Some(spared) = self.evictor.pod_seen(pod, now)
            && pod.is_active()
        {
            self.tell_spared(pods, &spared);
        }
    }

    /// A pod is gone.
    pub fn pod_gone(&mut self, pod: &PodKey) {
        self.going.remove(pod);
        self.evictor.pod_gone(&pod.0, &pod.1);
    }

    /// Nobody could see nodes come back for this long.
    pub fn forgive(&mut self, outage: Duration) {
        self.evictor.forgive(outage);
    }

    pub fn wake_at(&self) -> Option<Duration> {
        self.evictor.wake_at().filter(|_| self.on)
    }

    /// Deletes pods whose time is up, as many as there is room for.
    pub fn start(&mut self, pods: &Pods, now: Duration) {
        self.due.extend(self.evictor.due(now));
        while self.writers.has_room()
            && let Some(eviction) = self.due.pop_front()
        {
            let Some(pod) = pods
                .get(&eviction.pod)
                .filter(|pod| pod.metadata.uid == eviction.uid)
            else {
                continue;
            };
            if self.going.get(&eviction.pod) == Some(&eviction.uid) {
                continue;
            }
            self.going.insert(eviction.pod.clone(), eviction.uid.clone());
            self.writers
                .start(evict(self.edge.clone(), eviction, pod.clone()));
        }
    }

    /// Takes back a pod.
    pub fn finish(&mut self, done: Done, now: Duration) {
        let pod = &done.eviction.pod;
        if !matches!(done.outcome, Ok(Fate::Deleted)) {
            self.going.remove(pod);
        }
        match done.outcome {
            Ok(Fate::Deleted) => {
                tracing::info!(namespace = %pod.0, pod = %pod.1, "evicted a pod from a tainted node");
                self.metrics.deleted(done.eviction.late);
            }
            Ok(Fate::Spared) => {
                tracing::info!(namespace = %pod.0, pod = %pod.1, "spared a pod whose node came back");
                self.evictor.failed(&done.eviction, now + AGAIN);
            }
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {}
            Err(error) => {
                tracing::warn!(namespace = %pod.0, pod = %pod.1, %error, "eviction is tried again");
                self.evictor.failed(&done.eviction, now + AGAIN);
            }
        }
    }

    fn tell_spared(&self, pods: &Pods, pod: &PodKey) {
        let Some(uid) = pods.get(pod).map(|pod| &pod.metadata.uid) else {
            return;
        };
        let message = format!("Cancelling deletion of Pod {}/{}", pod.0, pod.1);
        let subject = pod_subject(pod, uid);
        self.edge
            .tell(&subject, Severity::Normal, "TaintManagerEviction", message);
    }
}

async fn evict(edge: Edge, eviction: Eviction, pod: Arc<Pod>) -> Done {
    let outcome = try_evict(&edge, &eviction, &pod).await;
    Done { eviction, outcome }
}

async fn try_evict(edge: &Edge, eviction: &Eviction, pod: &Pod) -> Result<Fate, ApiError> {
    if let Some(node) = &pod.node_name
        && let Some(node) = live_node(edge, node).await?
        && may_stay(&node, &pod.common.tolerations)
    {
        return Ok(Fate::Spared);
    }
    let pod = &eviction.pod;
    let message = format!("Marking for deletion Pod {}/{}", pod.0, pod.1);
    let subject = pod_subject(pod, &eviction.uid);
    edge.tell(&subject, Severity::Normal, "TaintManagerEviction", message);
    delete_evicted(edge, pod, &eviction.uid).await?;
    Ok(Fate::Deleted)
}

/// Whether the node as it is now lets the pod stay. Taints for silence on a node that says it is ready
/// are about to be removed.
fn may_stay(node: &Node, tolerations: &[Toleration]) -> bool {
    let back = node.is_ready();
    let counts = |key: &str| !back || (key != NOT_READY_TAINT && key != UNREACHABLE_TAINT);
    let taints = node.taints.iter().filter(|taint| counts(&taint.key));
    let taints: Vec<_> = taints.cloned().collect();
    stay(&taints, tolerations) == Stay::Forever
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(ready: &str, key: &str) -> Node {
        let node = json!({
            "spec": { "taints": [{ "key": key, "effect": "NoExecute" }] },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn pods_of_a_node_that_is_ready_again_stay_whatever_the_watch_has_shown() {
        assert!(may_stay(&node("True", UNREACHABLE_TAINT), &[]));
        assert!(!may_stay(&node("Unknown", UNREACHABLE_TAINT), &[]));
        assert!(!may_stay(&node("True", "maintenance"), &[]));
        assert!(may_stay(&serde_json::from_value::<Node>(json!({})).unwrap(), &[]));
    }
}
