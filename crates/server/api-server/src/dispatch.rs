//! Where does a request go, and in which order is it checked?
//!
//! Authenticate, route, admit by load, authorize, then serve. Whatever happens, the client gets a Status
//! and the request is counted.

use crate::access;
use crate::admit::{MAX_BODY, MAX_REQUEST, MAX_REVIEW, MAX_WRITE, admit, timed_out, width};
use crate::audit::{self, Trail};
use crate::auth::flow::Width;
use crate::auth::rbac::forbidden;
use crate::auth::{Attributes, User, accounts, impersonation, node_restriction, reviews};
use crate::http::compress;
use crate::http::held::HeldBody;
use crate::http::negotiate::{Form, negotiate};
use crate::http::pretty::indented;
use crate::http::query::{ListOptions, Query};
use crate::http::route::{Route, Target, Unserved, route};
use crate::metrics::RequestLabels;
use crate::read::select::Selection;
use crate::read::usage;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use crate::{connect, documents, read, write};
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, Method, Response, header};
use jiff::Timestamp;
use pointsman_rules::ApiError;
use pointsman_rules::decode::BodyFormat;
use pointsman_rules::kind::Subresource;
use pointsman_rules::measured::Measured;
use pointsman_rules::review::Review;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The user that a client certificate speaks for.
    pub certificate: Option<User>,
    /// Whether it is on this machine.
    pub loopback: bool,
    pub address: Option<IpAddr>,
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
) -> Response<HeldBody> {
    let audit_id = server.new_uid();
    let pretty = wants_pretty(message.uri().query().unwrap_or(""), message.headers());
    let encodings = text(message.headers(), header::ACCEPT_ENCODING);
    let loopback = peer.loopback;
    let method = message.method().clone();
    let path = message.uri().path().to_owned();
    let audit = server.audit.clone();
    let mut trail = audit
        .as_ref()
        .map(|_| Trail::new(&audit_id, &peer, &message, Timestamp::now()));
    let served = AssertUnwindSafe(serve(server.clone(), peer, message, trail.as_mut()))
        .catch_unwind()
        .await;
    let served = served.unwrap_or_else(|_| {
        server.metrics.panics.inc();
        tracing::error!(%method, path, audit_id, "the handler of a request panicked");
        let why = "the request could not be handled; see the server's log";
        Err(ApiError::Internal(why.into()))
    });
    if let Some(trail) = &mut trail {
        trail.answered(&served);
    }
    let mut reply = served.unwrap_or_else(Reply::from);
    if let Some((log, trail)) = audit.zip(trail) {
        audit::record(&log, trail, &mut reply);
    }
    let size = http_body::Body::size_hint(&reply.body).exact();
    // Streams and other media stay as they are.
    if pretty && size.is_some() && reply.content_type.starts_with("application/json") {
        reply.body = indented(reply.body, server.work.tenants.clone()).await;
    }
    if compress::worth_it(encodings.as_deref(), loopback, size) {
        reply.body = compress::gzip(reply.body, server.work.tenants.clone());
        reply.headers.push((header::CONTENT_ENCODING, "gzip".into()));
        reply.headers.push((header::VARY, "Accept-Encoding".into()));
    }
    if let Some(tunnel) = reply.tunnel.take() {
        let held = reply.held.take();
        tokio::spawn(tunnel.run(server, Box::new(held)));
    }
    reply.into_response(&audit_id)
}

