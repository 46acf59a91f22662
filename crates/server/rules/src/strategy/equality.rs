//! When do two specs mean the same?
//!
//! Typed clients rewrite what they read: they drop empty lists and zero values of plain fields, and
//! they respell quantities (`1000m` comes back as `1`). Such a round trip is not a change.

use crate::value;
use serde_json::{Map, Value};

/// Whether `left` and `right` mean the same. Absent, `null`, `[]` and `{}` are the same everywhere;
/// absent and the zero value are the same in fields whose upstream type cannot tell them apart.
pub fn same(left: Option<&Value>, right: Option<&Value>) -> bool {
    same_under("", false, left, right)
}

fn same_under(field: &str, amounts: bool, left: Option<&Value>, right: Option<&Value>) -> bool {
    let left = left.filter(|value| !means_absent(field, value));
    let right = right.filter(|value| !means_absent(field, value));
    match (left, right) {
        (None, None) => true,
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let amounts = amounts || AMOUNT_MAPS.contains(&field);
            same_maps(amounts, left, right) && same_maps(amounts, right, left)
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| same_under("", amounts, Some(left), Some(right)))
        }
        (Some(left), Some(right)) if left == right => true,
        (Some(left), Some(right)) if amounts || AMOUNTS.contains(&field) => {
            let left = value::quantity(left);
            left.is_some() && left == value::quantity(right)
        }
        _ => false,
    }
}

fn same_maps(amounts: bool, left: &Map<String, Value>, right: &Map<String, Value>) -> bool {
    left.iter()
        .all(|(field, value)| same_under(field, amounts, Some(value), right.get(field)))
}

fn means_absent(field: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(false) => PLAIN_FIELDS.contains(&field),
        Value::String(text) => text.is_empty() && PLAIN_FIELDS.contains(&field),
        Value::Number(number) => number.as_i64() == Some(0) && PLAIN_FIELDS.contains(&field),
        _ => false,
    }
}

/// Maps from resource names to quantities.
const AMOUNT_MAPS: [&str; 3] = ["limits", "requests", "overhead"];

/// Fields that hold one quantity.
const AMOUNTS: [&str; 2] = ["sizeLimit", "divisor"];

/// Fields of pod and workload specs that upstream keeps without a pointer, so that typed clients
/// leave out the zero value.
const PLAIN_FIELDS: [&str; 29] = [
    "divisor",
    "effect",
    "host",
    "hostIP",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "hostname",
    "initialDelaySeconds",
    "key",
    "medium",
    "minReadySeconds",
    "name",
    "nodeName",
    "operator",
    "paused",
    "prefix",
    "priorityClassName",
    "readOnly",
    "serviceAccount",
    "serviceAccountName",
    "stdin",
    "stdinOnce",
    "subPath",
    "subdomain",
    "tty",
    "value",
    "workingDir",
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn same_values(left: Value, right: Value) -> bool {
        let forward = same(Some(&left), Some(&right));
        assert_eq!(
            forward,
            same(Some(&right), Some(&left)),
            "equality must be symmetric"
        );
        forward
    }

    #[test]
    fn a_round_trip_through_a_typed_client_is_no_change() {
        let sent = json!({
            "hostNetwork": false,
            "nodeSelector": {},
            "volumes": null,
            "containers": [{
                "name": "a", "args": [], "tty": false,
                "resources": {"limits": {"cpu": "1000m"}, "requests": {"memory": "1Gi"}},
            }],
        });
        let returned = json!({
            "containers": [{
                "name": "a",
                "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1024Mi"}},
            }],
        });
        assert!(same_values(sent, returned));
    }

    #[test]
    fn fields_that_distinguish_unset_from_zero_keep_doing_so() {
        assert!(!same_values(
            json!({"automountServiceAccountToken": false}),
            json!({})
        ));
        assert!(!same_values(json!({"runAsUser": 0}), json!({})));
        assert!(!same_values(
            json!({"limits": {"cpu": "1"}}),
            json!({"limits": {"cpu": "2"}})
        ));
        assert!(!same_values(json!({"cpu": "1000m"}), json!({"cpu": "1"})));
        assert!(!same_values(json!({"a": [1, 2]}), json!({"a": [1]})));
    }
}
