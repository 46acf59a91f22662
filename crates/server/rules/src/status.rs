//! How does the server say no?
//!
//! [`ApiError`] is split by what a client would do differently; it renders as the `Status` object
//! that every Kubernetes client understands.

use crate::field_error::{FieldError, FieldErrors};
use crate::kind::Kind;
use serde_json::{Value, json};

/// What a Status error is about: the resource and the object's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// API group; empty for core.
    pub group: String,
    /// The plural resource, or the kind for `Invalid`.
    pub kind: String,
    /// The object's name; empty when it has none yet.
    pub name: String,
}

impl Subject {
    /// An object of `kind`, named by its plural.
    pub fn new(kind: &Kind, name: impl Into<String>) -> Self {
        Self {
            group: kind.group.into(),
            kind: kind.plural.into(),
            name: name.into(),
        }
    }

    /// `pods "x" is `, `pods is ` or nothing, as far as the subject is known.
    fn is_what(&self) -> String {
        match (self.kind.is_empty(), self.name.is_empty()) {
            (true, _) => String::new(),
            (false, true) => format!("{} is ", self.qualified()),
            (false, false) => format!("{} {:?} is ", self.qualified(), self.name),
        }
    }

    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.kind.clone()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }
}

/// A refusal, with all that a client needs to act on it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The request cannot be understood.
    #[error("{0}")]
    BadRequest(String),
    /// No valid credential.
    #[error("Unauthorized")]
    Unauthorized,
    /// The caller may not do this, or nobody may.
    #[error("{}forbidden: {why}", .subject.is_what())]
    Forbidden {
        /// What the request was about.
        subject: Subject,
        /// Who, what, where.
        why: String,
        /// A machine-readable cause such as `NamespaceTerminating`: reason, message, field.
        cause: Option<(String, String, String)>,
    },
    /// No such object.
    #[error("{} {:?} not found", .0.qualified(), .0.name)]
    NotFound(Subject),
    /// No such path, group, version or subresource.
    #[error("the server could not find the requested resource")]
    NoSuchResource,
    /// The path exists, the verb does not.
    #[error("{0}")]
    MethodNotAllowed(String),
    /// None of the accepted media types can be served.
    #[error("only the following media types are accepted: {0}")]
    NotAcceptable(String),
    /// POST of a name that is taken.
    #[error("{} {:?} already exists", .0.qualified(), .0.name)]
    AlreadyExists(Subject),
    /// An object of that name is there, but on its way out.
    #[error("object is being deleted: {} {:?} already exists", .0.qualified(), .0.name)]
    BeingDeleted(Subject),
    /// The object is not the one the client read.
    #[error("Operation cannot be fulfilled on {} {:?}: {why}", .subject.qualified(), .subject.name)]
    Conflict {
        /// What the request was about.
        subject: Subject,
        why: String,
    },
    /// The resource version or continue token is older than the history kept.
    #[error("{message}")]
    Expired {
        /// What was too old.
        message: String,
        /// A token to go on with an inconsistent list, if there is one.
        fresh_continue: Option<String>,
    },
    /// The body is larger than the limit.
    #[error("{0}")]
    TooLarge(String),
    /// The body's media type is not understood.
    #[error("{0}")]
    UnsupportedMediaType(String),
    /// The object breaks rules of its kind.
    #[error("{} {:?} is invalid: {}", invalid_head(.subject), .subject.name, listed(.errors))]
    Invalid {
        /// The object, by kind rather than by plural.
        subject: Subject,
        /// All that is wrong with it.
        errors: FieldErrors,
    },
    /// Try again after so many seconds.
    #[error("{message}")]
    TooManyRequests {
        /// What is overloaded.
        message: String,
        /// When to come back.
        retry_after_seconds: u32,
        /// A machine-readable cause such as `DisruptionBudget`: reason, message, field.
        cause: Option<(String, String, String)>,
    },
    /// Our own failure.
    #[error("Internal error occurred: {0}")]
    Internal(String),
    /// The server cannot serve now.
    #[error("{0}")]
    Unavailable(String),
    /// The request took too long.
    #[error("{message}")]
    Timeout {
        /// What was waited for.
        message: String,
        /// A machine-readable cause such as `ResourceVersionTooLarge`: reason, message.
        cause: Option<(String, String)>,
        /// When to come back.
        retry_after_seconds: u32,
    },
}

impl ApiError {
    /// The object breaks the rules of `kind`.
    pub fn invalid(kind: &Kind, name: &str, errors: FieldErrors) -> Self {
        let subject = Subject {
            group: kind.group.into(),
            kind: kind.kind.into(),
            name: name.into(),
        };
        ApiError::Invalid { subject, errors }
    }

    /// The object changed since the client read it.
    pub fn modified(kind: &Kind, name: &str) -> Self {
        ApiError::Conflict {
            subject: Subject::new(kind, name),
            why:
                "the object has been modified; please apply your changes to the latest version and try again"
                    .into(),
        }
    }

    /// The HTTP status code.
    pub fn code(&self) -> u16 {
        match self {
            ApiError::BadRequest(_) => 400,
            ApiError::Unauthorized => 401,
            ApiError::Forbidden { .. } => 403,
            ApiError::NotFound(_) | ApiError::NoSuchResource => 404,
            ApiError::MethodNotAllowed(_) => 405,
            ApiError::NotAcceptable(_) => 406,
            ApiError::AlreadyExists(_) | ApiError::BeingDeleted(_) | ApiError::Conflict { .. } => 409,
            ApiError::Expired { .. } => 410,
            ApiError::TooLarge(_) => 413,
            ApiError::UnsupportedMediaType(_) => 415,
            ApiError::Invalid { .. } => 422,
            ApiError::TooManyRequests { .. } => 429,
            ApiError::Internal(_) => 500,
            ApiError::Unavailable(_) => 503,
            ApiError::Timeout { .. } => 504,
        }
    }

