//! How much memory does a body take once it is read?
//!
//! A few bytes can stand for many of memory: `{"a":0}` is a map with room for eleven entries. So values are weighed
//! while a body is read, and reading ends where they are too heavy.

use super::invalid;
use crate::status::ApiError;
use serde_json::Value;
use std::cell::Cell;
use std::fmt;

/// Bytes of memory that the values of one body may take, about.
///
/// The largest useful objects, ConfigMaps of 1 MiB and slices of 1000 endpoints, stay well below.
pub const MAX_MEMORY: usize = 16 << 20;

/// A value: its place in a list or map that has some to spare, and the allocation of its text or key. The text itself
/// is bounded by the body.
pub(super) const VALUE: usize = 96;
/// What the first entry of a map takes besides: a node of a tree.
pub(super) const MAP: usize = 560;

/// The values of one body that were read so far.
#[derive(Debug, Default)]
pub(super) struct Memory(Cell<usize>);

impl Memory {
    /// Weighs one more value; the error is for the reader, the client gets [`Memory::refusal`].
    pub(super) fn value(&self) -> Result<(), String> {
        self.take(VALUE)
    }

    /// Weighs a map that has its first entry.
    pub(super) fn map(&self) -> Result<(), String> {
        self.take(MAP)
    }

    fn take(&self, bytes: usize) -> Result<(), String> {
        self.0.set(self.0.get() + bytes);
        if self.too_much() {
            return Err(too_much());
        }
        Ok(())
    }

    /// What the client gets when reading ended with an error.
    pub(super) fn refusal(&self, format: &str, why: &dyn fmt::Display) -> ApiError {
        if self.too_much() {
            return ApiError::TooLarge(format!("the body of the request is too large: {}", too_much()));
        }
        invalid(format, why)
    }

    fn too_much(&self) -> bool {
        self.0.get() > MAX_MEMORY
    }
}

fn too_much() -> String {
    format!(
        "its values would take more than {} MiB of memory",
        MAX_MEMORY >> 20
    )
}

/// What a copy of `value` takes and of how many values it is, as far as they stay below `limit` bytes.
pub fn weigh(value: &Value, limit: usize) -> (usize, usize) {
    let (mut bytes, mut values) = (VALUE, 1);
    let mut add = |extra: usize, item: &Value| {
        let (item_bytes, item_values) = weigh(item, limit);
        (bytes, values) = (bytes + extra + item_bytes, values + item_values);
        bytes <= limit
    };
    match value {
        Value::String(text) => bytes += text.len(),
        Value::Array(items) => {
            items.iter().all(|item| add(0, item));
        }
        Value::Object(map) => {
            let mut map_bytes = MAP;
            map.iter()
                .all(|(key, item)| add(std::mem::take(&mut map_bytes) + key.len(), item));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    (bytes, values)
}
