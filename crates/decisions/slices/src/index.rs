//! Which Services does a changed pod concern, and which pods does a Service have?
//!
//! Pods with equal labels form a group, and each group knows the Services that select it. A pod event
//! costs one look-up of its group; a new group or a new selector is matched through one label pair
//! only, so the cost follows the change and not the cluster.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::change::endpoint_change;
use crate::node::{NodeFacts, Nodes};
use crate::plan::Inputs;
use crate::service::{ServiceKey, same_outcome};
use crate::small_set::SmallSet;
use crate::topology::ZoneCapacity;
use pointsman_model::{Labels, Moment, Revision, Text};
use pointsman_objects::{EndpointSlice, Interner, Node, Pod, Service};

/// A Service whose endpoints changed, and when.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touched {
    pub key: ServiceKey,
    /// When the change happened.
    pub at: Moment,
    /// The pod that changed, if it was one.
    pub pod: Option<Text>,
}

/// What became of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceChange {
    /// It was not known.
    New,
    /// Something that slices show changed.
    Changed,
    /// Nothing of interest changed.
    Same,
}

/// What a node's change means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// Zone capacities may be others.
    pub capacity: bool,
    /// Services with endpoints there, when the node came, went or moved to another zone.
    pub services: Vec<ServiceKey>,
}

/// All objects that slices are made from.
#[derive(Debug, Default)]
pub struct Index {
    namespaces: HashMap<Text, Namespace>,
    nodes: Nodes,
    zones: ZoneCapacity,
    interner: Interner,
}

#[derive(Debug, Default)]
struct Namespace {
    services: HashMap<Text, Entry>,
    pods: HashMap<Text, Arc<Pod>>,
    groups: HashMap<Labels, Group>,
    /// Groups that carry a label pair.
    groups_by_pair: HashMap<Text, SmallSet<Labels>>,
    /// Services filed under one pair of their selector.
    services_by_pair: HashMap<Text, SmallSet<Text>>,
    /// The slices of each Service, by name.
    slices: HashMap<Text, Vec<Arc<EndpointSlice>>>,
    slice_services: HashMap<Text, Text>,
}

#[derive(Debug)]
struct Entry {
    service: Arc<Service>,
    filed_under: Option<Text>,
    groups: SmallSet<Labels>,
}

#[derive(Debug, Default)]
struct Group {
    pods: SmallSet<Text>,
    services: SmallSet<Text>,
}

impl Index {
    /// Takes in a pod; returns the Services whose endpoints it changed, in order.
    pub fn apply_pod(&mut self, pod: Arc<Pod>, now: Moment) -> Vec<Touched> {
        let metadata = &pod.metadata;
        let namespace = self.namespaces.entry(metadata.namespace.clone()).or_default();
        let old = namespace.pods.get(&metadata.name).cloned();
        if old.as_ref().is_some_and(|old| {
            old.metadata.resource_version == metadata.resource_version
                && metadata.revision() != Revision::default()
        }) {
            return Vec::new();
        }
        let moved = old
            .as_ref()
            .is_none_or(|old| old.metadata.labels != metadata.labels);
        let before = old
            .as_ref()
            .map(|old| namespace.services_of(&old.metadata.labels))
            .unwrap_or_default();
        if moved {
            if let Some(old) = &old {
                namespace.leave_group(old);
            }
            namespace.join_group(&pod);
        }
        namespace.pods.insert(metadata.name.clone(), pod.clone());
        let change = endpoint_change(old.as_deref(), Some(&pod), now);
        if !moved {
            return touched(&pod, before, |_| change);
        }
        let after = namespace.services_of(&metadata.labels);
        let had = old.as_ref().is_some_and(|old| old.has_endpoint());
        // A pod whose labels moved it joins or leaves at the moment we see it, whatever its own times.
        let joined = pod
            .has_endpoint()
            .then_some(if old.is_some() { now } else { change.unwrap_or(now) });
        let all: HashSet<Text> = before.union(&after).cloned().collect();
        touched(&pod, all, |service| {
            match (before.contains(service), after.contains(service)) {
                (true, true) => change,
                (false, _) => joined,
                (true, false) => had.then_some(now),
            }
        })
    }