    /// The `reason` that clients branch on.
    pub fn reason(&self) -> &'static str {
        match self {
            ApiError::BadRequest(_) => "BadRequest",
            ApiError::Unauthorized => "Unauthorized",
            ApiError::Forbidden { .. } => "Forbidden",
            ApiError::NotFound(_) | ApiError::NoSuchResource => "NotFound",
            ApiError::MethodNotAllowed(_) => "MethodNotAllowed",
            ApiError::NotAcceptable(_) => "NotAcceptable",
            ApiError::AlreadyExists(_) | ApiError::BeingDeleted(_) => "AlreadyExists",
            ApiError::Conflict { .. } => "Conflict",
            ApiError::Expired { .. } => "Expired",
            ApiError::TooLarge(_) => "RequestEntityTooLarge",
            ApiError::UnsupportedMediaType(_) => "UnsupportedMediaType",
            ApiError::Invalid { .. } => "Invalid",
            ApiError::TooManyRequests { .. } => "TooManyRequests",
            ApiError::Internal(_) => "InternalError",
            ApiError::Unavailable(_) => "ServiceUnavailable",
            ApiError::Timeout { .. } => "Timeout",
        }
    }

    /// Seconds for the `Retry-After` header.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        match self {
            ApiError::TooManyRequests {
                retry_after_seconds, ..
            }
            | ApiError::Timeout {
                retry_after_seconds, ..
            } => Some(*retry_after_seconds),
            _ => None,
        }
    }

    /// The `Status` object.
    pub fn to_status(&self) -> Value {
        let mut metadata = json!({});
        if let ApiError::Expired {
            fresh_continue: Some(token),
            ..
        } = self
        {
            metadata["continue"] = json!(token);
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.to_string(),
            "reason": self.reason(),
            "code": self.code(),
        });
        let details = self.details();
        // kubectl looks into the details of every 404, also where there is nothing to say.
        let missing = self.code() == 404;
        if missing || details.as_object().is_some_and(|details| !details.is_empty()) {
            status["details"] = details;
        }
        status
    }

    fn details(&self) -> Value {
        let mut details = json!({});
        if let Some(subject) = self.subject() {
            for (field, text) in [
                ("name", &subject.name),
                ("group", &subject.group),
                ("kind", &subject.kind),
            ] {
                if !text.is_empty() {
                    details[field] = json!(text);
                }
            }
        }
        let causes = self.causes();
        if !causes.is_empty() {
            details["causes"] = Value::Array(causes);
        }
        if let Some(seconds) = self.retry_after_seconds() {
            details["retryAfterSeconds"] = json!(seconds);
        }
        details
    }

    fn subject(&self) -> Option<&Subject> {
        match self {
            ApiError::NotFound(subject)
            | ApiError::AlreadyExists(subject)
            | ApiError::BeingDeleted(subject) => Some(subject),
            ApiError::Forbidden { subject, .. }
            | ApiError::Conflict { subject, .. }
            | ApiError::Invalid { subject, .. } => Some(subject),
            _ => None,
        }
    }

    fn causes(&self) -> Vec<Value> {
        match self {
            ApiError::Invalid { errors, .. } => errors
                .iter()
                .map(|error| {
                    json!({"reason": error.fault.reason(), "message": error.message(), "field": error.field})
                })
                .collect(),
            ApiError::Forbidden { cause: Some((reason, message, field)), .. }
            | ApiError::TooManyRequests { cause: Some((reason, message, field)), .. } => {
                vec![json!({"reason": reason, "message": message, "field": field})]
            }
            ApiError::Timeout { cause: Some((reason, message)), .. } => {
                vec![json!({"reason": reason, "message": message})]
            }
            _ => Vec::new(),
        }
    }
}

fn invalid_head(subject: &Subject) -> String {
    subject.qualified()
}

fn listed(errors: &[FieldError]) -> String {
    match errors {
        [one] => one.to_string(),
        many => {
            let listed: Vec<String> = many.iter().map(ToString::to_string).collect();
            format!("[{}]", listed.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_found_reads_as_clients_expect() {
        let kind = &crate::kinds::DEPLOYMENT;
        let status = ApiError::NotFound(Subject::new(kind, "web")).to_status();
        assert_eq!(status["message"], r#"deployments.apps "web" not found"#);
        assert_eq!(
            status["details"],
            json!({"name": "web", "group": "apps", "kind": "deployments"})
        );
        assert_eq!(status["code"], 404);
    }

    #[test]
    fn a_refusal_names_as_much_as_is_known() {
        let text = |kind: &str, name: &str| {
            let subject = Subject {
                group: String::new(),
                kind: kind.into(),
                name: name.into(),
            };
            ApiError::Forbidden {
                subject,
                why: "no".into(),
                cause: None,
            }
            .to_string()
        };
        assert_eq!(text("pods", "x"), r#"pods "x" is forbidden: no"#);
        assert_eq!(text("pods", ""), "pods is forbidden: no");
        assert_eq!(text("", ""), "forbidden: no");
    }

    #[test]
    fn invalid_names_the_kind_and_lists_causes() {
        let kind = &crate::kinds::SERVICE;
        let error = ApiError::invalid(kind, "web", vec![FieldError::required("spec.ports", "")]);
        let status = error.to_status();
        assert_eq!(
            status["message"],
            r#"Service "web" is invalid: spec.ports: Required value"#
        );
        assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueRequired");
        assert_eq!(status["details"]["kind"], "Service");
    }
}
