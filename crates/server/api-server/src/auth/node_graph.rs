//! Which objects do the pods of a node name?
//!
//! Followed by the cache, pod by pod: a change costs what that pod names, and a pod that is known costs a look at its
//! identity, since what a bound pod names does not change.

use crate::cache::object::Object;
use crate::cache::{Fate, Observer};
use parking_lot::RwLock;
use pointsman_rules::kinds;
use pointsman_rules::value::{at, list_at, str_at};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What can be named: the resource in URLs, and the object's name. All are in the pod's namespace.
type Reference = (&'static str, String);

const SECRETS: &str = "secrets";
const CONFIG_MAPS: &str = "configmaps";
const ACCOUNTS: &str = "serviceaccounts";
const CLAIMS: &str = "persistentvolumeclaims";
const RESOURCE_CLAIMS: &str = "resourceclaims";

/// What pods name, by the node that they are bound to.
#[derive(Debug, Default)]
pub struct NodeGraph(RwLock<Graph>);

#[derive(Debug, Default)]
struct Graph {
    /// The identity and node of each bound pod, by its key.
    pods: HashMap<Arc<str>, (String, String)>,
    /// What each pod of a node names, by node and by the pod's key.
    nodes: HashMap<String, HashMap<Arc<str>, Box<[Reference]>>>,
}

impl Graph {
    fn forget(&mut self, key: &str) {
        let Some((_, node)) = self.pods.remove(key) else {
            return;
        };
        if let Some(pods) = self.nodes.get_mut(&node) {
            pods.remove(key);
            if pods.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }
}

impl NodeGraph {
    /// Whether a pod of `node` names the object.
    pub fn relates(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let graph = self.0.read();
        let pods = graph.nodes.get(node).into_iter().flatten();
        let mut inside = pods.filter(|(key, _)| {
            let rest = key.strip_prefix(namespace);
            rest.is_some_and(|rest| rest.starts_with('/'))
        });
        inside.any(|(_, names)| {
            names
                .iter()
                .any(|(kind, named)| *kind == resource && named == name)
        })
    }

    /// Whether the pod is bound to `node`.
    pub fn runs(&self, node: &str, pod: &str, uid: &str) -> bool {
        let graph = self.0.read();
        let found = graph.pods.get(pod);
        found.is_some_and(|(known, on)| known == uid && on == node)
    }

    /// Namespace and name of every volume claim that pods of `node` name.
    pub fn claims(&self, node: &str) -> Vec<(String, String)> {
        let graph = self.0.read();
        let pods = graph.nodes.get(node).into_iter().flatten();
        let named = pods.flat_map(|(key, names)| {
            let namespace = key.split('/').next().unwrap_or_default();
            let claims = names.iter().filter(|(kind, _)| *kind == CLAIMS);
            claims.map(move |(_, name)| (namespace.to_owned(), name.clone()))
        });
        named.collect()
    }

    fn update(&self, object: &Object) {
        let uid = object.uid().unwrap_or_default();
        let is_known = |graph: &Graph| {
            graph
                .pods
                .get(&object.key)
                .is_some_and(|(known, _)| *known == uid)
        };
        if is_known(&self.0.read()) {
            return;
        }
        let node = object.field("spec.nodeName").into_owned();
        let names = (!node.is_empty()).then(|| references(&object.value()));
        let mut graph = self.0.write();
        graph.forget(&object.key);
        if let Some(names) = names {
            graph.pods.insert(object.key.clone(), (uid, node.clone()));
            graph
                .nodes
                .entry(node)
                .or_default()
                .insert(object.key.clone(), names);
        }
    }
}

impl Observer for NodeGraph {
    fn observe(&self, object: &Object, fate: Fate) {
        if object.kind != &kinds::POD {
            return;
        }
        match fate {
            Fate::Written => self.update(object),
            Fate::Removed => self.0.write().forget(&object.key),
        }
    }
}

/// Everything that a pod names.
fn references(pod: &Value) -> Box<[Reference]> {
    let mut found = BTreeSet::new();
    let mut add = |kind: &'static str, name: &str| {
        if !name.is_empty() {
            found.insert((kind, name.to_owned()));
        }
    };
    add(ACCOUNTS, str_at(pod, &["spec", "serviceAccountName"]));
    for secret in list_at(pod, &["spec", "imagePullSecrets"]) {
        add(SECRETS, str_at(secret, &["name"]));
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in list_at(pod, &["spec", list]) {
            for from in list_at(container, &["envFrom"]) {
                add(SECRETS, str_at(from, &["secretRef", "name"]));
                add(CONFIG_MAPS, str_at(from, &["configMapRef", "name"]));
            }
            for variable in list_at(container, &["env"]) {
                add(SECRETS, str_at(variable, &["valueFrom", "secretKeyRef", "name"]));
                add(
                    CONFIG_MAPS,
                    str_at(variable, &["valueFrom", "configMapKeyRef", "name"]),
                );
            }
        }
    }
    for claim in list_at(pod, &["spec", "resourceClaims"]) {
        add(RESOURCE_CLAIMS, str_at(claim, &["resourceClaimName"]));
    }
    // Those made from templates are there before the pod is bound.
    for claim in list_at(pod, &["status", "resourceClaimStatuses"]) {
        add(RESOURCE_CLAIMS, str_at(claim, &["resourceClaimName"]));
    }
    for volume in list_at(pod, &["spec", "volumes"]) {
        add(SECRETS, str_at(volume, &["secret", "secretName"]));
        add(CONFIG_MAPS, str_at(volume, &["configMap", "name"]));
        add(CLAIMS, str_at(volume, &["persistentVolumeClaim", "claimName"]));
        if at(volume, &["ephemeral"]).is_some() {
            let (pod, volume) = (str_at(pod, &["metadata", "name"]), str_at(volume, &["name"]));
            add(CLAIMS, &format!("{pod}-{volume}"));
        }
        for source in list_at(volume, &["projected", "sources"]) {
            add(SECRETS, str_at(source, &["secret", "name"]));
            add(CONFIG_MAPS, str_at(source, &["configMap", "name"]));
        }
        // Volumes of other makers name the Secret to mount them with, each in its own field.
        let kinds = volume.as_object().into_iter().flat_map(|volume| volume.values());
        for kind in kinds.filter(|kind| kind.is_object()) {
            for field in ["secretRef", "nodePublishSecretRef"] {
                add(SECRETS, str_at(kind, &[field, "name"]));
            }
        }
        add(SECRETS, str_at(volume, &["azureFile", "secretName"]));
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::{self, EventType};
    use pointsman_store::Revision;
    use serde_json::json;

    fn pod(uid: &str, node: &str) -> Object {
        let kind = &kinds::POD;
        let value = json!({
            "metadata": {"name": "p", "namespace": "d", "uid": uid},
            "spec": {
                "nodeName": node, "serviceAccountName": "robot", "imagePullSecrets": [{"name": "pull"}],
                "containers": [{
                    "env": [
                        {"valueFrom": {"secretKeyRef": {"name": "env-s"}}},
                        {"valueFrom": {"configMapKeyRef": {"name": "env-m"}}},
                    ],
                    "envFrom": [{"secretRef": {"name": "from-s"}}, {"configMapRef": {"name": "from-m"}}],
                }],
                "volumes": [
                    {"name": "a", "secret": {"secretName": "vol-s"}},
                    {"name": "b", "projected": {"sources": [{"secret": {"name": "pro-s"}}, {"configMap": {"name": "pro-m"}}]}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}},
                    {"name": "d", "csi": {"nodePublishSecretRef": {"name": "csi-s"}}},
                    {"name": "e", "ephemeral": {}},
                ],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "fixed"}],
            },
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]},
        });
        let stored = stored::encode(kind, &value);
        Object::from_stored(kind, "d/p".into(), &stored, Revision(1), EventType::Added).unwrap()
    }

    #[test]
    fn a_node_is_related_to_what_its_pods_name_and_to_nothing_else() {
        let graph = NodeGraph::default();
        graph.observe(&pod("u1", ""), Fate::Written);
        assert!(graph.0.read().pods.is_empty(), "a pod without a node is nobody's");
        graph.observe(&pod("u1", "n1"), Fate::Written);
        for (resource, names) in [
            (
                SECRETS,
                &["pull", "env-s", "from-s", "vol-s", "pro-s", "csi-s"][..],
            ),
            (CONFIG_MAPS, &["env-m", "from-m", "pro-m"]),
            (ACCOUNTS, &["robot"]),
            (CLAIMS, &["claim", "p-e"]),
            (RESOURCE_CLAIMS, &["fixed", "made"]),
        ] {
            for name in names {
                assert!(graph.relates("n1", resource, "d", name), "{resource} {name}");
                assert!(!graph.relates("n2", resource, "d", name), "of another node");
                assert!(!graph.relates("n1", resource, "d2", name), "of another namespace");
                assert!(!graph.relates("n1", resource, "", name), "of no namespace");
            }
        }
        assert!(!graph.relates("n1", SECRETS, "d", "other"));
        assert!(!graph.relates("n1", SECRETS, "d", "env-m"), "of another kind");
        assert!(!graph.relates("n1", SECRETS, "d", ""), "of no name");
        assert!(
            graph.runs("n1", "d/p", "u1") && !graph.runs("n2", "d/p", "u1") && !graph.runs("n1", "d/p", "u2")
        );
        assert_eq!(graph.claims("n1").len(), 2);
    }

    #[test]
    fn what_a_pod_named_is_forgotten_with_it() {
        let graph = NodeGraph::default();
        graph.observe(&pod("u1", "n1"), Fate::Written);
        graph.observe(&pod("u2", "n2"), Fate::Written);
        assert!(
            !graph.relates("n1", SECRETS, "d", "pull"),
            "another pod has its name now"
        );
        assert!(graph.relates("n2", SECRETS, "d", "pull"));
        graph.observe(&pod("u2", "n2"), Fate::Removed);
        let graph = graph.0.read();
        assert!(graph.pods.is_empty() && graph.nodes.is_empty());
    }
}