    /// Removes a pod; returns the Services that lost an endpoint, in order.
    pub fn remove_pod(&mut self, namespace: &str, name: &str, now: Moment) -> Vec<Touched> {
        let Some(space) = self.namespaces.get_mut(namespace) else {
            return Vec::new();
        };
        let Some(old) = space.pods.remove(name) else {
            return Vec::new();
        };
        let before = space.services_of(&old.metadata.labels);
        space.leave_group(&old);
        touched(&old, before, |_| endpoint_change(Some(&old), None, now))
    }

    /// Takes in a Service.
    pub fn apply_service(&mut self, service: Arc<Service>) -> ServiceChange {
        let metadata = &service.metadata;
        let namespace = self.namespaces.entry(metadata.namespace.clone()).or_default();
        let change = match namespace.services.get(&metadata.name) {
            None => ServiceChange::New,
            Some(entry) if same_outcome(&entry.service, &service) => ServiceChange::Same,
            Some(_) => ServiceChange::Changed,
        };
        let same_selector = namespace.services.get(&metadata.name).is_some_and(|entry| {
            entry.service.selector == service.selector
                && entry.service.wants_slices() == service.wants_slices()
        });
        if same_selector {
            let entry = namespace
                .services
                .get_mut(&metadata.name)
                .expect("looked up above");
            entry.service = service;
        } else {
            namespace.unfile(&metadata.name);
            namespace.file(service);
        }
        change
    }

    /// Removes a Service. True when it was known.
    pub fn remove_service(&mut self, key: &ServiceKey) -> bool {
        self.namespaces
            .get_mut(&key.namespace)
            .is_some_and(|namespace| namespace.unfile(&key.name))
    }

    /// Takes in a slice; returns the version it replaces.
    pub fn apply_slice(&mut self, mut slice: EndpointSlice) -> Option<Arc<EndpointSlice>> {
        slice.intern(&mut self.interner);
        self.interner.sweep_if_grown();
        let old = self.remove_slice(&slice.metadata.namespace, &slice.metadata.name);
        if let Some(key) = ServiceKey::of_slice(&slice) {
            let namespace = self.namespaces.entry(key.namespace).or_default();
            namespace.share_pod_texts(&mut slice);
            namespace
                .slice_services
                .insert(slice.metadata.name.clone(), key.name.clone());
            let slices = namespace.slices.entry(key.name).or_default();
            // It was removed above, so that it is not there.
            let (Ok(at) | Err(at)) = place(slices, &slice.metadata.name);
            slices.reserve_exact(1);
            slices.insert(at, Arc::new(slice));
        }
        old
    }

    /// A slice by its name.
    pub fn slice(&self, namespace: &str, name: &str) -> Option<&EndpointSlice> {
        let namespace = self.namespaces.get(namespace)?;
        let slices = namespace.slices.get(namespace.slice_services.get(name)?)?;
        find(slices, name)
    }

    /// Removes a slice; returns its last version.
    pub fn remove_slice(&mut self, namespace: &str, name: &str) -> Option<Arc<EndpointSlice>> {
        let namespace = self.namespaces.get_mut(namespace)?;
        let service = namespace.slice_services.remove(name)?;
        let slices = namespace.slices.get_mut(&service)?;
        let old = place(slices, name).ok().map(|at| slices.remove(at));
        if slices.is_empty() {
            namespace.slices.remove(&service);
        }
        old
    }

