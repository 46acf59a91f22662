//! Which keys and how much may a ConfigMap hold?

use super::{Context, Part, Strategy};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::value::{bool_at, map_at};
use serde_json::Value;

/// All values together may not be larger.
const MAX_BYTES: usize = 1024 * 1024;

/// Rules for core ConfigMaps.
pub struct ConfigMapStrategy;

impl Strategy for ConfigMapStrategy {
    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        validate(object)
    }

    fn validate_update(&self, new: &Value, old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        if bool_at(old, &["immutable"]) == Some(true) {
            let differs = |field| {
                let map = |object| map_at(object, &[field]).filter(|map| !map.is_empty());
                map(new) != map(old)
            };
            let changed = [
                ("immutable", bool_at(new, &["immutable"]) != Some(true)),
                ("data", differs("data")),
                ("binaryData", differs("binaryData")),
            ];
            for (field, changed) in changed {
                if changed {
                    errors.push(FieldError::forbidden(
                        field,
                        "field is immutable when `immutable` is set",
                    ));
                }
            }
        }
        errors.extend(validate(new));
        errors
    }
}

fn validate(object: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let mut total = 0;
    let binary = map_at(object, &["binaryData"]);
    for (key, value) in map_at(object, &["data"]).into_iter().flatten() {
        let path = format!("data[{key}]");
        invalid_each(&mut errors, &path, key.as_str(), names::config_key(key));
        if binary.is_some_and(|binary| binary.contains_key(key)) {
            errors.push(FieldError::invalid(
                path,
                key.as_str(),
                "duplicate of key present in binaryData",
            ));
        }
        total += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary.into_iter().flatten() {
        invalid_each(
            &mut errors,
            &format!("binaryData[{key}]"),
            key.as_str(),
            names::config_key(key),
        );
        total += value.as_str().map_or(0, decoded_length);
    }
    if total > MAX_BYTES {
        errors.push(FieldError::too_long("[]", MAX_BYTES));
    }
    errors
}

/// How many bytes well-formed base64 text stands for.
pub(crate) fn decoded_length(text: &str) -> usize {
    let padding = text
        .bytes()
        .rev()
        .take(2)
        .take_while(|byte| *byte == b'=')
        .count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};
    use serde_json::json;

    fn check(object: Value, expected: &[&str]) {
        let errors = created(&ConfigMapStrategy, object).1;
        assert_eq!(errors.len(), expected.len(), "{errors:?}");
        for (error, expected) in errors.iter().zip(expected) {
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn keys_are_file_names_and_values_are_small() {
        check(json!({"data": {"a.txt": "x"}, "binaryData": {"b": "AA=="}}), &[]);
        check(
            json!({"data": {"a/b": "x"}}),
            &[r#"data[a/b]: Invalid value: "a/b": a valid config key"#],
        );
        check(
            json!({"data": {"a": ""}, "binaryData": {"a": ""}}),
            &[r#"data[a]: Invalid value: "a": duplicate of key present in binaryData"#],
        );
        check(json!({"data": {"a": "x".repeat(MAX_BYTES)}}), &[]);
        check(
            json!({"data": {"a": "x".repeat(MAX_BYTES)}, "binaryData": {"b": "AA=="}}),
            &["[]: Too long: may not be more than 1048576 bytes"],
        );
    }

    #[test]
    fn immutable_means_immutable() {
        let old = json!({"immutable": true, "data": {"a": "1"}});
        assert_eq!(
            updated(&ConfigMapStrategy, json!({"data": {"a": "2"}}), &old, Part::Main).1,
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set",
            ]
        );
        assert!(
            updated(&ConfigMapStrategy, old.clone(), &old, Part::Main)
                .1
                .is_empty()
        );
    }
}
