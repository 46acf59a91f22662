//! Does an object fit a structural schema, and what does the schema make of it?
//!
//! A schema is kept as the JSON that its author wrote, without descriptions, and checked once
//! ([`super::definition`]): the functions here rely on nothing, and work on any JSON.

use crate::decode::StrictError;
use crate::field_error::{FieldError, FieldErrors};
use regex::Regex;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};

/// Steps that one validation may take: values compared with schemas. An object of 3 MiB in an ordinary schema
/// takes fewer; alternatives within alternatives would take longer than anybody waits.
pub(super) const MAX_STEPS: usize = 1_000_000;
/// Values that defaults may add to an object.
const MAX_FILLED: usize = 200_000;
/// Values of an enumeration that a message shows, and letters of each.
const SHOWN: usize = 50;
const LETTERS: usize = 100;
/// Mistakes reported per object.
const MAX_ERRORS: usize = 100;

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
pub(super) const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// The patterns of a schema, compiled once.
pub(super) type Patterns = HashMap<String, Regex>;

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool) == Some(true)
}

fn number<'a>(schema: &'a Value, name: &str) -> Option<&'a serde_json::Number> {
    schema.get(name)?.as_number()
}

fn count(schema: &Value, name: &str) -> Option<usize> {
    usize::try_from(schema.get(name)?.as_u64()?).ok()
}

/// The schema of the values of a map, if it has one.
fn values_schema(schema: &Value) -> Option<&Value> {
    schema
        .get("additionalProperties")
        .filter(|additional| additional.is_object())
}

/// Removes the fields that the schema does not have, and names them.
pub fn prune(value: &mut Value, schema: &Value, path: &str, root: bool, pruned: &mut Vec<StrictError>) {
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties");
            let values = values_schema(schema);
            let anything = flag(schema, PRESERVE) || flag_or_true(schema);
            let whole = root || flag(schema, EMBEDDED);
            let known = |name: &str| {
                (whole && matches!(name, "apiVersion" | "kind" | "metadata"))
                    || properties.is_some_and(|known| known.get(name).is_some())
            };
            if !anything && values.is_none() {
                map.retain(|name, _| {
                    let known = known(name);
                    if !known {
                        pruned.push(StrictError::Unknown(below(path, name)));
                    }
                    known
                });
            }
            for (name, inner) in map.iter_mut() {
                if whole && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    continue;
                }
                let schema = properties.and_then(|known| known.get(name)).or(values);
                if let Some(schema) = schema {
                    prune(inner, schema, &below(path, name), false, pruned);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for (at, item) in items.iter_mut().enumerate() {
                    prune(item, schema, &format!("{path}[{at}]"), false, pruned);
                }
            }
        }
        _ => {}
    }
}

/// `additionalProperties: true` stands for a schema that takes everything.
fn flag_or_true(schema: &Value) -> bool {
    schema.get("additionalProperties") == Some(&Value::Bool(true))
}

fn below(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// The defaults of a schema and where they stand, as one text: two schemas with the same text fill in the same.
pub fn defaults(schema: &Value) -> String {
    let mut text = String::new();
    gather_defaults(schema, "", &mut text);
    text
}

fn gather_defaults(schema: &Value, path: &str, text: &mut String) {
    if let Some(default) = schema.get("default") {
        let nullable = flag(schema, "nullable");
        text.push_str(&format!("{path}={default},{nullable}\n"));
    }
    for (name, inner) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        gather_defaults(inner, &format!("{path}.{name}"), text);
    }
    if let Some(inner) = values_schema(schema) {
        gather_defaults(inner, &format!("{path}{{}}"), text);
    }
    if let Some(inner) = schema.get("items") {
        gather_defaults(inner, &format!("{path}[]"), text);
    }
}

/// Fills in defaults. A `null` where none is allowed counts as absent. Returns whether it came to an end: defaults of
/// items within defaults multiply.
pub fn fill_in(value: &mut Value, schema: &Value) -> bool {
    let mut left = Some(MAX_FILLED);
    fill_within(value, schema, &mut left);
    left.is_some()
}

/// How many values a default is made of, long texts counted by their pieces.
fn weight(value: &Value) -> usize {
    match value {
        Value::Object(map) => {
            map.iter()
                .map(|(name, inner)| weight(inner) + name.len() / 32)
                .sum::<usize>()
                + 1
        }
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + 1,
        Value::String(text) => text.len() / 32 + 1,
        _ => 1,
    }
}

fn fill_within(value: &mut Value, schema: &Value, left: &mut Option<usize>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = schema.get("properties") {
                for (name, schema) in properties {
                    let default = schema.get("default");
                    let null = map.get(name).is_some_and(Value::is_null) && !flag(schema, "nullable");
                    if let Some(default) = default
                        && (null || !map.contains_key(name))
                    {
                        *left = left.and_then(|left| left.checked_sub(weight(default)));
                        if left.is_none() {
                            return;
                        }
                        map.insert(name.clone(), default.clone());
                    }
                    if let Some(inner) = map.get_mut(name) {
                        fill_within(inner, schema, left);
                    }
                }
            }
            if let Some(schema) = values_schema(schema) {
                map.values_mut()
                    .for_each(|inner| fill_within(inner, schema, left));
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| fill_within(item, schema, left));
            }
        }
        _ => {}
    }
}

