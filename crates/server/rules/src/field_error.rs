//! What is wrong with which field?
//!
//! The rendering follows the upstream API server, because clients show it to people and some match
//! on it: `spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive`.

use serde_json::Value;
use std::fmt;

/// The kind of mistake; becomes `reason` in a Status cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The field must be there.
    Required,
    /// The value is not acceptable.
    Invalid,
    /// The value is not one of a closed set.
    NotSupported,
    /// The value collides with another one.
    Duplicate,
    /// The value names something that is not there.
    NotFound,
    /// The field must not be set here.
    Forbidden,
    /// Too many bytes.
    TooLong,
    /// Too many items.
    TooMany,
    /// Our own failure.
    Internal,
}

impl Fault {
    /// The machine-readable spelling of a Status cause.
    pub fn reason(self) -> &'static str {
        match self {
            Fault::Required => "FieldValueRequired",
            Fault::Invalid => "FieldValueInvalid",
            Fault::NotSupported => "FieldValueNotSupported",
            Fault::Duplicate => "FieldValueDuplicate",
            Fault::NotFound => "FieldValueNotFound",
            Fault::Forbidden => "FieldValueForbidden",
            Fault::TooLong => "FieldValueTooLong",
            Fault::TooMany => "FieldValueTooMany",
            Fault::Internal => "InternalError",
        }
    }
}

/// One mistake in one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// What kind of mistake it is.
    pub fault: Fault,
    /// Path of the field, such as `spec.ports[0].name`.
    pub field: String,
    /// The value that was refused, where showing it helps.
    pub value: Option<Value>,
    /// What would be acceptable.
    pub detail: String,
}

/// All mistakes found in one object, in field order.
pub type FieldErrors = Vec<FieldError>;

impl FieldError {
    /// The field must be there.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            fault: Fault::Required,
            field: field.into(),
            value: None,
            detail: detail.into(),
        }
    }

    /// The value is not acceptable.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self {
            fault: Fault::Invalid,
            field: field.into(),
            value: Some(value.into()),
            detail: detail.into(),
        }
    }

    /// The value is not in the closed set `supported`.
    pub fn not_supported(field: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Self {
        let listed: Vec<String> = supported.iter().map(|item| format!("{item:?}")).collect();
        let detail = format!("supported values: {}", listed.join(", "));
        Self {
            fault: Fault::NotSupported,
            field: field.into(),
            value: Some(value.into()),
            detail,
        }
    }

    /// The value is there twice.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self {
            fault: Fault::Duplicate,
            field: field.into(),
            value: Some(value.into()),
            detail: String::new(),
        }
    }

    /// The value names something that is not there.
    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self {
            fault: Fault::NotFound,
            field: field.into(),
            value: Some(value.into()),
            detail: String::new(),
        }
    }

    /// The field must not be set here.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            fault: Fault::Forbidden,
            field: field.into(),
            value: None,
            detail: detail.into(),
        }
    }

    /// The value has more than `limit` bytes.
    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        let detail = format!("may not be more than {limit} bytes");
        Self {
            fault: Fault::TooLong,
            field: field.into(),
            value: None,
            detail,
        }
    }

    /// The list has more than `limit` items.
    pub fn too_many(field: impl Into<String>, actual: usize, limit: usize) -> Self {
        let detail = format!("must have at most {limit} items");
        Self {
            fault: Fault::TooMany,
            field: field.into(),
            value: Some(actual.into()),
            detail,
        }
    }

    /// The message without the field name, as a Status cause carries it.
    pub fn message(&self) -> String {
        let head = match self.fault {
            Fault::Required => "Required value",
            Fault::Invalid => "Invalid value",
            Fault::NotSupported => "Unsupported value",
            Fault::Duplicate => "Duplicate value",
            Fault::NotFound => "Not found",
            Fault::Forbidden => "Forbidden",
            Fault::TooLong => "Too long",
            Fault::TooMany => "Too many",
            Fault::Internal => "Internal error",
        };
        let mut text = head.to_owned();
        if let Some(value) = &self.value {
            text.push_str(": ");
            text.push_str(&value.to_string());
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_upstream_users_know_them() {
        let error = FieldError::invalid("spec.ports[0].port", 0, "must be between 1 and 65535, inclusive");
        assert_eq!(
            error.to_string(),
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"
        );
        let error = FieldError::not_supported("spec.type", "Foo", &["ClusterIP", "NodePort"]);
        assert_eq!(
            error.to_string(),
            r#"spec.type: Unsupported value: "Foo": supported values: "ClusterIP", "NodePort""#
        );
    }
}