async fn serve<B: RequestBody>(
    server: Arc<Server>,
    peer: Arc<Peer>,
    message: http::Request<B>,
    mut trail: Option<&mut Trail>,
) -> Result<Reply, ApiError> {
    let (head, body) = message.into_parts();
    let user = server.authenticator.authenticate(
        peer.certificate.as_ref(),
        head.headers.get(header::AUTHORIZATION),
        Timestamp::now(),
    )?;
    let decide = |attributes: &Attributes<'_>| server.policy.read(|policy| policy.authorize(attributes));
    if let Some(trail) = &mut trail {
        trail.made_by(&user);
    }
    let impersonated = impersonation::impersonate(&user, &head.headers, decide)?;
    if let (Some(trail), Some(impersonated)) = (&mut trail, &impersonated) {
        trail.on_behalf_of(impersonated);
    }
    let user = impersonated.unwrap_or(user);
    let path = head.uri.path();
    // HEAD is GET without the body, which hyper leaves out.
    let method = if head.method == Method::HEAD {
        Method::GET
    } else {
        head.method.clone()
    };
    let query = Query::parse(head.uri.query().unwrap_or(""));
    let content_type = text(&head.headers, header::CONTENT_TYPE);
    match route(path) {
        Some(Route::Resource(target)) => {
            let passed_on = target.subresource.is_some_and(Subresource::connects);
            let request = Request {
                method,
                target,
                query,
                user,
                accept: text(&head.headers, header::ACCEPT),
                content_type: content_type.unwrap_or_default(),
                body: Bytes::new(),
                head: passed_on.then(|| Arc::new(head)),
                work: server.work.tenants.clone(),
                now: Timestamp::now(),
            };
            if let Some(trail) = trail {
                trail.about(&request);
            }
            resource(server, request, body).await
        }
        Some(Route::Review { review, namespace }) => {
            if let Some(trail) = trail {
                trail.asks(review, &namespace);
            }
            let asked = Asked {
                review,
                namespace,
                method,
                accept: text(&head.headers, header::ACCEPT),
                content_type,
                user,
            };
            asked.serve(&server, body).await
        }
        Some(Route::Measured {
            measured,
            namespace,
            name,
        }) => {
            let asked = usage::Asked {
                measured,
                namespace,
                name,
                method,
                query,
                accept: text(&head.headers, header::ACCEPT),
                user,
            };
            if let Some(trail) = trail {
                trail.measures(&asked);
            }
            measure(&server, asked).await
        }
        found => {
            let verb = method.as_str().to_lowercase();
            let unserved = Unserved::of(path).filter(|_| found.is_none());
            let attributes = match &unserved {
                Some(about) => Attributes::resource(&user, about.verb(&method), about.group, about.plural)
                    .in_namespace(about.namespace)
                    .named(about.name)
                    .subresource(about.subresource),
                None => Attributes::path(&user, &verb, path),
            };
            let admitted = admit(&server, &attributes, Width::ONE).await?;
            server.policy.authorize(&attributes)?;
            let route = found.ok_or(ApiError::NoSuchResource)?;
            only(&Method::GET, &method, path)?;
            // What is answered at once needs no limit, but nonsense is refused everywhere.
            query.timeout()?;
            let served = documents::serve(&server, route, &query, &head.headers).await;
            served.map(|reply| admitted.until_sent(reply))
        }
    }
}

/// A review and who asks for it.
struct Asked {
    review: &'static Review,
    namespace: String,
    method: Method,
    accept: Option<String>,
    content_type: Option<String>,
    user: User,
}

impl Asked {
    async fn serve<B: RequestBody>(self, server: &Server, body: B) -> Result<Reply, ApiError> {
        let started = Instant::now();
        let labels = RequestLabels {
            verb: "POST",
            dry_run: "",
            group: self.review.group,
            version: Review::VERSION,
            resource: self.review.plural,
            subresource: "",
            scope: if self.namespace.is_empty() {
                "cluster"
            } else {
                "namespace"
            },
        };
        let outcome = self.answer(server, body).await;
        count(server, &labels, &outcome, started);
        outcome
    }

    async fn answer<B: RequestBody>(self, server: &Server, body: B) -> Result<Reply, ApiError> {
        let Asked {
            review,
            namespace,
            user,
            ..
        } = &self;
        let attributes =
            Attributes::resource(user, "create", review.group, review.plural).in_namespace(namespace);
        let mut admitted = admit(server, &attributes, width(&body, MAX_REVIEW)).await?;
        server.policy.authorize(&attributes)?;
        only(&Method::POST, &self.method, review.plural)?;
        negotiate(self.accept.as_deref(), &[Form::Json])?;
        let format = BodyFormat::from_content_type(self.content_type.as_deref())?;
        let body = admitted.read(body, MAX_REVIEW).await?;
        let answer = || {
            // Decoded before the policy is locked: those who change it wait for those who read it.
            let question = reviews::decode_body(review, &body, format)?;
            server.policy.read(|policy| {
                let known = (policy, &server.authenticator, Timestamp::now());
                reviews::answer(review, user, namespace, &question, known)
            })
        };
        let answer = server.work.of(admitted.class).on(body.len(), answer).await?;
        Ok(admitted.until_sent(Reply::json(201, answer)))
    }
}

