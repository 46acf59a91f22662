//! Which names, labels, annotations, finalizers and owners are well-formed?
//!
//! [`validate_meta`] answers for a new object, [`validate_meta_update`] for a changed one. Both run
//! after the server has filled in or restored what it owns (uid, timestamps, resourceVersion).

use crate::field_error::{FieldError, FieldErrors};
use crate::kind::Kind;
use crate::strategy::equality::same;
use crate::value::{at, bool_at, list_at, map_at, str_at};
use serde_json::Value;
use std::collections::BTreeSet;

pub mod names;

/// All annotation keys and values together may not be larger.
pub const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

/// The message for a field that may not change.
pub const IMMUTABLE: &str = "field is immutable";

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The shape an object's name must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// Lower case letters, digits, `-` and `.`; at most 253 bytes.
    DnsSubdomain,
    /// Lower case letters, digits and `-`; at most 63 bytes.
    DnsLabel,
    /// Anything that can be one path segment (RBAC names contain colons).
    PathSegment,
}

impl NameRule {
    /// What is wrong with `name`.
    pub fn faults(self, name: &str) -> Vec<String> {
        match self {
            NameRule::DnsSubdomain => names::dns_subdomain(name),
            NameRule::DnsLabel => names::dns_label(name),
            NameRule::PathSegment => names::path_segment(name),
        }
    }

    /// What is wrong with `prefix` as a `generateName`: it may end where a name may not.
    pub fn prefix_faults(self, prefix: &str) -> Vec<String> {
        match (self, prefix.strip_suffix('-')) {
            // The random suffix follows, so a trailing hyphen stands for any letter.
            (NameRule::DnsSubdomain | NameRule::DnsLabel, Some(head)) if !head.is_empty() => {
                self.faults(&format!("{head}a"))
            }
            _ => self.faults(prefix),
        }
    }
}

/// What is wrong with the metadata of a new `object`. `path` is where the metadata is, normally
/// `metadata`.
pub fn validate_meta(object: &Value, kind: &Kind, rule: NameRule, path: &str) -> FieldErrors {
    let mut errors = Vec::new();
    let prefix = str_at(object, &["metadata", "generateName"]);
    if !prefix.is_empty() {
        invalid_each(
            &mut errors,
            &format!("{path}.generateName"),
            prefix,
            rule.prefix_faults(prefix),
        );
    }
    let name = str_at(object, &["metadata", "name"]);
    if name.is_empty() {
        errors.push(FieldError::required(
            format!("{path}.name"),
            "name or generateName is required",
        ));
    } else {
        invalid_each(&mut errors, &format!("{path}.name"), name, rule.faults(name));
    }
    let namespace = str_at(object, &["metadata", "namespace"]);
    let namespace_path = format!("{path}.namespace");
    match (kind.namespaced(), namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required(namespace_path, "")),
        (true, false) => invalid_each(
            &mut errors,
            &namespace_path,
            namespace,
            names::dns_label(namespace),
        ),
        (false, true) => {}
        (false, false) => errors.push(FieldError::forbidden(namespace_path, "not allowed on this type")),
    }
    validate_common(object, path, &mut errors);
    validate_finalizers(object, path, &mut errors);
    errors
}

/// What is wrong with the metadata of an object that changed from `old` to `new`.
pub fn validate_meta_update(new: &Value, old: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    if at(old, &["metadata", "deletionTimestamp"]).is_some() {
        let before: BTreeSet<&str> = strings(old, &["metadata", "finalizers"]).collect();
        let added: BTreeSet<&str> = strings(new, &["metadata", "finalizers"])
            .filter(|finalizer| !before.contains(finalizer))
            .collect();
        if !added.is_empty() {
            let added: Vec<String> = added.iter().map(|finalizer| format!("{finalizer:?}")).collect();
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                ),
            ));
        }
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        immutable(&mut errors, new, old, &["metadata", field]);
    }
    validate_common(new, "metadata", &mut errors);
    validate_finalizers(new, "metadata", &mut errors);
    errors
}

/// The error for a PUT without resourceVersion to a kind that needs one.
pub fn resource_version_required() -> FieldError {
    FieldError::invalid("metadata.resourceVersion", "", "must be specified for an update")
}

/// What is wrong with a map of labels at `path` (absent is fine).
pub fn validate_labels(labels: Option<&Value>, path: &str) -> FieldErrors {
    let mut errors = Vec::new();
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        invalid_each(&mut errors, path, key.as_str(), names::qualified_name(key));
        let value = value.as_str().unwrap_or("");
        invalid_each(&mut errors, path, value, names::label_value(value));
    }
    errors
}

