//! Where does a request go, and in which order is it checked?
//!
//! Route, authenticate, authorize, admit by load, then serve. Whatever happens, the client gets a Status
//! and the request is counted.

use crate::access;
use crate::auth::rbac::forbidden;
use crate::auth::{Attributes, User, flow, impersonation, node_restriction, reviews};
use crate::http::body::Body;
use crate::http::compress;
use crate::http::query::{ListOptions, Query};
use crate::http::route::{Route, Target, route};
use crate::metrics::{RequestLabels, guarded};
use crate::read::select::Selection;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use crate::{documents, read, write};
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, Method, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::Timestamp;
use pointsman_rules::ApiError;
use pointsman_rules::decode::BodyFormat;
use pointsman_rules::kind::Subresource;
use serde_json::Value;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Upstream's limit on request bodies.
const MAX_BODY: usize = 3 << 20;
/// Upstream's limit on requests other than watches.
const MAX_REQUEST: Duration = Duration::from_secs(60);
/// Upstream's limit on writes.
const MAX_WRITE: Duration = Duration::from_secs(34);

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The user that a client certificate speaks for.
    pub certificate: Option<User>,
    /// Whether it is on this machine.
    pub loopback: bool,
}

/// The body of a request, as hyper or a test brings it.
pub trait RequestBody:
    http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

impl<B> RequestBody for B where
    B: http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

/// Answers one HTTP request.
pub async fn handle<B: RequestBody>(
    server: Arc<Server>,
    peer: Arc<Peer>,
    message: http::Request<B>,
) -> Response<Body> {
    let audit_id = server.new_uid();
    let pretty = wants_pretty(message.uri().query().unwrap_or(""), message.headers());
    let encodings = text(message.headers(), header::ACCEPT_ENCODING);
    let loopback = peer.loopback;
    let method = message.method().clone();
    let path = message.uri().path().to_owned();
    let panics = server.metrics.panics.clone();
    let served = AssertUnwindSafe(serve(server, peer, message))
        .catch_unwind()
        .await;
    let reply = match served {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => error.into(),
        Err(_) => {
            panics.inc();
            tracing::error!(%method, path, audit_id, "the handler of a request panicked");
            ApiError::Internal("the request could not be handled; see the server's log".into()).into()
        }
    };
    let reply = if pretty { prettied(reply).await } else { reply };
    let reply = compressed(reply, encodings.as_deref(), loopback).await;
    reply.into_response(&audit_id)
}

async fn compressed(reply: Reply, encodings: Option<&str>, loopback: bool) -> Reply {
    let size = http_body::Body::size_hint(&reply.body).exact();
    if !compress::worth_it(encodings, loopback, size) {
        return reply;
    }
    let Reply {
        code,
        body,
        content_type,
        warnings,
        mut headers,
    } = reply;
    match compress::gzip(body).await {
        Some(packed) => {
            headers.push((header::CONTENT_ENCODING, "gzip".into()));
            headers.push((header::VARY, "Accept-Encoding".into()));
            Reply {
                code,
                body: Body::whole(packed),
                content_type,
                warnings,
                headers,
            }
        }
        None => ApiError::Internal("the answer could not be compressed".into()).into(),
    }
}

async fn serve<B: RequestBody>(
    server: Arc<Server>,
    peer: Arc<Peer>,
    message: http::Request<B>,
) -> Result<Reply, ApiError> {
    let (head, body) = message.into_parts();
    let user = server
        .authenticator
        .authenticate(peer.certificate.as_ref(), head.headers.get(header::AUTHORIZATION))?;
    let decide = |attributes: &Attributes<'_>| server.policy.read(|policy| policy.authorize(attributes));
    let user = impersonation::impersonate(&user, &head.headers, decide)?.unwrap_or(user);
    let path = head.uri.path();
    // HEAD is GET without the body, which hyper leaves out.
    let method = if head.method == Method::HEAD {
        Method::GET
    } else {
        head.method
    };
    let query = Query::parse(head.uri.query().unwrap_or(""));
    match route(path) {
        Some(Route::Resource(target)) => {
            let request = Request {
                method,
                target,
                query,
                user,
                accept: text(&head.headers, header::ACCEPT),
                content_type: text(&head.headers, header::CONTENT_TYPE).unwrap_or_default(),
                body: Bytes::new(),
                now: Timestamp::now(),
            };
            resource(server, request, body).await
        }
        Some(Route::Review { review, namespace }) => {
            let attributes =
                Attributes::resource(&user, "create", review.group, review.plural).in_namespace(&namespace);
            server.policy.authorize(&attributes)?;
            only(&Method::POST, &method, review.plural)?;
            let format = BodyFormat::from_content_type(text(&head.headers, header::CONTENT_TYPE).as_deref())?;
            let body = read_body(body).await?;
            let answer = server
                .policy
                .read(|policy| reviews::answer_body(review, &user, &namespace, (&body, format), policy))?;
            Ok(Reply::json(201, answer))
        }
        found => {
            let verb = method.as_str().to_lowercase();
            server.policy.authorize(&Attributes::path(&user, &verb, path))?;
            let route = found.ok_or(ApiError::NoSuchResource)?;
            only(&Method::GET, &method, path)?;
            documents::serve(&server, route, &query, &head.headers).await
        }
    }
}

