//! What does an object look like after a patch?
//!
//! Three patch languages, one result: the patched object, checked against its schema like a body
//! that was sent whole. Server-side apply is refused with the media types that are accepted.
//!
//! Work and memory are bounded: nesting never grows beyond [`decode::MAX_DEPTH`], JSON patches may copy only so much,
//! and what a patch may take is counted in steps ([`effort`]).

mod effort;
mod json;
mod merge;
mod order;
mod strategic;

use crate::decode::{self, BodyFormat, Decoded};
use crate::field_error::{FieldError, FieldErrors};
use crate::kind::Kind;
use crate::schema::ObjectType;
use crate::status::{ApiError, Subject};
use crate::value::str_at;
use serde_json::Value;

/// The language of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902, a list of operations.
    Json,
    /// RFC 7396, an object with `null` for removal.
    Merge,
    /// Kubernetes' own: a merge patch that matches list items by key.
    Strategic,
}

/// Why a patch was not applied.
#[derive(Clone, Debug, PartialEq)]
enum PatchError {
    /// The patch makes no sense by itself.
    Malformed(String),
    /// The patch does not fit this object.
    Unfit(FieldError),
    /// The patch would blow the object up.
    TooLarge(String),
}

impl PatchType {
    /// The language a `Content-Type` stands for, if `kind` accepts it.
    pub fn from_content_type(content_type: &str, kind: &Kind) -> Result<Self, ApiError> {
        let media_type = content_type.split(';').next().unwrap_or("").trim();
        let refused = |note: &str| {
            let mut accepted = vec![PatchType::Json.media_type(), PatchType::Merge.media_type()];
            if !kind.custom {
                accepted.push(PatchType::Strategic.media_type());
            }
            Err(ApiError::UnsupportedMediaType(format!(
                "the body of the request was in an unknown format - accepted media types include: {}{note}",
                accepted.join(", ")
            )))
        };
        match media_type.to_ascii_lowercase().as_str() {
            "application/json-patch+json" => Ok(PatchType::Json),
            "application/merge-patch+json" => Ok(PatchType::Merge),
            "application/strategic-merge-patch+json" if !kind.custom => Ok(PatchType::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+cbor" => {
                refused(" (this server does not support server-side apply)")
            }
            _ => refused(""),
        }
    }

    /// The `Content-Type` of this language.
    pub fn media_type(self) -> &'static str {
        match self {
            PatchType::Json => "application/json-patch+json",
            PatchType::Merge => "application/merge-patch+json",
            PatchType::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

/// Applies the patch in `body` to `original`, an object of type `shape`.
///
/// Of the unknown fields in the result only those are reported that `original` did not have: a
/// strict client is not held to account for what others stored.
pub fn apply(
    patch_type: PatchType,
    body: &[u8],
    original: &Value,
    shape: &ObjectType,
) -> Result<Decoded, ApiError> {
    let Decoded {
        object: patch,
        mut strict,
    } = decode::read(body, BodyFormat::Json)?;
    let refused = |error: PatchError| error.into_api_error(original, shape);
    let mut object = match patch_type {
        PatchType::Json => json::apply(original.clone(), patch),
        PatchType::Merge => merge::apply(original.clone(), patch),
        PatchType::Strategic => strategic::apply(original.clone(), patch, shape),
    }
    .map_err(refused)?;
    let unknown = decode::check_object(&mut object, shape)
        .map_err(|mismatch| refused(PatchError::Unfit(mismatch.into_field_error())))?;
    if !unknown.is_empty() {
        let before = decode::check_object(&mut original.clone(), shape).unwrap_or_default();
        strict.extend(unknown.into_iter().filter(|error| !before.contains(error)));
    }
    Ok(Decoded { object, strict })
}

impl PatchError {
    fn malformed(why: impl Into<String>) -> Self {
        PatchError::Malformed(why.into())
    }

    fn into_api_error(self, original: &Value, shape: &ObjectType) -> ApiError {
        match self {
            PatchError::Malformed(why) => ApiError::BadRequest(format!("the patch cannot be used: {why}")),
            PatchError::TooLarge(why) => ApiError::TooLarge(why),
            PatchError::Unfit(error) => {
                let group = shape.served_as.map_or("", |served| served.group);
                let subject = Subject {
                    group: group.into(),
                    kind: shape.name.into(),
                    name: str_at(original, &["metadata", "name"]).into(),
                };
                let errors: FieldErrors = vec![error];
                ApiError::Invalid { subject, errors }
            }
        }
    }
}

#[cfg(test)]
mod tests;