/// What is wrong with a map of annotations at `path` (absent is fine).
pub fn validate_annotations(annotations: Option<&Value>, path: &str) -> FieldErrors {
    let mut errors = Vec::new();
    let mut total = 0;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        invalid_each(
            &mut errors,
            path,
            key.as_str(),
            names::qualified_name(&key.to_lowercase()),
        );
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > ANNOTATIONS_MAX_BYTES {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX_BYTES));
    }
    errors
}

/// Adds one `Invalid` error per fault.
pub fn invalid_each(
    errors: &mut FieldErrors,
    path: &str,
    value: impl Into<Value> + Clone,
    faults: Vec<String>,
) {
    errors.extend(
        faults
            .into_iter()
            .map(|fault| FieldError::invalid(path, value.clone(), fault)),
    );
}

/// Adds an error if the field at `path` differs between `new` and `old`. What a typed client leaves
/// out or adds when it rewrites what it read (empty text, zero, empty objects) is no difference.
pub fn immutable(errors: &mut FieldErrors, new: &Value, old: &Value, path: &[&str]) {
    let zero = |value: &&Value| value.as_str() == Some("") || value.as_i64() == Some(0);
    let (after, before) = (at(new, path), at(old, path));
    if !same(
        after.filter(|value| !zero(value)),
        before.filter(|value| !zero(value)),
    ) {
        let value = at(new, path).cloned().unwrap_or(Value::Null);
        errors.push(FieldError::invalid(path.join("."), value, IMMUTABLE));
    }
}

/// The strings of the list at `path`.
pub fn strings<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a str> {
    list_at(object, path).iter().filter_map(Value::as_str)
}

fn validate_common(object: &Value, path: &str, errors: &mut FieldErrors) {
    if let Some(generation) = at(object, &["metadata", "generation"]).and_then(Value::as_i64)
        && generation < 0
    {
        errors.push(FieldError::invalid(
            format!("{path}.generation"),
            generation,
            "must be greater than or equal to 0",
        ));
    }
    errors.extend(validate_labels(
        at(object, &["metadata", "labels"]),
        &format!("{path}.labels"),
    ));
    errors.extend(validate_annotations(
        at(object, &["metadata", "annotations"]),
        &format!("{path}.annotations"),
    ));
    validate_owners(object, &format!("{path}.ownerReferences"), errors);
}

fn validate_owners(object: &Value, path: &str, errors: &mut FieldErrors) {
    let mut controller: Option<String> = None;
    for (index, owner) in list_at(object, &["metadata", "ownerReferences"])
        .iter()
        .enumerate()
    {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if str_at(owner, &[field]).is_empty() {
                errors.push(FieldError::required(
                    format!("{path}[{index}].{field}"),
                    "must not be empty",
                ));
            }
        }
        let version = str_at(owner, &["apiVersion"]);
        if version.matches('/').count() > 1 || version.ends_with('/') {
            errors.push(FieldError::invalid(
                format!("{path}[{index}].apiVersion"),
                version,
                "must be <group>/<version> or <version>",
            ));
        }
        if version == "v1" && str_at(owner, &["kind"]) == "Event" {
            errors.push(FieldError::invalid(
                format!("{path}[{index}]"),
                owner.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if bool_at(owner, &["controller"]) == Some(true) {
            let this = format!("{}/{}", str_at(owner, &["kind"]), str_at(owner, &["name"]));
            match &controller {
                Some(first) => errors.push(FieldError::invalid(
                    path,
                    at(object, &["metadata", "ownerReferences"]).cloned().unwrap_or_default(),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    ),
                )),
                None => controller = Some(this),
            }
        }
    }
}

fn validate_finalizers(object: &Value, path: &str, errors: &mut FieldErrors) {
    let path = format!("{path}.finalizers");
    for finalizer in strings(object, &["metadata", "finalizers"]) {
        invalid_each(errors, &path, finalizer, names::qualified_name(finalizer));
    }
    let has =
        |wanted: &str| strings(object, &["metadata", "finalizers"]).any(|finalizer| finalizer == wanted);
    if has(ORPHAN) && has(FOREGROUND) {
        errors.push(FieldError::invalid(
            path,
            at(object, &["metadata", "finalizers"])
                .cloned()
                .unwrap_or_default(),
            format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set"),
        ));
    }
}

/// Whether two label maps are equal, an absent map being equal to an empty one.
pub fn same_labels(new: &Value, old: &Value) -> bool {
    let labels = |object| map_at(object, &["metadata", "labels"]).filter(|labels| !labels.is_empty());
    labels(new) == labels(old)
}

#[cfg(test)]
mod tests;
