//! How does a loop go round that makes and removes pods?
//!
//! The same for every kind that controls pods: whose work an event is, waiting until the cache shows the last pass, and
//! what becomes of a failure. A kind says what to do, and how that is written.

use super::pods::{Awaited, PATIENCE, Written};
use super::store::{Change, Kept, Moved, Store, key_of};
use super::work::Work;
use super::write::outcome;
use super::{Edge, Now};
use pointsman_model::{Moment, Text};
use pointsman_objects::Pod;
use pointsman_objects::workload::LabelSelector;
use pointsman_slices::queue::Outcome;
use std::collections::HashMap;
use std::sync::Arc;

/// A kind that controls pods.
pub(super) trait Parent: Kept {
    type Plan: Send + 'static;
    /// Whether a change of any node is work for all of them.
    const READS_NODES: bool = false;

    /// The change of one of this kind, if it is one.
    fn moved(change: &Change) -> Option<&Moved<Self>>;

    fn selector(&self) -> &LabelSelector;

    /// Decides; `pods` are those it controls and those that nobody does, `failure` is why the last pass could not make or
    /// remove pods.
    fn plan(&self, store: &Store, pods: &[&Pod], failure: Option<&str>, now: Now) -> Step<Self::Plan>;

    fn carry_out(self: Arc<Self>, edge: Edge, plan: Self::Plan) -> impl Future<Output = Written> + Send;
}

/// What a kind decided in one pass.
pub(super) struct Step<P> {
    /// Empty ones are left out, so that nothing is written for them.
    pub plan: Option<P>,
    /// When the answer may change without an event.
    pub look_again: Option<Moment>,
}

/// The state of one such loop.
pub(super) struct Parents<K: Parent> {
    pub work: Work<Done<K>>,
    awaited: Awaited,
    /// Why the last creation or deletion failed, by uid.
    failures: HashMap<Text, String>,
}

/// What became of one pass.
pub(super) struct Done<K> {
    parent: Arc<K>,
    written: Written,
}

impl<K: Parent> Parents<K> {
    pub fn new(edge: Edge, on: bool, writers: usize) -> Self {
        Self {
            work: Work::new(edge, on, writers),
            awaited: Awaited::default(),
            failures: HashMap::new(),
        }
    }

    /// Finds out whose work an event is.
    pub fn observe(&mut self, store: &Store, change: &Change, now: Now) {
        if !self.work.on {
            return;
        }
        if let Some(moved) = K::moved(change) {
            if let (Some(old), None) = (&moved.old, &moved.new) {
                self.awaited.forget(&old.metadata().uid);
                self.failures.remove(&old.metadata().uid);
            }
            self.work.queue.add(&moved.key, now.tick);
        }
        match change {
            Change::Pod { old, new, .. } => self.pod_changed(store, old.as_deref(), new.as_deref(), now),
            Change::Node if K::READS_NODES => {
                for key in K::filed(store).keys() {
                    self.work.queue.add(key, now.tick);
                }
            }
            _ => {}
        }
    }

    fn pod_changed(&mut self, store: &Store, old: Option<&Pod>, new: Option<&Pod>, now: Now) {
        let filed = K::filed(store);
        for uid in [old, new].into_iter().flatten().filter_map(Pod::controller_uid) {
            if let Some(key) = filed.key_of_uid(uid) {
                self.work.queue.add(key, now.tick);
            }
        }
        match (old, new) {
            (Some(pod), None) => {
                if let Some(uid) = pod.controller_uid() {
                    self.awaited.pod_gone(uid, pod);
                }
            }
            (_, Some(pod)) if pod.controller_uid().is_none() => {
                for (key, parent) in filed.of_namespace(&pod.metadata.namespace) {
                    if parent.selector().matches(&pod.metadata.labels) {
                        self.work.queue.add(key, now.tick);
                    }
                }
            }
            _ => {}
        }
    }

    /// Starts as many passes as there is room for.
    pub fn start(&mut self, store: &Store, now: Now) {
        while self.work.writers.has_room()
            && let Some(key) = self.work.queue.next(now.tick)
        {
            let Some(parent) = K::filed(store).get(&key) else {
                self.work.queue.finish(&key, Outcome::Done, now.tick);
                continue;
            };
            let metadata = parent.metadata();
            let uid = &metadata.uid;
            if !self.awaited.is_over(store, uid, now) {
                // The events that are missing bring the key back; so does the end of patience.
                self.work.queue.finish(&key, Outcome::Done, now.tick);
                self.work.queue.add_at(&key, now.tick + PATIENCE, now.tick);
                continue;
            }
            let pods = store.pods_of(uid).chain(store.orphans(&metadata.namespace));
            let pods: Vec<&Pod> = pods.collect();
            let failure = self.failures.get(uid).map(String::as_str);
            let Step { plan, look_again } = parent.plan(store, &pods, failure, now);
            match plan {
                None => self.work.queue.finish(&key, Outcome::Done, now.tick),
                Some(plan) => {
                    self.awaited.begin(uid);
                    let (edge, parent) = (self.work.edge.clone(), Arc::clone(parent));
                    self.work.writers.start(async move {
                        let written = Arc::clone(&parent).carry_out(edge, plan).await;
                        Done { parent, written }
                    });
                }
            }
            if let Some(at) = look_again {
                self.work.queue.add_at(&key, now.tick_at(at), now.tick);
            }
        }
    }

    /// Takes back a pass.
    pub fn finish(&mut self, done: Done<K>, now: Now) {
        let metadata = done.parent.metadata();
        self.awaited.end(&metadata.uid, &done.written, now);
        match done.written.of_pods {
            Some(failure) => drop(self.failures.insert(metadata.uid.clone(), failure)),
            None => drop(self.failures.remove(&metadata.uid)),
        }
        let key = key_of(metadata);
        self.work
            .queue
            .finish(&key, outcome(&key, done.written.failure.as_ref()), now.tick);
    }
}
