//! What are the rules for pods?

pub mod binding;
mod container;
pub(super) mod defaults;
pub(super) mod probe;
mod qos;
mod resources;
pub(super) mod status;
#[cfg(test)]
mod tests;
mod update;
pub(super) mod validate;
mod volume;

use super::equality::same;
use super::{Context, Grace, Part, Strategy};
use crate::admission::tolerations::{TolerationSeconds, add_default_tolerations};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::value::{at, at_mut, bool_at, int_at, list_at, set, str_at};
use pointsman_model::Feature;
use serde_json::{Value, json};
use std::borrow::Cow;

/// The strategy of `v1` Pod.
pub struct PodStrategy;

impl Strategy for PodStrategy {
    fn default(&self, pod: &mut Value, _context: &Context<'_>) {
        if pod.is_object() {
            defaults::default_pod(pod);
        }
    }

    fn admit(&self, pod: &mut Value, tolerations: TolerationSeconds) {
        add_default_tolerations(pod, tolerations);
    }

    fn prepare_create(&self, pod: &mut Value, context: &Context<'_>) {
        if !pod.is_object() {
            return;
        }
        drop_gated(at_mut(pod, &["spec"]), None, context);
        let class = at(pod, &["spec"]).map_or("BestEffort", qos::class);
        set(pod, &["status"], json!({"phase": "Pending", "qosClass": class}));
        if !list_at(pod, &["spec", "schedulingGates"]).is_empty() {
            let waiting = json!([{
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]);
            set(pod, &["status", "conditions"], waiting);
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, context: &Context<'_>) {
        match part {
            Part::Status => status::prepare(new, old),
            Part::Main => {
                keep_status(new, old);
                let (new_spec, old_spec) = (at_mut(new, &["spec"]), at(old, &["spec"]));
                if let (Some(new_spec), Some(old_spec)) = (new_spec, old_spec) {
                    // Probes of a pod never change, so a spec without any offset comes from a client
                    // that does not know them.
                    if probe::uses_milliseconds(old_spec) && !probe::uses_milliseconds(new_spec) {
                        probe::restore_milliseconds(new_spec, old_spec);
                    }
                    drop_gated(Some(new_spec), Some(old_spec), context);
                }
            }
        }
    }

    fn validate_create(&self, pod: &Value, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        validate_pod(pod, &mut errors);
        if !list_at(pod, &["spec", "schedulingGates"]).is_empty()
            && !str_at(pod, &["spec", "nodeName"]).is_empty()
        {
            errors.push(FieldError::forbidden(
                "spec.nodeName",
                "cannot be set until all schedulingGates have been cleared",
            ));
        }
        if !list_at(pod, &["spec", "ephemeralContainers"]).is_empty() {
            errors.push(FieldError::forbidden(
                "spec.ephemeralContainers",
                "cannot be set on create",
            ));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value, part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        match part {
            Part::Status => status::validate(new, old, &mut errors),
            Part::Main => {
                validate_pod(new, &mut errors);
                update::validate(new, old, &mut errors);
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

    fn grace(&self, pod: &Value, requested_seconds: Option<i64>) -> Grace {
        let wanted = requested_seconds
            .or_else(|| int_at(pod, &["spec", "terminationGracePeriodSeconds"]))
            .unwrap_or(0);
        let unscheduled = str_at(pod, &["spec", "nodeName"]).is_empty();
        let ended = ["Failed", "Succeeded"].contains(&str_at(pod, &["status", "phase"]));
        match wanted {
            0 => Grace::Now,
            _ if unscheduled || ended => Grace::Now,
            seconds if seconds < 0 => Grace::Seconds(1),
            seconds => Grace::Seconds(seconds),
        }
    }

    fn selectable<'a>(&self, pod: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        let text = match field {
            "spec.nodeName" | "spec.host" => str_at(pod, &["spec", "nodeName"]),
            "spec.restartPolicy" => str_at(pod, &["spec", "restartPolicy"]),
            "spec.schedulerName" => str_at(pod, &["spec", "schedulerName"]),
            "spec.serviceAccountName" => str_at(pod, &["spec", "serviceAccountName"]),
            "spec.hostNetwork" => match bool_at(pod, &["spec", "hostNetwork"]) {
                Some(true) => "true",
                _ => "false",
            },
            "status.phase" => str_at(pod, &["status", "phase"]),
            "status.podIP" => list_at(pod, &["status", "podIPs"])
                .first()
                .map_or("", |address| str_at(address, &["ip"])),
            "status.nominatedNodeName" => str_at(pod, &["status", "nominatedNodeName"]),
            _ => return None,
        };
        Some(Cow::Borrowed(text))
    }

    fn warnings(&self, pod: &Value) -> Vec<String> {
        hostname_warning(pod, "the Pod's hostname")
    }
}

/// Warns when a name that ends up in host names is not a DNS label.
pub(super) fn hostname_warning(object: &Value, use_of_name: &str) -> Vec<String> {
    let name = str_at(object, &["metadata", "name"]);
    if name.is_empty() {
        return Vec::new();
    }
    names::dns_label(name)
        .into_iter()
        .map(|fault| {
            format!(
                "metadata.name: this is used in {use_of_name}, which can result in surprising behavior; a DNS \
                 label is recommended: {fault}"
            )
        })
        .collect()
}

/// Status is not written through the main resource.
pub(super) fn keep_status(new: &mut Value, old: &Value) {
    match at(old, &["status"]) {
        Some(status) => set(new, &["status"], status.clone()),
        None => {
            crate::value::remove(new, &["status"]);
        }
    }
}

/// Drops fields of closed gates from a pod spec, unless the stored spec already uses them.
pub(super) fn drop_gated(new: Option<&mut Value>, old: Option<&Value>, context: &Context<'_>) {
    let Some(new) = new else { return };
    if !context.gates.enabled(Feature::SubSecondProbes) && !old.is_some_and(probe::uses_milliseconds) {
        probe::drop_milliseconds(new);
    }
}

fn validate_pod(pod: &Value, errors: &mut FieldErrors) {
    match at(pod, &["spec"]) {
        Some(spec) => validate::validate_spec(spec, true, "spec", errors),
        None => errors.push(FieldError::required("spec", "")),
    }
}

/// Adds a complaint unless the field is a number of at least zero, or absent.
pub(super) fn nonnegative(object: &Value, field: &str, path: &str, errors: &mut FieldErrors) {
    if let Some(number) = int_at(object, &[field]).filter(|number| *number < 0) {
        errors.push(FieldError::invalid(
            format!("{path}.{field}"),
            number,
            "must be greater than or equal to 0",
        ));
    }
}

/// Adds a complaint unless `text` is one of a closed set.
fn one_of(text: &str, supported: &[&str], field: &str, errors: &mut FieldErrors) {
    if text.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else if !supported.contains(&text) {
        errors.push(FieldError::not_supported(field, text, supported));
    }
}

/// Adds a complaint unless the field holds a text of the given shape.
fn nonempty(
    object: &Value,
    field: &str,
    faults: fn(&str) -> Vec<String>,
    path: &str,
    errors: &mut FieldErrors,
) {
    let text = str_at(object, &[field]);
    let field = format!("{path}.{field}");
    if text.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else {
        invalid_each(errors, &field, text, faults(text));
    }
}
