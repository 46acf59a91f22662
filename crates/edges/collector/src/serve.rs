//! What can be asked over HTTP?

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use pointsman_api_client::Rights;
use pointsman_http::{Body, Incoming, reply, text};
use pointsman_protocol::gate;
use pointsman_telemetry::{Format, Registry};
use tokio::sync::{mpsc, oneshot, watch};

use crate::auth::Login;
use crate::filter::{self, Filter};
use crate::gates::{GateId, Question, Refused};
use crate::hosts::Hosts;
use crate::owner::Request as Ask;
use crate::page;
use crate::view::Detail;

/// What answers need.
#[derive(Clone)]
pub(crate) struct Site {
    pub registry: Registry,
    pub login: Login,
    pub hosts: Hosts,
    pub rights: Rights,
    pub requests: mpsc::Sender<Ask>,
    pub gate_bound: Duration,
    /// How many gates were asked for.
    pub asked: Arc<AtomicU64>,
    /// What the page shows, as it changes. Each open page subscribes, so that without one nothing is made.
    pub page: watch::Sender<Arc<str>>,
}

impl Site {
    /// Answers on the listener for people and for Prometheus.
    pub async fn everything(self, request: Request<Incoming>, source: IpAddr) -> Response<Body> {
        uncached(self.answer(request, source).await)
    }

    async fn answer(self, request: Request<Incoming>, source: IpAddr) -> Response<Body> {
        let path = request.uri().path();
        if let Some(health) = self.health(path) {
            return health;
        }
        if !self.hosts.admit(&request) {
            let why = "this page is served under the names of the loopback only; --allowed-host adds others";
            return text(StatusCode::FORBIDDEN, why);
        }
        if !self.login.allows(request.headers()) {
            let mut response = text(StatusCode::UNAUTHORIZED, "log in first");
            let ask = HeaderValue::from_static("Basic realm=\"pointsman\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
            return response;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        match path {
            "/metrics" => {
                let format = Format::accepted(
                    request
                        .headers()
                        .get_all(header::ACCEPT)
                        .iter()
                        .filter_map(|it| it.to_str().ok()),
                );
                reply(
                    StatusCode::OK,
                    format.content_type(),
                    self.registry.render_as(format),
                )
            }
            "/api/v1/state" => self.ask(Ask::State).await,
            "/perfdash.json" => self.ask(Ask::PerfDash).await,
            "/api/v1/events" => page::events(self.page.subscribe(), self.requests).await,
            _ if path.starts_with(gate::PATH) => self.gate(&request, source).await,
            _ => match detail(path, request.uri().query().unwrap_or("")) {
                Some(Ok(detail)) => self.detail(detail).await,
                Some(Err(why)) => text(StatusCode::BAD_REQUEST, why),
                None => page::asset(path),
            },
        }
    }

    /// Whether the collector lives, and whether it may see what it needs.
    fn health(&self, path: &str) -> Option<Response<Body>> {
        match (path, self.rights.complaint()) {
            ("/readyz", Some(why)) => Some(text(StatusCode::SERVICE_UNAVAILABLE, why)),
            ("/healthz" | "/livez" | "/readyz", _) => Some(text(StatusCode::OK, "ok")),
            _ => None,
        }
    }

    /// A document that the owner makes.
    async fn ask(&self, question: impl FnOnce(oneshot::Sender<String>) -> Ask) -> Response<Body> {
        match page::ask(&self.requests, question).await {
            Some(body) => reply(StatusCode::OK, "application/json", body),
            None => text(StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        }
    }

    async fn detail(&self, detail: Detail) -> Response<Body> {
        match page::ask(&self.requests, |reply| Ask::Detail(detail, reply)).await {
            Some(Some(body)) => reply(StatusCode::OK, "application/json", body),
            Some(None) => text(StatusCode::NOT_FOUND, "no Service or node of that name is known"),
            None => text(StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        }
    }

    /// Answers on the listener for nodes.
    pub async fn gate_only(self, request: Request<Incoming>, source: IpAddr) -> Response<Body> {
        let path = request.uri().path();
        if let Some(health) = self.health(path) {
            return uncached(health);
        }
        uncached(match path {
            path if path.starts_with(gate::PATH) => self.gate(&request, source).await,
            _ => text(StatusCode::NOT_FOUND, "not found"),
        })
    }

    async fn gate(&self, request: &Request<Incoming>, source: IpAddr) -> Response<Body> {
        let uri = request.uri();
        let asked = match gate::Question::decode(uri.path(), uri.query().unwrap_or("")) {
            Ok(asked) => asked,
            Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
        };
        let (reply, answer) = oneshot::channel();
        let id = GateId(self.asked.fetch_add(1, Ordering::Relaxed));
        let question = Ask::Gate(Question {
            id,
            source,
            gate: asked.subject,
            bound: asked.bound.unwrap_or(self.gate_bound),
            reply,
        });
        if self.requests.try_send(question).is_err() {
            return text(StatusCode::SERVICE_UNAVAILABLE, Refused::TooMany.to_string());
        }
        let mut asking = Asking {
            site: self,
            id: Some(id),
        };
        let answer = answer.await;
        asking.id = None;
        // Nobody sends new connections, but the server that is told to stop may finish none of those it has.
        if matches!(&answer, Ok(Ok(answer)) if answer.outcome == gate::Outcome::Everywhere) {
            tokio::time::sleep(asked.drain).await;
        }
        match answer {
            Ok(Ok(answer)) => pointsman_http::reply(StatusCode::OK, "application/json", answer.encode()),
            Ok(Err(refused @ Refused::TooManyOfSource)) => {
                text(StatusCode::TOO_MANY_REQUESTS, refused.to_string())
            }
            Ok(Err(refused)) => text(StatusCode::SERVICE_UNAVAILABLE, refused.to_string()),
            Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        }
    }
}

/// Which part of the state a path asks for; why it cannot be given, if its query is wrong.
fn detail(path: &str, query: &str) -> Option<Result<Detail, String>> {
    let rest = path.strip_prefix("/api/v1/")?;
    let part = || filter::part_of_name(query);
    Some(match rest.split_once('/') {
        None if rest == "changes" => Filter::parse(query)
            .map(Detail::Changes)
            .map_err(|it| it.to_string()),
        None if rest == "history" => Ok(Detail::History),
        None if rest == "services" => Ok(Detail::Services(part())),
        None if rest == "nodes" => Ok(Detail::Nodes(part())),
        Some(("services", name)) => Ok(Detail::Service(name.to_owned())),
        Some(("nodes", name)) => Ok(Detail::Node(name.to_owned())),
        _ => return None,
    })
}

/// A gate that somebody waits for; if they hang up, nobody does.
struct Asking<'a> {
    site: &'a Site,
    id: Option<GateId>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // If the owner has no time for it now, it finds out when the wait is over.
            let _ = self.site.requests.try_send(Ask::HungUp(id));
        }
    }
}

/// All answers are of the moment.
fn uncached(mut response: Response<Body>) -> Response<Body> {
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, never);
    response
}
