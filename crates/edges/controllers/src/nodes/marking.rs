//! How are the pods of a silent node taken out of service?
//!
//! The monitor says which nodes and when; here their pods are marked, many at a time. What fails is
//! tried again for as long as the node stays silent.

use super::Edge;
use super::pods::{Pods, pod_subject};
use super::write::mark_unready;
use crate::writer::Writers;
use pointsman_api_client::ApiError;
use pointsman_api_client::events::Severity;
use pointsman_model::Text;
use pointsman_node_health::Monitor;
use pointsman_node_health::evict::{PodKey, key_of};
use pointsman_objects::Pod;
use pointsman_slices::queue::{Outcome, Pace, WorkQueue};
use std::time::Duration;

/// Pods written at the same time.
const WRITERS: usize = 16;

/// The state of the loop.
pub(super) struct Marking {
    edge: Edge,
    queue: WorkQueue<PodKey>,
    pub writers: Writers<Done>,
}

/// What became of one pod.
pub(super) struct Done {
    pod: PodKey,
    uid: Text,
    failure: Option<ApiError>,
}

impl Marking {
    pub fn new(edge: Edge) -> Self {
        Self {
            edge,
            queue: WorkQueue::new(Pace::default()),
            writers: Writers::new(WRITERS),
        }
    }

    pub fn wake_at(&self) -> Option<Duration> {
        self.queue.wake_at().filter(|_| self.writers.has_room())
    }

    /// All pods of a node are to be marked.
    pub fn mark_node(&mut self, node: &str, pods: &Pods, now: Duration) {
        for pod in pods.on(node).filter(|pod| pod.is_ready()) {
            self.queue.add(&key_of(pod), now);
        }
    }

    /// A pod came to a node, which may be silent.
    pub fn pod_arrived(&mut self, pod: &Pod, monitor: &Monitor, now: Duration) {
        if needs_marking(pod, monitor) {
            self.queue.add(&key_of(pod), now);
        }
    }

    /// Marks as many pods as there is room for.
    pub fn start(&mut self, pods: &Pods, monitor: &Monitor, now: Duration) {
        while self.writers.has_room()
            && let Some(key) = self.queue.next(now)
        {
            match pods.get(&key).filter(|pod| needs_marking(pod, monitor)) {
                None => self.queue.finish(&key, Outcome::Done, now),
                Some(pod) => {
                    let (edge, uid) = (self.edge.clone(), pod.metadata.uid.clone());
                    self.writers.start(async move {
                        let failure = mark_unready(&edge, &key, &uid).await.err();
                        Done {
                            pod: key,
                            uid,
                            failure,
                        }
                    });
                }
            }
        }
    }

    /// Takes back a pod.
    pub fn finish(&mut self, done: Done, now: Duration) {
        let outcome = match done.failure {
            None => {
                let subject = pod_subject(&done.pod, &done.uid);
                let message = "Node is not ready".to_owned();
                self.edge
                    .tell(&subject, Severity::Warning, "NodeNotReady", message);
                Outcome::Done
            }
            Some(ApiError::NotFound(_) | ApiError::Conflict(_)) => Outcome::Done,
            Some(error) => {
                tracing::warn!(namespace = %done.pod.0, pod = %done.pod.1, %error, "marking is tried again");
                Outcome::Retry
            }
        };
        self.queue.finish(&done.pod, outcome, now);
    }
}

fn needs_marking(pod: &Pod, monitor: &Monitor) -> bool {
    pod.is_ready()
        && pod
            .node_name
            .as_ref()
            .is_some_and(|node| monitor.marks_pods(node))
}
