//! What does the server do on its own?
//!
//! A real control plane runs these loops in kube-controller-manager; the embedded server runs them
//! itself, so that owners, namespaces and events behave without further processes. Each is harmless when
//! several servers share a store: every step is conditional on what was seen.

pub mod accounts;
pub mod aggregation;
pub mod announce;
pub mod bootstrap;
pub mod definitions;
pub mod expiry;
pub mod garbage;
pub mod graph;
pub mod namespaces;
pub mod ranges;
pub mod repair;

use crate::auth::User;
use crate::auth::authn::MASTERS;
use crate::http::query::Query;
use crate::http::route::Target;
use crate::request::Request;
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use pointsman_rules::Kind;
use pointsman_rules::kind::Subresource;
use serde_json::Value;
use std::sync::Arc;

/// A request that the server makes to itself.
pub fn internal(method: Method, kind: &'static Kind, namespace: &str, name: Option<&str>) -> Request {
    Request {
        method,
        target: Target {
            kind,
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            subresource: None,
            watch: false,
        },
        query: Query::default(),
        user: User::new("system:apiserver", &[MASTERS]),
        accept: None,
        content_type: String::new(),
        body: Bytes::new(),
        head: None,
        work: Arc::default(),
        now: Timestamp::now(),
    }
}

/// The same request through a subresource.
pub fn through(mut request: Request, subresource: Subresource) -> Request {
    request.target.subresource = Some(subresource);
    request
}

/// The same request with a JSON body.
pub fn with_body(mut request: Request, body: &Value) -> Request {
    request.body = body.to_string().into();
    request.content_type = "application/json".into();
    request
}
