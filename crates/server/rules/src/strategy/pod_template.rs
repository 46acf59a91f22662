//! What are the rules for a pod template and the selector that must find its pods?
//!
//! Shared by ReplicaSet, Deployment and DaemonSet, whose `spec` has `selector` and `template` alike.

use super::pod::{defaults, drop_gated, keep_status, nonnegative, validate};
use super::{Context, Part};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::validate_labels;
use crate::selector::LabelSelector;
use crate::value::{at, at_mut, int_at, list_at, map_at, set, set_default, str_at};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Fills in `spec.replicas` and the template's pod spec.
pub fn default_workload(object: &mut Value) {
    default_template(object);
    if let Some(spec) = at_mut(object, &["spec"]).filter(|spec| spec.is_object()) {
        set_default(spec, &["replicas"], 1);
    }
}

/// Fills in the template's pod spec.
pub fn default_template(object: &mut Value) {
    if at(object, &["spec"]).is_none() {
        set(object, &["spec"], json!({}));
    }
    let Some(spec) = at_mut(object, &["spec"]).filter(|spec| spec.is_object()) else {
        return;
    };
    for path in [["template"].as_slice(), &["template", "spec"]] {
        if at(spec, path).is_none() {
            set(spec, path, json!({}));
        }
    }
    if let Some(pod_spec) = at_mut(spec, &["template", "spec"]) {
        defaults::default_spec(pod_spec);
    }
}

/// Fills in the pod spec of the template at `path`.
pub fn default_pod_spec(object: &mut Value, path: &[&str]) {
    if let Some(pod_spec) = at_mut(object, path).and_then(|template| at_mut(template, &["spec"])) {
        defaults::default_spec(pod_spec);
    }
}

/// Adds what is wrong with the pod spec of the template at `path`.
pub fn validate_pod_spec(object: &Value, path: &[&str], errors: &mut FieldErrors) {
    let here = path.join(".");
    match at(object, path).and_then(|template| at(template, &["spec"])) {
        None => errors.push(FieldError::required(format!("{here}.spec"), "")),
        Some(spec) => {
            let spec = with_claimed_volumes(spec, list_at(object, &["spec", "volumeClaimTemplates"]));
            validate::validate_spec(&spec, false, &format!("{here}.spec"), errors);
        }
    }
}

/// The pod spec with the volumes that a StatefulSet's controller adds for its claims, in the place of those of the same name.
fn with_claimed_volumes<'a>(spec: &'a Value, claims: &[Value]) -> Cow<'a, Value> {
    if claims.is_empty() {
        return Cow::Borrowed(spec);
    }
    let names: BTreeSet<&str> = claims
        .iter()
        .map(|claim| str_at(claim, &["metadata", "name"]))
        .collect();
    let claimed = names
        .iter()
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    let own = list_at(spec, &["volumes"])
        .iter()
        .filter(|volume| !names.contains(str_at(volume, &["name"])));
    let volumes = claimed.chain(own.cloned()).collect();
    let mut spec = spec.clone();
    set(&mut spec, &["volumes"], Value::Array(volumes));
    Cow::Owned(spec)
}

/// Keeps what a write to one part of a workload may not change.
pub fn prepare_update(new: &mut Value, old: &Value, part: Part, context: &Context<'_>) {
    match part {
        Part::Main => {
            keep_status(new, old);
            drop_gated_fields(new, Some(old), context);
        }
        Part::Status => {
            if let Some(spec) = at(old, &["spec"]) {
                set(new, &["spec"], spec.clone());
            }
        }
    }
}

/// Drops fields of closed gates from the template, unless the stored template already uses them.
pub fn drop_gated_fields(new: &mut Value, old: Option<&Value>, context: &Context<'_>) {
    const POD_SPEC: [&str; 3] = ["spec", "template", "spec"];
    let old = old.and_then(|old| at(old, &POD_SPEC));
    drop_gated(at_mut(new, &POD_SPEC), old, context);
}

