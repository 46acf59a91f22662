//! What can be asked over HTTP? Health, readiness and metrics.

use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use std::convert::Infallible;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Answers until the process ends.
pub(crate) async fn serve(listener: TcpListener, registry: Registry, ready: watch::Receiver<bool>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (registry, ready) = (registry.clone(), ready.clone());
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| {
                let response = answer(request.uri().path(), &registry, *ready.borrow());
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(10))
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a metrics connection ended");
            }
        });
    }
}

fn answer(path: &str, registry: &Registry, ready: bool) -> Response<Full<Bytes>> {
    let (code, content_type, body) = match path {
        "/healthz" | "/livez" => (StatusCode::OK, "text/plain", "ok".to_owned()),
        // Not ready: the first lists are not complete. A replica that waits for its turn is ready.
        "/readyz" if ready => (StatusCode::OK, "text/plain", "ok".to_owned()),
        "/readyz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain",
            "caches are not filled yet".to_owned(),
        ),
        "/metrics" => (StatusCode::OK, CONTENT_TYPE, registry.render()),
        _ => (StatusCode::NOT_FOUND, "text/plain", "not found".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_waits_for_the_caches_and_health_does_not() {
        let registry = Registry::new();
        assert_eq!(answer("/healthz", &registry, false).status(), 200);
        assert_eq!(answer("/readyz", &registry, false).status(), 503);
        assert_eq!(answer("/readyz", &registry, true).status(), 200);
        assert_eq!(answer("/nothing", &registry, true).status(), 404);
    }
}
