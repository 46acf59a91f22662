//! RFC 7396: objects merge, `null` removes, everything else replaces.

use super::PatchError;
use serde_json::{Map, Value};

/// Applies a merge patch to an object.
pub(super) fn apply(original: Value, patch: Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        return Err(PatchError::malformed("a merge patch must be a JSON object"));
    }
    Ok(merged(original, patch))
}

/// The law of the RFC, for any two values. Recursion is bounded by the patch's own nesting.
pub(super) fn merged(original: Value, patch: Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch;
    };
    let mut object = match original {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    for (name, value) in patch {
        if value.is_null() {
            object.remove(&name);
        } else {
            let old = object.remove(&name).unwrap_or(Value::Null);
            object.insert(name, merged(old, value));
        }
    }
    Value::Object(object)
}
