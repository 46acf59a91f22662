//! Who answers kubectl at once?

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pointsman_benches::client::Http1;
use pointsman_benches::kubeconfig::Access;
use serde_json::json;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// Where kubectl looks for pods and creates them.
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server without TLS that has no pods and creates every one.
pub struct Answers {
    pub address: SocketAddr,
    state: Arc<State>,
}

/// What was asked so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub requests: usize,
    /// From the head of a request to the head of its answer, of all together.
    pub answering: Duration,
}

/// Answers by path and by what is accepted.
type Documents = HashMap<(String, String), Response<Full<Bytes>>>;

struct State {
    /// The server whose documents are shown.
    recorded: Access,
    documents: Mutex<Documents>,
    counts: Mutex<Counts>,
}

impl Answers {
    pub async fn start(recorded: Access) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            recorded,
            documents: Mutex::default(),
            counts: Mutex::default(),
        });
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let _ = socket.set_nodelay(true);
                let state = shared.clone();
                let service = service_fn(move |request| {
                    let state = state.clone();
                    async move { Ok::<_, Infallible>(state.answer(request).await) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
            }
        });
        Ok(Self { address, state })
    }

    pub fn counts(&self) -> Counts {
        *self.state.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let began = Instant::now();
        let path = request.uri().path();
        let answer = match (request.method(), path.strip_prefix(PODS)) {
            (&Method::POST, Some("")) => match request.into_body().collect().await {
                Ok(body) => json_answer(StatusCode::CREATED, body.to_bytes()),
                Err(_) => missing(),
            },
            (&Method::GET, None) => self.document(&request).await,
            _ => missing(),
        };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.requests += 1;
        counts.answering += began.elapsed();
        answer
    }

    /// What the real server answers, or answered before.
    async fn document(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().to_string();
        let accept = request.headers().get(header::ACCEPT);
        let accept = accept
            .and_then(|value| value.to_str().ok())
            .unwrap_or("application/json");
        let key = (path, accept.to_owned());
        let documents = || self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = documents().get(&key) {
            return known.clone();
        }
        // What is missing there is missing here.
        let answer = self.ask(&key.0, accept).await.unwrap_or_else(|_| missing());
        documents().insert(key, answer.clone());
        answer
    }

    async fn ask(&self, path: &str, accept: &str) -> anyhow::Result<Response<Full<Bytes>>> {
        let mut client = Http1::connect(&self.recorded).await?;
        let answer = client.send_as(Method::GET, path, Bytes::new(), accept).await?;
        let (head, body) = answer.into_parts();
        let mut recorded = Response::new(Full::new(body.collect().await?.to_bytes()));
        for name in [header::CONTENT_TYPE, header::ETAG, header::VARY] {
            if let Some(value) = head.headers.get(&name) {
                recorded.headers_mut().insert(name, value.clone());
            }
        }
        Ok(recorded)
    }
}

fn missing() -> Response<Full<Bytes>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
        "message": "not found",
    });
    json_answer(StatusCode::NOT_FOUND, Bytes::from(status.to_string()))
}

fn json_answer(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}
