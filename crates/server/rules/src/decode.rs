//! What did the client send, and is it of the right types?
//!
//! Bytes become a `serde_json::Value` whose known fields have the types the schema gives them:
//! rules that run later may rely on that. Fields the schema does not know stay in the object and
//! are reported; `fieldValidation` decides what that means. `null` in a known field counts as
//! absent, as it does upstream.

mod check;
mod memory;
mod path;
mod protobuf;
mod scalar;
mod text;

use crate::field_error::FieldError;
use crate::kind::Kind;
use crate::schema::ObjectType;
use crate::status::ApiError;
use serde_json::Value;
use std::fmt;

pub use memory::{MAX_MEMORY, weigh};
pub use path::{Path, Step};
use text::Notes;

/// Levels of nesting that a body may have.
///
/// serde_json, which we and kube-rs read with, stops at 128, and an object travels inside lists and
/// watch events.
pub const MAX_DEPTH: usize = 100;

/// Mistakes reported per request; more are not worth reading.
const MAX_STRICT_ERRORS: usize = 100;

/// The media types of bodies that hold an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    /// `application/json`.
    Json,
    /// `application/yaml`, one document.
    Yaml,
    /// `application/vnd.kubernetes.protobuf`, which Go clients send for the built-in kinds.
    Protobuf,
}

/// An object as it was sent, with its known fields checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object; unknown fields are included, unless they came as protobuf and so have no name.
    pub object: Value,
    /// What a strict reader would refuse.
    pub strict: Vec<StrictError>,
}

/// Something that is suspicious but can be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StrictError {
    /// The schema has no such field.
    Unknown(String),
    /// The schema has no field of that number in the protobuf message at this path.
    UnknownNumber(u32, String),
    /// The field is there more than once; the last one counts.
    Duplicate(String),
}

/// What becomes of [`StrictError`]s: the `fieldValidation` parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Nothing is said.
    Ignore,
    /// They become `Warning` headers.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
}

/// A known field that holds a value of the wrong type.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Path of the field; empty for the object itself.
    pub field: String,
    /// The type that the schema asks for.
    pub expected: String,
    /// What is there.
    pub got: String,
}

impl BodyFormat {
    /// The format a `Content-Type` header stands for; none means JSON.
    pub fn from_content_type(content_type: Option<&str>) -> Result<Self, ApiError> {
        let media_type = content_type.unwrap_or("").split(';').next().unwrap_or("").trim();
        match media_type.to_ascii_lowercase().as_str() {
            "" | "application/json" => Ok(BodyFormat::Json),
            "application/yaml" => Ok(BodyFormat::Yaml),
            "application/vnd.kubernetes.protobuf" => Ok(BodyFormat::Protobuf),
            _ => Err(ApiError::UnsupportedMediaType(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json, application/yaml, application/vnd.kubernetes.protobuf"
                    .into(),
            )),
        }
    }
}

impl FieldValidation {
    /// Reads the query parameter; empty means [`FieldValidation::Warn`], unknown values are `None`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Warn" => Some(FieldValidation::Warn),
            "Ignore" => Some(FieldValidation::Ignore),
            "Strict" => Some(FieldValidation::Strict),
            _ => None,
        }
    }

    /// The object with the warnings to send, or the refusal.
    pub fn apply(self, decoded: Decoded, kind: &Kind) -> Result<(Value, Vec<String>), ApiError> {
        let listed = || decoded.strict.iter().map(ToString::to_string);
        match self {
            FieldValidation::Ignore => Ok((decoded.object, Vec::new())),
            FieldValidation::Warn => {
                let warnings = listed().collect();
                Ok((decoded.object, warnings))
            }
            FieldValidation::Strict if decoded.strict.is_empty() => Ok((decoded.object, Vec::new())),
            FieldValidation::Strict => {
                let listed: Vec<String> = listed().collect();
                Err(ApiError::BadRequest(format!(
                    "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
                    kind.kind,
                    kind.api_version(),
                    kind.kind,
                    listed.join(", ")
                )))
            }
        }
    }
}

impl fmt::Display for StrictError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StrictError::Unknown(field) => write!(f, "unknown field {field:?}"),
            StrictError::UnknownNumber(number, at) if at.is_empty() => {
                write!(f, "unknown field number {number}")
            }
            StrictError::UnknownNumber(number, at) => write!(f, "unknown field number {number} in {at}"),
            StrictError::Duplicate(field) => write!(f, "duplicate field {field:?}"),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "field {:?}: ", self.field)?;
        }
        write!(f, "expected {}, got {}", self.expected, self.got)
    }
}

impl Mismatch {
    /// The mistake as a validation error of the object.
    pub fn into_field_error(self) -> FieldError {
        FieldError::invalid(self.field, self.got, format!("expected {}", self.expected))
    }
}

/// Reads a body that should hold a `shape`.
pub fn decode(body: &[u8], format: BodyFormat, shape: &ObjectType) -> Result<Decoded, ApiError> {
    let Decoded {
        mut object,
        strict: read,
    } = match format {
        BodyFormat::Protobuf => protobuf::read(body, shape)?,
        BodyFormat::Json | BodyFormat::Yaml => read(body, format)?,
    };
    let mut strict = check_object(&mut object, shape).map_err(|mismatch| {
        ApiError::BadRequest(format!(
            "{shape} cannot be handled as a {}: {mismatch}",
            shape.name
        ))
    })?;
    // Unknown fields first, as upstream, whose tests look for that order.
    strict.extend(read);
    strict.truncate(MAX_STRICT_ERRORS);
    Ok(Decoded { object, strict })
}

/// Reads a body without knowing what it should hold; `strict` lists duplicates only.
///
/// Protobuf has numbers instead of names, so it is refused here: it needs [`decode`].
pub fn read(body: &[u8], format: BodyFormat) -> Result<Decoded, ApiError> {
    let notes = Notes::default();
    let (object, format) = match format {
        BodyFormat::Json => (text::from_json(body, MAX_DEPTH, &notes), "JSON"),
        BodyFormat::Yaml => (text::from_yaml(body, &notes), "YAML"),
        BodyFormat::Protobuf => {
            return Err(ApiError::UnsupportedMediaType(
                "protobuf can only be read as an object of a known kind".into(),
            ));
        }
    };
    let object = object.map_err(|why| notes.memory.refusal(format, &why))?;
    let strict = notes.duplicates.into_inner();
    Ok(Decoded { object, strict })
}

fn invalid(format: &str, why: &dyn fmt::Display) -> ApiError {
    ApiError::BadRequest(format!("the body of the request is not valid {format}: {why}"))
}

/// Checks the known fields of an object in place and returns the unknown ones.
///
/// Times are rewritten to the precision of their type and to UTC, integral floats to integers;
/// `null`s of known fields are dropped. The object may be half rewritten when this fails.
pub fn check_object(object: &mut Value, shape: &ObjectType) -> Result<Vec<StrictError>, Mismatch> {
    let mut unknown = Vec::new();
    check::object(object, shape, &Path::ROOT, &mut unknown)?;
    Ok(unknown)
}

#[cfg(test)]
mod tests;
