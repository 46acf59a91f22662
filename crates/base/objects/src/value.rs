//! How does code read and write fields of a JSON object without a page of `get`s?
//!
//! Paths are static slices of field names: `at(object, &["spec", "nodeName"])`.

use pointsman_model::Quantity;
use serde_json::{Map, Value};

/// The value at `path`, if every step of the path is an object that has it. `null` counts as absent.
pub fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let mut value = object;
    for field in path {
        value = value.get(field)?;
    }
    (!value.is_null()).then_some(value)
}

/// The string at `path`; absent and non-string fields read as the empty string, as in Go.
pub fn str_at<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or("")
}

/// The integer at `path`.
pub fn int_at(object: &Value, path: &[&str]) -> Option<i64> {
    at(object, path).and_then(Value::as_i64)
}

/// The boolean at `path`.
pub fn bool_at(object: &Value, path: &[&str]) -> Option<bool> {
    at(object, path).and_then(Value::as_bool)
}

/// The list at `path`; absent reads as empty.
pub fn list_at<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The object at `path`, if there is one.
pub fn map_at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Map<String, Value>> {
    at(object, path).and_then(Value::as_object)
}

/// A quantity as the API carries it: a string or a bare number.
pub fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text.trim()),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => None,
    }
}

/// The value at `path` for writing, if the whole path exists.
pub fn at_mut<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    let mut value = object;
    for field in path {
        value = value.get_mut(field)?;
    }
    Some(value)
}

/// Writes `new` at `path`, making the objects on the way where they are missing.
pub fn set(object: &mut Value, path: &[&str], new: impl Into<Value>) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    entry(object, parents).insert((*last).to_owned(), new.into());
}

/// Writes `new` at `path` unless something other than `null` is there.
pub fn set_default(object: &mut Value, path: &[&str], new: impl Into<Value>) {
    if at(object, path).is_none() {
        set(object, path, new);
    }
}

/// Removes the field at `path` and returns what was there.
pub fn remove(object: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    at_mut(object, parents)?.as_object_mut()?.remove(*last)
}

/// The object at `path`, made if it is missing or not an object.
pub fn entry<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut value = object;
    for field in path {
        value = as_map(value).entry(*field).or_insert(Value::Null);
    }
    as_map(value)
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_null_and_wrong_types_read_as_nothing() {
        let object = json!({"spec": {"a": null, "b": 1}});
        assert_eq!(at(&object, &["spec", "a"]), None);
        assert_eq!(str_at(&object, &["spec", "b"]), "");
        assert_eq!(int_at(&object, &["spec", "b"]), Some(1));
        assert!(list_at(&object, &["spec", "b", "c"]).is_empty());
    }

    #[test]
    fn set_makes_the_path_and_default_keeps_what_is_there() {
        let mut object = json!({});
        set_default(&mut object, &["spec", "type"], "ClusterIP");
        set_default(&mut object, &["spec", "type"], "NodePort");
        assert_eq!(object, json!({"spec": {"type": "ClusterIP"}}));
        assert_eq!(remove(&mut object, &["spec", "type"]), Some(json!("ClusterIP")));
    }
}
