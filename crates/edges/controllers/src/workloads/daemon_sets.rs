//! How do DaemonSets get their pod onto every node?

use super::pods::{Awaited, PATIENCE, Written};
use super::store::{Change, Store, key_of};
use super::write::{Family, outcome, subject};
use super::{Edge, Now};
use crate::writer::Writers;
use pointsman_api_client::{ObjectKey, Resource};
use pointsman_objects::{DaemonSet, Node, Pod};
use pointsman_slices::queue::{Outcome, Pace, WorkQueue};
use pointsman_workloads::daemonset::{DaemonSetPlan, plan};
use std::sync::Arc;

/// The DaemonSet loop's state.
pub(super) struct DaemonSets {
    edge: Edge,
    on: bool,
    queue: WorkQueue<ObjectKey>,
    pub writers: Writers<Done>,
    awaited: Awaited,
}

/// What became of one pass.
pub(super) struct Done {
    set: Arc<DaemonSet>,
    written: Written,
}

impl DaemonSets {
    pub fn new(edge: Edge, on: bool, writers: usize) -> Self {
        Self {
            edge,
            on,
            queue: WorkQueue::new(Pace::default()),
            writers: Writers::new(writers),
            awaited: Awaited::default(),
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
            Change::Daemon { key, old, new } => {
                if let (Some(old), None) = (old, new) {
                    self.awaited.forget(&old.metadata.uid);
                }
                self.queue.add(key, now.tick);
            }
            Change::Pod { old, new, .. } => self.pod_changed(store, old.as_deref(), new.as_deref(), now),
            Change::Node => {
                for key in store.daemons() {
                    self.queue.add(key, now.tick);
                }
            }
            Change::Set { .. } | Change::Deployment(_) | Change::Nothing => {}
        }
    }

    fn pod_changed(&mut self, store: &Store, old: Option<&Pod>, new: Option<&Pod>, now: Now) {
        for uid in [old, new].into_iter().flatten().filter_map(Pod::controller_uid) {
            if let Some(key) = store.daemon_with_uid(uid) {
                self.queue.add(key, now.tick);
            }
        }
        match (old, new) {
            (Some(pod), None) => {
                if let Some(uid) = pod.controller_uid() {
                    self.awaited.pod_gone(uid, pod);
                }
            }
            (_, Some(pod)) if pod.controller_uid().is_none() => {
                for (key, set) in store.daemons_in(&pod.metadata.namespace) {
                    if set.spec.selector.matches(&pod.metadata.labels) {
                        self.queue.add(key, now.tick);
                    }
                }
            }
            _ => {}
        }
    }

    /// Starts as many passes as there is room for.
    pub fn start(&mut self, store: &Store, now: Now) {
        while self.writers.has_room()
            && let Some(key) = self.queue.next(now.tick)
        {
            let Some(set) = store.daemon(&key) else {
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
            let pods = store.pods_of(uid).chain(store.orphans(&set.metadata.namespace));
            let pods: Vec<&Pod> = pods.collect();
            let nodes: Vec<&Node> = store.nodes().collect();
            let plan = plan(set, &pods, &nodes, now.wall);
            let look_again = plan.look_again;
            if plan.is_empty() {
                self.queue.finish(&key, Outcome::Done, now.tick);
            } else {
                self.awaited.begin(uid);
                self.writers
                    .start(carry_out(self.edge.clone(), set.clone(), plan));
            }
            if let Some(at) = look_again {
                self.queue.add_at(&key, now.tick_at(at), now.tick);
            }
        }
    }

    /// Takes back a pass.
    pub fn finish(&mut self, done: Done, now: Now) {
        self.awaited.end(&done.set.metadata.uid, &done.written, now);
        let key = key_of(&done.set.metadata);
        self.queue
            .finish(&key, outcome(&key, done.written.failure.as_ref()), now.tick);
    }
}

async fn carry_out(edge: Edge, set: Arc<DaemonSet>, plan: DaemonSetPlan) -> Done {
    let mut written = Written::default();
    let family = Family {
        resource: Resource::DAEMON_SETS,
        kind: "DaemonSet",
        metadata: &set.metadata,
        children: Resource::PODS,
    };
    if let Err(error) = edge.claim(&family, &plan.adopt, &plan.release).await {
        written.failure = Some(error);
        return Done { set, written };
    }
    let about = subject("apps/v1", "DaemonSet", &set.metadata);
    let bodies = plan
        .create
        .iter()
        .map(|node| set.new_pod(node).to_string().into_bytes());
    edge.create_pods(&about, bodies.collect(), &mut written).await;
    edge.delete_pods(&about, &plan.delete, &mut written).await;
    if let Some(status) = &plan.status {
        let status = serde_json::to_value(status).expect("a status always serializes");
        let reported = edge
            .write_status(Resource::DAEMON_SETS, &set.metadata, status)
            .await;
        written.failure = written.failure.or(reported.err());
    }
    Done { set, written }
}
