//! RFC 6902, with limits: a short patch can otherwise double an object again and again by copying.

use super::PatchError;
use crate::decode::MAX_DEPTH;
use crate::field_error::FieldError;
use json_patch::jsonptr::Pointer;
use json_patch::{Patch, PatchOperation, patch_unsafe};
use serde_json::Value;

/// Operations in one patch; upstream's limit.
const MAX_OPERATIONS: usize = 10_000;

/// Bytes that all `copy` and `move` operations of one patch may carry together; upstream allows the
/// size of the largest request body for copies.
const MAX_CARRIED_BYTES: usize = 3 << 20;

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
    let mut carried_bytes = 0;
    for (at, operation) in operations.iter().enumerate() {
        check_growth(&object, operation, &mut carried_bytes)?;
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

/// Refuses an operation that would nest the object too deeply or has copied too much.
fn check_growth(
    object: &Value,
    operation: &PatchOperation,
    carried_bytes: &mut usize,
) -> Result<(), PatchError> {
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
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    if matches!(operation, PatchOperation::Copy(_) | PatchOperation::Move(_)) {
        *carried_bytes += size(value, MAX_CARRIED_BYTES);
        if *carried_bytes > MAX_CARRIED_BYTES {
            return Err(PatchError::TooLarge(format!(
                "the copy and move operations of the JSON patch carry more than {MAX_CARRIED_BYTES} bytes"
            )));
        }
    }
    let depth = path.as_str().bytes().filter(|byte| *byte == b'/').count() + depth(value);
    if depth > MAX_DEPTH {
        return Err(PatchError::malformed(format!(
            "the result would be nested deeper than {MAX_DEPTH} levels"
        )));
    }
    Ok(())
}

/// About the length of the value as JSON; counting stops soon after `limit`.
fn size(value: &Value, limit: usize) -> usize {
    let mut total = 0;
    match value {
        Value::String(text) => return text.len() + 2,
        Value::Array(items) => {
            for item in items {
                total += 1 + size(item, limit);
                if total > limit {
                    break;
                }
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                total += 4 + key.len() + size(item, limit);
                if total > limit {
                    break;
                }
            }
        }
        _ => return 5,
    }
    total + 2
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
