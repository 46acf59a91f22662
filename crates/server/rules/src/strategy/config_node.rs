//! What may the cluster-wide node configuration say?
//!
//! `config.openshift.io/v1` Node follows the rules of custom resources: fields that its schema does
//! not have are pruned, everything but metadata and status counts for the generation, and a PUT needs
//! a resourceVersion.

use super::equality::same;
use super::{Context, Part, Strategy, keep};
use crate::field_error::{FieldError, FieldErrors};
use crate::schema::{self, Shape};
use crate::value::{at, list_at, remove, set, str_at};
use jiff::Timestamp;
use serde_json::Value;

/// The only name the object may have.
const NAME: &str = "cluster";
const PROFILES: [&str; 4] = [
    "Default",
    "MediumUpdateAverageReaction",
    "LowUpdateSlowReaction",
    "",
];
const CGROUP_MODES: [&str; 3] = ["v1", "v2", ""];

/// Rules for `config.openshift.io` Nodes.
pub struct ConfigNodeStrategy;

impl Strategy for ConfigNodeStrategy {
    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        prune(object);
        remove(object, &["status"]);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, _context: &Context<'_>) {
        prune(new);
        match part {
            Part::Main => keep(new, old, "status"),
            Part::Status => {
                // A status write changes nothing else, metadata included, as with custom resources.
                let status = at(new, &["status"]).cloned();
                let managed = at(new, &["metadata", "managedFields"]).cloned();
                *new = old.clone();
                match status {
                    Some(status) => set(new, &["status"], status),
                    None => drop(remove(new, &["status"])),
                }
                if let Some(managed) = managed {
                    set(new, &["metadata", "managedFields"], managed);
                }
            }
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        validate(object)
    }

    fn validate_update(&self, new: &Value, _old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        validate(new)
    }

    fn update_needs_resource_version(&self) -> bool {
        true
    }

    fn first_generation(&self) -> Option<i64> {
        Some(1)
    }

    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        !same(at(new, &["spec"]), at(old, &["spec"]))
    }
}

fn validate(object: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let name = str_at(object, &["metadata", "name"]);
    if name != NAME {
        errors.push(FieldError::not_supported("metadata.name", name, &[NAME]));
    }
    if at(object, &["spec"]).is_none() {
        errors.push(FieldError::required("spec", ""));
    }
    for (field, known) in [
        ("workerLatencyProfile", &PROFILES[..]),
        ("cgroupMode", &CGROUP_MODES[..]),
    ] {
        let value = str_at(object, &["spec", field]);
        if !known.contains(&value) {
            errors.push(FieldError::not_supported(format!("spec.{field}"), value, known));
        }
    }
    let version = str_at(object, &["spec", "minimumKubeletVersion"]);
    if !is_version(version) {
        errors.push(FieldError::invalid(
            "spec.minimumKubeletVersion",
            version,
            "must be empty or a version such as 1.30.2",
        ));
    }
    let profile = at(object, &["status", "workerLatencyProfileStatus"]);
    let conditions = [
        (
            "status.conditions",
            list_at(object, &["status", "conditions"]),
            &["type", "status", "lastTransitionTime"][..],
        ),
        (
            "status.workerLatencyProfileStatus.conditions",
            profile.map_or(&[][..], |status| list_at(status, &["conditions"])),
            &["owner", "type", "status", "lastTransitionTime"],
        ),
    ];
    for (path, conditions, required) in conditions {
        for (index, condition) in conditions.iter().enumerate() {
            validate_condition(condition, required, &format!("{path}[{index}]"), &mut errors);
        }
    }
    let related = profile.map_or(&[][..], |status| list_at(status, &["relatedObjects"]));
    for (index, object) in related.iter().enumerate() {
        let path = format!("status.workerLatencyProfileStatus.relatedObjects[{index}]");
        require(object, &["name", "resource"], &path, &mut errors);
    }
    errors
}

fn require(object: &Value, fields: &[&str], path: &str, errors: &mut FieldErrors) {
    for field in fields {
        if str_at(object, &[field]).is_empty() {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    }
}

fn validate_condition(condition: &Value, required: &[&str], path: &str, errors: &mut FieldErrors) {
    require(condition, required, path, errors);
    let status = str_at(condition, &["status"]);
    let known = ["True", "False", "Unknown"];
    if !status.is_empty() && !known.contains(&status) {
        errors.push(FieldError::not_supported(
            format!("{path}.status"),
            status,
            &known,
        ));
    }
    let time = str_at(condition, &["lastTransitionTime"]);
    if !time.is_empty() && time.parse::<Timestamp>().is_err() {
        let (path, why) = (
            format!("{path}.lastTransitionTime"),
            "must be a time such as 2006-01-02T15:04:05Z",
        );
        errors.push(FieldError::invalid(path, time, why));
    }
}

fn is_version(text: &str) -> bool {
    text.is_empty()
        || (text.split('.').count() == 3
            && text
                .split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())))
}

/// Removes what the schema of the custom resource does not have, at every level.
fn prune(object: &mut Value) {
    let Some(known) = schema::named("config.openshift.io", "v1", "Node") else {
        return;
    };
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    fields.retain(|name, value| match (name.as_str(), known.field(name)) {
        ("apiVersion" | "kind" | "metadata", _) => true,
        (_, Some(field)) => {
            prune_value(value, &field.shape);
            true
        }
        (_, None) => false,
    });
}

