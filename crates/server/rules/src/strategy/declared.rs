//! What are the rules of a kind that its row and its schema describe?

use super::equality::same;
use super::{Context, Part, Strategy, keep, pod_template};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{IMMUTABLE, NameRule};
use crate::value::{at, remove, set};
use serde_json::Value;
use std::borrow::Cow;

/// The rules of a kind as data. Defaults and required fields are in its schema.
pub struct Declared {
    /// Whether status is written through its own subresource alone.
    pub status: bool,
    /// Whether a change of the spec counts as a new generation.
    pub generation: bool,
    /// The `status.phase` of a new object; empty for none.
    pub phase: &'static str,
    /// Where the object holds a pod template; empty for none.
    pub template: &'static [&'static str],
    /// Fields that cannot change, as dotted paths.
    pub immutable: &'static [&'static str],
    /// Which names are acceptable.
    pub names: NameRule,
    /// Fills in what depends on other fields.
    pub default: fn(&mut Value),
    /// Changes a new object that has its metadata.
    pub prepare: fn(&mut Value),
    /// Adds what is wrong with the spec.
    pub validate: fn(&Value, &mut FieldErrors),
}

/// A kind without status and generation.
pub const PLAIN: Declared = Declared {
    status: false,
    generation: false,
    phase: "",
    template: &[],
    immutable: &[],
    names: NameRule::DnsSubdomain,
    default: |_| {},
    prepare: |_| {},
    validate: |_, _| {},
};

/// A kind that counts changes of its spec.
pub const SPEC: Declared = Declared {
    generation: true,
    ..PLAIN
};

/// A kind with status.
pub const STATUS: Declared = Declared {
    status: true,
    ..PLAIN
};

/// A kind that counts changes of its spec and has status.
pub const SPEC_STATUS: Declared = Declared {
    generation: true,
    ..STATUS
};

impl Strategy for Declared {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        if !object.is_object() {
            return;
        }
        if !self.template.is_empty() {
            pod_template::default_pod_spec(object, self.template);
        }
        (self.default)(object);
    }

    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        if !object.is_object() {
            return;
        }
        if self.status {
            remove(object, &["status"]);
        }
        if !self.phase.is_empty() {
            set(object, &["status", "phase"], self.phase);
        }
        (self.prepare)(object);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, part: Part, _context: &Context<'_>) {
        match part {
            Part::Main if self.status => keep(new, old, "status"),
            Part::Main => {}
            Part::Status => {
                // Clients write the status of an object as they last saw it: the rest is as it is stored.
                let status = remove(new, &["status"]);
                let metadata = remove(new, &["metadata"]);
                *new = old.clone();
                for (field, value) in [("status", status), ("metadata", metadata)] {
                    match value {
                        Some(value) => set(new, &[field], value),
                        None => drop(remove(new, &[field])),
                    }
                }
            }
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        if !self.template.is_empty() {
            pod_template::validate_pod_spec(object, self.template, &mut errors);
        }
        (self.validate)(object, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value, part: Part, context: &Context<'_>) -> FieldErrors {
        if part == Part::Status {
            return Vec::new();
        }
        let mut errors = self.validate_create(new, context);
        for field in self.immutable {
            let path: Vec<&str> = field.split('.').collect();
            if !same(at(new, &path), at(old, &path)) {
                let value = at(new, &path).cloned().unwrap_or(Value::Null);
                errors.push(FieldError::invalid(*field, value, IMMUTABLE));
            }
        }
        errors
    }

    fn name_rule(&self) -> NameRule {
        self.names
    }

    fn first_generation(&self) -> Option<i64> {
        self.generation.then_some(1)
    }

    fn bumps_generation(&self, new: &Value, old: &Value) -> bool {
        self.generation && !same(at(new, &["spec"]), at(old, &["spec"]))
    }

    /// The plain value at the path that the field is called by.
    fn selectable<'a>(&self, object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        plain_value(object, field)
    }

    fn by_schema(&self) -> bool {
        true
    }
}

/// What a field selector compares: the plain value at a dotted path, or nothing.
pub(crate) fn plain_value<'a>(object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
    let path: Vec<&str> = field.split('.').collect();
    Some(match at(object, &path) {
        Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => Cow::Owned(value.to_string()),
        _ => Cow::Borrowed(""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};
    use serde_json::json;

    #[test]
    fn status_and_spec_are_written_apart() {
        let volume = Declared {
            phase: "Pending",
            immutable: &["spec.a"],
            ..SPEC_STATUS
        };
        let (stored, _) = created(&volume, json!({"spec": {"a": 1, "b": 1}, "status": {"x": 1}}));
        assert_eq!(
            stored,
            json!({"spec": {"a": 1, "b": 1}, "status": {"phase": "Pending"}})
        );
        let change = json!({"spec": {"a": 1, "b": 2}, "status": {"phase": "Bound"}});
        let (main, errors) = updated(&volume, change.clone(), &stored, Part::Main);
        assert_eq!(
            main,
            json!({"spec": {"a": 1, "b": 2}, "status": {"phase": "Pending"}})
        );
        assert!(errors.is_empty() && volume.bumps_generation(&main, &stored));
        let (status, _) = updated(&volume, change, &stored, Part::Status);
        assert_eq!(
            status,
            json!({"spec": {"a": 1, "b": 1}, "status": {"phase": "Bound"}})
        );
        let errors = updated(&volume, json!({"spec": {"a": 2}}), &stored, Part::Main).1;
        assert_eq!(errors, ["spec.a: Invalid value: 2: field is immutable"]);
    }
}
