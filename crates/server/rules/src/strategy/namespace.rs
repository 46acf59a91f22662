//! How does a Namespace begin, and how does it end?
//!
//! It begins Active with the finalizer `kubernetes`, which the namespace controller removes through
//! the `finalize` subresource once the namespace is empty.

use super::{Context, Part, Strategy, keep};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{NameRule, invalid_each, names, strings};
use crate::value::{at, at_mut, set, str_at};
use serde_json::{Value, json};
use std::borrow::Cow;

/// The label by which selectors find a namespace by name.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

const FINALIZER: &str = "kubernetes";
const FINALIZERS: [&str; 2] = ["spec", "finalizers"];
/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = [FINALIZER, "orphan", "foregroundDeletion"];

/// Rules for core Namespaces.
pub struct NamespaceStrategy;

impl Strategy for NamespaceStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        label(object);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        // The name may have been generated since defaulting.
        label(object);
        set(object, &["status"], json!({"phase": "Active"}));
        if !strings(object, &FINALIZERS).any(|finalizer| finalizer == FINALIZER) {
            match at_mut(object, &FINALIZERS).and_then(Value::as_array_mut) {
                Some(finalizers) => finalizers.push(FINALIZER.into()),
                None => set(object, &FINALIZERS, vec![FINALIZER]),
            }
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, _context: &Context<'_>) {
        keep(new, old, "spec");
        if part == Part::Main {
            keep(new, old, "status");
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        validate_finalizers(object)
    }

    fn validate_update(&self, new: &Value, _old: &Value, part: Part, _context: &Context<'_>) -> FieldErrors {
        let phase = str_at(new, &["status", "phase"]);
        let expected = match at(new, &["metadata", "deletionTimestamp"]) {
            None => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
            Some(_) => (
                "Terminating",
                "may only be 'Terminating' if `deletionTimestamp` is not empty",
            ),
        };
        if part == Part::Status && phase != expected.0 {
            return vec![FieldError::invalid("status.phase", phase, expected.1)];
        }
        Vec::new()
    }

    fn name_rule(&self) -> NameRule {
        NameRule::DnsLabel
    }

    fn selectable<'a>(&self, object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        (field == "status.phase").then(|| str_at(object, &["status", "phase"]).into())
    }
}

/// What is wrong with `spec.finalizers`.
pub fn validate_finalizers(object: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    for (index, finalizer) in strings(object, &FINALIZERS).enumerate() {
        let path = format!("spec.finalizers[{index}]");
        invalid_each(&mut errors, &path, finalizer, names::qualified_name(finalizer));
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
            errors.push(FieldError::invalid(
                path,
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    errors
}

fn label(object: &mut Value) {
    let name = str_at(object, &["metadata", "name"]).to_owned();
    if !name.is_empty() {
        set(object, &["metadata", "labels", NAME_LABEL], name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};

    #[test]
    fn a_namespace_begins_active_labelled_and_guarded() {
        let sent =
            json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["x.io/y"]}, "status": {"phase": "X"}});
        let (namespace, errors) = created(&NamespaceStrategy, sent);
        assert!(errors.is_empty());
        assert_eq!(
            namespace,
            json!({"metadata": {"name": "a", "labels": {NAME_LABEL: "a"}},
                "spec": {"finalizers": ["x.io/y", "kubernetes"]}, "status": {"phase": "Active"}})
        );
        let (_, errors) = created(&NamespaceStrategy, json!({"spec": {"finalizers": ["mine"]}}));
        assert_eq!(
            errors,
            [
                r#"spec.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified"#
            ]
        );
    }

    #[test]
    fn finalizers_change_only_through_finalize_and_the_phase_follows_deletion() {
        let old = json!({"metadata": {"name": "a", "deletionTimestamp": "t"},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Terminating"}});
        let mut new = old.clone();
        new["spec"]["finalizers"] = json!([]);
        new["status"]["phase"] = json!("Active");
        let main = updated(&NamespaceStrategy, new.clone(), &old, Part::Main).0;
        assert_eq!((&main["spec"], &main["status"]), (&old["spec"], &old["status"]));
        let (status, errors) = updated(&NamespaceStrategy, new, &old, Part::Status);
        assert_eq!(status["spec"], old["spec"]);
        assert_eq!(
            errors,
            [
                r#"status.phase: Invalid value: "Active": may only be 'Terminating' if `deletionTimestamp` is not empty"#
            ]
        );
    }
}
