//! What do NetworkPolicies fill in, and which ranges of ports are none?

use crate::field_error::{FieldError, FieldErrors};
use crate::value::{at, int_at, list_at, set_default};
use serde_json::Value;

/// Which directions a policy is about, where it does not say so.
pub(crate) fn fill_in(policy: &mut Value) {
    let mut types = vec!["Ingress"];
    if !list_at(policy, &["spec", "egress"]).is_empty() {
        types.push("Egress");
    }
    if at(policy, &["spec"]).is_some_and(Value::is_object) {
        set_default(policy, &["spec", "policyTypes"], types);
    }
}

/// A range of ports has a number as its start, and does not end before it.
pub(crate) fn validate(policy: &Value, errors: &mut FieldErrors) {
    for direction in ["ingress", "egress"] {
        for (rule_at, rule) in list_at(policy, &["spec", direction]).iter().enumerate() {
            for (at_port, port) in list_at(rule, &["ports"]).iter().enumerate() {
                let Some(end) = int_at(port, &["endPort"]) else {
                    continue;
                };
                let path = format!("spec.{direction}[{rule_at}].ports[{at_port}].endPort");
                let why = match (at(port, &["port"]), int_at(port, &["port"])) {
                    (None, _) => "may not be specified when `port` is not specified",
                    (_, None) => "may not be specified when `port` is non-numeric",
                    (_, Some(start)) if end < start => "must be greater than or equal to `port`",
                    _ => continue,
                };
                errors.push(FieldError::invalid(path, end, why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_range_of_ports_starts_with_a_number_and_does_not_end_before_it() {
        let with = |port: Value| {
            let policy = json!({"spec": {"egress": [{"ports": [port]}]}});
            let mut errors = Vec::new();
            validate(&policy, &mut errors);
            errors.into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        for wrong in [
            json!({"endPort": 20}),
            json!({"port": "web", "endPort": 20}),
            json!({"port": 30, "endPort": 20}),
        ] {
            assert_eq!(with(wrong), ["spec.egress[0].ports[0].endPort"]);
        }
        for right in [
            json!({"port": 20, "endPort": 20}),
            json!({"port": "web"}),
            json!({}),
        ] {
            assert!(with(right).is_empty());
        }
    }
}
