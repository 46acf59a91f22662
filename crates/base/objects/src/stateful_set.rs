//! What does a StatefulSet ask for, and how far is it?

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::metadata::{All, Metadata};
use crate::read::nullable;
use crate::template::{DAEMON_HASH_LABEL as REVISION_LABEL, Template};
use crate::workload::{LabelSelector, StatusCondition, seconds};

const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    pub spec: StatefulSetSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: StatefulSetStatus,
}

/// A StatefulSet's spec.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetSpec {
    pub replicas: i32,
    pub selector: LabelSelector,
    /// What pods are made from.
    pub template: Template,
    /// Claims that every pod has for itself.
    #[serde(deserialize_with = "nullable")]
    pub volume_claim_templates: Vec<Value>,
    /// The headless Service that names the pods.
    #[serde(deserialize_with = "nullable")]
    pub service_name: String,
    /// `Parallel`, or `OrderedReady` (the default): one after the other.
    pub pod_management_policy: String,
    #[serde(deserialize_with = "nullable")]
    pub update_strategy: OrderedUpdate,
    /// Old revisions kept for undo.
    pub revision_history_limit: usize,
    /// How long a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    #[serde(deserialize_with = "nullable")]
    pub ordinals: Ordinals,
}

impl Default for StatefulSetSpec {
    /// The API's defaults.
    fn default() -> Self {
        Self {
            replicas: 1,
            selector: LabelSelector::default(),
            template: Template::default(),
            volume_claim_templates: Vec::new(),
            service_name: String::new(),
            pod_management_policy: String::new(),
            update_strategy: OrderedUpdate::default(),
            revision_history_limit: 10,
            min_ready_seconds: 0,
            ordinals: Ordinals::default(),
        }
    }
}

/// How pods are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OrderedUpdate {
    /// `RollingUpdate` (the default) or `OnDelete`.
    pub r#type: String,
    #[serde(deserialize_with = "nullable")]
    pub rolling_update: Partition,
}

/// Which pods are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Partition {
    /// How many of the first pods keep the revision they have.
    #[serde(deserialize_with = "nullable")]
    pub partition: i32,
}

/// How pods are numbered.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Ordinals {
    /// The first number.
    #[serde(deserialize_with = "nullable")]
    pub start: i32,
}

/// A StatefulSet's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStatus {
    /// The generation this status is about.
    pub observed_generation: i64,
    /// Pods there are.
    pub replicas: i32,
    pub ready_replicas: i32,
    /// Pods ready for long enough.
    pub available_replicas: i32,
    /// Pods of the revision that the last finished update had.
    pub current_replicas: i32,
    /// Pods of the newest revision.
    pub updated_replicas: i32,
    pub current_revision: String,
    pub update_revision: String,
    /// How often a revision's name was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

/// A template as it was, kept to make pods of it again.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ControllerRevision {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    data: RevisionData,
    /// Counts up with each change.
    pub revision: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RevisionData {
    spec: RevisionSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RevisionSpec {
    template: Template,
}

impl ControllerRevision {
    pub fn template(&self) -> Template {
        let mut template = self.data.spec.template.clone();
        // It says that applying the revision replaces the template, as upstream writes it.
        if let Some(fields) = template.0.as_object_mut() {
            fields.remove("$patch");
        }
        template
    }
}

impl StatefulSet {
    pub fn min_ready(&self) -> Duration {
        seconds(self.spec.min_ready_seconds)
    }

    pub fn replicas(&self) -> i32 {
        self.spec.replicas.max(0)
    }

    /// The numbers that pods should have.
    pub fn range(&self) -> std::ops::Range<i32> {
        let start = self.spec.ordinals.start.max(0);
        start..start.saturating_add(self.replicas())
    }

    /// The number in a pod's name.
    pub fn ordinal_of(&self, pod: &str) -> Option<i32> {
        let digits = pod.strip_prefix(&*self.metadata.name)?.strip_prefix('-')?;
        let ordinal: i32 = digits.parse().ok().filter(|ordinal| *ordinal >= 0)?;
        (ordinal.to_string() == digits).then_some(ordinal)
    }

    /// The name of the present template's revision.
    pub fn revision(&self) -> String {
        let hash = self.spec.template.hash(self.status.collision_count.unwrap_or(0));
        format!("{}-{hash}", self.metadata.name)
    }

    /// The revision that a pod is of.
    pub fn revision_of(pod: &crate::Pod) -> &str {
        pod.metadata.labels.get(REVISION_LABEL).unwrap_or("")
    }

    /// The object that keeps the present template.
    pub fn new_revision(&self, name: &str, revision: i64) -> Value {
        let mut template = self.spec.template.0.clone();
        if let Some(fields) = template.as_object_mut() {
            fields.insert("$patch".into(), "replace".into());
        }
        json!({
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": name, "namespace": self.metadata.namespace, "labels": self.spec.selector.match_labels,
                "ownerReferences": [self.metadata.as_owner("apps/v1", "StatefulSet")],
            },
            "data": { "spec": { "template": template } },
            "revision": revision,
        })
    }

    /// The pod of this number, of a revision's template.
    pub fn new_pod(&self, ordinal: i32, template: &Template, revision: &str) -> Value {
        let metadata = &self.metadata;
        let name = format!("{}-{ordinal}", metadata.name);
        let labels = [
            (NAME_LABEL, name.as_str()),
            (INDEX_LABEL, &ordinal.to_string()),
            (REVISION_LABEL, revision),
        ];
        let labelled = labels.iter().fold(template.clone(), |template, (key, value)| {
            template.with_label(key, value)
        });
        let owner = metadata.as_owner("apps/v1", "StatefulSet");
        let mut pod = labelled.pod(&metadata.namespace, &metadata.name, &owner);
        pod["metadata"]["name"] = name.as_str().into();
        if let Some(fields) = pod["metadata"].as_object_mut() {
            fields.remove("generateName");
        }
        let claims = self.claims(ordinal).map(|(volume, claim)| {
            json!({ "name": volume, "persistentVolumeClaim": { "claimName": claim["metadata"]["name"] } })
        });
        let claims: Vec<Value> = claims.collect();
        let spec = &mut pod["spec"];
        if !spec.is_object() {
            *spec = json!({});
        }
        spec["hostname"] = name.into();
        spec["subdomain"] = self.spec.service_name.as_str().into();
        // A claim takes the place of a volume of the same name.
        let mut volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
        volumes.retain(|volume| claims.iter().all(|claim| claim["name"] != volume["name"]));
        volumes.extend(claims);
        if !volumes.is_empty() {
            spec["volumes"] = volumes.into();
        }
        pod
    }

    /// The claims of the pod of this number, with the volume that each is for.
    pub fn claims(&self, ordinal: i32) -> impl Iterator<Item = (String, Value)> + '_ {
        let metadata = &self.metadata;
        self.spec.volume_claim_templates.iter().map(move |template| {
            let volume = template["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let mut labels = template["metadata"]["labels"].clone();
            if !labels.is_object() {
                labels = json!({});
            }
            for (key, value) in &self.spec.selector.match_labels {
                labels[key] = value.as_str().into();
            }
            let claim = json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": format!("{volume}-{}-{ordinal}", metadata.name), "namespace": metadata.namespace,
                    "labels": labels, "annotations": template["metadata"]["annotations"],
                },
                "spec": template["spec"],
            });
            (volume, claim)
        })
    }
}
