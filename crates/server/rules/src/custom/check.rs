//! Does an object fit the schema of its kind?

use super::schema::{Bound, Format, Patterns, Rule, Schema, Type, below};
use crate::field_error::{FieldError, FieldErrors};
use serde_json::{Map, Number, Value};
use std::collections::BTreeSet;

/// Steps that one validation may take: values compared with schemas. An object of 3 MiB in an ordinary schema
/// takes fewer; alternatives within alternatives would take longer than anybody waits.
pub(super) const MAX_STEPS: usize = 1_000_000;
/// Values of an enumeration that a message shows, and letters of each.
const SHOWN: usize = 50;
const LETTERS: usize = 100;
/// Mistakes reported per object.
const MAX_ERRORS: usize = 100;

/// What is wrong with an object.
pub fn validate(object: &Value, schema: &Schema, patterns: &Patterns) -> FieldErrors {
    validate_within(object, schema, patterns, &mut MAX_STEPS.clone())
}

/// The same, with the steps that are left.
pub(super) fn validate_within(
    object: &Value,
    schema: &Schema,
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

    fn value(&mut self, value: &Value, schema: &Schema, path: &str) {
        if self.steps == 0 || self.errors.len() >= MAX_ERRORS {
            return;
        }
        self.steps -= 1;
        if value.is_null() && schema.nullable {
            return;
        }
        if !self.has_type(value, schema, path) {
            return;
        }
        for rule in &schema.rules {
            match rule {
                Rule::OneOf(allowed) => self.charge(allowed.len()),
                Rule::Required(names) => self.charge(names.len()),
                _ => {}
            }
        }
        for rule in schema.rules.iter().filter(|rule| !rule.comes_last()) {
            self.rule(rule, value, path);
        }
        match value {
            Value::Array(items) => {
                if let Some(inner) = &schema.items {
                    for (at, item) in items.iter().enumerate() {
                        self.value(item, inner, &format!("{path}[{at}]"));
                    }
                }
            }
            Value::Object(map) => {
                for (name, inner) in map {
                    if let Some(schema) = schema.property(name).or(schema.values.as_deref()) {
                        self.value(inner, schema, &below(path, name));
                    }
                }
            }
            _ => {}
        }
        for rule in schema.rules.iter().filter(|rule| rule.comes_last()) {
            self.rule(rule, value, path);
        }
    }

    fn has_type(&mut self, value: &Value, schema: &Schema, path: &str) -> bool {
        let fits = match (schema.wanted, value) {
            _ if schema.int_or_string => value.is_string() || is_integer(value),
            (None, _)
            | (Some(Type::Object), Value::Object(_))
            | (Some(Type::Array), Value::Array(_))
            | (Some(Type::String), Value::String(_))
            | (Some(Type::Boolean), Value::Bool(_))
            | (Some(Type::Number), Value::Number(_)) => true,
            (Some(Type::Integer), value) => is_integer(value),
            _ => false,
        };
        if !fits {
            let wanted = schema.wanted.map_or("integer,string", Type::name);
            let found = type_name(value);
            let shown = Value::from(found);
            self.invalid(path, &shown, format!("must be of type {wanted}: {found:?}"));
        }
        fits
    }

    fn rule(&mut self, rule: &Rule, value: &Value, path: &str) {
        match (rule, value) {
            (Rule::OneOf(allowed), _) => self.one_of(allowed, value, path),
            (Rule::Format(format), _) => self.format(*format, value, path),
            (Rule::Minimum(limit), Value::Number(found)) => {
                let (least, excluded) = &**limit;
                if !is_within(least, found, *excluded) {
                    let or = if *excluded { "" } else { " or equal to" };
                    self.invalid(path, value, format!("should be greater than{or} {least}"));
                }
            }
            (Rule::Maximum(limit), Value::Number(found)) => {
                let (most, excluded) = &**limit;
                if !is_within(found, most, *excluded) {
                    let or = if *excluded { "" } else { " or equal to" };
                    self.invalid(path, value, format!("should be less than{or} {most}"));
                }
            }
            (Rule::MultipleOf(step), Value::Number(found)) => {
                let size = float(step);
                if size > 0.0 && (float(found) / size).fract() != 0.0 {
                    self.invalid(path, value, format!("should be a multiple of {step}"));
                }
            }
            (Rule::Length(bound), Value::String(text)) => match (*bound, text.chars().count()) {
                (Bound::AtMost(most), length) if length > most => {
                    self.errors.push(FieldError::too_long(path, most));
                }
                (Bound::AtLeast(least), length) if length < least => {
                    self.invalid(path, value, format!("should be at least {least} chars long"));
                }
                _ => {}
            },
            (Rule::Items(bound), Value::Array(items)) => {
                self.count(*bound, items.len(), "items", value, path)
            }
            (Rule::Fields(bound), Value::Object(map)) => {
                self.count(*bound, map.len(), "properties", value, path)
            }
            (Rule::Pattern(pattern), Value::String(text)) => {
                let known = self.patterns.get(&**pattern);
                if known.is_some_and(|known| !known.is_match(text)) {
                    self.invalid(path, value, format!("should match '{pattern}'"));
                }
            }
            (Rule::Required(names), Value::Object(map)) => self.required(names, map, path),
            (Rule::Set, Value::Array(items)) => self.unique(items, None, path),
            (Rule::Map(keys), Value::Array(items)) => self.unique(items, Some(keys), path),
            (Rule::AllFit(parts), _) => {
                for part in parts {
                    self.value(value, part, path);
                }
            }
            (Rule::AnyFits(parts), _) if self.fitting(parts, value, path) == 0 => {
                let why = "must validate any of the schemas (anyOf)";
                self.invalid(path, value, why.to_owned());
            }
            (Rule::OneFits(parts), _) if self.fitting(parts, value, path) != 1 => {
                let why = "must validate one and only one of the schemas (oneOf)";
                self.invalid(path, value, why.to_owned());
            }
            (Rule::NotFits(part), _) if self.fits(value, part, path) => {
                self.invalid(path, value, "must not validate the schema (not)".to_owned());
            }
            _ => {}
        }
    }

    fn one_of(&mut self, allowed: &[Value], value: &Value, path: &str) {
        if allowed.contains(value) {
            return;
        }
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

    fn format(&mut self, format: Format, value: &Value, path: &str) {
        let (name, text) = (format.name(), value.as_str());
        let fits = |fits: fn(&str) -> bool| text.is_none_or(fits);
        let fits = match format {
            Format::DateTime => fits(|text| text.parse::<jiff::Timestamp>().is_ok()),
            Format::Date => fits(|text| text.parse::<jiff::civil::Date>().is_ok()),
            Format::Ipv4 => fits(|text| text.parse::<std::net::Ipv4Addr>().is_ok()),
            Format::Ipv6 => fits(|text| text.parse::<std::net::Ipv6Addr>().is_ok()),
            Format::Byte => fits(|text| {
                use base64::Engine;
                base64::prelude::BASE64_STANDARD.decode(text).is_ok()
            }),
            Format::Int32 => value.as_i64().is_none_or(|found| i32::try_from(found).is_ok()),
        };
        match text {
            _ if fits => {}
            Some(text) => self.invalid(path, value, format!("must be of type {name}: {text:?}")),
            None => self.invalid(path, value, format!("must be of type {name}")),
        }
    }

    /// Whether a list or an object has as much as it may.
    fn count(&mut self, bound: Bound, found: usize, what: &str, value: &Value, path: &str) {
        match bound {
            Bound::AtMost(most) if found > most => self.errors.push(FieldError::too_many(path, found, most)),
            Bound::AtLeast(least) if found < least => {
                self.invalid(path, value, format!("should have at least {least} {what}"));
            }
            _ => {}
        }
    }

    fn required(&mut self, names: &[Box<str>], map: &Map<String, Value>, path: &str) {
        for name in names {
            if !map.contains_key(&**name) && self.errors.len() < MAX_ERRORS {
                self.errors.push(FieldError::required(below(path, name), ""));
            }
        }
    }

    /// Items of sets are distinct, those of maps by their keys.
    fn unique(&mut self, items: &[Value], keys: Option<&[Box<str>]>, path: &str) {
        self.charge(items.len() * keys.map_or(1, <[_]>::len));
        if self.steps == 0 {
            return;
        }
        let mut seen = BTreeSet::new();
        for (at, item) in items.iter().enumerate() {
            let identity = match keys {
                None => item.to_string(),
                Some(keys) => keys
                    .iter()
                    .map(|key| item.get(&**key).cloned().unwrap_or_default())
                    .collect::<Value>()
                    .to_string(),
            };
            if !seen.insert(identity) && self.errors.len() < MAX_ERRORS {
                let here = format!("{path}[{at}]");
                self.errors.push(FieldError::duplicate(here, item.clone()));
            }
        }
    }

    fn fitting(&mut self, parts: &[Schema], value: &Value, path: &str) -> usize {
        parts.iter().filter(|part| self.fits(value, part, path)).count()
    }

    /// Whether the value fits; its mistakes are not reported.
    fn fits(&mut self, value: &Value, schema: &Schema, path: &str) -> bool {
        let before = std::mem::take(&mut self.errors);
        self.value(value, schema, path);
        std::mem::replace(&mut self.errors, before).is_empty()
    }
}

/// Whether a number is not below another one, or above it.
fn is_within(low: &Number, high: &Number, excluded: bool) -> bool {
    let (low, high) = (float(low), float(high));
    if excluded { low < high } else { low <= high }
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(0.0)
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
