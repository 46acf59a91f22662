//! RFC 6902, with limits: a short patch can otherwise double an object again and again by copying, or shift a long list
//! with every operation.

use super::PatchError;
use super::effort::Effort;
use crate::decode::{MAX_DEPTH, weigh};
use crate::field_error::FieldError;
use json_patch::jsonptr::Pointer;
use json_patch::{Patch, PatchOperation, patch_unsafe};
use serde_json::Value;

/// Operations in one patch; upstream's limit.
const MAX_OPERATIONS: usize = 10_000;

/// Bytes of memory that all `copy` operations of one patch may take together; upstream allows the size of the
/// largest request body.
const MAX_COPIED_BYTES: usize = 3 << 20;

/// Applies a JSON patch. On failure the original is lost, so callers pass a copy.
pub(super) fn apply(mut object: Value, patch: Value) -> Result<Value, PatchError> {
    let operations = match &patch {
        Value::Array(operations) => operations.len(),
        _ => {
            return Err(PatchError::malformed("a JSON patch must be a list of operations"));
        }
    };
    if operations > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {operations}"
        )));
    }
    let Patch(operations) = serde_json::from_value(patch)
        .map_err(|error| PatchError::malformed(format!("not a JSON patch: {error}")))?;
    let mut cost = Cost::default();
    for (at, operation) in operations.iter().enumerate() {
        cost.add(&object, operation)?;
        patch_unsafe(&mut object, std::slice::from_ref(operation)).map_err(|error| {
            let detail = format!("operation {at} ({}) failed: {}", name(operation), error.kind);
            PatchError::Unfit(FieldError::invalid("patch", operation.path().as_str(), detail))
        })?;
    }
    Ok(object)
}

fn name(operation: &PatchOperation) -> &'static str {
    match operation {
        PatchOperation::Add(_) => "add",
        PatchOperation::Remove(_) => "remove",
        PatchOperation::Replace(_) => "replace",
        PatchOperation::Move(_) => "move",
        PatchOperation::Copy(_) => "copy",
        PatchOperation::Test(_) => "test",
    }
}

/// What the operations so far have cost.
#[derive(Default)]
struct Cost {
    effort: Effort,
    copied_bytes: usize,
}

impl Cost {
    /// Refuses an operation that would nest the object too deeply, or after which it has been too much.
    fn add(&mut self, object: &Value, operation: &PatchOperation) -> Result<(), PatchError> {
        self.effort.steps(1)?;
        let (path, value): (&Pointer, &Value) = match operation {
            PatchOperation::Add(add) => (&add.path, &add.value),
            PatchOperation::Replace(replace) => (&replace.path, &replace.value),
            PatchOperation::Copy(copy) => match copy.from.resolve(object) {
                Ok(value) => (&copy.path, value),
                Err(_) => return Ok(()),
            },
            PatchOperation::Move(from) => match from.from.resolve(object) {
                Ok(value) => (&from.path, value),
                Err(_) => return Ok(()),
            },
            PatchOperation::Remove(remove) => return self.effort.shift(list_length(object, &remove.path)),
            // What is compared is in the patch.
            PatchOperation::Test(_) => return Ok(()),
        };
        if let PatchOperation::Copy(_) | PatchOperation::Move(_) = operation {
            let (bytes, values) = weigh(value, MAX_COPIED_BYTES);
            self.effort.steps(values)?;
            if let PatchOperation::Copy(_) = operation {
                self.copied_bytes += bytes;
            }
        }
        if self.copied_bytes > MAX_COPIED_BYTES {
            return Err(PatchError::TooLarge(format!(
                "the copy operations of the JSON patch take more than {MAX_COPIED_BYTES} bytes"
            )));
        }
        if let PatchOperation::Move(from) = operation {
            self.effort.shift(list_length(object, &from.from))?;
        }
        if !matches!(operation, PatchOperation::Replace(_)) {
            self.effort.shift(list_length(object, path))?;
        }
        let depth = path.as_str().bytes().filter(|byte| *byte == b'/').count() + depth(value);
        if depth > MAX_DEPTH {
            return Err(PatchError::malformed(format!(
                "the result would be nested deeper than {MAX_DEPTH} levels"
            )));
        }
        Ok(())
    }
}

/// The length of the list that `path` is an item of; zero if it is something else.
fn list_length(object: &Value, path: &Pointer) -> usize {
    let parent = path
        .split_back()
        .and_then(|(parent, _)| parent.resolve(object).ok());
    parent.and_then(Value::as_array).map_or(0, Vec::len)
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
