//! What does the collector know, and what does each event change?
//!
//! No IO happens here: events come in with their time, and what others want to see is read from the fields.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use pointsman_api_client::{Event, ObjectKey};
use pointsman_model::{Began, Dated, Moment};
use pointsman_objects::{ConfigNode, EndpointSlice, Node, Pod, config_node};
use pointsman_protocol::watermark::Resource;
use pointsman_sli::endpoints::{EndpointFacts, Endpoints, Requirement};
use pointsman_sli::fold::{Fold, Kind, Limits, NewChange, NodeState, ProgrammerId};

use self::withdrawn::Withdrawn;
use crate::facts::{self, Described, NodeInfo, PodInfo, ServiceInfo};

/// A pod that became ready this recently may have endpoints that we do not know yet.
const FRESH: Duration = Duration::from_secs(2);

/// Everything that is known.
#[derive(Debug)]
pub(crate) struct World {
    pub fold: Fold,
    pub endpoints: Endpoints,
    pub services: BTreeMap<String, ServiceInfo>,
    pub nodes: BTreeMap<String, NodeInfo>,
    pub profile: Option<ConfigNode>,
    pub withdrawn: Withdrawn,
    pods: HashMap<Box<str>, PodEntry>,
    /// Version and trigger time of each slice as last seen.
    slices: HashMap<ObjectKey, (u64, Option<Moment>)>,
    /// Pods whose endpoints or deletion changed.
    touched: Vec<Arc<str>>,
    pub slices_listed: bool,
    services_listed: bool,
    nodes_listed: bool,
    /// The version up to which each kind was seen.
    seen: [u64; 4],
    /// A kind's versions went back: the API server's store was restored from a backup, and what is known about versions
    /// is about others.
    pub history_lost: bool,
}

/// The kinds whose versions are followed.
#[derive(Clone, Copy)]
enum Seen {
    Slices,
    Services,
    Pods,
    Nodes,
}

#[derive(Debug)]
struct PodEntry {
    info: PodInfo,
    /// When what counts about it was last seen to change.
    seen: Moment,
}

impl World {
    pub fn new() -> Self {
        Self {
            fold: Fold::new(Limits::default()),
            endpoints: Endpoints::default(),
            services: BTreeMap::new(),
            nodes: BTreeMap::new(),
            profile: None,
            withdrawn: Withdrawn::default(),
            pods: HashMap::new(),
            slices: HashMap::new(),
            touched: Vec::new(),
            slices_listed: false,
            services_listed: false,
            nodes_listed: false,
            seen: [0; 4],
            history_lost: false,
        }
    }

    /// Everything of a kind was seen up to this version.
    fn synced(&mut self, kind: Seen, version: &str) {
        let version = number(version);
        self.fold.observe(version);
        let seen = &mut self.seen[kind as usize];
        self.history_lost |= version < *seen;
        *seen = version.max(*seen);
    }

    /// Folds an event of slices.
    pub fn slice(&mut self, event: Event<EndpointSlice>, now: Moment) {
        match event {
            Event::Init => {}
            Event::Applied {
                key,
                object,
                resource_version,
            } => {
                let revision = number(&resource_version);
                self.slice_applied(key, &object, revision, now);
            }
            Event::Deleted {
                key,
                resource_version,
                ..
            } => {
                let revision = resource_version.as_deref().map_or(0, number);
                self.slice_deleted(&key, revision, now);
            }
            Event::Synced(version) => {
                self.synced(Seen::Slices, &version);
                self.slices_listed = true;
            }
        }
    }

    fn slice_applied(&mut self, key: ObjectKey, object: &EndpointSlice, revision: u64, now: Moment) {
        let trigger = object.trigger();
        let known = self.slices.insert(key.clone(), (revision, trigger));
        let name = key.to_string();
        self.touch_slice(&name);
        let Some(facts) = facts::slice(object, revision) else {
            self.endpoints.remove(&name, revision, now);
            return;
        };
        // What a first list shows is no change, and a list after a gap repeats what is known.
        let changed = self.slices_listed && known.is_none_or(|(known, _)| known < revision);
        if changed {
            let (kind, pod) = {
                let before: Vec<&EndpointFacts> = self.endpoints.slice(&name).collect();
                compare(&before, &facts.endpoints)
            };
            let kind = match (kind, &pod) {
                (Kind::NotReady, Some(pod)) if self.is_ready(pod) => Kind::Withdrawn,
                (kind, _) => kind,
            };
            let fresh = trigger.filter(|at| known.is_none_or(|(_, before)| before != Some(*at)));
            let service = facts.service.to_string();
            self.slice_changed(revision, service, kind, pod, fresh, now);
        }
        self.endpoints.apply(&name, facts, now);
        self.touch_slice(&name);
    }

    /// Gates of the pods of a slice have to be looked at.
    fn touch_slice(&mut self, name: &str) {
        let pods = self.endpoints.slice(name).map(|endpoint| endpoint.pod.clone());
        self.touched.extend(pods);
    }

