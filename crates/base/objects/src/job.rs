//! What does a Job ask for, and how far is it?

use pointsman_model::{Moment, Text};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::metadata::{All, Metadata};
use crate::read::{moment, nullable};
use crate::template::Template;
use crate::workload::{LabelSelector, StatusCondition, written};

/// The finalizer that keeps a pod until its Job has counted it.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// On pods of an Indexed Job, as annotation and label.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The controller that takes Jobs which name none.
const CONTROLLER: &str = "kubernetes.io/job-controller";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Job {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    pub spec: JobSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: JobStatus,
}

/// A Job's spec.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    /// Pods that run at the same time.
    pub parallelism: Option<i32>,
    /// Pods that have to succeed; unset: one, and then nothing more is started.
    pub completions: Option<i32>,
    pub active_deadline_seconds: Option<i64>,
    /// Failures that are forgiven.
    pub backoff_limit: i32,
    pub ttl_seconds_after_finished: Option<i64>,
    /// `Indexed` or `NonIndexed` (the default).
    pub completion_mode: String,
    #[serde(deserialize_with = "nullable")]
    pub suspend: bool,
    pub selector: LabelSelector,
    pub template: Template,
    /// `Failed` replaces a pod when it is at its end, else when it is on its way out.
    pub pod_replacement_policy: String,
    pub managed_by: Option<Text>,
    pod_failure_policy: Option<Value>,
    success_policy: Option<Value>,
    backoff_limit_per_index: Option<i32>,
}

impl Default for JobSpec {
    /// The API's defaults.
    fn default() -> Self {
        Self {
            parallelism: None,
            completions: None,
            active_deadline_seconds: None,
            backoff_limit: 6,
            ttl_seconds_after_finished: None,
            completion_mode: String::new(),
            suspend: false,
            selector: LabelSelector::default(),
            template: Template::default(),
            pod_replacement_policy: String::new(),
            managed_by: None,
            pod_failure_policy: None,
            success_policy: None,
            backoff_limit_per_index: None,
        }
    }
}

/// A Job's status. Numbers of 0 are not written, as upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
    #[serde(
        deserialize_with = "moment",
        serialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_time: Option<Moment>,
    #[serde(
        deserialize_with = "moment",
        serialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    pub completion_time: Option<Moment>,
    #[serde(skip_serializing_if = "is_zero")]
    pub active: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i32>,
    /// Indexes that succeeded, such as `0-2,5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_indexes: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub uncounted_terminated_pods: Uncounted,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i32>,
}

/// Pods, by uid, that ended and are in no number yet: they are when their finalizer is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uncounted {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub succeeded: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl Job {
    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode == "Indexed"
    }

    pub fn parallelism(&self) -> i32 {
        self.spec.parallelism.unwrap_or(1).max(0)
    }

    /// Whether another controller looks after it.
    pub fn is_foreign(&self) -> bool {
        self.spec
            .managed_by
            .as_deref()
            .is_some_and(|name| name != CONTROLLER)
    }

    /// Whether failed containers are started again in their pod.
    pub fn restarts_in_place(&self) -> bool {
        self.spec.template.0.pointer("/spec/restartPolicy") == Some(&json!("OnFailure"))
    }

    /// Fields that are set and that nobody acts upon.
    pub fn ignored_fields(&self) -> Vec<&'static str> {
        let spec = &self.spec;
        [
            ("podFailurePolicy", spec.pod_failure_policy.is_some()),
            ("successPolicy", spec.success_policy.is_some()),
            ("backoffLimitPerIndex", spec.backoff_limit_per_index.is_some()),
        ]
        .into_iter()
        .filter_map(|(field, set)| set.then_some(field))
        .collect()
    }

    /// A condition that is true.
    pub fn condition(&self, r#type: &str) -> Option<&StatusCondition> {
        let mut conditions = self.status.conditions.iter();
        conditions.find(|condition| condition.r#type == r#type && condition.status == "True")
    }

    /// A pod to create, for this index if the Job counts indexes.
    pub fn new_pod(&self, index: Option<i32>) -> Value {
        let metadata = &self.metadata;
        let owner = metadata.as_owner("batch/v1", "Job");
        let base = match index {
            Some(index) => format!("{}-{index}", metadata.name),
            None => metadata.name.to_string(),
        };
        let mut pod = self.spec.template.pod(&metadata.namespace, &base, &owner);
        let finalizers = pod["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        pod["metadata"]["finalizers"] = finalizers.into_iter().chain([json!(TRACKING)]).collect();
        if let Some(index) = index {
            let text = index.to_string();
            for field in ["labels", "annotations"] {
                if !pod["metadata"][field].is_object() {
                    pod["metadata"][field] = json!({});
                }
                pod["metadata"][field][INDEX] = text.as_str().into();
            }
            with_index(&mut pod["spec"], &base);
        }
        pod
    }
}

/// Containers learn their index from the environment, and the pod gets the index in its host name.
fn with_index(spec: &mut Value, hostname: &str) {
    const VARIABLE: &str = "JOB_COMPLETION_INDEX";
    if !spec.is_object() {
        return;
    }
    if spec["hostname"].as_str().unwrap_or("").is_empty() {
        spec["hostname"] = hostname.into();
    }
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers
            .into_iter()
            .flatten()
            .filter(|container| container.is_object())
        {
            let mut known = container["env"].as_array().cloned().unwrap_or_default();
            if known.iter().all(|variable| variable["name"] != VARIABLE) {
                let path = format!("metadata.labels['{INDEX}']");
                known.push(json!({ "name": VARIABLE, "valueFrom": { "fieldRef": { "fieldPath": path } } }));
            }
            container["env"] = known.into();
        }
    }
}
