//! How is text read without losing sight of duplicate keys?
//!
//! `serde_json` keeps the last of several equal keys and forgets that there were others, so maps are built here.

use super::memory::{Memory, VALUE};
use super::path::{Path, Step};
use super::{MAX_DEPTH, MAX_MEMORY, MAX_STRICT_ERRORS, StrictError};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::RefCell;
use std::fmt;

/// What reading gathers besides the values.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) memory: Memory,
    /// Keys that were there before.
    pub(super) duplicates: RefCell<Vec<StrictError>>,
}

pub(super) fn from_json(body: &[u8], max_depth: usize, notes: &Notes) -> Result<Value, String> {
    if deeper_than(body, max_depth) {
        return Err(format!("it is nested deeper than {MAX_DEPTH} levels"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Reading::root(notes).deserialize(&mut reader);
    let whole = value.and_then(|value| reader.end().map(|()| value));
    whole.map_err(|error| error.to_string())
}

pub(super) fn from_yaml(body: &[u8], notes: &Notes) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            // Keys are nodes too.
            max_nodes: 2 * (MAX_MEMORY / VALUE) + 2,
            max_documents: 1,
            max_aliases: 1_000,
            max_anchors: 1_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 50_000,
        },
    };
    let read = |reader: serde_saphyr::Deserializer<'_, '_>| Reading::root(notes).deserialize(reader);
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

/// Reads a value at a path and weighs it.
#[derive(Clone, Copy)]
struct Reading<'a> {
    notes: &'a Notes,
    path: &'a Path<'a>,
}

impl<'a> Reading<'a> {
    fn root(notes: &'a Notes) -> Self {
        Self {
            notes,
            path: &Path::ROOT,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.notes.memory.value().map_err(D::Error::custom)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = &self.path.then(Step::Index(list.len()));
            match items.next_element_seed(Reading { path, ..self })? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.is_empty() {
                self.notes.memory.map().map_err(A::Error::custom)?;
            }
            let path = &self.path.then(Step::Field(&key));
            let value = entries.next_value_seed(Reading { path, ..self })?;
            let mut duplicates = self.notes.duplicates.borrow_mut();
            if map.contains_key(&key) && duplicates.len() < MAX_STRICT_ERRORS {
                duplicates.push(StrictError::Duplicate(path.to_string()));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
