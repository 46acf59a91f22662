//! What may a Node say, and what can nobody change once it is set?

use super::{Context, Part, Strategy, keep};
use crate::admission::{node_taint::taint_new_node, tolerations::TolerationSeconds};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names, strings};
use crate::net;
use crate::value::{at, bool_at, list_at, remove, set, str_at};
use pointsman_model::IpFamily;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const POD_CIDRS: [&str; 2] = ["spec", "podCIDRs"];

/// Rules for core Nodes. The status that a new Node is sent with is kept, because node agents
/// register with it.
pub struct NodeStrategy;

impl Strategy for NodeStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        if let Some(capacity) = at(object, &["status", "capacity"]).cloned()
            && at(object, &["status", "allocatable"]).is_none()
        {
            set(object, &["status", "allocatable"], capacity);
        }
        follow_pod_cidr(object);
    }

    fn admit(&self, node: &mut Value, _tolerations: TolerationSeconds) {
        taint_new_node(node);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, _context: &Context<'_>) {
        match part {
            Part::Main => keep(new, old, "status"),
            Part::Status => keep(new, old, "spec"),
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        let mut errors = validate_taints(object);
        errors.extend(validate_pod_cidrs(object));
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = validate_taints(new);
        validate_addresses(new, &mut errors);
        if list_at(old, &POD_CIDRS).is_empty() {
            errors.extend(validate_pod_cidrs(new));
        } else if !strings(old, &POD_CIDRS).eq(strings(new, &POD_CIDRS)) {
            errors.push(FieldError::forbidden(
                "spec.podCIDRs",
                "node updates may not change podCIDR except from \"\" to valid",
            ));
        }
        let provider = ["spec", "providerID"];
        match (str_at(old, &provider), str_at(new, &provider)) {
            ("", _) => {}
            (_, "") => errors.push(provider_fault("field cannot be cleared once set")),
            (before, after) if before != after => {
                errors.push(provider_fault("field cannot be modified once set"));
            }
            _ => {}
        }
        errors
    }

    fn selectable<'a>(&self, object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        let unschedulable = || bool_at(object, &["spec", "unschedulable"]).unwrap_or(false);
        (field == "spec.unschedulable").then(|| if unschedulable() { "true" } else { "false" }.into())
    }
}

fn provider_fault(why: &str) -> FieldError {
    FieldError::invalid("spec.providerID", Value::Null, why)
}

/// Keeps the singular `podCIDR`, which older clients read and write, equal to the first of the list.
fn follow_pod_cidr(object: &mut Value) {
    let first = strings(object, &POD_CIDRS).next().map(str::to_owned);
    match (first, str_at(object, &["spec", "podCIDR"]).to_owned()) {
        (None, singular) if singular.is_empty() => {}
        (None, singular) => set(object, &POD_CIDRS, vec![singular]),
        (Some(first), singular) if singular.is_empty() => set(object, &["spec", "podCIDR"], first),
        (Some(first), singular) if first != singular => {
            // The two disagree: the singular one is what the client that changed it understood.
            remove(object, &POD_CIDRS);
            set(object, &POD_CIDRS, vec![singular]);
        }
        _ => {}
    }
}

fn validate_taints(object: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, taint) in list_at(object, &["spec", "taints"]).iter().enumerate() {
        // Upstream places taints under metadata in its messages; the spec is where they are.
        let path = format!("spec.taints[{index}]");
        let (key, value, effect) = (
            str_at(taint, &["key"]),
            str_at(taint, &["value"]),
            str_at(taint, &["effect"]),
        );
        invalid_each(
            &mut errors,
            &format!("{path}.key"),
            key,
            names::qualified_name(key),
        );
        let faults = names::label_value(value);
        if !faults.is_empty() {
            errors.push(FieldError::invalid(
                format!("{path}.value"),
                value,
                faults.join(";"),
            ));
        }
        if effect.is_empty() {
            errors.push(FieldError::required(format!("{path}.effect"), ""));
        } else if !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(
                format!("{path}.effect"),
                effect,
                &EFFECTS,
            ));
        }
        if !seen.insert((key, effect)) {
            errors.push(FieldError {
                detail: "taints must be unique by key and effect pair".into(),
                ..FieldError::duplicate(path, taint.clone())
            });
        }
    }
    errors
}

