//! What makes a Lease well-formed?

use super::{Context, Part, Strategy};
use crate::field_error::{FieldError, FieldErrors};
use crate::value::{at, int_at, str_at};
use jiff::Timestamp;
use serde_json::Value;

/// Rules for `coordination.k8s.io` Leases.
pub struct LeaseStrategy;

impl Strategy for LeaseStrategy {
    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        validate(object)
    }

    fn validate_update(&self, new: &Value, _old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        validate(new)
    }

    fn create_on_update(&self) -> bool {
        true
    }

    /// Leader election depends on losing writers being told.
    fn update_needs_resource_version(&self) -> bool {
        true
    }
}

fn validate(lease: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    if let Some(seconds) = int_at(lease, &["spec", "leaseDurationSeconds"])
        && seconds <= 0
    {
        errors.push(FieldError::invalid(
            "spec.leaseDurationSeconds",
            seconds,
            "must be greater than 0",
        ));
    }
    if let Some(transitions) = int_at(lease, &["spec", "leaseTransitions"])
        && transitions < 0
    {
        errors.push(FieldError::invalid(
            "spec.leaseTransitions",
            transitions,
            "must be greater than or equal to 0",
        ));
    }
    for field in ["acquireTime", "renewTime"] {
        if let Some(time) = at(lease, &["spec", field])
            && time
                .as_str()
                .is_none_or(|time| time.parse::<Timestamp>().is_err())
        {
            errors.push(FieldError::invalid(
                format!("spec.{field}"),
                time.clone(),
                "must be a time such as 2006-01-02T15:04:05.000000Z",
            ));
        }
    }
    let strategy = str_at(lease, &["spec", "strategy"]);
    if !str_at(lease, &["spec", "preferredHolder"]).is_empty() && strategy.is_empty() {
        errors.push(FieldError::forbidden(
            "spec.preferredHolder",
            "may only be specified if `strategy` is defined",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::created;
    use serde_json::json;

    fn check(spec: Value, expected: &[&str]) {
        assert_eq!(created(&LeaseStrategy, json!({"spec": spec})).1, expected);
    }

    #[test]
    fn leases_have_positive_durations_and_real_times() {
        check(
            json!({"holderIdentity": "a", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.123456Z"}),
            &[],
        );
        check(
            json!({"leaseDurationSeconds": 0, "leaseTransitions": -1}),
            &[
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            ],
        );
        check(
            json!({"acquireTime": "yesterday", "preferredHolder": "b"}),
            &[
                r#"spec.acquireTime: Invalid value: "yesterday": must be a time such as 2006-01-02T15:04:05.000000Z"#,
                "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
            ],
        );
    }
}
