//! How do ReplicaSets keep their number of pods?

use super::pods::{Awaited, PATIENCE, Written};
use super::store::{Change, Store, key_of};
use super::write::{Family, outcome, subject};
use super::{Edge, Now};
use crate::writer::Writers;
use pointsman_api_client::{ObjectKey, Resource};
use pointsman_model::Text;
use pointsman_objects::{Pod, ReplicaSet};
use pointsman_slices::queue::{Outcome, Pace, WorkQueue};
use pointsman_workloads::replicaset::{ReplicaSetPlan, count_by_node, plan};
use std::collections::HashMap;
use std::sync::Arc;

/// The ReplicaSet loop's state.
pub(super) struct ReplicaSets {
    edge: Edge,
    on: bool,
    queue: WorkQueue<ObjectKey>,
    pub writers: Writers<Done>,
    awaited: Awaited,
    /// Why the last creation or deletion failed, by uid.
    failures: HashMap<Text, String>,
}

/// What became of one pass.
pub(super) struct Done {
    set: Arc<ReplicaSet>,
    written: Written,
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
            awaited: Awaited::default(),
            failures: HashMap::new(),
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
                    self.awaited.forget(&old.metadata.uid);
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
                    self.awaited.pod_gone(&uid, pod);
                }
                if let (Some(pod), None) = (new, after) {
                    for (key, set) in store.sets_in(&pod.metadata.namespace) {
                        if set.spec.selector.matches(&pod.metadata.labels) {
                            self.queue.add(key, now.tick);
                        }
                    }
                }
            }
            Change::Deployment(_) | Change::Daemon { .. } | Change::Node | Change::Nothing => {}
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
            if !self.awaited.is_over(store, uid, now) {
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
                self.awaited.begin(uid);
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
        self.awaited.end(uid, &done.written, now);
        let failure = done.written.failure.as_ref();
        match failure {
            Some(error) if done.of_pods => {
                self.failures.insert(uid.clone(), error.to_string());
            }
            _ => {
                self.failures.remove(uid);
            }
        }
        let key = key_of(&done.set.metadata);
        self.queue.finish(&key, outcome(&key, failure), now.tick);
    }
}

async fn carry_out(edge: Edge, set: Arc<ReplicaSet>, plan: ReplicaSetPlan) -> Done {
    let mut done = Done {
        set: set.clone(),
        written: Written::default(),
        of_pods: false,
    };
    let family = Family {
        resource: Resource::REPLICA_SETS,
        kind: "ReplicaSet",
        metadata: &set.metadata,
        children: Resource::PODS,
    };
    let written = &mut done.written;
    if let Err(error) = edge.claim(&family, &plan.adopt, &plan.release).await {
        written.failure = Some(error);
        return done;
    }
    let about = subject("apps/v1", "ReplicaSet", &set.metadata);
    if plan.create > 0 {
        let body = set.new_pod().to_string().into_bytes();
        edge.create_pods(&about, vec![body; plan.create], written).await;
    }
    edge.delete_pods(&about, &plan.delete, written).await;
    done.of_pods = written.failure.is_some();
    if let Some(status) = &plan.status {
        let status = serde_json::to_value(status).expect("a status always serializes");
        let reported = edge
            .write_status(Resource::REPLICA_SETS, &set.metadata, status)
            .await;
        written.failure = written.failure.take().or(reported.err());
    }
    done
}