    /// Takes in a node.
    pub fn apply_node(&mut self, node: &Node) -> NodeChange {
        let mut facts = NodeFacts::of(node, &mut self.interner.texts);
        let name = node.metadata.name.clone();
        // What others say of it is not the node's own to change.
        facts.withdrawn = self.nodes.get(&name).is_some_and(|known| known.withdrawn);
        let old = self.nodes.insert(name.clone(), facts);
        let new = &self.nodes[&name];
        if old.as_ref() == Some(new) {
            return NodeChange::default();
        }
        let moved = old.is_none_or(|old| old.zone != new.zone);
        self.zones = ZoneCapacity::from_nodes(self.nodes.values());
        NodeChange {
            capacity: true,
            services: if moved {
                self.services_on(|node| *node == *name)
            } else {
                Vec::new()
            },
        }
    }

    /// Removes a node.
    pub fn remove_node(&mut self, name: &str) -> NodeChange {
        if self.nodes.remove(name).is_none() {
            return NodeChange::default();
        }
        self.zones = ZoneCapacity::from_nodes(self.nodes.values());
        NodeChange {
            capacity: true,
            services: self.services_on(|node| node == name),
        }
    }

    /// Withdraws nodes, or restores them; returns the Services with endpoints there.
    pub fn withdraw(&mut self, nodes: &[(Text, bool)]) -> Vec<ServiceKey> {
        let mut changed = HashSet::new();
        for (name, withdrawn) in nodes {
            if let Some(facts) = self.nodes.get_mut(name)
                && std::mem::replace(&mut facts.withdrawn, *withdrawn) != *withdrawn
            {
                changed.insert(&**name);
            }
        }
        self.services_on(|node| changed.contains(node))
    }

