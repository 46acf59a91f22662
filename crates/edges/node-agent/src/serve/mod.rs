//! What can be asked of the agent itself, and by whom?
//!
//! HTTPS on the kubelet's port with the kubelet's paths, as far as anything here uses them. Everybody but
//! a health check shows a client certificate of the cluster's authority or a token, and the API server says whose it is
//! and whether that user may: the same rules as for a kubelet with `--authentication-token-webhook` and
//! `--authorization-mode=Webhook`.

mod access;
mod files;
mod logs;
mod tls;

pub(crate) use access::Access;
pub(crate) use tls::{TlsError, server_config};

use crate::agent::{FoundLog, Input, LogError, Question};
use crate::metrics::Metrics;
use crate::stats::Stats;
use crate::streams::Streams;
use http::{Method, Request, Response, StatusCode};
use pointsman_guard::User;
use pointsman_http::{Body, Connections, Incoming, Limits, reply, text};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// Connections at once. The API server shows a certificate, and is let in whatever others do.
const CONNECTIONS: Limits = Limits {
    total: 512,
    kept: 256,
    source: 64,
};

/// What answers need.
pub(crate) struct Server {
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
    pub(crate) access: Access,
    pub(crate) streams: Streams,
    pub(crate) stats: Stats,
    pub(crate) metrics: Metrics,
    /// What `/configz` shows.
    pub(crate) configuration: Value,
}

impl Server {
    /// Answers until the process ends.
    pub(crate) async fn run(self: Arc<Self>, listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
        let listening = pointsman_http::Server {
            tls: Some(tls),
            slots: Connections::register(&self.metrics.registry).slots("https", CONNECTIONS),
            ..pointsman_http::Server::default()
        };
        let connected = move |peer: &pointsman_http::Peer| {
            let user = Arc::new(peer.certificate.as_ref().and_then(User::of));
            let server = self.clone();
            move |request| {
                let (server, user) = (server.clone(), user.clone());
                async move { server.handle(request, (*user).as_ref()).await }
            }
        };
        listening.serve_forever(listener, connected).await;
    }

    async fn handle(&self, request: Request<Incoming>, user: Option<&User>) -> Response<Body> {
        let (path, method) = (request.uri().path().to_owned(), request.method().clone());
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let name = parts.first().copied().unwrap_or("");
        let response = self.answer(request, &parts, user).await;
        let known = [
            "healthz",
            "metrics",
            "stats",
            "configz",
            "pods",
            "logs",
            "containerLogs",
            "exec",
            "attach",
            "portForward",
        ];
        let label = known.into_iter().find(|known| *known == name).unwrap_or("other");
        self.metrics
            .request(method.as_str(), label, response.status().as_u16());
        response
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        parts: &[&str],
        user: Option<&User>,
    ) -> Response<Body> {
        if parts == ["healthz"] || parts == ["healthz", "ping"] {
            return text(StatusCode::OK, "ok");
        }
        let Some(user) = self.access.who(user, request.headers()).await else {
            return pointsman_guard::unknown();
        };
        if !self
            .access
            .allows(&user, parts.first().copied().unwrap_or(""))
            .await
        {
            let message = format!("user {:?} may not ask this node for that", user.name);
            return text(StatusCode::FORBIDDEN, message);
        }
        if matches!(parts.first(), Some(&("exec" | "attach" | "portForward"))) {
            return self.streams.answer(request, parts).await;
        }
        if request.method() != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served");
        }
        match parts {
            ["metrics"] => {
                let body = self.metrics.registry.render();
                reply(StatusCode::OK, pointsman_telemetry::CONTENT_TYPE, body)
            }
            ["metrics", "resource"] => {
                let body = self.stats.resource().await;
                reply(StatusCode::OK, pointsman_telemetry::CONTENT_TYPE, body)
            }
            ["stats", "summary"] => {
                let query = request.uri().query().unwrap_or("").as_bytes();
                let brief = form_urlencoded::parse(query)
                    .any(|(name, value)| name == "only_cpu_and_memory" && value == "true");
                match self.stats.summary(!brief).await {
                    Ok(summary) => as_json(&summary),
                    Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, why),
                }
            }
            ["configz"] => as_json(&json!({ "kubeletconfig": self.configuration })),
            ["pods"] => {
                let (answer, pods) = oneshot::channel();
                let _ = self.inputs.send(Input::Ask(Question::Pods { answer }));
                let items = pods.await.unwrap_or_default();
                as_json(&PodList {
                    api_version: "v1",
                    kind: "PodList",
                    metadata: json!({}),
                    items,
                })
            }
            ["logs", ..] => files::answer(Path::new(files::ROOT), request.uri().path()).await,
            ["containerLogs", namespace, pod, container] => {
                let query = request.uri().query().unwrap_or("");
                self.logs(namespace, pod, container, query).await
            }
            _ => text(StatusCode::NOT_FOUND, "not found"),
        }
    }

    async fn logs(&self, namespace: &str, pod: &str, container: &str, query: &str) -> Response<Body> {
        let options = match logs::Options::parse(query, jiff::Timestamp::now()) {
            Ok(options) => options,
            Err(error) => return text(StatusCode::BAD_REQUEST, error),
        };
        let (answer, found) = oneshot::channel();
        let _ = self.inputs.send(Input::Ask(Question::Log {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
            previous: options.previous,
            answer,
        }));
        match found.await {
            Ok(Ok(FoundLog { path, alive })) => {
                pointsman_http::stream("text/plain", logs::stream(path, alive, options))
            }
            Ok(Err(LogError::NotFound(message))) => text(StatusCode::NOT_FOUND, message),
            Ok(Err(LogError::NotYet(message))) => text(StatusCode::BAD_REQUEST, message),
            Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the agent stops"),
        }
    }
}

/// Pods as the API sent them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodList {
    api_version: &'static str,
    kind: &'static str,
    metadata: Value,
    items: Vec<Box<RawValue>>,
}

fn as_json(value: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(body) => reply(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
