//! What goes back to the client?

use crate::connect::Tunnel;
use crate::http::body::Body;
use crate::http::held::{Guard, HeldBody};
use http::{HeaderValue, Response, StatusCode, header};
use pointsman_rules::ApiError;
use serde_json::Value;
use std::time::Duration;

/// An answer, before it is written as HTTP.
pub struct Reply {
    /// The HTTP status code.
    pub code: u16,
    pub body: Body,
    /// The media type of the body.
    pub content_type: &'static str,
    /// Advice to the client, sent as `Warning` headers.
    pub warnings: Vec<String>,
    pub headers: Vec<(header::HeaderName, String)>,
    /// What is kept until it has been sent, or until the tunnel has ended.
    pub held: Option<Held>,
    /// What the connection is to become after this answer.
    pub tunnel: Option<Tunnel>,
}

/// What is kept until an answer has been sent, or for `limit` at most.
pub struct Held {
    pub guard: Guard,
    pub limit: Option<Duration>,
}

impl Reply {
    /// A JSON answer with a ready body.
    pub fn new(code: u16, body: Body) -> Self {
        Self {
            code,
            body,
            content_type: "application/json",
            warnings: Vec::new(),
            headers: Vec::new(),
            held: None,
            tunnel: None,
        }
    }

    /// A JSON answer.
    pub fn json(code: u16, value: Value) -> Self {
        Self::new(
            code,
            Body::whole(serde_json::to_vec(&value).expect("JSON values serialize")),
        )
    }

    /// A plain text answer.
    pub fn text(code: u16, text: impl Into<String>) -> Self {
        Self {
            content_type: "text/plain; charset=utf-8",
            ..Self::new(code, Body::whole(text.into()))
        }
    }

    /// The same answer with warnings.
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }

    /// The HTTP message.
    pub fn into_response(self, audit_id: &str) -> Response<HeldBody> {
        let body = match self.held {
            Some(Held { guard, limit }) => HeldBody::new(self.body, guard, limit),
            None => HeldBody::free(self.body),
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-cache, private"),
        );
        if let Ok(value) = HeaderValue::from_str(audit_id) {
            headers.insert("audit-id", value);
        }
        for warning in bounded(self.warnings) {
            // Quotes and controls cannot stand inside a quoted string as they are.
            let text: String = warning.chars().filter(|c| !c.is_control()).collect();
            let text = text.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
                headers.append(header::WARNING, value);
            }
        }
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        response
    }
}

impl From<ApiError> for Reply {
    fn from(error: ApiError) -> Self {
        let mut reply = Reply::json(error.code(), error.to_status());
        if let Some(seconds) = error.retry_after_seconds() {
            reply.headers.push((header::RETRY_AFTER, seconds.to_string()));
        }
        if error == ApiError::Unauthorized {
            reply.headers.push((header::WWW_AUTHENTICATE, "Bearer".into()));
        }
        reply
    }
}

/// Upstream's limits on what warnings may add to a reply.
fn bounded(warnings: Vec<String>) -> Vec<String> {
    const TOTAL: usize = 4096;
    const EACH: usize = 256;
    let total: usize = warnings.iter().map(|warning| warning.chars().count()).sum();
    if total <= TOTAL {
        return warnings;
    }
    let cut = warnings
        .into_iter()
        .map(|warning| warning.chars().take(EACH).collect::<String>());
    cut.take(TOTAL / EACH).collect()
}
