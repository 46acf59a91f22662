//! What are the rules for Deployments?

use super::equality::same;
use super::pod::{hostname_warning, nonnegative};
use super::{Context, Part, Strategy, pod_template};
use crate::field_error::{FieldError, FieldErrors};
use crate::value::{at, at_mut, int_at, remove, set, set_default, str_at};
use serde_json::{Value, json};

/// The strategy of `apps/v1` Deployment.
pub struct DeploymentStrategy;

impl Strategy for DeploymentStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        if !object.is_object() {
            return;
        }
        pod_template::default_workload(object);
        let Some(spec) = at_mut(object, &["spec"]).filter(|spec| spec.is_object()) else {
            return;
        };
        set_default(spec, &["revisionHistoryLimit"], 10);
        set_default(spec, &["progressDeadlineSeconds"], 600);
        if str_at(spec, &["strategy", "type"]).is_empty() {
            set(spec, &["strategy", "type"], "RollingUpdate");
        }
        if str_at(spec, &["strategy", "type"]) == "RollingUpdate" {
            set_default(spec, &["strategy", "rollingUpdate", "maxUnavailable"], "25%");
            set_default(spec, &["strategy", "rollingUpdate", "maxSurge"], "25%");
        }
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        if object.is_object() {
            set(object, &["status"], json!({}));
            pod_template::drop_gated_fields(object, None, context);
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, context: &Context<'_>) {
        if part == Part::Main {
            return pod_template::prepare_update(new, old, part, context);
        }
        for path in [["spec"].as_slice(), &["metadata", "labels"]] {
            match at(old, path) {
                Some(value) => set(new, path, value.clone()),
                None => drop(remove(new, path)),
            }
        }
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
            Part::Status => validate_status(new, old, &mut errors),
        }
        errors
    }

    fn first_generation(&self) -> Option<i64> {
        Some(1)
    }

    /// Annotations count too, because they are copied to the ReplicaSets of a Deployment.
    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        [["spec"].as_slice(), &["metadata", "annotations"]]
            .iter()
            .any(|path| !same(at(new, path), at(old, path)))
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
    validate_rollout(spec, errors);
    nonnegative(spec, "revisionHistoryLimit", "spec", errors);
    nonnegative(spec, "progressDeadlineSeconds", "spec", errors);
    let ready = int_at(spec, &["minReadySeconds"]).unwrap_or(0);
    if let Some(deadline) = int_at(spec, &["progressDeadlineSeconds"]).filter(|deadline| *deadline <= ready) {
        errors.push(FieldError::invalid(
            "spec.progressDeadlineSeconds",
            deadline,
            "must be greater than minReadySeconds",
        ));
    }
}

fn validate_rollout(spec: &Value, errors: &mut FieldErrors) {
    const PATH: &str = "spec.strategy.rollingUpdate";
    let rolling = at(spec, &["strategy", "rollingUpdate"]);
    match (str_at(spec, &["strategy", "type"]), rolling) {
        ("Recreate", None) => {}
        ("Recreate", Some(_)) => errors.push(FieldError::forbidden(
            PATH,
            "may not be specified when strategy `type` is 'Recreate'",
        )),
        ("RollingUpdate", None) => errors.push(FieldError::required(PATH, "")),
        ("RollingUpdate", Some(rolling)) => {
            let unavailable = share(rolling, "maxUnavailable", errors);
            let surge = share(rolling, "maxSurge", errors);
            let field = format!("{PATH}.maxUnavailable");
            let shown = at(rolling, &["maxUnavailable"]).cloned().unwrap_or_default();
            match (unavailable, surge) {
                (Some(Share(0, _)), Some(Share(0, _))) => errors.push(FieldError::invalid(
                    field,
                    shown,
                    "may not be 0 when `maxSurge` is 0",
                )),
                (Some(Share(101.., true)), _) => {
                    errors.push(FieldError::invalid(field, shown, "must not be greater than 100%"));
                }
                _ => {}
            }
        }
        (other, _) => errors.push(FieldError::not_supported(
            "spec.strategy.type",
            other,
            &["Recreate", "RollingUpdate"],
        )),
    }
}

/// A number of pods, or a percentage of them when the second part is true.
struct Share(i64, bool);

fn share(rolling: &Value, field: &str, errors: &mut FieldErrors) -> Option<Share> {
    let path = format!("spec.strategy.rollingUpdate.{field}");
    match at(rolling, &[field]) {
        None => Some(Share(0, false)),
        Some(Value::String(text)) => {
            let digits = text
                .strip_suffix('%')
                .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            let share = digits.and_then(|digits| digits.parse().ok());
            if share.is_none() {
                let detail =
                    "must be an integer or a percentage: digits followed by '%' (for example '1%' or '93%')";
                errors.push(FieldError::invalid(path, text.as_str(), detail));
            }
            share.map(|share| Share(share, true))
        }
        Some(value) => {
            let number = value.as_i64().filter(|number| *number >= 0);
            if number.is_none() {
                errors.push(FieldError::invalid(
                    path,
                    value.clone(),
                    "must be greater than or equal to 0",
                ));
            }
            number.map(|number| Share(number, false))
        }
    }
}

fn validate_status(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let counters = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    pod_template::validate_counts(new, &counters, errors);
    let status = at(new, &["status"]).unwrap_or(&Value::Null);
    nonnegative(status, "unavailableReplicas", "status", errors);
    nonnegative(status, "collisionCount", "status", errors);
    let collisions = |object: &Value| int_at(object, &["status", "collisionCount"]).unwrap_or(0);
    if collisions(new) < collisions(old) {
        errors.push(FieldError::invalid(
            "status.collisionCount",
            collisions(new),
            "cannot be decremented",
        ));
    }
}
