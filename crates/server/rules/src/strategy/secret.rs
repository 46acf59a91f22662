//! Which keys, types and sizes may a Secret have?
//!
//! No message says anything of a value.

use super::{Context, Part, Strategy};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::strategy::config_map::decoded_length;
use crate::value::{bool_at, entry, map_at, remove, set, str_at};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// All values together may not be larger.
const MAX_BYTES: usize = 1024 * 1024;
/// The type of Secrets that hold a service account's token.
pub const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
/// Which account such a token is of.
pub const ACCOUNT_ANNOTATION: &str = "kubernetes.io/service-account.name";

/// Rules for core Secrets.
pub struct SecretStrategy;

impl Strategy for SecretStrategy {
    /// Folds `stringData`, which can only be written, into `data`.
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        if str_at(object, &["type"]).is_empty() {
            set(object, &["type"], "Opaque");
        }
        let Some(Value::Object(texts)) = remove(object, &["stringData"]) else {
            return;
        };
        for (key, text) in texts {
            let encoded = BASE64_STANDARD.encode(text.as_str().unwrap_or_default());
            entry(object, &["data"]).insert(key, encoded.into());
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        validate(object)
    }

    fn validate_update(&self, new: &Value, old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = Vec::new();
        if str_at(new, &["type"]) != str_at(old, &["type"]) {
            let given = str_at(new, &["type"]);
            errors.push(FieldError::invalid("type", given, "field is immutable"));
        }
        if bool_at(old, &["immutable"]) == Some(true) {
            let data = |object| map_at(object, &["data"]).filter(|map| !map.is_empty());
            let changed = [
                ("immutable", bool_at(new, &["immutable"]) != Some(true)),
                ("data", data(new) != data(old)),
            ];
            for (field, _) in changed.iter().filter(|(_, changed)| *changed) {
                let why = "field is immutable when `immutable` is set";
                errors.push(FieldError::forbidden(*field, why));
            }
        }
        errors.extend(validate(new));
        errors
    }

    fn selectable<'a>(&self, object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        (field == "type").then(|| str_at(object, &["type"]).into())
    }
}

fn validate(object: &Value) -> FieldErrors {
    let mut errors = Vec::new();
    let empty = Map::new();
    let data = map_at(object, &["data"]).unwrap_or(&empty);
    let mut total = 0;
    for (key, value) in data {
        invalid_each(
            &mut errors,
            &format!("data[{key}]"),
            key.as_str(),
            names::config_key(key),
        );
        total += value.as_str().map_or(0, decoded_length);
    }
    if total > MAX_BYTES {
        errors.push(FieldError::too_long("data", MAX_BYTES));
    }
    let required = |key: &str| FieldError::required(format!("data[{key}]"), "");
    match str_at(object, &["type"]) {
        ACCOUNT_TOKEN if str_at(object, &["metadata", "annotations", ACCOUNT_ANNOTATION]).is_empty() => {
            let field = format!("metadata.annotations[{ACCOUNT_ANNOTATION}]");
            errors.push(FieldError::required(field, ""));
        }
        "kubernetes.io/dockercfg" => errors.extend(json_entry(data, ".dockercfg")),
        "kubernetes.io/dockerconfigjson" => errors.extend(json_entry(data, ".dockerconfigjson")),
        "kubernetes.io/basic-auth" if !data.contains_key("username") && !data.contains_key("password") => {
            errors.extend([required("username"), required("password")]);
        }
        "kubernetes.io/ssh-auth" if str_in(data, "ssh-privatekey").is_empty() => {
            errors.push(required("ssh-privatekey"));
        }
        "kubernetes.io/tls" => {
            let keys = ["tls.crt", "tls.key"].into_iter();
            errors.extend(keys.filter(|key| !data.contains_key(*key)).map(required));
        }
        _ => {}
    }
    errors
}

fn str_in<'a>(data: &'a Map<String, Value>, key: &str) -> &'a str {
    data.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// What is wrong with an entry that has to hold JSON.
fn json_entry(data: &Map<String, Value>, key: &str) -> Option<FieldError> {
    let field = format!("data[{key}]");
    if !data.contains_key(key) {
        return Some(FieldError::required(field, ""));
    }
    let bytes = BASE64_STANDARD.decode(str_in(data, key)).unwrap_or_default();
    let read = serde_json::from_slice::<Map<String, Value>>(&bytes);
    // The reader's own words could show a part of the content.
    read.is_err()
        .then(|| FieldError::invalid(field, "<secret contents redacted>", "not a JSON object"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};
    use serde_json::json;

    #[test]
    fn texts_become_data_and_win_over_it() {
        let sent = json!({"stringData": {"a": "new", "b": "x"}, "data": {"a": "b2xk", "c": "eQ=="}});
        let (stored, errors) = created(&SecretStrategy, sent);
        assert_eq!(
            stored,
            json!({"type": "Opaque", "data": {"a": "bmV3", "b": "eA==", "c": "eQ=="}})
        );
        assert!(errors.is_empty());
    }

    #[test]
    fn each_type_has_the_entries_that_it_is_for_and_messages_show_no_value() {
        let check = |kind: &str, data: Value, expected: &[&str]| {
            let (_, errors) = created(&SecretStrategy, json!({"type": kind, "data": data}));
            assert_eq!(errors, expected, "{kind}");
        };
        check("Opaque", json!({}), &[]);
        check("example.com/own", json!({"k": "AA=="}), &[]);
        check(
            ACCOUNT_TOKEN,
            json!({}),
            &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
        );
        check(
            "kubernetes.io/tls",
            json!({"tls.crt": ""}),
            &["data[tls.key]: Required value"],
        );
        check(
            "kubernetes.io/ssh-auth",
            json!({"ssh-privatekey": ""}),
            &["data[ssh-privatekey]: Required value"],
        );
        check("kubernetes.io/basic-auth", json!({"password": "AA=="}), &[]);
        check(
            "kubernetes.io/basic-auth",
            json!({}),
            &["data[username]: Required value", "data[password]: Required value"],
        );
        check(
            "kubernetes.io/dockerconfigjson",
            json!({".dockerconfigjson": "e30="}),
            &[],
        );
        let hidden = r#"data[.dockercfg]: Invalid value: "<secret contents redacted>": not a JSON object"#;
        let password = BASE64_STANDARD.encode("\"hunter2\"");
        check(
            "kubernetes.io/dockercfg",
            json!({".dockercfg": password}),
            &[hidden],
        );
        let long = json!({"k": BASE64_STANDARD.encode(vec![0; MAX_BYTES + 1])});
        check(
            "Opaque",
            long,
            &["data: Too long: may not be more than 1048576 bytes"],
        );
    }

    #[test]
    fn the_type_stays_and_immutable_means_immutable() {
        let old = json!({"type": "Opaque", "immutable": true, "data": {"a": "MQ=="}});
        let change = |new: Value| updated(&SecretStrategy, new, &old, Part::Main).1;
        assert!(change(json!({"immutable": true, "stringData": {"a": "1"}})).is_empty());
        assert_eq!(
            change(json!({"type": "x/y", "stringData": {"a": "2"}})),
            [
                r#"type: Invalid value: "x/y": field is immutable"#,
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set",
            ]
        );
    }
}
