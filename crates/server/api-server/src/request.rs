//! What does one client ask, once the path, the parameters and the caller are known?

use crate::auth::authn::User;
use crate::http::query::Query;
use crate::http::route::Target;
use crate::work::Work;
use bytes::Bytes;
use http::Method;
use http::request::Parts;
use jiff::Timestamp;
use pointsman_rules::decode::FieldValidation;
use pointsman_rules::{ApiError, FieldError};
use std::sync::Arc;

/// A request for a resource, after routing, authentication and authorization.
#[derive(Clone, Debug)]
pub struct Request {
    /// The HTTP method.
    pub method: Method,
    pub target: Target,
    pub query: Query,
    pub user: User,
    /// The `Accept` header.
    pub accept: Option<String>,
    /// The media type of the body, without parameters.
    pub content_type: String,
    pub body: Bytes,
    /// All that was in front of the body, for requests that are passed on.
    pub head: Option<Arc<Parts>>,
    /// Where it takes turns if it is large.
    pub work: Arc<Work>,
    pub now: Timestamp,
}

impl Request {
    /// Whether the client asks for changes from now on instead of a state.
    pub fn watches(&self) -> bool {
        let asked = self.target.watch || self.query.flag("watch").unwrap_or(false);
        asked && self.method == Method::GET && self.target.subresource.is_none()
    }

    /// What to do about fields that the schema does not know.
    pub fn field_validation(&self) -> Result<FieldValidation, ApiError> {
        let text = self.query.get("fieldValidation").unwrap_or("");
        FieldValidation::parse(text).ok_or_else(|| {
            let error = FieldError::not_supported("fieldValidation", text, &["Ignore", "Strict", "Warn"]);
            ApiError::BadRequest(format!("invalid options: {error}"))
        })
    }
}
