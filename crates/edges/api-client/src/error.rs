//! What went wrong with a request, and what should the caller do about it?

use serde::Deserialize;
use std::time::Duration;
use thiserror::Error;

/// The server's own words about a failed request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// One word why.
    pub reason: String,
    /// A sentence why.
    pub message: String,
    pub details: Option<StatusDetails>,
}

/// Details of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    pub causes: Option<Vec<StatusCause>>,
    /// How long to wait before the next attempt.
    pub retry_after_seconds: Option<u64>,
}

/// One cause of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// One word; the API calls it `reason`.
    pub reason: String,
}

impl Status {
    /// Whether an authorizer refused it, rather than admission, which also says that something is forbidden. A node that
    /// asks for an object it has nothing to do with any more, such as a pod that is gone, lacks nothing.
    pub fn is_missing_right(&self) -> bool {
        self.code == 403
            && self.message.contains("\" cannot ")
            && !self.message.contains(": no relationship found")
    }

    /// Whether one of the causes has this name.
    pub fn has_cause(&self, reason: &str) -> bool {
        let causes = self.details.as_ref().and_then(|details| details.causes.as_ref());
        causes.is_some_and(|causes| causes.iter().any(|cause| cause.reason == reason))
    }
}

/// A request that did not do what was asked, by what the caller does next.
#[derive(Debug, Error)]
pub enum ApiError {
    /// Somebody else wrote the object since it was read.
    #[error("conflict: {}", .0.message)]
    Conflict(Status),
    /// The name is taken.
    #[error("already exists: {}", .0.message)]
    AlreadyExists(Status),
    /// There is no such object.
    #[error("not found: {}", .0.message)]
    NotFound(Status),
    /// The version asked for is no longer, or not yet, there: list again.
    #[error("version not available: {}", .0.message)]
    Expired(Status),
    /// The namespace is being deleted, so nothing new can be put into it.
    #[error("namespace is terminating: {}", .0.message)]
    NamespaceTerminating(Status),
    /// The server refuses this request and will do so again.
    #[error("refused ({} {}): {}", .0.code, .0.reason, .0.message)]
    Refused(Status),
    /// The server cannot do it now.
    #[error("server is busy ({} {}): {}", .0.code, .0.reason, .0.message)]
    Busy(Status),
    /// No answer came.
    #[error("no answer from the server: {0}")]
    Unreachable(String),
    /// The answer is not what was asked for.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(String),
}

/// What helps against a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The same request again, after a while.
    Retry(Option<Duration>),
    /// A fresh look at the objects, then a new decision.
    Reread,
    /// Nothing that the caller could do.
    GiveUp,
}

impl ApiError {
    /// Sorts a failed request by what its status says.
    pub fn from_status(status: Status) -> Self {
        match (status.code, status.reason.as_str()) {
            (409, "AlreadyExists") => Self::AlreadyExists(status),
            (409, _) => Self::Conflict(status),
            (404, _) => Self::NotFound(status),
            (410, _) => Self::Expired(status),
            _ if status.has_cause("ResourceVersionTooLarge") => Self::Expired(status),
            (403, _) if status.has_cause("NamespaceTerminating") => Self::NamespaceTerminating(status),
            (408 | 429 | 500..=599, _) => Self::Busy(status),
            _ => Self::Refused(status),
        }
    }

    /// Whether a right is missing, which [`crate::Rights`] has said already.
    pub fn is_missing_right(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_missing_right())
    }

    /// What we hold is of no use any more.
    pub(crate) fn expired(message: String) -> Self {
        Self::Expired(Status {
            message,
            ..Status::default()
        })
    }

    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Conflict(_) | Self::AlreadyExists(_) | Self::NotFound(_) | Self::Expired(_) => {
                Recovery::Reread
            }
            Self::Busy(status) => {
                let seconds = status
                    .details
                    .as_ref()
                    .and_then(|details| details.retry_after_seconds);
                Recovery::Retry(seconds.map(Duration::from_secs))
            }
            Self::Unreachable(_) => Recovery::Retry(None),
            Self::NamespaceTerminating(_) | Self::Refused(_) | Self::Unreadable(_) => Recovery::GiveUp,
        }
    }

    /// The status code, if there was an answer.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Conflict(status)
            | Self::AlreadyExists(status)
            | Self::NotFound(status)
            | Self::Expired(status)
            | Self::NamespaceTerminating(status)
            | Self::Refused(status)
            | Self::Busy(status) => Some(status.code),
            Self::Unreachable(_) | Self::Unreadable(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(text: &str) -> ApiError {
        ApiError::from_status(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn statuses_are_sorted_by_what_helps() {
        let conflict = classify(r#"{"code":409,"reason":"Conflict","message":"m","details":null}"#);
        assert!(matches!(conflict, ApiError::Conflict(_)));
        assert_eq!(conflict.recovery(), Recovery::Reread);
        let taken = classify(r#"{"code":409,"reason":"AlreadyExists"}"#);
        assert!(matches!(taken, ApiError::AlreadyExists(_)));
        let terminating = classify(
            r#"{"code":403,"reason":"Forbidden","details":{"causes":[{"reason":"NamespaceTerminating"}]}}"#,
        );
        assert!(matches!(terminating, ApiError::NamespaceTerminating(_)));
        assert!(matches!(
            classify(r#"{"code":403,"reason":"Forbidden"}"#),
            ApiError::Refused(_)
        ));
        let busy = classify(r#"{"code":429,"reason":"TooManyRequests","details":{"retryAfterSeconds":3}}"#);
        assert_eq!(busy.recovery(), Recovery::Retry(Some(Duration::from_secs(3))));
        let ahead = classify(
            r#"{"code":504,"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#,
        );
        assert!(matches!(ahead, ApiError::Expired(_)));
    }
}