    fn slice_deleted(&mut self, key: &ObjectKey, revision: u64, now: Moment) {
        self.slices.remove(key);
        let name = key.to_string();
        self.touch_slice(&name);
        let service = self.endpoints.service_of(&name).map(str::to_owned);
        if let Some(service) = service.filter(|_| revision > 0 && self.slices_listed) {
            self.slice_changed(revision, service, Kind::Removed, None, None, now);
        }
        self.endpoints.remove(&name, revision, now);
    }

    fn slice_changed(
        &mut self,
        revision: u64,
        service: String,
        kind: Kind,
        pod: Option<Arc<str>>,
        triggered: Option<Moment>,
        now: Moment,
    ) {
        let entry = pod.as_ref().and_then(|pod| self.pods.get(&**pod));
        // A slice's trigger time is as good as what its controller had to make it from.
        let source = match kind {
            Kind::Ready | Kind::NotReady => {
                let changed = entry.and_then(|entry| entry.info.changed);
                changed.map_or(Dated::Exact, |at| Dated::of(Some(at)))
            }
            Kind::Terminating => Dated::Second,
            Kind::Removed => Dated::Watch,
            _ => Dated::Exact,
        };
        let api = entry.map(|entry| entry.seen);
        // A pod that changed before the trigger is not what caused it.
        let api = api.filter(|at| triggered.is_none_or(|trigger| *at >= trigger));
        self.fold.change(NewChange {
            resource: Resource::Slices,
            revision,
            service,
            kind,
            pod: pod.map(|pod| pod.to_string()),
            triggered,
            dated: Dated::of(triggered).max(source),
            api,
            written: now,
        });
    }

    /// Folds an event of Services.
    pub fn service(&mut self, event: Event<Described>, now: Moment) {
        match event {
            Event::Init => {}
            Event::Applied {
                key,
                object,
                resource_version,
            } => {
                let info = ServiceInfo::from(object);
                let known = self.services.insert(key.to_string(), info.clone());
                let kind = match &known {
                    None => Kind::ServiceCreated,
                    Some(known) if known.spec_hash != info.spec_hash => Kind::ServiceChanged,
                    Some(_) => return self.fold.observe(number(&resource_version)),
                };
                if self.services_listed && info.programmed {
                    self.service_changed(&key, number(&resource_version), kind, info.written, now);
                }
            }
            Event::Deleted {
                key,
                resource_version,
                removed,
            } => {
                let known = self.services.remove(&key.to_string());
                let revision = resource_version.as_deref().map_or(0, number);
                if let Some(known) = known.filter(|info| revision > 0 && info.programmed) {
                    // A time that the version before had already is not the removal's.
                    let removed = removed.filter(|at| known.written.is_none_or(|written| *at > written));
                    self.service_changed(&key, revision, Kind::ServiceDeleted, removed, now);
                }
            }
            Event::Synced(version) => {
                self.synced(Seen::Services, &version);
                self.services_listed = true;
            }
        }
    }

    fn service_changed(
        &mut self,
        key: &ObjectKey,
        revision: u64,
        kind: Kind,
        written: Option<Moment>,
        now: Moment,
    ) {
        let began = Began::of(written, now);
        let triggered = (began.dated != Dated::Watch).then_some(began.at);
        self.fold.change(NewChange {
            resource: Resource::Services,
            revision,
            service: key.to_string(),
            kind,
            pod: None,
            triggered,
            dated: began.dated,
            api: None,
            written: triggered.unwrap_or(now),
        });
    }

    /// Folds an event of pods.
    pub fn pod(&mut self, event: Event<Pod>, now: Moment) {
        match event {
            Event::Init => {}
            Event::Applied {
                key,
                object,
                resource_version,
            } => {
                self.fold.observe(number(&resource_version));
                let info = PodInfo::from(object);
                self.touched.push(key.to_string().into());
                match self.pods.get_mut(&*key.to_string()) {
                    Some(entry) if entry.info == info => {}
                    Some(entry) => *entry = PodEntry { info, seen: now },
                    None => {
                        let entry = PodEntry { info, seen: now };
                        self.pods.insert(key.to_string().into(), entry);
                    }
                }
            }
            Event::Deleted { key, .. } => {
                self.touched.push(key.to_string().into());
                self.pods.remove(&*key.to_string());
            }
            Event::Synced(version) => self.synced(Seen::Pods, &version),
        }
    }

    /// Folds an event of Nodes.
    pub fn node(&mut self, event: Event<Node>) {
        match event {
            Event::Init => {}
            Event::Applied { key, object, .. } => {
                self.nodes.insert(key.name().to_owned(), NodeInfo::from(&object));
                self.judge_node(key.name());
            }
            Event::Deleted { key, .. } => {
                self.nodes.remove(key.name());
                self.judge_node(key.name());
            }
            Event::Synced(version) => {
                self.synced(Seen::Nodes, &version);
                self.nodes_listed = true;
            }
        }
    }