/// Serves measurements, and counts.
async fn measure(server: &Server, asked: usage::Asked) -> Result<Reply, ApiError> {
    let started = Instant::now();
    let labels = RequestLabels {
        verb: counted_verb(asked.verb()),
        dry_run: "",
        group: Measured::GROUP,
        version: Measured::VERSION,
        resource: asked.measured.plural,
        subresource: "",
        scope: scope(asked.name.is_some(), &asked.namespace),
    };
    let outcome = asked.serve(server).await;
    count(server, &labels, &outcome, started);
    outcome
}

pub(crate) fn only(allowed: &Method, method: &Method, place: &str) -> Result<(), ApiError> {
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
    count(&server, &labels, &outcome, started);
    outcome
}

fn count(server: &Server, labels: &RequestLabels, outcome: &Result<Reply, ApiError>, started: Instant) {
    let (code, size) = match outcome {
        Ok(reply) => (reply.code, http_body::Body::size_hint(&reply.body).exact()),
        Err(error) => (error.code(), None),
    };
    server.metrics.finished(labels, code, started.elapsed(), size);
}

/// Serves a resource when there is room, to those who may, within its time.
async fn within_limits<B: RequestBody>(
    server: &Arc<Server>,
    mut request: Request,
    body: B,
    options: Option<ListOptions>,
) -> Result<Reply, ApiError> {
    let width = match &options {
        Some(list) => {
            let objects = server.cache.of(request.target.kind).count();
            Width::of_list(if list.limit == 0 {
                objects
            } else {
                objects.min(list.limit)
            })
        }
        None => width(&body, MAX_BODY),
    };
    let attributes = attributes(&request, request.target.name.as_deref().unwrap_or(""));
    let mut admitted = admit(server, &attributes, width).await?;
    request.work = server.work.of(admitted.class);
    let selection = Selection::parse(&request.query, request.target.kind)?;
    authorize(server, &request, &selection).await?;
    if request.watches() {
        admitted.watch(server, &request).await?;
    }
    if request.method != Method::GET {
        request.body = admitted.read(body, MAX_BODY).await?;
    }
    let served = serve_verb(server, &request, options);
    // A log may be followed for hours; like a watch it is not cut short.
    let subresource = request.target.subresource;
    let streaming = subresource.is_some_and(|sub| sub == Subresource::Log || sub.connects());
    let served = if request.watches() || streaming {
        served.await
    } else {
        let limit = if request.method == Method::GET {
            MAX_REQUEST
        } else {
            MAX_WRITE
        };
        let asked = request.query.timeout()?.filter(|asked| !asked.is_zero());
        let limit = asked.map_or(limit, |asked| asked.min(limit));
        let served = tokio::time::timeout(limit, served).await;
        served.map_err(|_| timed_out(limit))?
    };
    served.map(|reply| admitted.until_sent(reply))
}

async fn authorize(server: &Server, request: &Request, selection: &Selection) -> Result<(), ApiError> {
    let target = &request.target;
    // A collection narrowed to one name is authorized as that name.
    let selected = selection.requires_exact("metadata.name");
    let name = target.name.as_deref().or(selected).unwrap_or("");
    let attributes = attributes(request, name);
    server.policy.authorize(&attributes)?;
    if request.method != Method::GET {
        return Ok(());
    }
    let opens = |sub: Subresource| sub.connects() && sub != Subresource::Proxy;
    if target.subresource.is_some_and(opens) {
        // A WebSocket begins with GET, and lets its client do no less than a POST would.
        server.policy.authorize(&Attributes {
            verb: "create",
            ..attributes
        })?;
    }
    if !node_restriction::applies(&request.user) {
        return Ok(());
    }
    let old = target
        .name
        .as_deref()
        .and_then(|name| server.find(target.kind, &target.namespace, name).ok());
    let node = selection.requires_exact("spec.nodeName");
    let within = || {
        let old = old.as_ref().map(|object| object.value());
        server.within_node(request, name, old.as_ref(), None, node)
    };
    let within = request
        .work
        .on(old.as_ref().map_or(0, |old| old.size()), within)
        .await;
    within.map_err(|why| forbidden(&attributes, &why))
}

