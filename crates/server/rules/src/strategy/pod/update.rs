//! What may change in a pod after it was created?
//!
//! Images, a shorter deadline, more tolerations and fewer scheduling gates; a gated pod may also be
//! narrowed to fewer nodes. Everything else is fixed: the node sees a pod's spec once.

use super::validate::validate_tolerations;
use crate::field_error::{FieldError, FieldErrors};
use crate::strategy::equality::same;
use crate::value::{at, at_mut, int_at, list_at, map_at, remove, set, str_at};
use serde_json::{Map, Value};

/// Adds what `new` may not change from `old`, both Pods.
pub fn validate(new: &Value, old: &Value, errors: &mut FieldErrors) {
    for list in ["containers", "initContainers"] {
        if list_at(new, &["spec", list]).len() != list_at(old, &["spec", list]).len() {
            errors.push(FieldError::forbidden(
                format!("spec.{list}"),
                "pod updates may not add or remove containers",
            ));
            return;
        }
    }
    validate_deadline(new, old, errors);
    validate_added_tolerations(new, old, errors);
    validate_removed_gates(new, old, errors);
    let (Some(new_spec), Some(old_spec)) = (at(new, &["spec"]), at(old, &["spec"])) else {
        return;
    };
    if same(Some(new_spec), Some(old_spec)) {
        return;
    }
    let mut fixed = new_spec.clone();
    take_allowed_changes_back(&mut fixed, old_spec, errors);
    let changed = changed_fields(&fixed, old_spec);
    if !changed.is_empty() {
        let detail = format!(
            "pod updates may not change fields other than `spec.containers[*].image`, \
             `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions \
             to existing tolerations), `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
             previously negative); changed: {}",
            changed.join(", ")
        );
        errors.push(FieldError::forbidden("spec", detail));
    }
}

fn validate_deadline(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let path = ["spec", "activeDeadlineSeconds"];
    match (int_at(new, &path), int_at(old, &path)) {
        (Some(new), Some(old)) if new > old => errors.push(FieldError::invalid(
            path.join("."),
            new,
            "must be less than or equal to previous value",
        )),
        (None, Some(_)) => errors.push(FieldError::invalid(
            path.join("."),
            Value::Null,
            "must not update from a positive integer to nil value",
        )),
        _ => {}
    }
}

fn validate_added_tolerations(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let path = ["spec", "tolerations"];
    let added = list_at(new, &path);
    let kept = list_at(old, &path)
        .iter()
        .all(|old| added.iter().any(|new| same_but_for_seconds(new, old)));
    if kept {
        validate_tolerations(added, "spec", errors);
    } else {
        errors.push(FieldError::forbidden(
            path.join("."),
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}

fn same_but_for_seconds(left: &Value, right: &Value) -> bool {
    let without = |toleration: &Value| {
        let mut rest = toleration.clone();
        remove(&mut rest, &["tolerationSeconds"]);
        rest
    };
    same(Some(&without(left)), Some(&without(right)))
}

fn validate_removed_gates(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let path = ["spec", "schedulingGates"];
    for (index, gate) in list_at(new, &path).iter().enumerate() {
        let name = str_at(gate, &["name"]);
        let known = list_at(old, &path)
            .iter()
            .any(|old| str_at(old, &["name"]) == name);
        if !known {
            errors.push(FieldError::forbidden(
                format!("spec.schedulingGates[{index}].name"),
                format!("only deletion is allowed, but found new scheduling gate '{name}'"),
            ));
        }
    }
}

/// Sets every field that may change back to its old value, so that what still differs is not allowed.
fn take_allowed_changes_back(fixed: &mut Value, old: &Value, errors: &mut FieldErrors) {
    for list in ["containers", "initContainers"] {
        let containers = at_mut(fixed, &[list]).and_then(Value::as_array_mut);
        for (container, old) in containers.into_iter().flatten().zip(list_at(old, &[list])) {
            copy(container, old, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        copy(fixed, old, field);
    }
    let grace = ["terminationGracePeriodSeconds"];
    if int_at(old, &grace).is_some_and(|seconds| seconds < 0) && int_at(fixed, &grace) == Some(1) {
        copy(fixed, old, grace[0]);
    }
    let gated = !list_at(old, &["schedulingGates"]).is_empty();
    if gated && only_adds(map_at(fixed, &["nodeSelector"]), map_at(old, &["nodeSelector"])) {
        copy(fixed, old, "nodeSelector");
    } else if gated {
        errors.push(FieldError::invalid(
            "spec.nodeSelector",
            at(fixed, &["nodeSelector"]).cloned().unwrap_or_default(),
            "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
        ));
        copy(fixed, old, "nodeSelector");
    }
}

fn only_adds(new: Option<&Map<String, Value>>, old: Option<&Map<String, Value>>) -> bool {
    old.into_iter()
        .flatten()
        .all(|(key, value)| new.and_then(|new| new.get(key)) == Some(value))
}

fn copy(object: &mut Value, from: &Value, field: &str) {
    if !object.is_object() {
        return;
    }
    match at(from, &[field]) {
        Some(value) => set(object, &[field], value.clone()),
        None => {
            remove(object, &[field]);
        }
    }
}

fn changed_fields(new: &Value, old: &Value) -> Vec<String> {
    let empty = Map::new();
    let (new, old) = (
        new.as_object().unwrap_or(&empty),
        old.as_object().unwrap_or(&empty),
    );
    let mut fields: Vec<&String> = new.keys().chain(old.keys()).collect();
    fields.sort_unstable();
    fields.dedup();
    fields
        .into_iter()
        .filter(|field| {
            let in_one = |spec: &Map<String, Value>| {
                let mut one = Map::new();
                if let Some(value) = spec.get(*field) {
                    one.insert((*field).clone(), value.clone());
                }
                Value::Object(one)
            };
            !same(Some(&in_one(new)), Some(&in_one(old)))
        })
        .map(|field| format!("spec.{field}"))
        .collect()
}