fn only(allowed: &Method, method: &Method, place: &str) -> Result<(), ApiError> {
    if method == allowed {
        return Ok(());
    }
    Err(ApiError::MethodNotAllowed(format!(
        "{method} is not supported on {place}"
    )))
}

/// Serves a resource: authorization, load, then the verb.
async fn resource<B: RequestBody>(server: Arc<Server>, request: Request, body: B) -> Result<Reply, ApiError> {
    let started = Instant::now();
    let watching = request.watches();
    let options = if request.method == Method::GET && (watching || request.target.name.is_none()) {
        Some(ListOptions::parse(&request.query, request.target.watch)?)
    } else {
        None
    };
    let labels = labels(&request);
    let outcome = within_limits(&server, request, body, options).await;
    let (code, size) = match &outcome {
        Ok(reply) => (reply.code, http_body::Body::size_hint(&reply.body).exact()),
        Err(error) => (error.code(), None),
    };
    server.metrics.finished(&labels, code, started.elapsed(), size);
    outcome
}

/// Serves a resource to those who may, when there is room, within its time.
async fn within_limits<B: RequestBody>(
    server: &Arc<Server>,
    mut request: Request,
    body: B,
    options: Option<ListOptions>,
) -> Result<Reply, ApiError> {
    let watching = request.watches();
    let selection = Selection::parse(&request.query, request.target.kind)?;
    authorize(server, &request, &selection)?;
    let permit = admit(server, &request).await?;
    // A log may be followed for hours; it is neither counted as under way nor cut short.
    let streaming = request.target.subresource == Some(Subresource::Log);
    let long = watching || streaming;
    let _under = (!long).then(|| server.metrics.begin(request.method != Method::GET));
    if request.method != Method::GET {
        request.body = read_body(body).await?;
    }
    let served = serve_verb(server, &request, options);
    if watching {
        return served.await.map(|reply| held_open(reply, permit));
    }
    if streaming {
        drop(permit);
        return served.await;
    }
    let limit = if request.method == Method::GET {
        MAX_REQUEST
    } else {
        MAX_WRITE
    };
    let asked = request.query.timeout()?.filter(|asked| !asked.is_zero());
    let limit = asked.map_or(limit, |asked| asked.min(limit));
    tokio::time::timeout(limit, served)
        .await
        .map_err(|_| timed_out(limit))?
}

fn authorize(server: &Server, request: &Request, selection: &Selection) -> Result<(), ApiError> {
    let target = &request.target;
    // A collection narrowed to one name is authorized as that name.
    let selected = selection.requires_exact("metadata.name");
    let name = target.name.as_deref().or(selected).unwrap_or("");
    let attributes = attributes(request, name);
    server.policy.authorize(&attributes)?;
    if request.method != Method::GET {
        return Ok(());
    }
    if !node_restriction::applies(&request.user) {
        return Ok(());
    }
    let old = target
        .name
        .as_deref()
        .and_then(|name| server.find(target.kind, &target.namespace, name).ok());
    let old = old.map(|object| object.value());
    let node = selection.requires_exact("spec.nodeName");
    let within = server.within_node(request, name, old.as_ref(), None, node);
    within.map_err(|why| forbidden(&attributes, &why))
}

async fn admit(server: &Server, request: &Request) -> Result<flow::Permit, ApiError> {
    let attributes = attributes(request, request.target.name.as_deref().unwrap_or(""));
    server
        .flow
        .acquire(
            flow::classify(&attributes),
            flow::duty(&attributes),
            &request.user.name,
        )
        .await
}

fn attributes<'a>(request: &'a Request, name: &'a str) -> Attributes<'a> {
    let target = &request.target;
    let verb = access::verb(request);
    Attributes::resource(&request.user, verb, target.kind.group, target.kind.plural)
        .subresource(target.subresource.map_or("", Subresource::name))
        .in_namespace(&target.namespace)
        .named(name)
}

