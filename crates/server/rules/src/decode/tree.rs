//! How are bytes read without losing sight of duplicate keys?
//!
//! `serde_json::Value` keeps the last of several equal keys and forgets the others, so bodies are
//! read into a [`Tree`] first.

use super::path::{Path, Step};
use super::values::Values;
use super::{MAX_DEPTH, MAX_STRICT_ERRORS, MAX_VALUES, StrictError};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// A JSON value that still has all its keys.
pub(super) enum Tree {
    Leaf(Value),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

pub(super) fn from_json(body: &[u8], max_depth: usize, values: &Values) -> Result<Tree, String> {
    if deeper_than(body, max_depth) {
        return Err(format!("it is nested deeper than {MAX_DEPTH} levels"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let tree = Reading(values).deserialize(&mut reader);
    let whole = tree.and_then(|tree| reader.end().map(|()| tree));
    whole.map_err(|error| error.to_string())
}

pub(super) fn from_yaml(body: &[u8], values: &Values) -> Result<Tree, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            // Keys are nodes too.
            max_nodes: 2 * MAX_VALUES + 2,
            max_documents: 1,
            max_aliases: 1_000,
            max_anchors: 1_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 50_000,
        },
    };
    let read = |reader: serde_saphyr::Deserializer<'_, '_>| Reading(values).deserialize(reader);
    serde_saphyr::with_deserializer_from_slice_with_options(body, options, read).map_err(|error| {
        let text = error.to_string();
        text.lines().next().unwrap_or("unreadable").to_owned()
    })
}

/// Whether brackets outside of strings nest deeper than `limit`. Needs no stack.
fn deeper_than(json: &[u8], limit: usize) -> bool {
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in json {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

impl Tree {
    /// The plain value; where a key is there twice the last one wins and the path is reported.
    pub(super) fn into_value(self, path: &Path<'_>, duplicates: &mut Vec<StrictError>) -> Value {
        match self {
            Tree::Leaf(value) => value,
            Tree::List(items) => Value::Array(
                items
                    .into_iter()
                    .enumerate()
                    .map(|(at, item)| item.into_value(&path.then(Step::Index(at)), duplicates))
                    .collect(),
            ),
            Tree::Object(entries) => {
                let mut map = Map::new();
                for (key, tree) in entries {
                    let here = path.then(Step::Field(&key));
                    let value = tree.into_value(&here, duplicates);
                    if map.contains_key(&key) && duplicates.len() < MAX_STRICT_ERRORS {
                        duplicates.push(StrictError::Duplicate(here.to_string()));
                    }
                    map.insert(key, value);
                }
                Value::Object(map)
            }
        }
    }
}

/// Reads a [`Tree`] and counts its values.
#[derive(Clone, Copy)]
struct Reading<'a>(&'a Values);

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        self.0.count().map_err(D::Error::custom)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Tree, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(Tree::Leaf(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut object = Vec::new();
        while let Some(key) = entries.next_key()? {
            object.push((key, entries.next_value_seed(self)?));
        }
        Ok(Tree::Object(object))
    }
}
