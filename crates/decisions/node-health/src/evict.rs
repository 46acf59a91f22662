//! Which pods have to leave a tainted node, and when?
//!
//! A pod's time starts when its node got its first NoExecute taint (or when the pod came there), as
//! this process saw it. A swap of taints does not start it anew, and changed tolerations are counted
//! from the same start.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use pointsman_model::Text;
use pointsman_objects::Pod;
use pointsman_objects::taint::{Effect, Taint};

use crate::taint::{Stay, stay};

/// Namespace and name of a pod.
pub type PodKey = (Text, Text);

pub fn key_of(pod: &Pod) -> PodKey {
    (pod.metadata.namespace.clone(), pod.metadata.name.clone())
}

/// A pod to evict now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Namespace and name.
    pub pod: PodKey,
    /// Unique id, to be sent as a precondition.
    pub uid: Text,
    /// How long ago it should have happened, for the latency metric.
    pub late: Duration,
}

/// Pods that have to leave, and when.
#[derive(Debug, Default)]
pub struct Evictor {
    nodes: HashMap<Text, Vec<Taint>>,
    pods: HashMap<PodKey, Waiting>,
    deadlines: BTreeSet<(Duration, PodKey)>,
}

#[derive(Debug)]
struct Waiting {
    uid: Text,
    since: Duration,
    deadline: Option<Duration>,
}

impl Evictor {
    /// A node's taints as they are now, and the pods on it. Returns pods that may stay after all.
    pub fn node_seen<'a>(
        &mut self,
        node: &Text,
        taints: &[Taint],
        pods: impl IntoIterator<Item = &'a Pod>,
        now: Duration,
    ) -> Vec<PodKey> {
        let mut taints: Vec<Taint> = taints
            .iter()
            .filter(|taint| taint.effect == Effect::NoExecute)
            .cloned()
            .collect();
        taints.sort();
        if self.nodes.get(node).map_or(&[][..], |known| known) == taints {
            return Vec::new();
        }
        if taints.is_empty() {
            self.nodes.remove(node);
        } else {
            self.nodes.insert(node.clone(), taints);
        }
        pods.into_iter()
            .filter(|pod| pod.node_name.as_ref() == Some(node))
            .filter_map(|pod| self.pod_seen(pod, now))
            .collect()
    }

    /// A pod as it is now. Returns it if it was to leave and may stay after all.
    pub fn pod_seen(&mut self, pod: &Pod, now: Duration) -> Option<PodKey> {
        let key = key_of(pod);
        let taints = pod
            .node_name
            .as_ref()
            .filter(|_| pod.is_active())
            .and_then(|node| self.nodes.get(node));
        let Some(taints) = taints else {
            return self.drop_pod(&key).then_some(key);
        };
        let since = self
            .pods
            .get(&key)
            .filter(|known| known.uid == pod.metadata.uid)
            .map_or(now, |known| known.since);
        let deadline = match stay(taints, &pod.common.tolerations) {
            Stay::Forever => None,
            Stay::For(time) => Some(since.saturating_add(time)),
        };
        let had_deadline = self.drop_pod(&key);
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, key.clone()));
        }
        self.pods.insert(
            key.clone(),
            Waiting {
                uid: pod.metadata.uid.clone(),
                since,
                deadline,
            },
        );
        (had_deadline && deadline.is_none()).then_some(key)
    }

    /// A pod is gone.
    pub fn pod_gone(&mut self, namespace: &Text, name: &Text) {
        self.drop_pod(&(namespace.clone(), name.clone()));
    }

    /// A node is gone. Pods that had to leave still have to.
    pub fn node_gone(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// Pods whose time is up. Each comes once; report a failed eviction with [`Evictor::failed`].
    pub fn due(&mut self, now: Duration) -> Vec<Eviction> {
        let mut due = Vec::new();
        while let Some((deadline, _)) = self.deadlines.first() {
            if *deadline > now {
                break;
            }
            let (deadline, key) = self.deadlines.pop_first().expect("there is a first one");
            let waiting = self.pods.get_mut(&key).expect("a deadline belongs to a pod");
            waiting.deadline = None;
            due.push(Eviction {
                pod: key,
                uid: waiting.uid.clone(),
                late: now - deadline,
            });
        }
        due
    }

    /// An eviction failed and is due again at `again`, if the pod still has to leave.
    pub fn failed(&mut self, eviction: &Eviction, again: Duration) {
        if let Some(waiting) = self.pods.get_mut(&eviction.pod)
            && waiting.uid == eviction.uid
            && waiting.deadline.is_none()
        {
            waiting.deadline = Some(again);
            self.deadlines.insert((again, eviction.pod.clone()));
        }
    }

    /// Nobody could see nodes come back for this long: all pods get so much more time.
    pub fn forgive(&mut self, outage: Duration) {
        let deadlines = std::mem::take(&mut self.deadlines).into_iter();
        self.deadlines = deadlines
            .map(|(at, pod)| (at.saturating_add(outage), pod))
            .collect();
        for waiting in self.pods.values_mut() {
            waiting.since = waiting.since.saturating_add(outage);
            waiting.deadline = waiting.deadline.map(|at| at.saturating_add(outage));
        }
    }

    /// When the next pod is due.
    pub fn wake_at(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Forgets a pod; true when it had to leave.
    fn drop_pod(&mut self, key: &PodKey) -> bool {
        let deadline = self.pods.remove(key).and_then(|waiting| waiting.deadline);
        deadline.is_some_and(|deadline| self.deadlines.remove(&(deadline, key.clone())))
    }
}
