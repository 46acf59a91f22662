//! What has to be written about the pods of hollow nodes?
//!
//! Pure: pods come in as the watch shows them, and tasks come out, each to be answered once. Laws, in `tests/nodes.rs`:
//! - Whatever is late, repeated or refused, a pod on one of the nodes is ready at last, and one that was deleted is gone.
//! - No two pods have the same address at the same time, and a pod keeps the one that it reported.
//! - Nothing is written about a pod that already says what it should.

use super::life;
use super::object::{NodeNumber, Nodes, PODS_PER_NODE};
use jiff::Timestamp;
use pointsman_api_client::ObjectKey;
use pointsman_model::{Revision, Text};
use pointsman_objects::names::CHANGE_TIME_ANNOTATION;
use pointsman_objects::pod_manifest::PodManifest;
use std::collections::HashMap;

/// One write about one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub key: ObjectKey,
    pub uid: Text,
    pub what: What,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The pod's status is patched with this.
    Report(Vec<u8>),
    /// The same, and then the object goes without grace.
    End(Vec<u8>),
}

/// What became of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The report made this version; the lowest one if it was rejected, so that the next event counts.
    Written(Revision),
    /// There is no such pod any more.
    Gone,
}

enum Stage {
    /// A report is under way; the pod is as a later event had it, if there was one.
    Reporting(Option<Box<PodManifest>>),
    /// Versions up to this one say nothing new.
    Reported(Revision),
    /// Its end is being written.
    Ending,
}

struct Kept {
    uid: Text,
    node: NodeNumber,
    /// Which of its node's addresses it has; none if the node had no more.
    slot: Option<u8>,
    stage: Stage,
}

/// All pods of all hollow nodes.
pub struct Pods {
    nodes: Nodes,
    kept: HashMap<ObjectKey, Kept>,
    /// Which addresses of a node are taken, a bit each.
    taken: HashMap<NodeNumber, [u128; 2]>,
    /// During a list: pods without an address, which must not get one that a pod further down in the list has.
    aside: Option<Vec<PodManifest>>,
}

impl Pods {
    /// Without any pod.
    pub fn new(nodes: Nodes) -> Self {
        Self {
            nodes,
            kept: HashMap::new(),
            taken: HashMap::new(),
            aside: None,
        }
    }

    /// A list of all pods begins.
    pub fn list_begins(&mut self) {
        self.aside.get_or_insert_default();
    }

    /// The list is over: who has which address is known.
    pub fn list_ends(&mut self, now: Timestamp) -> Vec<Task> {
        let aside = self.aside.take().unwrap_or_default();
        let tasks = aside.into_iter().filter_map(|pod| self.applied(pod, now));
        tasks.collect()
    }

    /// A pod as it is now. Answer the task, if there is one, by [`Pods::answered`].
    pub fn applied(&mut self, pod: PodManifest, now: Timestamp) -> Option<Task> {
        let metadata = &pod.metadata;
        let key = ObjectKey::new(&metadata.namespace, &metadata.name);
        let uid = metadata.uid.clone();
        let ended = !metadata.is_terminating() && pod.status.phase.is_final();
        let is_another = self.kept.get(&key).is_some_and(|kept| kept.uid != uid);
        if ended || is_another {
            self.removed(&key);
        }
        let node = self.nodes.named(&pod.spec.node_name).filter(|_| !ended)?;
        if !self.kept.contains_key(&key) {
            if let Some(aside) = &mut self.aside
                && node.slot_of(&pod.status.pod_ip).is_none()
            {
                aside.push(pod);
                return None;
            }
            let kept = Kept {
                uid: uid.clone(),
                node,
                slot: self.take(node, &pod.status.pod_ip),
                stage: Stage::Reported(Revision::default()),
            };
            self.kept.insert(key.clone(), kept);
        }
        let kept = self.kept.get_mut(&key).expect("it was inserted above");
        let is_terminating = pod.metadata.is_terminating();
        match &mut kept.stage {
            Stage::Ending => return None,
            // Its end does not wait for a report that the API server may take long to answer.
            _ if is_terminating => {}
            Stage::Reporting(later) => {
                *later = Some(Box::new(pod));
                return None;
            }
            Stage::Reported(version) if pod.metadata.revision() <= *version => return None,
            Stage::Reported(_) if is_ready(&pod) => return None,
            Stage::Reported(_) => {}
        }
        let address = match kept.slot {
            Some(slot) => kept.node.pod_address(slot),
            None if is_terminating => kept.node.address(),
            None => return None,
        };
        let mut machine = life::lived(&pod, address, now);
        let body = life::report(&mut machine, kept.node.address(), CHANGE_TIME_ANNOTATION);
        let what = if is_terminating {
            kept.stage = Stage::Ending;
            What::End(body)
        } else {
            kept.stage = Stage::Reporting(None);
            What::Report(body)
        };
        Some(Task { key, uid, what })
    }

    /// What was asked for is done. What came meanwhile may need another task.
    pub fn answered(&mut self, task: &Task, answer: Answer, now: Timestamp) -> Option<Task> {
        let kept = self.kept.get_mut(&task.key)?;
        if kept.uid != task.uid {
            return None;
        }
        let Answer::Written(version) = answer else {
            // The watch says so as well, and may have said it already.
            return None;
        };
        let Stage::Reporting(later) = &mut kept.stage else {
            return None;
        };
        let later = later.take();
        kept.stage = Stage::Reported(version);
        self.applied(*later?, now)
    }

    /// There is no such pod any more.
    pub fn removed(&mut self, key: &ObjectKey) {
        if let Some(kept) = self.kept.remove(key)
            && let Some(slot) = kept.slot
            && let Some(taken) = self.taken.get_mut(&kept.node)
        {
            taken[usize::from(slot / 128)] &= !(1 << (slot % 128));
        }
    }

    /// Takes the address that the pod has already, or a free one; none if the node is full.
    fn take(&mut self, node: NodeNumber, reported: &str) -> Option<u8> {
        let taken = self.taken.entry(node).or_default();
        let is_free = |slot: &u8| taken[usize::from(slot / 128)] & (1 << (slot % 128)) == 0;
        let own = node.slot_of(reported).filter(is_free);
        let slot = own.or_else(|| (0..PODS_PER_NODE).find(is_free))?;
        taken[usize::from(slot / 128)] |= 1 << (slot % 128);
        Some(slot)
    }
}

fn is_ready(pod: &PodManifest) -> bool {
    let ready = pod.status.condition("Ready");
    ready.is_some_and(|ready| ready.is_true()) && !pod.status.pod_ip.is_empty()
}