    /// What is known of all nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub fn service(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        Some(
            &self
                .namespaces
                .get(&key.namespace)?
                .services
                .get(&key.name)?
                .service,
        )
    }

    /// All Services, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.namespaces
            .values()
            .flat_map(|namespace| namespace.services.values())
            .map(|entry| &entry.service)
    }

    /// The slices that name a Service, whoever manages them.
    pub fn slices<'a>(&'a self, key: &ServiceKey) -> impl Iterator<Item = &'a EndpointSlice> + use<'a> {
        let slices = self
            .namespaces
            .get(&key.namespace)
            .and_then(|namespace| namespace.slices.get(&key.name));
        slices.into_iter().flatten().map(|slice| &**slice)
    }

    /// The Services that slices name which mirror Endpoints.
    pub fn mirrored(&self) -> impl Iterator<Item = ServiceKey> {
        let slices = self
            .namespaces
            .values()
            .flat_map(|namespace| namespace.slices.values());
        let slices = slices.flatten().filter(|slice| slice.mirrored_by_us());
        slices.filter_map(|slice| ServiceKey::of_slice(slice))
    }

    /// Everything that decides the slices of one Service.
    pub fn inputs(&self, key: &ServiceKey) -> Option<Inputs<'_>> {
        let namespace = self.namespaces.get(&key.namespace)?;
        let entry = namespace.services.get(&key.name)?;
        let names = entry
            .groups
            .iter()
            .filter_map(|labels| namespace.groups.get(labels))
            .flat_map(|group| group.pods.iter());
        let pods = names
            .filter_map(|name| namespace.pods.get(name))
            .map(|pod| &**pod)
            .collect();
        Some(Inputs {
            service: &entry.service,
            pods,
            slices: self.slices(key).collect(),
            nodes: &self.nodes,
            zones: &self.zones,
        })
    }

    /// A pod that a Service selects.
    pub(crate) fn selected(&self, key: &ServiceKey, pod: &str) -> Option<&Pod> {
        let namespace = self.namespaces.get(&key.namespace)?;
        let entry = namespace.services.get(&key.name)?;
        let pod = namespace.pods.get(pod)?;
        entry.groups.contains(&pod.metadata.labels).then_some(&**pod)
    }

    /// What decides some of a Service's slices: these, the pods in them, and some pods more. `None` if one of the
    /// slices is not known.
    pub(crate) fn inputs_of<'a, 's, 'p>(
        &'a self,
        key: &ServiceKey,
        slices: impl IntoIterator<Item = &'s Text>,
        more: impl Iterator<Item = &'p Text>,
    ) -> Option<Inputs<'a>> {
        let namespace = self.namespaces.get(&key.namespace)?;
        let entry = namespace.services.get(&key.name)?;
        let known = namespace.slices.get(&key.name)?;
        let slices = slices.into_iter().map(|name| find(known, name));
        let slices: Vec<&EndpointSlice> = slices.collect::<Option<_>>()?;
        let mut pods: Vec<&Pod> = slices
            .iter()
            .flat_map(|slice| &slice.endpoints)
            .filter_map(|endpoint| endpoint.target.as_ref())
            .map(|target| &*target.name)
            .chain(more.map(|name| &**name))
            .filter_map(|name| namespace.pods.get(name))
            .filter(|pod| entry.groups.contains(&pod.metadata.labels))
            .map(|pod| &**pod)
            .collect();
        pods.sort_unstable_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        pods.dedup_by(|a, b| a.metadata.name == b.metadata.name);
        Some(Inputs {
            service: &entry.service,
            pods,
            slices,
            nodes: &self.nodes,
            zones: &self.zones,
        })
    }

    /// Each zone's share of the CPUs.
    pub fn zones(&self) -> &ZoneCapacity {
        &self.zones
    }

    /// How many pods are known.
    pub fn pod_count(&self) -> usize {
        self.namespaces
            .values()
            .map(|namespace| namespace.pods.len())
            .sum()
    }

    /// Nodes come, go, move and fail rarely, so their pods are looked for rather than indexed.
    fn services_on(&self, wanted: impl Fn(&str) -> bool) -> Vec<ServiceKey> {
        let mut keys = HashSet::new();
        for (name, namespace) in &self.namespaces {
            let pods = namespace
                .pods
                .values()
                .filter(|pod| pod.node_name.as_deref().is_some_and(&wanted));
            for service in pods
                .flat_map(|pod| namespace.groups.get(&pod.metadata.labels))
                .flat_map(|group| group.services.iter())
            {
                keys.insert(ServiceKey {
                    namespace: name.clone(),
                    name: service.clone(),
                });
            }
        }
        let mut keys: Vec<ServiceKey> = keys.into_iter().collect();
        keys.sort();
        keys
    }
}

impl Namespace {
    /// Names and uids in a slice are those of pods we hold already.
    fn share_pod_texts(&self, slice: &mut EndpointSlice) {
        for target in slice
            .endpoints
            .iter_mut()
            .filter_map(|endpoint| endpoint.target.as_mut())
        {
            if let Some(pod) = self.pods.get(&target.name) {
                target.name = pod.metadata.name.clone();
                if target.uid == pod.metadata.uid {
                    target.uid = pod.metadata.uid.clone();
                }
            }
        }
    }

    fn services_of(&self, labels: &Labels) -> HashSet<Text> {
        self.groups
            .get(labels)
            .map(|group| group.services.iter().cloned().collect())
            .unwrap_or_default()
    }

    fn join_group(&mut self, pod: &Pod) {
        let labels = &pod.metadata.labels;
        if !self.groups.contains_key(labels) {
            self.make_group(labels);
        }
        self.groups
            .get_mut(labels)
            .expect("made above")
            .pods
            .insert(pod.metadata.name.clone());
    }

    fn make_group(&mut self, labels: &Labels) {
        let mut group = Group::default();
        for (key, value) in labels.iter() {
            let pair = pair(key, value);
            let services = self.services_by_pair.get(&pair);
            for name in services.into_iter().flat_map(SmallSet::iter) {
                let entry = self.services.get_mut(name).expect("a filed service is known");
                if entry
                    .service
                    .selector
                    .as_ref()
                    .is_some_and(|selector| selector.selects(labels))
                {
                    entry.groups.insert(labels.clone());
                    group.services.insert(name.clone());
                }
            }
            self.groups_by_pair
                .entry(pair)
                .or_default()
                .insert(labels.clone());
        }
        self.groups.insert(labels.clone(), group);
    }