fn validate_pod_cidrs(object: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let mut families = Vec::new();
    for (index, text) in strings(object, &POD_CIDRS).enumerate() {
        match net::valid_cidr(&format!("spec.podCIDRs[{index}]"), text) {
            Ok((network, _)) => families.push(IpFamily::of(network)),
            Err(error) => errors.push(error),
        }
    }
    let doubled = (1..families.len()).any(|index| families[..index].contains(&families[index]));
    if doubled {
        let value = at(object, &POD_CIDRS).cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            "spec.podCIDRs",
            value,
            "may specify no more than one CIDR for each IP family",
        ));
    }
    errors
}

fn validate_addresses(object: &Value, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (index, address) in list_at(object, &["status", "addresses"]).iter().enumerate() {
        if !seen.insert((str_at(address, &["type"]), str_at(address, &["address"]))) {
            errors.push(FieldError::duplicate(
                format!("status.addresses[{index}]"),
                address.clone(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};
    use serde_json::json;

    fn check(object: Value, expected: &[&str]) {
        assert_eq!(created(&NodeStrategy, object).1, expected);
    }

    #[test]
    fn a_new_node_keeps_its_status_and_gets_allocatable() {
        let (node, errors) = created(&NodeStrategy, json!({"status": {"capacity": {"cpu": "2"}}}));
        assert!(errors.is_empty());
        assert_eq!(
            node["status"],
            json!({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}})
        );
    }

    #[test]
    fn taints_are_unique_by_key_and_effect() {
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        check(
            json!({"spec": {"taints": [taint("a", "NoSchedule"), taint("a", "NoExecute")]}}),
            &[],
        );
        check(
            json!({"spec": {"taints": [taint("a", "NoSchedule"), taint("a", "NoSchedule")]}}),
            &[
                r#"spec.taints[1]: Duplicate value: {"effect":"NoSchedule","key":"a"}: taints must be unique by key and effect pair"#,
            ],
        );
        check(
            json!({"spec": {"taints": [taint("a", "Never"), taint("b", "")]}}),
            &[
                r#"spec.taints[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
                "spec.taints[1].effect: Required value",
            ],
        );
    }

    #[test]
    fn pod_ranges_are_set_once() {
        check(json!({"spec": {"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}}), &[]);
        check(
            json!({"spec": {"podCIDR": "10.0.0.1/24"}}),
            &[
                r#"spec.podCIDRs[0]: Invalid value: "10.0.0.1/24": must not have bits set beyond the prefix length"#,
            ],
        );
        check(
            json!({"spec": {"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}}),
            &[
                r#"spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one CIDR for each IP family"#,
            ],
        );
        let none = json!({"spec": {}});
        let one = created(
            &NodeStrategy,
            json!({"spec": {"podCIDR": "10.0.0.0/24", "providerID": "p"}}),
        )
        .0;
        assert_eq!(one["spec"]["podCIDRs"], json!(["10.0.0.0/24"]));
        assert!(
            updated(&NodeStrategy, one.clone(), &none, Part::Main)
                .1
                .is_empty()
        );
        assert_eq!(
            updated(&NodeStrategy, none, &one, Part::Main).1,
            [
                "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
                "spec.providerID: Invalid value: null: field cannot be cleared once set",
            ]
        );
    }

    #[test]
    fn each_part_leaves_the_other_alone() {
        let old = json!({"spec": {"unschedulable": true}, "status": {"a": 1}});
        let new = json!({"spec": {}, "status": {"a": 2}});
        assert_eq!(
            updated(&NodeStrategy, new.clone(), &old, Part::Main).0,
            json!({"spec": {}, "status": {"a": 1}})
        );
        let status = updated(&NodeStrategy, new, &old, Part::Status).0;
        assert_eq!(
            status,
            json!({"spec": {"unschedulable": true}, "status": {"a": 2}})
        );
        assert_eq!(
            NodeStrategy.selectable(&status, "spec.unschedulable").as_deref(),
            Some("true")
        );
        assert_eq!(
            NodeStrategy
                .selectable(&json!({}), "spec.unschedulable")
                .as_deref(),
            Some("false")
        );
        assert_eq!(NodeStrategy.selectable(&status, "spec.other"), None);
    }
}
