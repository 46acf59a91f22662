//! How do ReplicaSets keep their number of pods?

use super::store::{Change, Store, key_of};
use super::write::{Answer, subject};
use super::{Edge, Now};
use crate::writer::Writers;
use pointsman_api_client::events::{Severity, Subject};
use pointsman_api_client::{ApiError, DeleteOptions, ObjectKey, Resource};
use pointsman_slices::queue::{Outcome, Pace, WorkQueue};
use pointsman_workloads::expectations::{Expectations, Seen};
use pointsman_workloads::meta::OwnerReference;
use pointsman_workloads::pod::Pod;
use pointsman_workloads::replicaset::{ReplicaSet, ReplicaSetPlan, count_by_node, new_pod, plan};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The ReplicaSet loop's state.
pub(super) struct ReplicaSets {
    edge: Edge,
    on: bool,
    queue: WorkQueue<ObjectKey>,
    pub writers: Writers<Done>,
    expectations: Expectations,
    /// Why the last creation or deletion failed, by uid.
    failures: HashMap<String, String>,
    /// Pods that left the cache while their ReplicaSet was being written, by its uid.
    left: HashMap<String, HashSet<String>>,
}

/// What became of one pass.
pub(super) struct Done {
    set: Arc<ReplicaSet>,
    created: Vec<String>,
    deleted: Vec<String>,
    failure: Option<ApiError>,
    /// Whether the failure was about making or removing pods.
    of_pods: bool,
}

impl ReplicaSets {
    pub fn new(edge: Edge, on: bool, writers: usize) -> Self {
        Self {
            edge,
            on,
            queue: WorkQueue::new(Pace::default()),
            writers: Writers::new(writers),
            expectations: Expectations::default(),
            failures: HashMap::new(),
            left: HashMap::new(),
        }
    }

    pub fn wake_at(&self) -> Option<std::time::Duration> {
        self.queue.wake_at().filter(|_| self.writers.has_room())
    }

    /// Finds out whose work an event is.
    pub fn observe(&mut self, store: &Store, change: &Change, now: Now) {
        if !self.on {
            return;
        }
        match change {
            Change::Set { key, old, new } => {
                if let (Some(old), None) = (old, new) {
                    self.expectations.forget(&old.metadata.uid);
                    self.failures.remove(&old.metadata.uid);
                }
                self.queue.add(key, now.tick);
            }
            Change::Pod { old, new, .. } => {
                let owner = |pod: &Option<Arc<Pod>>| {
                    pod.as_ref()
                        .and_then(|pod| pod.controller_uid().map(str::to_owned))
                };
                let (before, after) = (owner(old), owner(new));
                for uid in before.iter().chain(after.iter().filter(|_| before != after)) {
                    if let Some(set) = store.set_with_uid(uid) {
                        self.queue.add(&key_of(&set.metadata), now.tick);
                    }
                }
                if let (Some(pod), None, Some(uid)) = (old, new, before) {
                    self.expectations.observed(&uid, &pod.metadata.uid);
                    if let Some(left) = self.left.get_mut(&uid) {
                        left.insert(pod.metadata.uid.to_string());
                    }
                }
                if let (Some(pod), None) = (new, after) {
                    for (key, set) in store.sets_in(&pod.metadata.namespace) {
                        if set.spec.selector.matches(&pod.metadata.labels) {
                            self.queue.add(key, now.tick);
                        }
                    }
                }
            }
            Change::Deployment(_) | Change::Node => {}
        }
    }

    /// Starts as many passes as there is room for.
    pub fn start(&mut self, store: &Store, now: Now) {
        while self.writers.has_room()
            && let Some(key) = self.queue.next(now.tick)
        {
            let Some(set) = store.set(&key) else {
                self.queue.finish(&key, Outcome::Done, now.tick);
                continue;
            };
            let uid = &set.metadata.uid;
            let mine: HashMap<&str, Seen> = store
                .pods_of(uid)
                .map(|pod| (&*pod.metadata.uid, seen(pod)))
                .collect();
            let seen = |uid: &str| mine.get(uid).copied().unwrap_or(Seen::Absent);
            if !self.expectations.satisfied(uid, now.wall, seen) {
                // The events that are missing bring the key back; so does the end of patience.
                self.queue.finish(&key, Outcome::Done, now.tick);
                self.queue.add_at(&key, now.tick + PATIENCE, now.tick);
                continue;
            }
            let plan = self.plan(store, set, now);
            if plan
                == (ReplicaSetPlan {
                    look_again: plan.look_again,
                    ..ReplicaSetPlan::default()
                })
            {
                self.queue.finish(&key, Outcome::Done, now.tick);
            } else {
                self.left.insert(uid.clone(), HashSet::new());
                self.writers
                    .start(carry_out(self.edge.clone(), set.clone(), plan.clone()));
            }
            if let Some(at) = plan.look_again {
                self.queue.add_at(&key, now.tick_at(at), now.tick);
            }
        }
    }

    fn plan(&self, store: &Store, set: &ReplicaSet, now: Now) -> ReplicaSetPlan {
        let uid = &set.metadata.uid;
        let namespace = &set.metadata.namespace;
        let pods: Vec<&Pod> = store.pods_of(uid).chain(store.orphans(namespace)).collect();
        let siblings = match set.metadata.controller() {
            Some(owner) => {
                let sets = store.sets_in(namespace).filter(|(_, other)| {
                    other
                        .metadata
                        .controller()
                        .is_some_and(|other| other.uid == owner.uid)
                });
                count_by_node(sets.flat_map(|(_, other)| store.pods_of(&other.metadata.uid)))
            }
            None => count_by_node(store.pods_of(uid)),
        };
        plan(
            set,
            &pods,
            &siblings,
            self.failures.get(uid).map(String::as_str),
            now.wall,
        )
    }

