//! How does a client talk to the server at the least cost to itself?
//!
//! hyper's connections without a pool: the load generator shares the machine with what it measures.

use crate::kubeconfig::Access;
use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What is asked for where nothing else is said.
const JSON: &str = "application/json";
/// Discovery in one document, as kubectl and Go's clients ask for it.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A connection that speaks HTTP/1.1: one request at a time.
pub struct Http1 {
    sender: http1::SendRequest<Full<Bytes>>,
    authority: String,
    _connection: Connection,
}

/// A connection that speaks HTTP/2: many requests at once. Clones share it.
#[derive(Clone)]
pub struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
    authority: String,
    _connection: Arc<Connection>,
}

/// Closes a connection when nobody uses it any more.
struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Http1 {
    /// Connects and shakes hands.
    pub async fn connect(access: &Access) -> anyhow::Result<Self> {
        let stream = TokioIo::new(tls(access, access.http1.clone()).await?);
        let (sender, connection) = http1::handshake(stream).await?;
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        let connection = Connection(task.abort_handle());
        Ok(Self {
            sender,
            authority: access.address.to_string(),
            _connection: connection,
        })
    }

    /// Sends a request and returns the start of the answer.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        self.send_as(method, path, body, JSON).await
    }

    /// The same for an answer of another form.
    pub async fn send_as(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        accept: &str,
    ) -> anyhow::Result<Response<Incoming>> {
        self.sender.ready().await?;
        let request = request(method, path, body, accept).header(header::HOST, &self.authority);
        checked(self.sender.send_request(request.finish()?).await?, path).await
    }

    /// Sends a request and returns the whole answer.
    pub async fn call(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        self.call_as(method, path, body, JSON).await
    }

    /// The same for an answer of another form.
    pub async fn call_as(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        accept: &str,
    ) -> anyhow::Result<Bytes> {
        let answer = self.send_as(method, path, body, accept).await?;
        Ok(answer.into_body().collect().await?.to_bytes())
    }
}

impl Http2 {
    /// Connects and shakes hands.
    pub async fn connect(access: &Access) -> anyhow::Result<Self> {
        let stream = TokioIo::new(tls(access, access.http2.clone()).await?);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // Go's client grants 4 MiB to each stream and 1 GiB to the connection.
        builder
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(1 << 30);
        let (sender, connection) = builder.handshake(stream).await?;
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        let connection = Arc::new(Connection(task.abort_handle()));
        Ok(Self {
            sender,
            authority: access.address.to_string(),
            _connection: connection,
        })
    }

    /// Sends a request and returns the start of the answer.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        self.sender.ready().await?;
        let request = request(method, &format!("https://{}{path}", self.authority), body, JSON);
        checked(self.sender.send_request(request.finish()?).await?, path).await
    }
}

/// A request under construction, with the headers that all requests have.
struct Draft {
    builder: http::request::Builder,
    body: Bytes,
}

impl Draft {
    fn header(mut self, name: header::HeaderName, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    fn finish(self) -> http::Result<Request<Full<Bytes>>> {
        self.builder.body(Full::new(self.body))
    }
}

fn request(method: Method, uri: &str, body: Bytes, accept: &str) -> Draft {
    let mut builder = Request::builder().method(method).uri(uri);
    builder = builder.header(header::ACCEPT, accept);
    if !body.is_empty() {
        builder = builder.header(header::CONTENT_TYPE, JSON);
    }
    Draft { builder, body }
}

async fn checked(answer: Response<Incoming>, path: &str) -> anyhow::Result<Response<Incoming>> {
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status: StatusCode = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    bail!("{path}: {status}: {}", String::from_utf8_lossy(&body))
}

async fn tls(access: &Access, config: Arc<ClientConfig>) -> anyhow::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(access.address)
        .await
        .context("cannot connect to the server")?;
    stream.set_nodelay(true)?;
    let connector = TlsConnector::from(config);
    connector
        .connect(access.name.clone(), stream)
        .await
        .context("TLS handshake with the server")
}