fn attributes<'a>(request: &'a Request, name: &'a str) -> Attributes<'a> {
    let target = &request.target;
    let verb = access::verb(request);
    Attributes::resource(&request.user, verb, target.kind.group, target.kind.plural)
        .subresource(target.subresource.map_or("", Subresource::name))
        .in_namespace(&target.namespace)
        .named(name)
}

async fn serve_verb(
    server: &Arc<Server>,
    request: &Request,
    options: Option<ListOptions>,
) -> Result<Reply, ApiError> {
    let name = request.target.name.as_deref();
    match (request.target.subresource, &request.method, name) {
        (None | Some(Subresource::Status | Subresource::Scale | Subresource::Approval), &Method::GET, _) => {
            match (options, name) {
                (
                    Some(ListOptions {
                        watch: Some(watch), ..
                    }),
                    _,
                ) => read::watch(server, request, watch).await,
                (_, Some(name)) => read::get(server, request, name).await,
                (Some(list), None) => read::list(server, request, &list).await,
                (None, None) => Err(ApiError::NoSuchResource),
            }
        }
        _ if !offered(request) => Err(ApiError::MethodNotAllowed(format!(
            "{} of {} is not supported: nothing in this cluster would act upon it",
            access::verb(request),
            request.target.kind.qualified_plural()
        ))),
        (None, &Method::POST, None) if !spans_namespaces(&request.target) => {
            write::create::create(server, request).await
        }
        (None | Some(Subresource::Status | Subresource::Approval), &Method::PUT, Some(name)) => {
            write::update::put(server, request, name).await
        }
        (None | Some(Subresource::Status | Subresource::Approval), &Method::PATCH, Some(name)) => {
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
        (Some(Subresource::Proxy), _, Some(name)) => connect::proxy::ask(server, request, name).await,
        (Some(subresource), &Method::GET | &Method::POST, Some(name)) if subresource.connects() => {
            connect::streams::open(server, request, name, subresource).await
        }
        (Some(Subresource::Token), &Method::POST, Some(name)) => {
            accounts::issue::issue(server, request, name).await
        }
        (Some(subresource), _, _) => write::subresource::write(server, request, subresource).await,
        _ => Err(ApiError::MethodNotAllowed(format!(
            "the server does not allow {} on {} here",
            request.method, request.target.kind.plural
        ))),
    }
}

/// Whether the kind can be used in that way; subresources have verbs of their own.
fn offered(request: &Request) -> bool {
    let target = &request.target;
    target.subresource.is_some()
        || target.kind.verbs.contains(&access::verb(request))
        || access::verb(request) == "deletecollection"
}

/// Objects of all namespaces can be read together, but not written.
fn spans_namespaces(target: &Target) -> bool {
    target.kind.namespaced() && target.namespace.is_empty()
}

fn labels(request: &Request) -> RequestLabels {
    let target = &request.target;
    RequestLabels {
        verb: counted_verb(access::verb(request)),
        dry_run: if request.query.dry_run().unwrap_or(false) {
            "All"
        } else {
            ""
        },
        group: target.kind.group,
        version: target.kind.version,
        resource: target.kind.plural,
        subresource: target.subresource.map_or("", Subresource::name),
        scope: scope(target.name.is_some(), &target.namespace),
    }
}

/// A verb as upstream's metrics call it.
fn counted_verb(verb: &str) -> &'static str {
    match verb {
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "watch" => "WATCH",
        "get" => "GET",
        _ => "LIST",
    }
}

fn scope(named: bool, namespace: &str) -> &'static str {
    match (named, namespace.is_empty()) {
        (true, _) => "resource",
        (false, false) => "namespace",
        (false, true) => "cluster",
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
