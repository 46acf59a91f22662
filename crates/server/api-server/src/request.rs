//! What does one client ask, once the path, the parameters and the caller are known?

use crate::auth::authn::User;
use crate::http::query::Query;
use crate::http::route::Target;
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use pointsman_rules::decode::FieldValidation;
use pointsman_rules::{ApiError, FieldError};

/// A request for a resource, after routing, authentication and authorization.
#[derive(Clone, Debug)]
pub struct Request {
    /// The HTTP method.
    pub method: Method,
    /// What it is about.
    pub target: Target,
    /// Its parameters.
    pub query: Query,
    /// Who asks.
    pub user: User,
    /// The `Accept` header.
    pub accept: Option<String>,
    /// The media type of the body, without parameters.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
    /// When it arrived.
    pub now: Timestamp,
}

impl Request {
    /// What to do about fields that the schema does not know.
    pub fn field_validation(&self) -> Result<FieldValidation, ApiError> {
        let text = self.query.get("fieldValidation").unwrap_or("");
        FieldValidation::parse(text).ok_or_else(|| {
            let error = FieldError::not_supported("fieldValidation", text, &["Ignore", "Strict", "Warn"]);
            ApiError::BadRequest(format!("invalid options: {error}"))
        })
    }
}