    /// Tells the fold whether a Node that was seen, or is gone, excuses a silent programmer.
    fn judge_node(&mut self, name: &str) {
        let state = self.nodes.get(name).map_or(NodeState::Unreachable, node_state);
        if let Some(id) = self.fold.id(name) {
            self.fold.set_node(id, state);
        }
    }

    /// A programmer is there; `unless_known` says what to think of its node if there is no such Node.
    pub fn join(&mut self, name: &str, unless_known: NodeState, now: Moment) -> ProgrammerId {
        let id = self.fold.join(name, now);
        let state = self.nodes.get(name).map_or(unless_known, node_state);
        self.fold.set_node(id, state);
        id
    }

    /// Folds an event of the cluster's Node configuration.
    pub fn node_config(&mut self, event: Event<ConfigNode>) {
        match event {
            Event::Applied { object, .. } => self.profile = facts::profile(object).or(self.profile.take()),
            Event::Deleted { key, .. } if key.name() == config_node::NAME => self.profile = None,
            _ => {}
        }
    }

    /// What must be everywhere before this pod may be stopped, and for how long it may have endpoints that
    /// we do not know yet.
    pub fn of_pod(&self, pod: &str, uid: &str, now: Moment) -> (Requirement, Duration) {
        if !self.knows_enough() {
            return (Requirement::Unmarked, Duration::ZERO);
        }
        let requirement = self.endpoints.of_pod(pod, uid);
        let ready = self.pods.get(pod).filter(|entry| entry.info.ready);
        let changed = ready.and_then(|entry| entry.info.changed);
        let fresh = changed.filter(|_| requirement == Requirement::Nothing);
        (
            requirement,
            fresh.map_or(Duration::ZERO, |at| FRESH.saturating_sub(now.since(at))),
        )
    }

    /// Whether our watch shows that a pod is being deleted, or that another one has its name since.
    pub fn is_deleting(&self, pod: &str, uid: &str) -> bool {
        let other = |known: &str| !uid.is_empty() && known != uid;
        let known = self.pods.get(pod).map(|entry| &entry.info);
        known.is_some_and(|info| info.deleting || other(&info.uid))
    }

    /// The pods (namespace/name, uid) of a Service on a node that our watch shows to be under deletion.
    pub fn deleting_of_service(&self, service: &str, node: Option<&str>) -> Vec<(Box<str>, Box<str>)> {
        let pods = self.endpoints.of_service(service, node).into_iter();
        let deleting = pods.filter(|(pod, uid)| {
            let known = self.pods.get(&**pod).map(|entry| &entry.info);
            known.is_some_and(|info| info.deleting && *info.uid == **uid)
        });
        deleting.map(|(pod, uid)| ((&*pod).into(), uid)).collect()
    }

    /// The pods whose endpoints or deletion changed since this was last asked.
    pub fn take_touched(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.touched)
    }

    /// Whether all endpoints and all nodes have been listed once.
    pub fn knows_enough(&self) -> bool {
        self.slices_listed && self.nodes_listed
    }

    fn is_ready(&self, pod: &str) -> bool {
        let entry = self.pods.get(pod);
        entry.is_some_and(|entry| entry.info.ready && !entry.info.deleting)
    }

    /// The uid of a pod, if it is known.
    pub fn uid_of(&self, pod: &str) -> Option<&str> {
        self.pods.get(pod).map(|entry| &*entry.info.uid)
    }
}

/// What happened to a slice, in one word, and to which pod first.
fn compare(before: &[&EndpointFacts], after: &[EndpointFacts]) -> (Kind, Option<Arc<str>>) {
    let old: HashMap<(&str, &str), &EndpointFacts> =
        before.iter().map(|it| ((&*it.pod, &*it.uid), *it)).collect();
    let find = |what: &dyn Fn(Option<&&EndpointFacts>, &EndpointFacts) -> bool| {
        let hit = after.iter().find(|it| what(old.get(&(&*it.pod, &*it.uid)), it));
        hit.map(|it| it.pod.clone())
    };
    let terminating = find(&|old, new| new.terminating && old.is_none_or(|old| !old.terminating));
    let unready = find(&|old, new| !new.ready && old.is_some_and(|old| old.ready));
    let ready = find(&|old, new| new.ready && old.is_none_or(|old| !old.ready));
    let gone = before.iter().find(|old| {
        let same = |new: &EndpointFacts| new.pod == old.pod && new.uid == old.uid;
        !after.iter().any(same)
    });
    let gone = gone.map(|old| old.pod.clone());
    let kinds = [
        (Kind::Terminating, terminating),
        (Kind::Removed, gone),
        (Kind::NotReady, unready),
        (Kind::Ready, ready),
    ];
    let first = kinds.into_iter().find(|(_, pod)| pod.is_some());
    first.unwrap_or((Kind::Endpoints, None))
}

fn node_state(node: &NodeInfo) -> NodeState {
    match node.reachable {
        true => NodeState::Reachable,
        false => NodeState::Unreachable,
    }
}

fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

mod withdrawn;

#[cfg(test)]
mod tests;
