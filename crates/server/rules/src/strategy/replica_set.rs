//! What are the rules for ReplicaSets?

use super::equality::same;
use super::pod::hostname_warning;
use super::{Context, Part, Strategy, pod_template};
use crate::field_error::FieldErrors;
use crate::value::{at, set};
use serde_json::{Value, json};

/// The strategy of `apps/v1` ReplicaSet.
pub struct ReplicaSetStrategy;

impl Strategy for ReplicaSetStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        if object.is_object() {
            pod_template::default_workload(object);
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        if object.is_object() {
            set(object, &["status"], json!({"replicas": 0}));
            pod_template::drop_gated_fields(object, None, context);
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, context: &Context<'_>) {
        pod_template::prepare_update(new, old, part, context);
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        pod_template::validate_workload(object, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value, part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        match part {
            Part::Main => {
                pod_template::validate_workload(new, &mut errors);
                pod_template::validate_selector_kept(new, old, &mut errors);
            }
            Part::Status => {
                let counters = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
                pod_template::validate_counts(new, &counters, &mut errors);
            }
        }
        errors
    }

    fn first_generation(&self) -> Option<i64> {
        Some(1)
    }

    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        !same(at(new, &["spec"]), at(old, &["spec"]))
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        hostname_warning(object, "Pod names and hostnames")
    }
}