    /// Takes back a pass.
    pub fn finish(&mut self, done: Done, now: Now) {
        let uid = &done.set.metadata.uid;
        let left = self.left.remove(uid).unwrap_or_default();
        for pod in done.created.iter().filter(|pod| !left.contains(*pod)) {
            self.expectations.created(uid, pod, now.wall);
        }
        for pod in done.deleted.iter().filter(|pod| !left.contains(*pod)) {
            self.expectations.deleted(uid, pod, now.wall);
        }
        match &done.failure {
            Some(error) if done.of_pods => {
                self.failures.insert(uid.clone(), error.to_string());
            }
            _ => {
                self.failures.remove(uid);
            }
        }
        let outcome = match &done.failure {
            None | Some(ApiError::NamespaceTerminating(_)) => Outcome::Done,
            Some(error) => {
                tracing::debug!(replicaset = %key_of(&done.set.metadata), %error, "tried again");
                Outcome::Retry
            }
        };
        self.queue.finish(&key_of(&done.set.metadata), outcome, now.tick);
    }
}

/// How long missing events are waited for before the cache is believed again.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(301);

fn seen(pod: &Pod) -> Seen {
    if pod.deleting() {
        Seen::Leaving
    } else {
        Seen::Present
    }
}

async fn carry_out(edge: Edge, set: Arc<ReplicaSet>, plan: ReplicaSetPlan) -> Done {
    let mut done = Done {
        set: set.clone(),
        created: Vec::new(),
        deleted: Vec::new(),
        failure: None,
        of_pods: false,
    };
    if let Err(error) = claim(&edge, &set, &plan).await {
        done.failure = Some(error);
        return done;
    }
    let about = subject("apps/v1", "ReplicaSet", &set.metadata);
    create(&edge, &about, &plan, &mut done).await;
    delete(&edge, &about, &plan, &mut done).await;
    done.of_pods = done.failure.is_some();
    if let Some(status) = &plan.status {
        let status = serde_json::to_value(status).expect("a status always serializes");
        let written = edge
            .write_status(Resource::REPLICA_SETS, &set.metadata, status)
            .await;
        done.failure = done.failure.or(written.err());
    }
    done
}

async fn claim(edge: &Edge, set: &ReplicaSet, plan: &ReplicaSetPlan) -> Result<(), ApiError> {
    let metadata = &set.metadata;
    if !plan.adopt.is_empty() {
        // The cache may not know yet that the ReplicaSet is being deleted or another by now.
        let api = edge.client.api(Resource::REPLICA_SETS, Some(&metadata.namespace));
        let fresh: ReplicaSet = api.get(&metadata.name).await?;
        if fresh.metadata.uid != metadata.uid || fresh.metadata.deleting() {
            return Ok(());
        }
    }
    let owner = OwnerReference {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        controller: true,
        block_owner_deletion: true,
    };
    for pod in &plan.adopt {
        edge.adopt(Resource::PODS, &metadata.namespace, pod, &owner)
            .await?;
    }
    for pod in &plan.release {
        edge.release(Resource::PODS, &metadata.namespace, pod, &metadata.uid)
            .await?;
    }
    Ok(())
}

/// Creates in batches that double: a template that is refused costs one request, not hundreds.
async fn create(edge: &Edge, about: &Subject, plan: &ReplicaSetPlan, done: &mut Done) {
    if plan.create == 0 {
        return;
    }
    let body = new_pod(&done.set).to_string().into_bytes();
    let mut left = plan.create;
    let mut batch = 1;
    while left > 0 && done.failure.is_none() {
        let mut requests = JoinSet::new();
        for _ in 0..batch.min(left) {
            let (client, namespace) = (edge.client.clone(), about.namespace.clone());
            let body = body.clone();
            requests.spawn(async move {
                client
                    .api(Resource::PODS, Some(&namespace))
                    .create::<Answer>(body)
                    .await
            });
        }
        left -= batch.min(left);
        batch *= 2;
        for answer in requests.join_all().await {
            match answer {
                Ok(pod) => {
                    let message = format!("Created pod: {}", pod.metadata.name);
                    edge.tell(about, Severity::Normal, "SuccessfulCreate", message);
                    done.created.push(pod.metadata.uid);
                }
                Err(error) => done.failure = Some(error),
            }
        }
    }
    match &done.failure {
        None | Some(ApiError::NamespaceTerminating(_)) => {}
        Some(error) => {
            edge.tell(
                about,
                Severity::Warning,
                "FailedCreate",
                format!("Error creating: {error}"),
            );
        }
    }
}

async fn delete(edge: &Edge, about: &Subject, plan: &ReplicaSetPlan, done: &mut Done) {
    for batch in plan.delete.chunks(16) {
        let mut requests = JoinSet::new();
        for (name, uid) in batch.iter().cloned() {
            let (edge, namespace) = (edge.clone(), about.namespace.clone());
            requests.spawn(async move {
                let options = DeleteOptions::of(&uid);
                let outcome = edge.delete(Resource::PODS, &namespace, &name, &options).await;
                (name, uid, outcome)
            });
        }
        for (name, uid, outcome) in requests.join_all().await {
            match outcome {
                Ok(()) => {
                    edge.tell(
                        about,
                        Severity::Normal,
                        "SuccessfulDelete",
                        format!("Deleted pod: {name}"),
                    );
                    done.deleted.push(uid);
                }
                Err(error) => {
                    edge.tell(
                        about,
                        Severity::Warning,
                        "FailedDelete",
                        format!("Error deleting {name}: {error}"),
                    );
                    done.failure = Some(error);
                }
            }
        }
    }
}
