//! What can be asked of the agent itself, and by whom?
//!
//! HTTPS on the kubelet's port with the kubelet's paths, as far as anything here uses them. Everybody but
//! a health check shows a client certificate of the cluster's authority, and the API server says whether
//! that user may: the same rules as for a kubelet with `--authorization-mode=Webhook`.

mod access;
mod logs;
mod tls;

pub(crate) use access::Access;
pub(crate) use tls::{TlsError, server_config};

use crate::agent::{FoundLog, Input, LogError, Question};
use crate::metrics::Metrics;
use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections at once.
const MAX_CONNECTIONS: usize = 512;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What answers need.
pub(crate) struct Server {
    pub(crate) inputs: mpsc::UnboundedSender<Input>,
    pub(crate) access: Access,
    pub(crate) metrics: Metrics,
    /// What `/configz` shows.
    pub(crate) configuration: Value,
}

impl Server {
    /// Answers until the process ends.
    pub(crate) async fn run(self: Arc<Self>, listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
        let acceptor = TlsAcceptor::from(tls);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let place = places
                .clone()
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let (server, acceptor) = (self.clone(), acceptor.clone());
            tokio::spawn(async move {
                server.serve(acceptor, stream).await;
                drop(place);
            });
        }
    }

    async fn serve(self: Arc<Self>, acceptor: TlsAcceptor, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake took too long"),
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let user = certificates
            .and_then(|chain| chain.first())
            .and_then(access::User::of);
        let user = Arc::new(user);
        let service = service_fn(move |request: Request<Incoming>| {
            let (server, user) = (self.clone(), user.clone());
            async move { Ok::<_, Infallible>(server.handle(&request, (*user).as_ref()).await) }
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HANDSHAKE);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended");
        }
    }

    async fn handle(&self, request: &Request<Incoming>, user: Option<&access::User>) -> Response<Body> {
        let path = request.uri().path();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let name = parts.first().copied().unwrap_or("");
        let response = self.answer(request, &parts, user).await;
        let known = ["healthz", "metrics", "configz", "pods", "containerLogs"];
        let label = known.into_iter().find(|known| *known == name).unwrap_or("other");
        self.metrics
            .request(request.method().as_str(), label, response.status().as_u16());
        response
    }

    async fn answer(
        &self,
        request: &Request<Incoming>,
        parts: &[&str],
        user: Option<&access::User>,
    ) -> Response<Body> {
        if parts == ["healthz"] || parts == ["healthz", "ping"] {
            return text(StatusCode::OK, "ok");
        }
        let Some(user) = user else {
            return text(StatusCode::UNAUTHORIZED, "a client certificate is needed");
        };
        if !self
            .access
            .allows(user, parts.first().copied().unwrap_or(""))
            .await
        {
            let message = format!("user {:?} may not ask this node for that", user.name);
            return text(StatusCode::FORBIDDEN, message);
        }
        if request.method() != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served");
        }
        match parts {
            ["metrics"] => {
                let body = self.metrics.registry.render();
                typed(StatusCode::OK, pointsman_telemetry::CONTENT_TYPE, body)
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
                let chunks = logs::stream(path, alive, options);
                let frames = chunks.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
                respond(
                    StatusCode::OK,
                    "text/plain",
                    StreamBody::new(frames).boxed_unsync(),
                )
            }
            Ok(Err(LogError::NotFound(message))) => text(StatusCode::NOT_FOUND, message),
            Ok(Err(LogError::NotYet(message))) => text(StatusCode::BAD_REQUEST, message),
            Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the agent stops"),
        }
    }
}

fn text(code: StatusCode, message: impl Into<String>) -> Response<Body> {
    typed(code, "text/plain; charset=utf-8", message.into())
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
        Ok(body) => typed(StatusCode::OK, "application/json", body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn typed(code: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    respond(code, content_type, Full::new(Bytes::from(body)).boxed_unsync())
}

fn respond(code: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}