/// A watch gives its place back when the stream ends.
fn held_open(reply: Reply, permit: flow::Permit) -> Reply {
    match reply.body {
        Body::Stream(stream) => Reply {
            body: Body::Stream(guarded(stream, permit)),
            ..reply
        },
        _ => reply,
    }
}

async fn serve_verb(
    server: &Arc<Server>,
    request: &Request,
    options: Option<ListOptions>,
) -> Result<Reply, ApiError> {
    let name = request.target.name.as_deref();
    match (request.target.subresource, &request.method, name) {
        (None | Some(Subresource::Status | Subresource::Scale), &Method::GET, _) => match (options, name) {
            (
                Some(ListOptions {
                    watch: Some(watch), ..
                }),
                _,
            ) => read::watch(server, request, watch).await,
            (_, Some(name)) => read::get(server, request, name).await,
            (Some(list), None) => read::list(server, request, &list).await,
            (None, None) => Err(ApiError::NoSuchResource),
        },
        (None, &Method::POST, None) if !spans_namespaces(&request.target) => {
            write::create::create(server, request).await
        }
        (None | Some(Subresource::Status), &Method::PUT, Some(name)) => {
            write::update::put(server, request, name).await
        }
        (None | Some(Subresource::Status), &Method::PATCH, Some(name)) => {
            write::update::patch(server, request, name).await
        }
        (None, &Method::DELETE, Some(name)) => write::delete::delete(server, request, name).await,
        (None, &Method::DELETE, None)
            if request.target.kind.verbs.contains(&"deletecollection")
                && !spans_namespaces(&request.target) =>
        {
            write::delete::delete_collection(server, request).await
        }
        (Some(Subresource::Log), &Method::GET, Some(name)) => read::log::read(server, request, name).await,
        (Some(subresource), _, _) => write::subresource::write(server, request, subresource).await,
        _ => Err(ApiError::MethodNotAllowed(format!(
            "the server does not allow {} on {} here",
            request.method, request.target.kind.plural
        ))),
    }
}

/// Objects of all namespaces can be read together, but not written.
fn spans_namespaces(target: &Target) -> bool {
    target.kind.namespaced() && target.namespace.is_empty()
}

fn timed_out(limit: Duration) -> ApiError {
    ApiError::Timeout {
        message: format!("request did not complete within {} seconds", limit.as_secs_f64()),
        cause: None,
        retry_after_seconds: 1,
    }
}

async fn read_body<B: RequestBody>(body: B) -> Result<Bytes, ApiError> {
    let read = tokio::time::timeout(MAX_WRITE, Limited::new(body, MAX_BODY).collect()).await;
    match read.map_err(|_| timed_out(MAX_WRITE))? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::TooLarge(format!(
            "the request body is larger than the limit of {MAX_BODY} bytes"
        ))),
        Err(error) => Err(ApiError::BadRequest(format!(
            "the request body could not be read: {error}"
        ))),
    }
}

fn labels(request: &Request) -> RequestLabels {
    let target = &request.target;
    let verb = match access::verb(request) {
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "watch" => "WATCH",
        "get" => "GET",
        _ => "LIST",
    };
    let scope = match (&target.name, target.namespace.is_empty()) {
        (Some(_), _) => "resource",
        (None, false) => "namespace",
        (None, true) => "cluster",
    };
    RequestLabels {
        verb,
        dry_run: if request.query.dry_run().unwrap_or(false) {
            "All"
        } else {
            ""
        },
        group: target.kind.group,
        version: target.kind.version,
        resource: target.kind.plural,
        subresource: target.subresource.map_or("", Subresource::name),
        scope,
    }
}

pub(crate) fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    // A repeated header is one list.
    let values: Vec<&str> = headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    (!values.is_empty()).then(|| values.join(","))
}

fn wants_pretty(query: &str, headers: &HeaderMap) -> bool {
    match Query::parse(query).get("pretty") {
        Some(asked) => asked == "true" || asked == "1",
        None => {
            let agent = text(headers, header::USER_AGENT).unwrap_or_default();
            ["curl/", "Wget", "Mozilla/"]
                .iter()
                .any(|browser| agent.starts_with(browser))
        }
    }
}

/// The same answer with its JSON indented; streams and other media stay as they are.
async fn prettied(reply: Reply) -> Reply {
    if !reply.content_type.starts_with("application/json") || matches!(reply.body, Body::Stream(_)) {
        return reply;
    }
    let Ok(collected) = reply.body.collect().await;
    let bytes = collected.to_bytes();
    let indented =
        serde_json::from_slice::<Value>(&bytes).and_then(|value| serde_json::to_vec_pretty(&value));
    Reply {
        body: Body::whole(indented.map_or(bytes, Bytes::from)),
        ..reply
    }
}
