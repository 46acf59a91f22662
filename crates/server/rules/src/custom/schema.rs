//! What may the objects of a kind hold, and what does the schema make of them?
//!
//! A structural schema is read once from the JSON that its author wrote. Hundreds of definitions with thousands of
//! fields are usual, and a field has few rules: what is kept of it is what is there, and no more. The JSON was checked
//! before ([`super::definition`]); what is of the wrong type there anyway counts as absent.

use crate::decode::StrictError;
use regex::Regex;
use serde_json::{Number, Value};
use std::collections::HashMap;

/// Values that defaults may add to an object.
const MAX_FILLED: usize = 200_000;

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
pub(super) const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// The patterns of a schema, compiled once.
pub(super) type Patterns = HashMap<String, Regex>;

/// A schema. The default one takes everything.
#[derive(Debug, Default, PartialEq)]
pub struct Schema {
    pub(super) wanted: Option<Type>,
    pub(super) nullable: bool,
    pub(super) int_or_string: bool,
    /// Whether a value has the fields that all objects have.
    embedded: bool,
    /// Whether fields that are not named here are dropped.
    closed: bool,
    /// By name, in its order.
    properties: Box<[(Box<str>, Schema)]>,
    /// Of the values of a map.
    pub(super) values: Option<Box<Schema>>,
    pub(super) items: Option<Box<Schema>>,
    default: Option<Box<Value>>,
    /// In the order in which mistakes are told.
    pub(super) rules: Box<[Rule]>,
}

/// What a value has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
}

/// One demand on values of a type; others meet it.
#[derive(Debug, PartialEq)]
pub(super) enum Rule {
    OneOf(Box<[Value]>),
    /// The limit, and whether it is excluded.
    Minimum(Box<(Number, bool)>),
    Maximum(Box<(Number, bool)>),
    MultipleOf(Box<Number>),
    Length(Bound),
    Items(Bound),
    Fields(Bound),
    Pattern(Box<str>),
    Format(Format),
    Required(Box<[Box<str>]>),
    /// Items are distinct.
    Set,
    /// Items are distinct by these fields.
    Map(Box<[Box<str>]>),
    AllFit(Box<[Schema]>),
    /// At least one fits, or exactly one.
    AnyFits(Box<[Schema]>),
    OneFits(Box<[Schema]>),
    NotFits(Box<Schema>),
}

/// How much there may be of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    AtMost(usize),
    AtLeast(usize),
}

/// What a text or a number is written as, where that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    DateTime,
    Date,
    Ipv4,
    Ipv6,
    Byte,
    Int32,
}

impl Rule {
    /// Whether it is looked at when the values within were.
    pub(super) fn comes_last(&self) -> bool {
        use Rule::{AllFit, AnyFits, Map, NotFits, OneFits, Set};
        matches!(
            self,
            Set | Map(_) | AllFit(_) | AnyFits(_) | OneFits(_) | NotFits(_)
        )
    }
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool) == Some(true)
}

/// The schema of the values of a map, if it has one.
fn values_schema(schema: &Value) -> Option<&Value> {
    schema
        .get("additionalProperties")
        .filter(|additional| additional.is_object())
}

fn texts(schema: &Value, name: &str) -> Option<Box<[Box<str>]>> {
    let texts = schema.get(name)?.as_array()?.iter();
    Some(texts.map(|text| text.as_str().unwrap_or("").into()).collect())
}

impl Schema {
    /// Reads a schema.
    pub fn new(source: &Value) -> Self {
        Self::counted(source, &mut 0)
    }

    /// Reads a schema and adds to a count of the schemas that were read.
    pub(super) fn counted(source: &Value, read: &mut usize) -> Self {
        *read += 1;
        let inner = |source: &Value, read: &mut usize| Box::new(Self::counted(source, read));
        let properties = source.get("properties").and_then(Value::as_object);
        // `additionalProperties: true` stands for a schema that takes everything.
        let open = flag(source, PRESERVE) || flag(source, "additionalProperties");
        Self {
            wanted: source.get("type").and_then(Type::new),
            nullable: flag(source, "nullable"),
            int_or_string: flag(source, INT_OR_STRING),
            embedded: flag(source, EMBEDDED),
            closed: !open && values_schema(source).is_none(),
            // A map of JSON is in the order of its names.
            properties: properties
                .into_iter()
                .flatten()
                .map(|(name, source)| (name.as_str().into(), Self::counted(source, read)))
                .collect(),
            values: values_schema(source).map(|source| inner(source, read)),
            items: source.get("items").map(|source| inner(source, read)),
            default: source.get("default").cloned().map(Box::new),
            rules: rules(source, read),
        }
    }

    /// The schema of a field, if it is named.
    pub(super) fn property(&self, name: &str) -> Option<&Self> {
        let known = &self.properties;
        let at = known.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&known[at].1)
    }
}