fn prune_value(value: &mut Value, shape: &Shape) {
    match (shape, value) {
        (Shape::Object(index), Value::Object(fields)) => {
            let known = index.get();
            fields.retain(|name, value| match known.field(name) {
                Some(field) => {
                    prune_value(value, &field.shape);
                    true
                }
                None => false,
            });
        }
        (Shape::List(item), Value::Array(items)) => {
            items.iter_mut().for_each(|value| prune_value(value, item));
        }
        (Shape::Map(item), Value::Object(fields)) => {
            fields.values_mut().for_each(|value| prune_value(value, item));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};
    use serde_json::json;

    fn node(spec: Value) -> Value {
        json!({"metadata": {"name": "cluster"}, "spec": spec})
    }

    fn check(spec: Value, expected: &[&str]) {
        assert_eq!(created(&ConfigNodeStrategy, node(spec)).1, expected);
    }

    #[test]
    fn profiles_and_modes_are_closed_sets() {
        for profile in PROFILES {
            check(json!({"workerLatencyProfile": profile}), &[]);
        }
        check(json!({}), &[]);
        check(
            json!({"workerLatencyProfile": "Fast"}),
            &[
                r#"spec.workerLatencyProfile: Unsupported value: "Fast": supported values: "Default", "MediumUpdateAverageReaction", "LowUpdateSlowReaction", """#,
            ],
        );
        check(
            json!({"cgroupMode": "v3", "minimumKubeletVersion": "1.30"}),
            &[
                r#"spec.cgroupMode: Unsupported value: "v3": supported values: "v1", "v2", """#,
                r#"spec.minimumKubeletVersion: Invalid value: "1.30": must be empty or a version such as 1.30.2"#,
            ],
        );
        assert_eq!(
            created(&ConfigNodeStrategy, json!({"metadata": {"name": "other"}})).1,
            [
                r#"metadata.name: Unsupported value: "other": supported values: "cluster""#,
                "spec: Required value",
            ]
        );
    }

    #[test]
    fn unknown_fields_are_pruned_and_parts_kept_apart() {
        let mut sent = node(json!({"workerLatencyProfile": "Default", "unknown": 1}));
        sent["status"] = json!({"conditions": []});
        sent["other"] = json!(1);
        let (stored, errors) = created(&ConfigNodeStrategy, sent);
        assert!(errors.is_empty());
        assert_eq!(stored, node(json!({"workerLatencyProfile": "Default"})));

        let status = json!({"workerLatencyProfileStatus": {"conditions": [
            {"owner": "KubeAPIServerOperator", "type": "Complete", "status": "True",
             "lastTransitionTime": "2026-01-02T03:04:05Z"}], "relatedObjects": [
            {"group": "", "resource": "configmaps", "namespace": "kube-system", "name": "pointsman-node"}]}});
        let mut new = node(json!({"workerLatencyProfile": "LowUpdateSlowReaction"}));
        new["status"] = status.clone();
        new["status"]["workerLatencyProfileStatus"]["conditions"][0]["unknown"] = json!(1);
        let (reported, errors) = updated(&ConfigNodeStrategy, new.clone(), &stored, Part::Status);
        assert!(errors.is_empty());
        assert_eq!(
            (&reported["spec"], &reported["status"]),
            (&stored["spec"], &status)
        );
        assert!(!ConfigNodeStrategy.bumps_generation(&reported, &stored));
        new.as_object_mut().unwrap().remove("status");
        let (changed, _) = updated(&ConfigNodeStrategy, new, &reported, Part::Main);
        assert_eq!(changed["status"], status);
        assert!(ConfigNodeStrategy.bumps_generation(&changed, &reported));
    }

    #[test]
    fn conditions_say_who_what_and_since_when_and_related_objects_which() {
        let stored = node(json!({}));
        let check = |status: Value, expected: &[&str]| {
            let mut new = stored.clone();
            new["status"] = json!({"workerLatencyProfileStatus": status});
            assert_eq!(
                updated(&ConfigNodeStrategy, new, &stored, Part::Status).1,
                expected
            );
        };
        check(
            json!({"conditions": [{}, {"owner": "KubeAPIServerOperator", "type": "Complete", "status": "Perhaps",
                "lastTransitionTime": "yesterday"}]}),
            &[
                "status.workerLatencyProfileStatus.conditions[0].owner: Required value",
                "status.workerLatencyProfileStatus.conditions[0].type: Required value",
                "status.workerLatencyProfileStatus.conditions[0].status: Required value",
                "status.workerLatencyProfileStatus.conditions[0].lastTransitionTime: Required value",
                r#"status.workerLatencyProfileStatus.conditions[1].status: Unsupported value: "Perhaps": supported values: "True", "False", "Unknown""#,
                r#"status.workerLatencyProfileStatus.conditions[1].lastTransitionTime: Invalid value: "yesterday": must be a time such as 2006-01-02T15:04:05Z"#,
            ],
        );
        check(
            json!({"relatedObjects": [{"group": "", "namespace": "kube-system"}]}),
            &[
                "status.workerLatencyProfileStatus.relatedObjects[0].name: Required value",
                "status.workerLatencyProfileStatus.relatedObjects[0].resource: Required value",
            ],
        );
    }
}
