//! What do the workload loops know?

use super::Now;
use pointsman_api_client::ObjectKey;
use pointsman_model::{Moment, Text};
use pointsman_objects::metadata::{All, Metadata};
use pointsman_objects::{
    DaemonSet, Deployment, Job, Node, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet,
};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::time::Instant;

/// What an event did to the cache.
#[derive(Debug)]
pub(super) enum Change {
    Pod {
        key: ObjectKey,
        old: Option<Arc<Pod>>,
        new: Option<Arc<Pod>>,
    },
    Set(Moved<ReplicaSet>),
    Daemon(Moved<DaemonSet>),
    Deployment(Moved<Deployment>),
    Stateful(Moved<StatefulSet>),
    Job(Moved<Job>),
    Budget(Moved<PodDisruptionBudget>),
    Node,
    /// Nothing that a loop would read, such as a heartbeat.
    Nothing,
}

/// One object before and after.
#[derive(Debug)]
pub(super) struct Moved<T> {
    pub key: ObjectKey,
    pub old: Option<Arc<T>>,
    pub new: Option<Arc<T>>,
}

/// A kind that these loops alone watch.
pub(super) trait Kept: DeserializeOwned + Send + Sync + 'static {
    fn metadata(&self) -> &Metadata<All>;
    fn filed(store: &Store) -> &Filed<Self>;
    fn filed_mut(store: &mut Store) -> &mut Filed<Self>;
    fn change(moved: Moved<Self>) -> Change;
    /// How many pods there should be, where it says so.
    fn replicas(&self) -> i32 {
        0
    }
}

macro_rules! kept {
    ($kind:ty, $field:ident, $change:ident $(, $replicas:expr)?) => {
        impl Kept for $kind {
            fn metadata(&self) -> &Metadata<All> {
                &self.metadata
            }
            fn filed(store: &Store) -> &Filed<Self> {
                &store.$field
            }
            fn filed_mut(store: &mut Store) -> &mut Filed<Self> {
                &mut store.$field
            }
            fn change(moved: Moved<Self>) -> Change {
                Change::$change(moved)
            }
            $(fn replicas(&self) -> i32 {
                $replicas(self)
            })?
        }
    };
}

kept!(ReplicaSet, sets, Set, |set: &ReplicaSet| set.spec.replicas);
kept!(Deployment, deployments, Deployment, Deployment::replicas);
kept!(DaemonSet, daemons, Daemon);
kept!(StatefulSet, stateful, Stateful, StatefulSet::replicas);
kept!(Job, jobs, Job);
kept!(PodDisruptionBudget, budgets, Budget);

/// Everything that is cached, with the look-ups that loops need.
#[derive(Debug)]
pub(super) struct Store {
    start: Instant,
    pods: BTreeMap<PodKey, Arc<Pod>>,
    /// Pods by the uid of the object that controls them.
    pods_of: HashMap<Text, BTreeSet<PodKey>>,
    /// Pods that nobody controls, by namespace.
    orphans: HashMap<Text, BTreeSet<PodKey>>,
    nodes: BTreeMap<Text, Arc<Node>>,
    pub sets: Filed<ReplicaSet>,
    pub deployments: Filed<Deployment>,
    pub daemons: Filed<DaemonSet>,
    pub stateful: Filed<StatefulSet>,
    pub jobs: Filed<Job>,
    pub budgets: Filed<PodDisruptionBudget>,
}

/// Objects by name, and names by uid.
#[derive(Debug)]
pub(super) struct Filed<T> {
    objects: BTreeMap<ObjectKey, Arc<T>>,
    keys: HashMap<Text, ObjectKey>,
}

impl<T> Default for Filed<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            keys: HashMap::new(),
        }
    }
}

impl<T: Kept> Filed<T> {
    /// Puts an object in its place, or takes it away.
    fn put(&mut self, key: ObjectKey, object: Option<T>) -> Moved<T> {
        let old = self.objects.remove(&key);
        if let Some(old) = &old {
            self.keys.remove(&old.metadata().uid);
        }
        let new = object.map(Arc::new);
        if let Some(new) = &new {
            self.objects.insert(key.clone(), new.clone());
            self.keys.insert(new.metadata().uid.clone(), key.clone());
        }
        Moved { key, old, new }
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    pub fn key_of_uid(&self, uid: &str) -> Option<&ObjectKey> {
        self.keys.get(uid)
    }

    pub fn with_uid(&self, uid: &str) -> Option<&Arc<T>> {
        self.objects.get(self.keys.get(uid)?)
    }

    /// All of them, in order.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.objects.keys()
    }

    /// Those of a namespace, in order of name.
    pub fn of_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<T>)> {
        self.objects
            .range(ObjectKey::new(namespace, "")..)
            .take_while(move |(key, _)| key.namespace() == namespace)
    }
}