/// What is wrong with an object.
pub fn validate(object: &Value, schema: &Value, patterns: &Patterns) -> FieldErrors {
    validate_within(object, schema, patterns, &mut MAX_STEPS.clone())
}

/// The same, with the steps that are left.
pub(super) fn validate_within(
    object: &Value,
    schema: &Value,
    patterns: &Patterns,
    steps: &mut usize,
) -> FieldErrors {
    let mut check = Check {
        patterns,
        errors: Vec::new(),
        steps: *steps,
    };
    check.value(object, schema, "");
    *steps = check.steps;
    if check.steps == 0 {
        let why =
            "it takes too long to compare it with its schema; use fewer alternatives, or smaller objects";
        check.errors.push(FieldError::invalid("", "", why));
    }
    check.errors
}

struct Check<'a> {
    patterns: &'a Patterns,
    errors: FieldErrors,
    /// Steps that are left.
    steps: usize,
}

impl Check<'_> {
    fn invalid(&mut self, path: &str, value: &Value, why: String) {
        if self.errors.len() < MAX_ERRORS {
            let place = if path.is_empty() { "" } else { path };
            self.errors.push(FieldError::invalid(
                path,
                value.clone(),
                format!("{place} in body {why}"),
            ));
        }
    }

    /// Takes the steps of comparing with a list.
    fn charge(&mut self, length: usize) {
        self.steps = self.steps.saturating_sub(length);
    }

    fn value(&mut self, value: &Value, schema: &Value, path: &str) {
        if self.steps == 0 || self.errors.len() >= MAX_ERRORS {
            return;
        }
        self.steps -= 1;
        if value.is_null() && flag(schema, "nullable") {
            return;
        }
        if !self.has_type(value, schema, path) {
            return;
        }
        for list in ["enum", "required"] {
            let length = schema.get(list).and_then(Value::as_array).map_or(0, Vec::len);
            self.charge(length);
        }
        if let Some(Value::Array(allowed)) = schema.get("enum")
            && !allowed.contains(value)
        {
            let texts: Vec<String> = allowed
                .iter()
                .take(SHOWN)
                .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
                .map(|text| text.chars().take(LETTERS).collect())
                .collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            self.errors
                .push(FieldError::not_supported(path, value.clone(), &texts));
        }
        match value {
            Value::Number(found) => self.number(value, found.as_f64().unwrap_or(0.0), schema, path),
            Value::String(text) => self.text(value, text, schema, path),
            Value::Array(items) => self.list(value, items, schema, path),
            Value::Object(map) => self.object(value, map, schema, path),
            Value::Null | Value::Bool(_) => {}
        }
        self.alternatives(value, schema, path);
    }

    fn has_type(&mut self, value: &Value, schema: &Value, path: &str) -> bool {
        let wanted = schema.get("type").and_then(Value::as_str).unwrap_or("");
        let fits = match (wanted, value) {
            _ if flag(schema, INT_OR_STRING) => value.is_string() || is_integer(value),
            ("", _) => true,
            ("object", Value::Object(_))
            | ("array", Value::Array(_))
            | ("string", Value::String(_))
            | ("boolean", Value::Bool(_))
            | ("number", Value::Number(_)) => true,
            ("integer", value) => is_integer(value),
            _ => false,
        };
        if !fits {
            let wanted = if wanted.is_empty() {
                "integer,string"
            } else {
                wanted
            };
            let found = type_name(value);
            let shown = Value::from(found);
            self.invalid(path, &shown, format!("must be of type {wanted}: {found:?}"));
        }
        fits
    }

    fn number(&mut self, value: &Value, found: f64, schema: &Value, path: &str) {
        let limit = |name| number(schema, name).and_then(|limit| Some((limit, limit.as_f64()?)));
        if let Some((text, least)) = limit("minimum") {
            let exclusive = flag(schema, "exclusiveMinimum");
            if found < least || (exclusive && found <= least) {
                let or = if exclusive { "" } else { " or equal to" };
                self.invalid(path, value, format!("should be greater than{or} {text}"));
            }
        }
        if let Some((text, most)) = limit("maximum") {
            let exclusive = flag(schema, "exclusiveMaximum");
            if found > most || (exclusive && found >= most) {
                let or = if exclusive { "" } else { " or equal to" };
                self.invalid(path, value, format!("should be less than{or} {text}"));
            }
        }
        if let Some((text, step)) = limit("multipleOf")
            && step > 0.0
            && (found / step).fract() != 0.0
        {
            self.invalid(path, value, format!("should be a multiple of {text}"));
        }
        let fits = match schema.get("format").and_then(Value::as_str) {
            Some("int32") => value.as_i64().is_none_or(|found| i32::try_from(found).is_ok()),
            _ => true,
        };
        if !fits {
            self.invalid(path, value, "must be of type int32".to_owned());
        }
    }

    fn text(&mut self, value: &Value, text: &str, schema: &Value, path: &str) {
        let length = text.chars().count();
        if let Some(most) = count(schema, "maxLength").filter(|most| length > *most) {
            self.errors.push(FieldError::too_long(path, most));
        }
        if let Some(least) = count(schema, "minLength").filter(|least| length < *least) {
            self.invalid(path, value, format!("should be at least {least} chars long"));
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && self
                .patterns
                .get(pattern)
                .is_some_and(|known| !known.is_match(text))
        {
            self.invalid(path, value, format!("should match '{pattern}'"));
        }
        let format = schema.get("format").and_then(Value::as_str).unwrap_or("");
        let fits = match format {
            "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
            "date" => text.parse::<jiff::civil::Date>().is_ok(),
            "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
            "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
            "byte" => {
                use base64::Engine;
                base64::prelude::BASE64_STANDARD.decode(text).is_ok()
            }
            _ => true,
        };
        if !fits {
            self.invalid(path, value, format!("must be of type {format}: {text:?}"));
        }
    }

    fn list(&mut self, value: &Value, items: &[Value], schema: &Value, path: &str) {
        if let Some(most) = count(schema, "maxItems").filter(|most| items.len() > *most) {
            self.errors.push(FieldError::too_many(path, items.len(), most));
        }
        if let Some(least) = count(schema, "minItems").filter(|least| items.len() < *least) {
            self.invalid(path, value, format!("should have at least {least} items"));
        }
        if let Some(inner) = schema.get("items") {
            for (at, item) in items.iter().enumerate() {
                self.value(item, inner, &format!("{path}[{at}]"));
            }
        }
        self.unique(items, schema, path);
    }

    /// Items of sets are distinct, those of maps by their keys.
    fn unique(&mut self, items: &[Value], schema: &Value, path: &str) {
        let no_keys = Vec::new();
        let keys = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("set") => None,
            Some("map") => Some(
                schema
                    .get("x-kubernetes-list-map-keys")
                    .and_then(Value::as_array)
                    .unwrap_or(&no_keys),
            ),
            _ => return,
        };
        self.charge(items.len() * keys.map_or(1, Vec::len));
        if self.steps == 0 {
            return;
        }
        let mut seen = BTreeSet::new();
        for (at, item) in items.iter().enumerate() {
            let identity: Value = match keys {
                None => item.clone(),
                Some(keys) => keys
                    .iter()
                    .filter_map(Value::as_str)
                    .map(|key| item.get(key).cloned().unwrap_or_default())
                    .collect(),
            };
            if !seen.insert(identity.to_string()) && self.errors.len() < MAX_ERRORS {
                let here = format!("{path}[{at}]");
                self.errors.push(FieldError::duplicate(here, item.clone()));
            }
        }
    }

    fn object(&mut self, value: &Value, map: &Map<String, Value>, schema: &Value, path: &str) {
        if let Some(most) = count(schema, "maxProperties").filter(|most| map.len() > *most) {
            self.errors.push(FieldError::too_many(path, map.len(), most));
        }
        if let Some(least) = count(schema, "minProperties").filter(|least| map.len() < *least) {
            self.invalid(path, value, format!("should have at least {least} properties"));
        }
        for name in schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let name = name.as_str().unwrap_or("");
            if !map.contains_key(name) && self.errors.len() < MAX_ERRORS {
                self.errors.push(FieldError::required(below(path, name), ""));
            }
        }
        let properties = schema.get("properties");
        let values = values_schema(schema);
        for (name, inner) in map {
            let known = properties.and_then(|known| known.get(name));
            if let Some(schema) = known.or(values) {
                self.value(inner, schema, &below(path, name));
            }
        }
    }

    fn alternatives(&mut self, value: &Value, schema: &Value, path: &str) {
        for part in schema
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.value(value, part, path);
        }
        for (name, many) in [("anyOf", true), ("oneOf", false)] {
            let Some(Value::Array(parts)) = schema.get(name) else {
                continue;
            };
            let fitting = parts.iter().filter(|part| self.fits(value, part, path)).count();
            if fitting == 0 || (fitting > 1 && !many) {
                let why = if many { "any" } else { "one and only one" };
                self.invalid(
                    path,
                    value,
                    format!("must validate {why} of the schemas ({name})"),
                );
            }
        }
        if let Some(part) = schema.get("not")
            && self.fits(value, part, path)
        {
            self.invalid(path, value, "must not validate the schema (not)".to_owned());
        }
    }

    /// Whether the value fits; its mistakes are not reported.
    fn fits(&mut self, value: &Value, schema: &Value, path: &str) -> bool {
        let before = std::mem::take(&mut self.errors);
        self.value(value, schema, path);
        std::mem::replace(&mut self.errors, before).is_empty()
    }
}

fn is_integer(value: &Value) -> bool {
    value.as_number().is_some_and(|number| {
        number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
    })
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