/// Adds what is wrong with `replicas`, `selector` and `template` in the spec of `object`.
pub fn validate_workload(object: &Value, errors: &mut FieldErrors) {
    let Some(spec) = at(object, &["spec"]) else {
        errors.push(FieldError::required("spec", ""));
        return;
    };
    nonnegative(spec, "replicas", "spec", errors);
    nonnegative(spec, "minReadySeconds", "spec", errors);
    let selector = validate_selector(spec, errors);
    match at(spec, &["template"]) {
        None => errors.push(FieldError::required("spec.template", "")),
        Some(template) => validate_template(template, selector.as_ref(), errors),
    }
}

/// The selector of the spec, if it is sound.
fn validate_selector(spec: &Value, errors: &mut FieldErrors) -> Option<LabelSelector> {
    const PATH: &str = "spec.selector";
    let Some(object) = at(spec, &["selector"]) else {
        errors.push(FieldError::required(PATH, ""));
        return None;
    };
    match LabelSelector::from_object(Some(object), PATH) {
        Err(faults) => {
            errors.extend(faults);
            None
        }
        Ok(selector) if selector.is_everything() => {
            let detail = "empty selector is invalid for deployment";
            errors.push(FieldError::invalid(PATH, object.clone(), detail));
            None
        }
        Ok(selector) => Some(selector),
    }
}

fn validate_template(template: &Value, selector: Option<&LabelSelector>, errors: &mut FieldErrors) {
    const PATH: &str = "spec.template";
    let labels = map_at(template, &["metadata", "labels"]);
    if selector.is_some_and(|selector| !selector.matches(labels)) {
        errors.push(FieldError::invalid(
            format!("{PATH}.metadata.labels"),
            labels.cloned().map_or(Value::Null, Value::Object),
            "`selector` does not match template `labels`",
        ));
    }
    errors.extend(validate_labels(
        at(template, &["metadata", "labels"]),
        &format!("{PATH}.labels"),
    ));
    let Some(spec) = at(template, &["spec"]) else {
        errors.push(FieldError::required(format!("{PATH}.spec"), ""));
        return;
    };
    validate::validate_spec(spec, false, "spec.template.spec", errors);
    if !list_at(spec, &["ephemeralContainers"]).is_empty() {
        errors.push(FieldError::forbidden(
            format!("{PATH}.spec.ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        ));
    }
    let restart = str_at(spec, &["restartPolicy"]);
    if restart != "Always" {
        errors.push(FieldError::not_supported(
            format!("{PATH}.spec.restartPolicy"),
            restart,
            &["Always"],
        ));
    }
    if at(spec, &["activeDeadlineSeconds"]).is_some() {
        errors.push(FieldError::forbidden(
            format!("{PATH}.spec.activeDeadlineSeconds"),
            "activeDeadlineSeconds in ReplicaSet is not Supported",
        ));
    }
}

/// Adds a complaint if the selector changed: pods found under the old one would be orphaned.
pub fn validate_selector_kept(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let (new, old) = (at(new, &["spec", "selector"]), at(old, &["spec", "selector"]));
    if !super::equality::same(new, old) {
        let shown = new.cloned().unwrap_or_default();
        errors.push(FieldError::invalid("spec.selector", shown, "field is immutable"));
    }
}

/// Adds what is wrong with the counters of a status: negative, or more than there are replicas.
pub fn validate_counts(object: &Value, counters: &[&str], errors: &mut FieldErrors) {
    let count = |field: &str| int_at(object, &["status", field]).unwrap_or(0);
    let status = at(object, &["status"]).unwrap_or(&Value::Null);
    for field in ["replicas", "observedGeneration", "terminatingReplicas"]
        .iter()
        .chain(counters)
    {
        nonnegative(status, field, "status", errors);
    }
    for field in counters {
        if count(field) > count("replicas") {
            errors.push(FieldError::invalid(
                format!("status.{field}"),
                count(field),
                "cannot be greater than status.replicas",
            ));
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        errors.push(FieldError::invalid(
            "status.availableReplicas",
            count("availableReplicas"),
            "cannot be greater than readyReplicas",
        ));
    }
}
