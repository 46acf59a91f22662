//! What are pods and ReplicaSets made from, and what is sent to make them?

use std::collections::BTreeMap;

use pointsman_model::Text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::metadata::OwnerReference;
use crate::pod::Pod;
use crate::workload::{DaemonSet, Deployment, ReplicaSet};

/// Label that tells the pods of a Deployment's revisions apart.
pub const HASH_LABEL: &str = "pod-template-hash";
/// Label that tells the pods of a DaemonSet's revisions apart (upstream's name).
pub const DAEMON_HASH_LABEL: &str = "controller-revision-hash";

/// Characters that cannot form words, as Kubernetes uses for generated names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Taints that every daemon tolerates (upstream's list): it belongs to the node, whatever its state.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// Tolerated besides by those that use the node's own network.
const OWN_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// What pods are made from, as it was written: every field of it goes into the pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Template(pub Value);

impl Template {
    /// Whether two templates differ in nothing but the hash label.
    pub fn same(&self, other: &Self) -> bool {
        without_hash(&self.0) == without_hash(&other.0)
    }

    /// A short name for a template; `collisions` gives another one when it is taken.
    pub fn hash(&self, collisions: i64) -> String {
        // FNV-1a over the text: object keys are ordered, so equal templates have equal text.
        let text = without_hash(&self.0).to_string();
        let collisions = if collisions == 0 {
            String::new()
        } else {
            collisions.to_string()
        };
        let mut hash: u32 = 0x811c_9dc5;
        for byte in text.bytes().chain(collisions.bytes()) {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
        hash.to_string()
            .bytes()
            .map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]))
            .collect()
    }

    /// The labels that its pods get.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let labels = self.0.pointer("/metadata/labels");
        labels
            .and_then(|labels| serde_json::from_value(labels.clone()).ok())
            .unwrap_or_default()
    }

    fn with_hash(&self, hash: &str) -> Self {
        self.with_label(HASH_LABEL, hash)
    }

    pub(crate) fn with_label(&self, key: &str, value: &str) -> Self {
        let mut template = self.0.clone();
        let metadata = object(&mut template, "metadata");
        object_in(metadata, "labels").insert(key.into(), value.into());
        Self(template)
    }

    /// The pod to create: the server completes the name.
    pub(crate) fn pod(&self, namespace: &str, base: &str, owner: &OwnerReference) -> Value {
        let empty = Value::Null;
        let metadata = self.0.get("metadata").unwrap_or(&empty);
        let mut pod_metadata = json!({
            "namespace": namespace,
            "generateName": format!("{base}-"),
            "ownerReferences": [owner],
        });
        for field in ["labels", "annotations", "finalizers"] {
            if let Some(value) = metadata.get(field).filter(|value| !value.is_null()) {
                pod_metadata[field] = value.clone();
            }
        }
        let spec = self.0.get("spec").cloned().unwrap_or_else(|| json!({}));
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": spec })
    }
}

impl ReplicaSet {
    /// A pod to create.
    pub fn new_pod(&self) -> Value {
        let metadata = &self.metadata;
        let owner = metadata.as_owner("apps/v1", "ReplicaSet");
        self.spec
            .template
            .pod(&metadata.namespace, &metadata.name, &owner)
    }
}

/// A ReplicaSet that a Deployment needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReplicaSet {
    pub name: String,
    /// What tells its pods from those of other templates.
    pub hash: String,
    pub replicas: i32,
    pub annotations: BTreeMap<String, String>,
}

impl Deployment {
    /// The ReplicaSet to create for the present template.
    pub fn new_replica_set(&self, new: &NewReplicaSet) -> Value {
        let (metadata, spec) = (&self.metadata, &self.spec);
        let template = spec.template.with_hash(&new.hash);
        let mut selector = spec.selector.clone();
        selector.match_labels.insert(HASH_LABEL.into(), new.hash.clone());
        let labels = template.0.pointer("/metadata/labels").cloned();
        json!({
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": new.name, "namespace": metadata.namespace, "labels": labels,
                "annotations": new.annotations, "ownerReferences": [metadata.as_owner("apps/v1", "Deployment")],
            },
            "spec": {
                "replicas": new.replicas, "minReadySeconds": spec.min_ready_seconds, "selector": selector,
                "template": template,
            },
        })
    }
}

/// A change of one ReplicaSet, to be sent as a merge patch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaSetPatch {
    pub name: Text,
    /// The version that was decided from.
    pub resource_version: Box<str>,
    pub replicas: Option<i32>,
    /// New time a pod must be ready to count as available.
    pub min_ready_seconds: Option<i32>,
    /// Annotations to set.
    pub annotations: BTreeMap<String, String>,
}

