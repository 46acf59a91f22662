//! How do pods find nodes?

use super::store::{Change, Store};
use super::{Edge, Now};
use crate::writer::Writers;
use pointsman_api_client::events::{Severity, Subject};
use pointsman_api_client::{ApiError, ObjectKey, Patch, Resource};
use pointsman_model::{Moment, Text};
use pointsman_objects::{ConditionStatus, Pod};
use pointsman_slices::queue::{Outcome, Pace, WorkQueue};
use pointsman_workloads::scheduler::{Load, is_pending, place};
use serde::de::IgnoredAny;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Pods bound at the same time.
const WRITERS: usize = 16;
/// Who its events come from, as users and tests look for them.
const COMPONENT: &str = "default-scheduler";

/// The scheduler's state.
pub(super) struct Scheduling {
    edge: Edge,
    on: bool,
    queue: WorkQueue<ObjectKey>,
    pub writers: Writers<Done>,
    load: Load,
    /// Pods that were given a node which the cache does not show yet.
    assumed: HashMap<ObjectKey, (Arc<Pod>, Text)>,
    /// Pods that found no node, and the message about it.
    waiting: BTreeMap<ObjectKey, String>,
}

/// What became of one pod.
pub(super) struct Done {
    key: ObjectKey,
    uid: Text,
    failure: Option<ApiError>,
}

impl Scheduling {
    pub fn new(edge: Edge, on: bool) -> Self {
        let recorder = edge.recorder.of(COMPONENT);
        Self {
            edge: Edge { recorder, ..edge },
            on,
            queue: WorkQueue::new(Pace::default()),
            writers: Writers::new(WRITERS),
            load: Load::default(),
            assumed: HashMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    pub fn wake_at(&self) -> Option<std::time::Duration> {
        self.queue.wake_at().filter(|_| self.writers.has_room())
    }

    /// Keeps count of what nodes carry, and finds pods without a node.
    pub fn observe(&mut self, change: &Change, now: Now) {
        if !self.on {
            return;
        }
        match change {
            Change::Pod { key, old, new } => self.pod_changed(key, old.as_deref(), new.as_deref(), now),
            Change::Node => self.wake_waiting(now),
            _ => {}
        }
    }

    fn pod_changed(&mut self, key: &ObjectKey, old: Option<&Pod>, new: Option<&Pod>, now: Now) {
        let place = |pod: Option<&Pod>| {
            pod.filter(|pod| !pod.is_finished())
                .and_then(|pod| pod.node_name.clone())
        };
        let (before, after) = (place(old), place(new));
        if let (Some(pod), Some(node)) = (old, &before) {
            self.load.remove(pod, node);
        }
        if after.is_some() || new.is_none() {
            self.forget_assumption(key);
            self.waiting.remove(key);
        }
        if let (Some(pod), Some(node)) = (new, &after) {
            self.load.add(pod, node);
        }
        if before.is_some() && after.is_none() {
            // There is room on a node now.
            self.wake_waiting(now);
        }
        if new.is_some_and(is_pending) && !self.assumed.contains_key(key) {
            self.queue.add(key, now.tick);
        }
    }

    fn wake_waiting(&mut self, now: Now) {
        for key in self.waiting.keys() {
            self.queue.add(key, now.tick);
        }
    }

    fn forget_assumption(&mut self, key: &ObjectKey) {
        if let Some((pod, node)) = self.assumed.remove(key) {
            self.load.remove(&pod, &node);
        }
    }

    /// Places as many pods as there is room for.
    pub fn start(&mut self, store: &Store, now: Now) {
        while self.writers.has_room()
            && let Some(key) = self.queue.next(now.tick)
        {
            let pod = store.pod(&key).filter(|pod| is_pending(pod));
            let Some(pod) = pod.filter(|_| !self.assumed.contains_key(&key)).cloned() else {
                self.queue.finish(&key, Outcome::Done, now.tick);
                continue;
            };
            match place(&pod, store.nodes(), &self.load) {
                Ok(node) => {
                    self.load.add(&pod, node);
                    self.assumed.insert(key.clone(), (pod.clone(), node.clone()));
                    let bound = bind(self.edge.clone(), pod.clone(), node.clone());
                    self.writers.start(done(key, pod, bound));
                }
                Err(message) if self.waiting.get(&key) == Some(&message) => {
                    self.queue.finish(&key, Outcome::Done, now.tick);
                }
                Err(message) => {
                    self.waiting.insert(key.clone(), message.clone());
                    let reported = report_unschedulable(self.edge.clone(), pod.clone(), message, now.wall);
                    self.writers.start(done(key, pod, reported));
                }
            }
        }
    }

    /// Takes back a pod.
    pub fn finish(&mut self, done: Done, now: Now) {
        let outcome = match &done.failure {
            None => Outcome::Done,
            Some(error) => {
                let ours = self
                    .assumed
                    .get(&done.key)
                    .is_some_and(|(pod, _)| pod.metadata.uid == done.uid);
                if ours {
                    self.forget_assumption(&done.key);
                }
                self.waiting.remove(&done.key);
                tracing::debug!(pod = %done.key, %error, "tried again");
                match error {
                    // Somebody else placed or removed it; the watch shows it.
                    ApiError::NotFound(_) | ApiError::Conflict(_) => Outcome::Done,
                    _ => Outcome::Retry,
                }
            }
        };
        self.queue.finish(&done.key, outcome, now.tick);
    }
}

async fn done(key: ObjectKey, pod: Arc<Pod>, write: impl Future<Output = Result<(), ApiError>>) -> Done {
    let failure = write.await.err();
    let uid = pod.metadata.uid.clone();
    Done { key, uid, failure }
}

async fn bind(edge: Edge, pod: Arc<Pod>, node: Text) -> Result<(), ApiError> {
    let metadata = &pod.metadata;
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": &*metadata.name, "namespace": &*metadata.namespace, "uid": &*metadata.uid },
        "target": { "apiVersion": "v1", "kind": "Node", "name": &*node },
    });
    let api = edge.client.api(Resource::PODS, Some(&metadata.namespace));
    api.create_sub::<IgnoredAny>(&metadata.name, "binding", binding.to_string().into_bytes())
        .await?;
    let message = format!(
        "Successfully assigned {}/{} to {node}",
        metadata.namespace, metadata.name
    );
    edge.tell(&subject(&pod), Severity::Normal, "Scheduled", message);
    Ok(())
}

async fn report_unschedulable(
    edge: Edge,
    pod: Arc<Pod>,
    message: String,
    now: Moment,
) -> Result<(), ApiError> {
    let metadata = &pod.metadata;
    let known = pod.scheduled_condition;
    let since = known
        .filter(|condition| condition.status == ConditionStatus::False)
        .and_then(|condition| condition.changed);
    let condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": since.unwrap_or(now).start_of_second().to_string(),
    });
    let patch = json!({ "metadata": { "uid": &*metadata.uid }, "status": { "conditions": [condition] } });
    let api = edge.client.api(Resource::PODS, Some(&metadata.namespace));
    let patch = Patch::Strategic(patch.to_string().into_bytes());
    api.patch_status::<IgnoredAny>(&metadata.name, patch).await?;
    edge.tell(&subject(&pod), Severity::Warning, "FailedScheduling", message);
    Ok(())
}

fn subject(pod: &Pod) -> Subject {
    Subject {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.metadata.namespace.to_string(),
        name: pod.metadata.name.to_string(),
        uid: pod.metadata.uid.to_string(),
    }
}
