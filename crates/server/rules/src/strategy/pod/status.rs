//! What may a writer of a pod's status do?

use super::validate::validate_ip;
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::value::{at, at_mut, int_at, list_at, remove, set, str_at};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::net::IpAddr;

/// Restores in `new`, a Pod sent to the status subresource, all that such a write may not change.
pub fn prepare(new: &mut Value, old: &Value) {
    if !new.is_object() {
        return;
    }
    for path in [["spec"].as_slice(), &["metadata", "ownerReferences"]] {
        match at(old, path) {
            Some(value) => set(new, path, value.clone()),
            None => {
                remove(new, path);
            }
        }
    }
    // The class is decided at creation, and old writers drop fields that they do not know.
    if str_at(new, &["status", "qosClass"]).is_empty() {
        keep(new, old, &["status", "qosClass"]);
    }
    if int_at(new, &["status", "observedGeneration"]).unwrap_or(0) == 0 {
        keep(new, old, &["status", "observedGeneration"]);
    }
    let conditions = at_mut(new, &["status", "conditions"]).and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if int_at(condition, &["observedGeneration"]).unwrap_or(0) != 0 || !condition.is_object() {
            continue;
        }
        let kind = str_at(condition, &["type"]);
        let before = list_at(old, &["status", "conditions"])
            .iter()
            .find(|condition| str_at(condition, &["type"]) == kind)
            .and_then(|condition| int_at(condition, &["observedGeneration"]));
        if let Some(generation) = before {
            set(condition, &["observedGeneration"], generation);
        }
    }
}

fn keep(new: &mut Value, old: &Value, path: &[&str]) {
    if let Some(value) = at(old, path) {
        set(new, path, value.clone());
    }
}

/// Adds what is wrong with a new status.
pub fn validate(new: &Value, old: &Value, errors: &mut FieldErrors) {
    for (index, condition) in list_at(new, &["status", "conditions"]).iter().enumerate() {
        let kind = str_at(condition, &["type"]);
        let field = format!("status.conditions[{index}].type");
        invalid_each(errors, &field, kind, names::qualified_name(kind));
    }
    if let Some(generation) =
        int_at(new, &["status", "observedGeneration"]).filter(|generation| *generation < 0)
    {
        errors.push(FieldError::invalid(
            "status.observedGeneration",
            generation,
            "must be a non-negative integer",
        ));
    }
    let (class, old_class) = (
        str_at(new, &["status", "qosClass"]),
        str_at(old, &["status", "qosClass"]),
    );
    if class != old_class {
        errors.push(FieldError::invalid(
            "status.qosClass",
            class,
            "field is immutable",
        ));
    }
    for list in ["containerStatuses", "initContainerStatuses"] {
        validate_transitions(list, new, old, errors);
    }
    validate_addresses(new, "podIP", "podIPs", errors);
    if !list_at(new, &["status", "hostIPs"]).is_empty() {
        validate_addresses(new, "hostIP", "hostIPs", errors);
    }
}

/// A container that has ended for good may not be reported as running again.
fn validate_transitions(list: &str, new: &Value, old: &Value, errors: &mut FieldErrors) {
    let spec_list = if list == "containerStatuses" {
        "containers"
    } else {
        "initContainers"
    };
    for (index, before) in list_at(old, &["status", list]).iter().enumerate() {
        let name = str_at(before, &["name"]);
        let Some(exit_code) = at(before, &["state", "terminated"])
            .map(|terminated| int_at(terminated, &["exitCode"]).unwrap_or(0))
        else {
            continue;
        };
        let own_policy = list_at(old, &["spec", spec_list])
            .iter()
            .find(|container| str_at(container, &["name"]) == name)
            .map_or("", |container| str_at(container, &["restartPolicy"]));
        let policy = if own_policy.is_empty() {
            str_at(old, &["spec", "restartPolicy"])
        } else {
            own_policy
        };
        let may_restart = policy == "Always" || (policy == "OnFailure" && exit_code != 0);
        let revived = list_at(new, &["status", list]).iter().any(|status| {
            str_at(status, &["name"]) == name && at(status, &["state", "terminated"]).is_none()
        });
        if revived && !may_restart {
            errors.push(FieldError::forbidden(
                format!("status.{list}[{index}].state"),
                "may not be transitioned to non-terminated state",
            ));
        }
    }
}

fn validate_addresses(new: &Value, single: &str, plural: &str, errors: &mut FieldErrors) {
    let addresses = list_at(new, &["status", plural]);
    let path = format!("status.{plural}");
    for (index, address) in addresses.iter().enumerate() {
        validate_ip(str_at(address, &["ip"]), &format!("{path}[{index}]"), errors);
    }
    let families: Vec<bool> = addresses
        .iter()
        .filter_map(|address| str_at(address, &["ip"]).parse::<IpAddr>().ok())
        .map(|address| address.is_ipv4())
        .collect();
    if families.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        errors.push(FieldError::invalid(
            &path,
            Value::Array(addresses.to_vec()),
            "may specify no more than one IP for each IP family",
        ));
    }
    let first = addresses.first().map_or("", |address| str_at(address, &["ip"]));
    if str_at(new, &["status", single]) != first {
        errors.push(FieldError::invalid(
            format!("{path}[0].ip"),
            first,
            format!("must be equal to `{single}`"),
        ));
    }
}

/// Writes a condition into a pod's status. The transition time moves only when the status does.
pub fn set_condition(pod: &mut Value, mut condition: Map<String, Value>, now: Timestamp) {
    let kind = condition.get("type").cloned().unwrap_or_default();
    let mut conditions = list_at(pod, &["status", "conditions"]).to_vec();
    let found = conditions
        .iter()
        .position(|other| other.get("type") == Some(&kind));
    let kept_time = found
        .map(|index| &conditions[index])
        .filter(|before| before.get("status") == condition.get("status"))
        .and_then(|before| at(before, &["lastTransitionTime"]).cloned());
    condition.insert(
        "lastTransitionTime".into(),
        kept_time.unwrap_or_else(|| whole_seconds(now).into()),
    );
    match found {
        Some(index) => conditions[index] = Value::Object(condition),
        None => conditions.push(Value::Object(condition)),
    }
    set(pod, &["status", "conditions"], json!(conditions));
}

/// A time as metadata and conditions carry it: UTC, whole seconds.
pub fn whole_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).map_or_else(|_| time.to_string(), |time| time.to_string())
}