impl ReplicaSetPatch {
    pub fn of(set: &ReplicaSet) -> Self {
        Self {
            name: set.metadata.name.clone(),
            resource_version: set.metadata.resource_version.clone(),
            ..Self::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.replicas.is_none() && self.min_ready_seconds.is_none() && self.annotations.is_empty()
    }

    /// The merge patch; it fails if the ReplicaSet changed meanwhile.
    pub fn body(&self) -> Value {
        let mut patch = json!({ "metadata": { "resourceVersion": self.resource_version } });
        if !self.annotations.is_empty() {
            patch["metadata"]["annotations"] = json!(self.annotations);
        }
        if let Some(replicas) = self.replicas {
            patch["spec"]["replicas"] = replicas.into();
        }
        if let Some(seconds) = self.min_ready_seconds {
            patch["spec"]["minReadySeconds"] = seconds.into();
        }
        patch
    }
}

impl DaemonSet {
    /// A pod of the set as far as placing it goes.
    pub fn sample_pod(&self) -> Pod {
        let spec = with_tolerations(&self.spec.template.0);
        serde_json::from_value(json!({ "spec": spec })).unwrap_or_default()
    }

    /// The pod to create for a node. The scheduler places it there and nowhere else.
    pub fn new_pod(&self, node: &str) -> Value {
        let (metadata, template) = (&self.metadata, &self.spec.template);
        let labelled = template.with_label(DAEMON_HASH_LABEL, &template.hash(0));
        let owner = metadata.as_owner("apps/v1", "DaemonSet");
        let mut pod = labelled.pod(&metadata.namespace, &metadata.name, &owner);
        let mut spec = with_tolerations(&template.0);
        for path in ["/affinity", "/affinity/nodeAffinity"] {
            let (parent, field) = path.rsplit_once('/').expect("both have one");
            let parent = spec.pointer_mut(parent).expect("it was made before");
            if !parent[field].is_object() {
                parent[field] = json!({});
            }
        }
        let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
        // What the template requires of nodes was judged already, for this node.
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({ "nodeSelectorTerms": [{ "matchFields": [field] }] });
        pod["spec"] = spec;
        pod
    }
}

/// The template's spec with what every daemon tolerates.
fn with_tolerations(template: &Value) -> Value {
    let spec = template.get("spec").filter(|spec| spec.is_object());
    let mut spec = spec.cloned().unwrap_or_else(|| json!({}));
    let own_network = spec["hostNetwork"] == true;
    let more = TOLERATED
        .iter()
        .chain([&OWN_NETWORK].into_iter().filter(|_| own_network));
    let more = more.map(|(key, effect)| json!({ "key": key, "operator": "Exists", "effect": effect }));
    let own = spec["tolerations"].as_array().cloned().unwrap_or_default();
    spec["tolerations"] = own.into_iter().chain(more).collect();
    spec
}

fn without_hash(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template
        .pointer_mut("/metadata/labels")
        .and_then(Value::as_object_mut)
    {
        labels.remove(HASH_LABEL);
        if labels.is_empty() {
            object(&mut template, "metadata").remove("labels");
        }
    }
    // The API server writes an unset creation time as null in one place and leaves it out in another.
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|_, value| !value.is_null());
    }
    template
}

fn object<'a>(value: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    object_in(value.as_object_mut().expect("made one above"), field)
}

fn object_in<'a>(parent: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    let child = parent.entry(field).or_insert_with(|| json!({}));
    if !child.is_object() {
        *child = json!({});
    }
    child.as_object_mut().expect("made one above")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_label_does_not_make_a_difference() {
        let template =
            json!({ "metadata": { "labels": { "app": "web" }, "creationTimestamp": null }, "spec": {} });
        let template = Template(template);
        let hashed = template.with_hash("abc");
        assert_eq!(hashed.0["metadata"]["labels"][HASH_LABEL], "abc");
        assert!(template.same(&hashed));
        assert_eq!(template.hash(0), hashed.hash(0));
        assert_ne!(template.hash(0), template.hash(1));
        let other = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "x": 1 } });
        assert!(!template.same(&Template(other)));
        let bare = Template(json!({ "spec": {}, "metadata": {} }));
        assert!(bare.same(&Template(json!({ "spec": {} })).with_hash("x")));
    }

    #[test]
    fn odd_templates_are_no_reason_to_panic() {
        for odd in [
            json!(null),
            json!([]),
            json!({ "metadata": 3 }),
            json!({ "metadata": { "labels": [] } }),
        ] {
            let odd = Template(odd);
            assert_eq!(odd.with_hash("h").0["metadata"]["labels"][HASH_LABEL], "h");
            assert!(!odd.hash(0).is_empty());
        }
    }
}
