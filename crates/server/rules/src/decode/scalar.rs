//! Is a single value of its type, and how is it written?

use crate::schema::Scalar;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Number, Value};

/// The value in the spelling of its type, if that differs from how it was sent; or what was
/// expected instead.
pub(super) fn normalized(value: &Value, wanted: Scalar) -> Result<Option<Value>, &'static str> {
    match wanted {
        Scalar::String => keep(value.is_string(), "string"),
        Scalar::Bool => keep(value.is_boolean(), "bool (true or false)"),
        Scalar::Double => keep(value.is_number(), "double"),
        Scalar::Int32 => integer(value, i32::MIN.into(), i32::MAX.into(), "int32"),
        Scalar::Int64 => integer(value, i64::MIN, i64::MAX, "int64"),
        Scalar::IntOrString if value.is_string() => Ok(None),
        Scalar::IntOrString => integer(value, i32::MIN.into(), i32::MAX.into(), "int32 or string"),
        Scalar::Time => time(value, "%Y-%m-%dT%H:%M:%SZ"),
        Scalar::MicroTime => time(value, "%Y-%m-%dT%H:%M:%S.%6fZ"),
        Scalar::Quantity => quantity(value),
        Scalar::Bytes => keep(value.as_str().is_some_and(is_base64), "bytes (base64)"),
    }
}

fn keep(fits: bool, expected: &'static str) -> Result<Option<Value>, &'static str> {
    if fits { Ok(None) } else { Err(expected) }
}

/// Integers of the range; integral floats become integers, as far as floats are exact.
fn integer(value: &Value, min: i64, max: i64, expected: &'static str) -> Result<Option<Value>, &'static str> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let Value::Number(number) = value else {
        return Err(expected);
    };
    if let Some(exact) = number.as_i64() {
        return keep((min..=max).contains(&exact), expected);
    }
    let float = number.as_f64().ok_or(expected)?;
    if float.fract() != 0.0 || float.abs() > EXACT {
        return Err(expected);
    }
    let exact = float as i64;
    if !(min..=max).contains(&exact) {
        return Err(expected);
    }
    Ok(Some(Value::Number(Number::from(exact))))
}

fn time(value: &Value, format: &str) -> Result<Option<Value>, &'static str> {
    const EXPECTED: &str = "time (RFC 3339, such as 2006-01-02T15:04:05Z)";
    let text = value.as_str().ok_or(EXPECTED)?;
    // jiff also reads spaces for the T and zone names in brackets; RFC 3339 has neither.
    let bytes = text.as_bytes();
    if bytes.len() < 20 || bytes[10] != b'T' || bytes[4] != b'-' || text.contains('[') {
        return Err(EXPECTED);
    }
    let timestamp: Timestamp = text.parse().map_err(|_| EXPECTED)?;
    let written = timestamp.to_zoned(TimeZone::UTC).strftime(format).to_string();
    Ok((written != text).then_some(Value::String(written)))
}

/// Sign, digits with at most one point, then a suffix of the closed set or a decimal exponent.
fn quantity(value: &Value) -> Result<Option<Value>, &'static str> {
    const EXPECTED: &str = "quantity (such as 500m, 1.5 or 2Gi)";
    match value {
        Value::Number(number) => Ok(Some(Value::String(number.to_string()))),
        Value::String(text) if is_quantity(text.trim()) => Ok(None),
        _ => Err(EXPECTED),
    }
}

fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let points = number.bytes().filter(|byte| *byte == b'.').count();
    if points > 1 || number.len() == points {
        return false;
    }
    const SUFFIXES: [&str; 16] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    if SUFFIXES.contains(&suffix) {
        return true;
    }
    let Some(exponent) = suffix.strip_prefix(['e', 'E']) else {
        return false;
    };
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    !digits.is_empty() && digits.len() <= 10 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Standard alphabet with padding; line breaks are skipped, as Go does.
fn is_base64(text: &str) -> bool {
    let mut symbols = 0usize;
    let mut padding = 0usize;
    for byte in text.bytes() {
        match byte {
            b'\r' | b'\n' => {}
            b'=' => padding += 1,
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' if padding == 0 => symbols += 1,
            _ => return false,
        }
    }
    padding <= 2 && (symbols + padding).is_multiple_of(4)
}