impl Store {
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            pods: BTreeMap::new(),
            pods_of: HashMap::new(),
            orphans: HashMap::new(),
            nodes: BTreeMap::new(),
            sets: Filed::default(),
            deployments: Filed::default(),
            daemons: Filed::default(),
            stateful: Filed::default(),
            jobs: Filed::default(),
            budgets: Filed::default(),
        }
    }

    pub fn now(&self) -> Now {
        Now {
            tick: self.start.elapsed(),
            wall: Moment::from(jiff::Timestamp::now()),
        }
    }

    pub fn apply_pod(&mut self, pod: Arc<Pod>) -> Change {
        let key = pod_key(&pod);
        let old = self.unfile_pod(&key);
        let place = match pod.metadata.controller() {
            Some(owner) => self.pods_of.entry(owner.uid.clone()),
            None => self.orphans.entry(pod.metadata.namespace.clone()),
        };
        place.or_default().insert(key.clone());
        self.pods.insert(key, pod.clone());
        Change::Pod {
            key: key_of(&pod.metadata),
            old,
            new: Some(pod),
        }
    }

    pub fn remove_pod(&mut self, key: &ObjectKey) -> Change {
        let name = (key.namespace().into(), key.name().into());
        Change::Pod {
            key: key.clone(),
            old: self.unfile_pod(&name),
            new: None,
        }
    }

    fn unfile_pod(&mut self, key: &PodKey) -> Option<Arc<Pod>> {
        let old = self.pods.remove(key)?;
        let (index, place): (_, &str) = match old.controller_uid() {
            Some(uid) => (&mut self.pods_of, uid),
            None => (&mut self.orphans, &old.metadata.namespace),
        };
        if let Some(keys) = index.get_mut(place) {
            keys.remove(key);
            if keys.is_empty() {
                index.remove(place);
            }
        }
        Some(old)
    }

    pub fn apply_node(&mut self, node: Arc<Node>) -> Change {
        match self.nodes.insert(node.metadata.name.clone(), node.clone()) {
            Some(before) if same_to_pods(&before, &node) => Change::Nothing,
            _ => Change::Node,
        }
    }

    pub fn remove_node(&mut self, name: &str) -> Change {
        self.nodes.remove(name);
        Change::Node
    }

    /// An object of a kind that only these loops watch showed up, changed or went.
    pub fn put<T: Kept>(&mut self, key: ObjectKey, object: Option<T>) -> Change {
        T::change(T::filed_mut(self).put(key, object))
    }

    pub fn pod(&self, key: &ObjectKey) -> Option<&Arc<Pod>> {
        self.pods.get(&(key.namespace().into(), key.name().into()))
    }

    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    /// Pods of a namespace.
    pub fn pods_in(&self, namespace: &str) -> impl Iterator<Item = &Pod> {
        let first: PodKey = (namespace.into(), "".into());
        let pods = self.pods.range(first.clone()..);
        pods.take_while(move |(key, _)| key.0 == first.0)
            .map(|(_, pod)| &**pod)
    }

    /// Pods that the object with this uid controls.
    pub fn pods_of(&self, uid: &str) -> impl Iterator<Item = &Pod> {
        let keys = self.pods_of.get(uid).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key)).map(|pod| &**pod)
    }

    /// Pods of a namespace that nobody controls.
    pub fn orphans(&self, namespace: &str) -> impl Iterator<Item = &Pod> {
        let keys = self.orphans.get(namespace).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key)).map(|pod| &**pod)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().map(|node| &**node)
    }
}

/// Namespace and name of a pod, in the pod's own memory.
type PodKey = (Text, Text);

fn pod_key(pod: &Pod) -> PodKey {
    (pod.metadata.namespace.clone(), pod.metadata.name.clone())
}

/// Whether two versions of a node differ in nothing that decides which pods it takes.
fn same_to_pods(one: &Node, other: &Node) -> bool {
    one.metadata.labels == other.metadata.labels
        && one.unschedulable == other.unschedulable
        && one.taints == other.taints
        && one.is_ready() == other.is_ready()
        && one.pod_limit == other.pod_limit
}

/// The key of an object.
pub(super) fn key_of<K>(metadata: &Metadata<K>) -> ObjectKey {
    ObjectKey::new(&metadata.namespace, &metadata.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, owner: Option<&str>) -> Arc<Pod> {
        let owners = owner.map(|uid| json!({ "uid": uid, "controller": true }));
        let owners: Vec<_> = owners.into_iter().collect();
        let metadata = json!({ "namespace": "ns", "name": name, "uid": name, "ownerReferences": owners });
        Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
    }

    #[tokio::test]
    async fn pods_are_found_by_their_owner_through_adoption_and_release() {
        let mut store = Store::new(Instant::now());
        let names = |store: &Store| {
            let mine: Vec<String> = store
                .pods_of("rs")
                .map(|pod| pod.metadata.name.to_string())
                .collect();
            let orphans: Vec<String> = store
                .orphans("ns")
                .map(|pod| pod.metadata.name.to_string())
                .collect();
            (mine.join(","), orphans.join(","))
        };
        store.apply_pod(pod("a", None));
        store.apply_pod(pod("b", Some("rs")));
        assert_eq!(names(&store), ("b".into(), "a".into()));
        store.apply_pod(pod("a", Some("rs")));
        store.apply_pod(pod("b", None));
        assert_eq!(names(&store), ("a".into(), "b".into()));
        store.remove_pod(&ObjectKey::new("ns", "a"));
        assert_eq!(names(&store), ("".into(), "b".into()));
    }

    #[tokio::test]
    async fn namespaces_that_share_a_prefix_are_kept_apart() {
        let mut store = Store::new(Instant::now());
        for (namespace, name) in [("a", "x"), ("a-b", "y"), ("ab", "z")] {
            let object = json!({ "metadata": { "namespace": namespace, "name": name, "uid": name } });
            let set: ReplicaSet = serde_json::from_value(object).unwrap();
            store.put(ObjectKey::new(namespace, name), Some(set));
        }
        let found: Vec<&str> = store.sets.of_namespace("a").map(|(key, _)| key.name()).collect();
        assert_eq!(found, ["x"]);
    }
}
