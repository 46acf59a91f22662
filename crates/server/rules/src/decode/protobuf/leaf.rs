//! How does a single value look in JSON?
//!
//! Text, numbers and bytes are plain fields; times, quantities and the like are small messages.

use super::reader::{Entry, Malformed};
use crate::decode::text::{self, Notes};
use crate::schema::Scalar;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde_json::{Number, Value};

/// The value; null for a time that is not set.
pub(super) fn scalar(entry: &Entry<'_>, scalar: Scalar) -> Result<Value, Malformed> {
    Ok(match scalar {
        Scalar::String => Value::from(entry.text()?),
        Scalar::Bytes => Value::from(BASE64_STANDARD.encode(entry.message()?.bytes())),
        Scalar::Int32 | Scalar::Int64 => Value::from(entry.varint()?.cast_signed()),
        Scalar::Bool => Value::from(entry.varint()? != 0),
        Scalar::Double => Number::from_f64(entry.double()?)
            .map(Value::Number)
            .ok_or_else(|| entry.malformed("a number is not finite"))?,
        Scalar::Time => time(entry, 1_000_000_000)?,
        Scalar::MicroTime => time(entry, 1_000)?,
        Scalar::Quantity => quantity(entry)?,
        Scalar::IntOrString => int_or_string(entry)?,
    })
}

/// Any JSON, kept as text in field 1.
pub(super) fn json(entry: &Entry<'_>, max_depth: usize, notes: &Notes) -> Result<Value, Malformed> {
    let mut value = Value::Null;
    let mut reader = entry.message()?;
    while let Some(part) = reader.next()? {
        if part.number != 1 || part.is_zero() {
            continue;
        }
        let raw = part.message()?;
        value = text::from_json(raw.bytes(), max_depth, notes)
            .map_err(|why| raw.malformed(&format!("it should be JSON: {why}")))?;
    }
    Ok(value)
}

/// Seconds and nanoseconds since 1970, the latter rounded down to a multiple of `grain`.
fn time(entry: &Entry<'_>, grain: i32) -> Result<Value, Malformed> {
    let mut reader = entry.message()?;
    if reader.bytes().is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    while let Some(part) = reader.next()? {
        match part.number {
            1 => seconds = part.varint()?.cast_signed(),
            2 => nanos = part.varint()?.cast_signed(),
            _ => {}
        }
    }
    let timestamp = i32::try_from(nanos)
        .ok()
        .filter(|nanos| (0..1_000_000_000).contains(nanos))
        .and_then(|nanos| Timestamp::new(seconds, nanos - nanos % grain).ok())
        .ok_or_else(|| entry.malformed("a time is out of range"))?;
    Ok(Value::from(timestamp.to_string()))
}

fn quantity(entry: &Entry<'_>) -> Result<Value, Malformed> {
    let mut text = "0";
    let mut reader = entry.message()?;
    while let Some(part) = reader.next()? {
        if part.number == 1 {
            text = part.text()?;
        }
    }
    Ok(Value::from(text))
}

fn int_or_string(entry: &Entry<'_>) -> Result<Value, Malformed> {
    let (mut kind, mut number, mut text) = (0, 0, "");
    let mut reader = entry.message()?;
    while let Some(part) = reader.next()? {
        match part.number {
            1 => kind = part.varint()?,
            2 => number = part.varint()?.cast_signed(),
            3 => text = part.text()?,
            _ => {}
        }
    }
    match kind {
        0 => Ok(Value::from(number)),
        1 => Ok(Value::from(text)),
        _ => Err(entry.malformed("it is neither a number nor a name")),
    }
}
