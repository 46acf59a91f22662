//! What do these loops read of nodes and of their ConfigMap, and which pods are where?

use pointsman_api_client::events::Subject;
use pointsman_node_health::evict::{Pod, PodKey};
use pointsman_node_health::node::Text;
use pointsman_node_health::{Lease, Node};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A node: what decides about its health, and what writes to it need.
#[derive(Debug)]
pub(super) struct NodeObject {
    pub health: Node,
    pub identity: Identity,
    pub pod_cidrs: Vec<String>,
}

/// Which node, in which version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub uid: Text,
    pub version: Text,
}

#[derive(Deserialize)]
struct Head {
    metadata: HeadMetadata,
    #[serde(default)]
    spec: HeadSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadMetadata {
    uid: Text,
    resource_version: Text,
}

#[derive(Default, Deserialize)]
struct HeadSpec {
    #[serde(default, rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for NodeObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        // Two readers of the same text: the decision crate knows nothing of versions and ranges.
        let text = <&RawValue>::deserialize(deserializer)?.get();
        let health = serde_json::from_str(text).map_err(D::Error::custom)?;
        let head: Head = serde_json::from_str(text).map_err(D::Error::custom)?;
        Ok(Self {
            health,
            identity: Identity {
                uid: head.metadata.uid,
                version: head.metadata.resource_version,
            },
            pod_cidrs: head.spec.pod_cidrs.unwrap_or_default(),
        })
    }
}

/// A ConfigMap.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigMap {
    pub metadata: ConfigMapMetadata,
    #[serde(default)]
    pub data: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ConfigMapMetadata {
    pub uid: String,
    #[serde(default)]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// The part of a live lease that a verdict needs.
pub(super) type LiveLeaseObject = Lease;

/// Pods, and which node each is on.
#[derive(Debug, Default)]
pub(super) struct Pods {
    pods: HashMap<PodKey, Pod>,
    on: HashMap<Text, BTreeSet<PodKey>>,
}

impl Pods {
    /// Takes in a pod; returns it as it was before.
    pub fn apply(&mut self, pod: Pod) -> Option<Pod> {
        let key = (pod.namespace.clone(), pod.name.clone());
        let before = self.remove(&key);
        if let Some(node) = &pod.node {
            self.on.entry(node.clone()).or_default().insert(key.clone());
        }
        self.pods.insert(key, pod);
        before
    }

    /// A pod is gone.
    pub fn remove(&mut self, key: &PodKey) -> Option<Pod> {
        let before = self.pods.remove(key)?;
        if let Some(node) = &before.node
            && let Some(keys) = self.on.get_mut(node)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.on.remove(node);
            }
        }
        Some(before)
    }

    pub fn get(&self, key: &PodKey) -> Option<&Pod> {
        self.pods.get(key)
    }

    /// The pods on a node, in order.
    pub fn on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        let keys = self.on.get(node).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key))
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

    fn pod(name: &str, node: Option<&str>) -> Pod {
        let pod = json!({ "metadata": { "namespace": "ns", "name": name }, "spec": { "nodeName": node } });
        serde_json::from_value(pod).unwrap()
    }

    fn on(pods: &Pods, node: &str) -> Vec<String> {
        pods.on(node).map(|pod| pod.name.to_string()).collect()
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

    #[test]
    fn a_node_is_read_whole_from_one_text() {
        let text = json!({
            "metadata": { "name": "n", "uid": "u", "resourceVersion": "7" },
            "spec": { "podCIDRs": ["10.0.0.0/24"], "unschedulable": true },
        });
        let node: NodeObject = serde_json::from_str(&text.to_string()).unwrap();
        assert!(node.health.unschedulable);
        assert_eq!((&*node.identity.uid, &*node.identity.version), ("u", "7"));
        assert_eq!(node.pod_cidrs, ["10.0.0.0/24"]);
    }
}
