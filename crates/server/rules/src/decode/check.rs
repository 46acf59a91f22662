//! Does a value have the shape that the schema asks for?

use super::path::{Path, Step};
use super::{MAX_STRICT_ERRORS, Mismatch, StrictError, scalar};
use crate::schema::{ObjectType, Scalar, Shape};
use serde_json::{Map, Value};

/// Longest excerpt of an offending string in a message.
const EXCERPT_CHARS: usize = 40;

pub(super) fn object(
    value: &mut Value,
    shape: &ObjectType,
    path: &Path<'_>,
    unknown: &mut Vec<StrictError>,
) -> Result<(), Mismatch> {
    let Value::Object(map) = value else {
        return Err(mismatch(path, &format!("an object ({})", shape.name), value));
    };
    map.retain(|name, value| !value.is_null() || shape.field(name).is_none());
    for (name, value) in map.iter_mut() {
        let here = path.then(Step::Field(name));
        match shape.field(name) {
            Some(field) => check(value, &field.shape, &here, unknown)?,
            None if shape.open => {}
            None if unknown.len() < MAX_STRICT_ERRORS => {
                unknown.push(StrictError::Unknown(here.to_string()));
            }
            None => {}
        }
    }
    Ok(())
}

fn check(
    value: &mut Value,
    shape: &Shape,
    path: &Path<'_>,
    unknown: &mut Vec<StrictError>,
) -> Result<(), Mismatch> {
    if value.is_null() {
        *value = zero(shape);
    }
    match shape {
        Shape::Any => Ok(()),
        Shape::Object(index) if index.get().union => Ok(()),
        Shape::Object(index) => object(value, index.get(), path, unknown),
        Shape::List(item) => {
            let Value::Array(items) = value else {
                return Err(mismatch(path, "a list", value));
            };
            for (at, value) in items.iter_mut().enumerate() {
                check(value, item, &path.then(Step::Index(at)), unknown)?;
            }
            Ok(())
        }
        Shape::Map(inner) => {
            let Value::Object(map) = value else {
                return Err(mismatch(path, "an object (free keys)", value));
            };
            for (key, value) in map.iter_mut() {
                check(value, inner, &path.then(Step::Key(key)), unknown)?;
            }
            Ok(())
        }
        Shape::Scalar(wanted) => match scalar::normalized(value, *wanted) {
            Ok(None) => Ok(()),
            Ok(Some(better)) => {
                *value = better;
                Ok(())
            }
            Err(expected) => Err(mismatch(path, expected, value)),
        },
    }
}

/// What upstream makes of a `null` inside a list or map: the empty value of its type.
fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::Any => Value::Null,
        Shape::Object(_) | Shape::Map(_) => Value::Object(Map::new()),
        Shape::List(_) => Value::Array(Vec::new()),
        Shape::Scalar(scalar) => match scalar {
            Scalar::Int32 | Scalar::Int64 | Scalar::Double | Scalar::IntOrString => Value::from(0),
            Scalar::Bool => Value::Bool(false),
            Scalar::Quantity => Value::from("0"),
            Scalar::Time | Scalar::MicroTime => Value::from("0001-01-01T00:00:00Z"),
            Scalar::String | Scalar::Bytes => Value::from(""),
        },
    }
}

fn mismatch(path: &Path<'_>, expected: &str, value: &Value) -> Mismatch {
    // What belongs into a Secret is shown to nobody.
    let is_confidential = expected.starts_with("bytes") || path.to_string().starts_with("stringData");
    let got = match value {
        Value::String(_) if is_confidential => "a string".to_owned(),
        Value::Bool(_) | Value::Number(_) if is_confidential => "no string".to_owned(),
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("boolean {value}"),
        Value::Number(number) => format!("number {number}"),
        Value::String(text) if text.chars().count() > EXCERPT_CHARS => {
            let excerpt: String = text.chars().take(EXCERPT_CHARS).collect();
            format!("string {excerpt:?}...")
        }
        Value::String(text) => format!("string {text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    Mismatch {
        field: path.to_string(),
        expected: expected.to_owned(),
        got,
    }
}
