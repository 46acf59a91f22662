//! What do the workload loops know?

use super::Now;
use pointsman_api_client::ObjectKey;
use pointsman_model::{Moment, Text};
use pointsman_objects::metadata::{All, Metadata};
use pointsman_objects::{DaemonSet, Deployment, Node, Pod, ReplicaSet};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::time::Instant;

/// What an event did to the cache.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Pod {
        key: ObjectKey,
        old: Option<Arc<Pod>>,
        new: Option<Arc<Pod>>,
    },
    Set {
        key: ObjectKey,
        old: Option<Arc<ReplicaSet>>,
        new: Option<Arc<ReplicaSet>>,
    },
    Daemon {
        key: ObjectKey,
        old: Option<Arc<DaemonSet>>,
        new: Option<Arc<DaemonSet>>,
    },
    Deployment(ObjectKey),
    Node,
    /// Nothing that a loop would read, such as a heartbeat.
    Nothing,
}

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
    sets: Filed<ReplicaSet>,
    deployments: Filed<Deployment>,
    daemons: Filed<DaemonSet>,
}

/// Objects by name, and names by uid.
#[derive(Debug)]
struct Filed<T> {
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

impl<T> Filed<T> {
    /// Puts an object in its place; returns its key, what was there, and itself.
    fn put(&mut self, object: T, metadata: fn(&T) -> &Metadata<All>) -> (ObjectKey, Option<Arc<T>>, Arc<T>) {
        let (key, uid) = (key_of(metadata(&object)), metadata(&object).uid.clone());
        let object = Arc::new(object);
        let old = self.remove(&key, metadata);
        self.objects.insert(key.clone(), object.clone());
        self.keys.insert(uid, key.clone());
        (key, old, object)
    }

    fn remove(&mut self, key: &ObjectKey, metadata: fn(&T) -> &Metadata<All>) -> Option<Arc<T>> {
        let old = self.objects.remove(key)?;
        self.keys.remove(&metadata(&old).uid);
        Some(old)
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

    pub fn apply_set(&mut self, set: ReplicaSet) -> Change {
        let (key, old, new) = self.sets.put(set, |set| &set.metadata);
        let new = Some(new);
        Change::Set { key, old, new }
    }

    pub fn remove_set(&mut self, key: &ObjectKey) -> Change {
        Change::Set {
            key: key.clone(),
            old: self.sets.remove(key, |set| &set.metadata),
            new: None,
        }
    }

    pub fn apply_deployment(&mut self, deployment: Deployment) -> Change {
        let (key, ..) = self.deployments.put(deployment, |it| &it.metadata);
        Change::Deployment(key)
    }

    pub fn remove_deployment(&mut self, key: &ObjectKey) -> Change {
        self.deployments.remove(key, |it| &it.metadata);
        Change::Deployment(key.clone())
    }

    pub fn apply_daemon(&mut self, daemon: DaemonSet) -> Change {
        let (key, old, new) = self.daemons.put(daemon, |daemon| &daemon.metadata);
        let new = Some(new);
        Change::Daemon { key, old, new }
    }

    pub fn remove_daemon(&mut self, key: &ObjectKey) -> Change {
        Change::Daemon {
            key: key.clone(),
            old: self.daemons.remove(key, |daemon| &daemon.metadata),
            new: None,
        }
    }

    pub fn pod(&self, key: &ObjectKey) -> Option<&Arc<Pod>> {
        self.pods.get(&(key.namespace().into(), key.name().into()))
    }

    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
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

    pub fn set(&self, key: &ObjectKey) -> Option<&Arc<ReplicaSet>> {
        self.sets.objects.get(key)
    }

    pub fn set_with_uid(&self, uid: &str) -> Option<&Arc<ReplicaSet>> {
        self.sets.objects.get(self.sets.keys.get(uid)?)
    }

    /// ReplicaSets of a namespace, in order of name.
    pub fn sets_in<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<ReplicaSet>)> {
        in_namespace(&self.sets.objects, namespace)
    }

    pub fn deployment(&self, key: &ObjectKey) -> Option<&Arc<Deployment>> {
        self.deployments.objects.get(key)
    }

    pub fn deployment_with_uid(&self, uid: &str) -> Option<&ObjectKey> {
        self.deployments.keys.get(uid)
    }

    /// Deployments of a namespace, in order of name.
    pub fn deployments_in<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Deployment>)> {
        in_namespace(&self.deployments.objects, namespace)
    }

    pub fn daemon(&self, key: &ObjectKey) -> Option<&Arc<DaemonSet>> {
        self.daemons.objects.get(key)
    }

    pub fn daemon_with_uid(&self, uid: &str) -> Option<&ObjectKey> {
        self.daemons.keys.get(uid)
    }

    /// All DaemonSets, in order.
    pub fn daemons(&self) -> impl Iterator<Item = &ObjectKey> {
        self.daemons.objects.keys()
    }

    /// DaemonSets of a namespace, in order of name.
    pub fn daemons_in<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<DaemonSet>)> {
        in_namespace(&self.daemons.objects, namespace)
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

fn in_namespace<'a, T>(
    objects: &'a BTreeMap<ObjectKey, T>,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a ObjectKey, &'a T)> {
    objects
        .range(ObjectKey::new(namespace, "")..)
        .take_while(move |(key, _)| key.namespace() == namespace)
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
            store.apply_set(
                serde_json::from_value(
                    json!({ "metadata": { "namespace": namespace, "name": name, "uid": name } }),
                )
                .unwrap(),
            );
        }
        let found: Vec<&str> = store.sets_in("a").map(|(key, _)| key.name()).collect();
        assert_eq!(found, ["x"]);
    }
}