    fn leave_group(&mut self, pod: &Pod) {
        let labels = &pod.metadata.labels;
        let Some(group) = self.groups.get_mut(labels) else {
            return;
        };
        group.pods.remove(&pod.metadata.name);
        if !group.pods.is_empty() {
            return;
        }
        let group = self.groups.remove(labels).expect("looked up above");
        for service in group.services.iter() {
            if let Some(entry) = self.services.get_mut(service) {
                entry.groups.remove(labels);
            }
        }
        for (key, value) in labels.iter() {
            drop_from(&mut self.groups_by_pair, &pair(key, value), labels);
        }
    }

    fn file(&mut self, service: Arc<Service>) {
        let name = service.metadata.name.clone();
        let mut entry = Entry {
            service,
            filed_under: None,
            groups: SmallSet::default(),
        };
        if entry.service.wants_slices()
            && let Some(selector) = &entry.service.selector
        {
            // The pair that the fewest groups carry is the cheapest to look under, now and later.
            let pairs = selector.iter().map(|(key, value)| pair(key, value));
            entry.filed_under = pairs.min_by_key(|pair| {
                (
                    self.groups_by_pair.get(pair).map_or(0, SmallSet::len),
                    self.services_by_pair.get(pair).map_or(0, SmallSet::len),
                )
            });
            let candidates = entry
                .filed_under
                .iter()
                .filter_map(|pair| self.groups_by_pair.get(pair))
                .flat_map(SmallSet::iter);
            entry.groups = candidates
                .filter(|labels| selector.selects(labels))
                .cloned()
                .collect();
        }
        for labels in entry.groups.iter() {
            self.groups
                .get_mut(labels)
                .expect("a filed group is known")
                .services
                .insert(name.clone());
        }
        if let Some(pair) = &entry.filed_under {
            self.services_by_pair
                .entry(pair.clone())
                .or_default()
                .insert(name.clone());
        }
        self.services.insert(name, entry);
    }

    fn unfile(&mut self, name: &Text) -> bool {
        let Some(entry) = self.services.remove(name) else {
            return false;
        };
        for labels in entry.groups.iter() {
            if let Some(group) = self.groups.get_mut(labels) {
                group.services.remove(name);
            }
        }
        if let Some(pair) = &entry.filed_under {
            drop_from(&mut self.services_by_pair, pair, name);
        }
        true
    }
}

fn pair(key: &str, value: &str) -> Text {
    [key, "\0", value].concat().into()
}

/// Where a slice is among others that are in order of name, or would be.
fn place(slices: &[Arc<EndpointSlice>], name: &str) -> Result<usize, usize> {
    slices.binary_search_by(|slice| (*slice.metadata.name).cmp(name))
}

fn find<'a>(slices: &'a [Arc<EndpointSlice>], name: &str) -> Option<&'a EndpointSlice> {
    Some(&slices[place(slices, name).ok()?])
}

fn drop_from<V: Eq + std::hash::Hash>(map: &mut HashMap<Text, SmallSet<V>>, key: &Text, value: &V) {
    if let Some(set) = map.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            map.remove(key);
        }
    }
}

fn touched(pod: &Pod, services: HashSet<Text>, at: impl Fn(&Text) -> Option<Moment>) -> Vec<Touched> {
    let mut touched: Vec<Touched> = services
        .into_iter()
        .filter_map(|name| {
            let at = at(&name)?;
            Some(Touched {
                key: ServiceKey {
                    namespace: pod.metadata.namespace.clone(),
                    name,
                },
                at,
                pod: Some(pod.metadata.name.clone()),
            })
        })
        .collect();
    touched.sort();
    touched
}