impl Type {
    fn new(name: &Value) -> Option<Self> {
        Some(match name.as_str()? {
            "array" => Self::Array,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "object" => Self::Object,
            "string" => Self::String,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Object => "object",
            Self::String => "string",
        }
    }
}

impl Format {
    fn new(name: &str) -> Option<Self> {
        Some(match name {
            "date-time" => Self::DateTime,
            "date" => Self::Date,
            "ipv4" => Self::Ipv4,
            "ipv6" => Self::Ipv6,
            "byte" => Self::Byte,
            "int32" => Self::Int32,
            _ => return None,
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DateTime => "date-time",
            Self::Date => "date",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Byte => "byte",
            Self::Int32 => "int32",
        }
    }
}

fn rules(source: &Value, read: &mut usize) -> Box<[Rule]> {
    let number = |name| source.get(name).and_then(Value::as_number).cloned();
    let text = |name| source.get(name).and_then(Value::as_str);
    let count = |name| usize::try_from(source.get(name)?.as_u64()?).ok();
    let limit = |name, exclusive| Some(Box::new((number(name)?, flag(source, exclusive))));
    let most = |name| count(name).map(Bound::AtMost);
    let least = |name| count(name).map(Bound::AtLeast);
    let mut parts = |name| {
        let parts = source.get(name)?.as_array()?.iter();
        Some(parts.map(|part| Schema::counted(part, read)).collect())
    };
    let list = match text("x-kubernetes-list-type") {
        Some("set") => Some(Rule::Set),
        Some("map") => Some(Rule::Map(
            texts(source, "x-kubernetes-list-map-keys").unwrap_or_default(),
        )),
        _ => None,
    };
    let allowed = source.get("enum").and_then(Value::as_array);
    let all = [
        allowed.map(|allowed| Rule::OneOf(allowed.as_slice().into())),
        limit("minimum", "exclusiveMinimum").map(Rule::Minimum),
        limit("maximum", "exclusiveMaximum").map(Rule::Maximum),
        number("multipleOf").map(|step| Rule::MultipleOf(Box::new(step))),
        most("maxLength").map(Rule::Length),
        least("minLength").map(Rule::Length),
        text("pattern").map(|pattern| Rule::Pattern(pattern.into())),
        text("format").and_then(Format::new).map(Rule::Format),
        most("maxItems").map(Rule::Items),
        least("minItems").map(Rule::Items),
        most("maxProperties").map(Rule::Fields),
        least("minProperties").map(Rule::Fields),
        texts(source, "required").map(Rule::Required),
        list,
        parts("allOf").map(Rule::AllFit),
        parts("anyOf").map(Rule::AnyFits),
        parts("oneOf").map(Rule::OneFits),
        source
            .get("not")
            .map(|part| Rule::NotFits(Box::new(Schema::counted(part, read)))),
    ];
    all.into_iter().flatten().collect()
}

/// Removes the fields that the schema does not have, and names them.
pub fn prune(value: &mut Value, schema: &Schema, path: &str, root: bool, pruned: &mut Vec<StrictError>) {
    match value {
        Value::Object(map) => {
            let whole = root || schema.embedded;
            let common = |name: &str| whole && matches!(name, "apiVersion" | "kind" | "metadata");
            if schema.closed {
                map.retain(|name, _| {
                    let known = common(name) || schema.property(name).is_some();
                    if !known {
                        pruned.push(StrictError::Unknown(below(path, name)));
                    }
                    known
                });
            }
            for (name, inner) in map.iter_mut().filter(|(name, _)| !common(name)) {
                if let Some(schema) = schema.property(name).or(schema.values.as_deref()) {
                    prune(inner, schema, &below(path, name), false, pruned);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for (at, item) in items.iter_mut().enumerate() {
                    prune(item, schema, &format!("{path}[{at}]"), false, pruned);
                }
            }
        }
        _ => {}
    }
}

pub(super) fn below(path: &str, name: &str) -> String {
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
pub fn fill_in(value: &mut Value, schema: &Schema) -> bool {
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

fn fill_within(value: &mut Value, schema: &Schema, left: &mut Option<usize>) {
    match value {
        Value::Object(map) => {
            for (name, schema) in &schema.properties {
                let null = map.get(&**name).is_some_and(Value::is_null) && !schema.nullable;
                if let Some(default) = &schema.default
                    && (null || !map.contains_key(&**name))
                {
                    *left = left.and_then(|left| left.checked_sub(weight(default)));
                    if left.is_none() {
                        return;
                    }
                    map.insert(name.to_string(), Value::clone(default));
                }
                if let Some(inner) = map.get_mut(&**name) {
                    fill_within(inner, schema, left);
                }
            }
            if let Some(schema) = &schema.values {
                map.values_mut()
                    .for_each(|inner| fill_within(inner, schema, left));
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| fill_within(item, schema, left));
            }
        }
        _ => {}
    }
}
