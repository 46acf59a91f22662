//! What can be asked over HTTP? Health, readiness and metrics.

use http::{Request, Response, StatusCode};
use pointsman_guard::Guard;
use pointsman_http::{Body, Connections, Incoming, Limits, Peer, Server, reply, text};
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Answers until the process ends.
pub(crate) async fn serve(
    listener: TcpListener,
    registry: Registry,
    ready: watch::Receiver<bool>,
    guard: Arc<Guard>,
) {
    let server = Server {
        tls: guard.tls(),
        slots: Connections::register(&registry).slots("metrics", Limits::default()),
        ..Server::default()
    };
    let connected = move |peer: &Peer| {
        let (registry, ready, visitor) = (registry.clone(), ready.clone(), guard.visitor(peer));
        move |request: Request<Incoming>| {
            let (registry, ready, visitor) = (registry.clone(), ready.clone(), visitor.clone());
            async move {
                let refusal = visitor.refusal(&request).await;
                refusal.unwrap_or_else(|| answer(request.uri().path(), &registry, *ready.borrow()))
            }
        }
    };
    server.serve_forever(listener, connected).await;
}

fn answer(path: &str, registry: &Registry, ready: bool) -> Response<Body> {
    match path {
        "/healthz" | "/livez" => text(StatusCode::OK, "ok"),
        // Not ready: the first lists are not complete. A replica that waits for its turn is ready.
        "/readyz" if ready => text(StatusCode::OK, "ok"),
        "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "caches are not filled yet"),
        "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, registry.render()),
        _ => text(StatusCode::NOT_FOUND, "not found"),
    }
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
