//! gRPC health checks against a full HTTP/2 implementation.

use crate::lab::{Lab, Server, quick};
use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pointsman_probe_io::{Notice, Verdict};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

type Parts = Vec<Result<Frame<Bytes>, Infallible>>;

/// A gRPC server that answers every call with these body frames; returns its port and the paths
/// and bodies that it saw.
async fn serve(answer: impl Fn(&[u8]) -> Parts + Send + Sync + 'static) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (calls, answer) = (seen.clone(), Arc::new(answer));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (calls, answer) = (calls.clone(), answer.clone());
            let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let (calls, answer) = (calls.clone(), answer.clone());
                async move {
                    let (head, body) = request.into_parts();
                    let body = http_body_util::BodyExt::collect(body)
                        .await
                        .map(|body| body.to_bytes())
                        .unwrap_or_default();
                    let agent = head
                        .headers
                        .get("user-agent")
                        .and_then(|value| value.to_str().ok())
                        .unwrap_or_default();
                    calls.lock().expect("no panic").push(format!(
                        "{} {} {agent} {body:?}",
                        head.method,
                        head.uri.path()
                    ));
                    let body = StreamBody::new(Frames(answer(&body).into_iter()));
                    let response = http::Response::builder()
                        .header("content-type", "application/grpc")
                        .body(body);
                    Ok::<_, Infallible>(response.expect("a response"))
                }
            });
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (port, seen)
}

/// Frames as the stream that a body is made of.
struct Frames(std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>);

impl futures::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

fn answer(status: u8, code: &'static str) -> Parts {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static(code));
    trailers.insert(
        "grpc-message",
        http::HeaderValue::from_static("as the server says"),
    );
    let mut frames = vec![Ok(Frame::trailers(trailers))];
    if code == "0" {
        frames.insert(
            0,
            Ok(Frame::data(Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]))),
        );
    }
    frames
}

fn probe(port: u16, service: &str) -> Value {
    json!({"readinessProbe": quick(json!({"grpc": {"port": port, "service": service}}))})
}

#[tokio::test]
async fn a_serving_service_is_ready() {
    let (port, seen) = serve(|_| answer(1, "0")).await;
    let mut lab = Lab::new();
    lab.run("p", probe(port, "web"));
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    let seen = seen.lock().expect("no panic")[0].clone();
    assert_eq!(
        seen,
        "POST /grpc.health.v1.Health/Check kube-probe/1.33 b\"\\0\\0\\0\\0\\x05\\n\\x03web\""
    );
}

#[tokio::test]
async fn everything_else_is_a_failure() {
    let cases: [(u8, &'static str, &str); 3] = [
        (2, "0", "service unhealthy (responded with \"NOT_SERVING\")"),
        (
            1,
            "5",
            "error: health rpc probe failed: rpc error: code = 5 desc = as the server says",
        ),
        (
            1,
            "12",
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): as the server says",
        ),
    ];
    for (status, code, says) in cases {
        let (port, _) = serve(move |_| answer(status, code)).await;
        let mut lab = Lab::new();
        lab.run("p", probe(port, ""));
        assert_eq!(lab.notice().await, (Notice::Failed, says.to_owned()));
    }
    let plain = Server::status(200);
    let mut lab = Lab::new();
    lab.run("p", probe(plain.port(), ""));
    let (notice, message) = lab.notice().await;
    assert_eq!(notice, Notice::Failed);
    assert!(
        message.starts_with("error: health rpc probe of dial tcp 127.0.0.1:"),
        "{message}"
    );
}
