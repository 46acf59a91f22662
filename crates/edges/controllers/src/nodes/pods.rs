//! Which pods are where?

use pointsman_api_client::events::Subject;
use pointsman_model::Text;
use pointsman_node_health::evict::{PodKey, key_of};
use pointsman_objects::Pod;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Pods, and which node each is on.
#[derive(Debug, Default)]
pub(super) struct Pods {
    pods: HashMap<PodKey, Arc<Pod>>,
    on: HashMap<Text, BTreeSet<PodKey>>,
}

impl Pods {
    /// Takes in a pod; returns it as it was before.
    pub fn apply(&mut self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        let key = key_of(&pod);
        let before = self.remove(&key);
        if let Some(node) = &pod.node_name {
            self.on.entry(node.clone()).or_default().insert(key.clone());
        }
        self.pods.insert(key, pod);
        before
    }

    /// A pod is gone.
    pub fn remove(&mut self, key: &PodKey) -> Option<Arc<Pod>> {
        let before = self.pods.remove(key)?;
        if let Some(node) = &before.node_name
            && let Some(keys) = self.on.get_mut(node)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.on.remove(node);
            }
        }
        Some(before)
    }

    pub fn get(&self, key: &PodKey) -> Option<&Arc<Pod>> {
        self.pods.get(key)
    }

    /// The pods on a node, in order.
    pub fn on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        let keys = self.on.get(node).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key)).map(|pod| &**pod)
    }
}

pub(super) fn node_subject(name: &str, uid: &str) -> Subject {
    subject("Node", "", name, uid)
}

pub(super) fn pod_subject(pod: &PodKey, uid: &str) -> Subject {
    subject("Pod", &pod.0, &pod.1, uid)
}

pub(super) fn subject(kind: &str, namespace: &str, name: &str, uid: &str) -> Subject {
    Subject {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, node: Option<&str>) -> Arc<Pod> {
        let pod = json!({ "metadata": { "namespace": "ns", "name": name }, "spec": { "nodeName": node } });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn on(pods: &Pods, node: &str) -> Vec<String> {
        pods.on(node).map(|pod| pod.metadata.name.to_string()).collect()
    }

    #[test]
    fn pods_are_found_on_the_node_they_are_on_now() {
        let mut pods = Pods::default();
        assert_eq!(pods.apply(pod("b", None)), None);
        pods.apply(pod("a", Some("n1")));
        pods.apply(pod("b", Some("n1")));
        assert_eq!(on(&pods, "n1"), ["a", "b"]);
        assert!(pods.apply(pod("a", Some("n2"))).is_some());
        assert_eq!(
            (on(&pods, "n1"), on(&pods, "n2")),
            (vec!["b".into()], vec!["a".into()])
        );
        pods.remove(&("ns".into(), "b".into()));
        assert!(on(&pods, "n1").is_empty());
    }
}
