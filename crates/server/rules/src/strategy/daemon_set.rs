//! What are the rules for DaemonSets?

use super::equality::same;
use super::pod::{hostname_warning, nonnegative};
use super::{Context, Part, Strategy, pod_template};
use crate::field_error::{FieldError, FieldErrors};
use crate::value::{at, at_mut, int_at, set, set_default, str_at};
use serde_json::{Value, json};

/// The strategy of `apps/v1` DaemonSet.
pub struct DaemonSetStrategy;

/// Counters of the status.
const COUNTERS: [&str; 8] = [
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
    "observedGeneration",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
];

impl Strategy for DaemonSetStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        if !object.is_object() {
            return;
        }
        pod_template::default_template(object);
        let Some(spec) = at_mut(object, &["spec"]).filter(|spec| spec.is_object()) else {
            return;
        };
        set_default(spec, &["revisionHistoryLimit"], 10);
        if str_at(spec, &["updateStrategy", "type"]).is_empty() {
            set(spec, &["updateStrategy", "type"], "RollingUpdate");
        }
        if str_at(spec, &["updateStrategy", "type"]) == "RollingUpdate" {
            set_default(spec, &["updateStrategy", "rollingUpdate", "maxUnavailable"], 1);
            set_default(spec, &["updateStrategy", "rollingUpdate", "maxSurge"], 0);
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        if object.is_object() {
            let nothing = json!({
                "currentNumberScheduled": 0, "numberMisscheduled": 0,
                "desiredNumberScheduled": 0, "numberReady": 0,
            });
            set(object, &["status"], nothing);
            pod_template::drop_gated_fields(object, None, context);
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, context: &Context<'_>) {
        pod_template::prepare_update(new, old, part, context);
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        validate_spec(object, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value, part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        match part {
            Part::Main => {
                validate_spec(new, &mut errors);
                pod_template::validate_selector_kept(new, old, &mut errors);
            }
            Part::Status => {
                let status = at(new, &["status"]).unwrap_or(&Value::Null);
                for counter in COUNTERS {
                    nonnegative(status, counter, "status", &mut errors);
                }
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

fn validate_spec(object: &Value, errors: &mut FieldErrors) {
    pod_template::validate_workload(object, errors);
    let Some(spec) = at(object, &["spec"]) else {
        return;
    };
    nonnegative(spec, "revisionHistoryLimit", "spec", errors);
    let strategy = str_at(spec, &["updateStrategy", "type"]);
    if !["RollingUpdate", "OnDelete"].contains(&strategy) {
        errors.push(FieldError::not_supported(
            "spec.updateStrategy.type",
            strategy,
            &["RollingUpdate", "OnDelete"],
        ));
    }
    let rolling = ["updateStrategy", "rollingUpdate"];
    for field in ["maxUnavailable", "maxSurge"] {
        let path = [rolling[0], rolling[1], field];
        if let Some(number) = int_at(spec, &path).filter(|number| *number < 0) {
            errors.push(FieldError::invalid(
                format!("spec.{}", path.join(".")),
                number,
                "must be greater than or equal to 0",
            ));
        }
    }
}
