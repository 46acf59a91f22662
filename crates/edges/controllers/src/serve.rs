//! What can be asked over HTTP? Health, readiness and metrics.

use http::{Request, Response, StatusCode};
use pointsman_api_client::Rights;
use pointsman_guard::Guard;
use pointsman_http::{Body, Connections, Incoming, Limits, Peer, Server, reply, text};
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What answers are made of.
#[derive(Clone)]
pub(crate) struct Shown {
    pub registry: Registry,
    /// Whether the first lists are complete. A replica that waits for its turn is ready.
    pub ready: watch::Receiver<bool>,
    pub rights: Rights,
}

/// Answers until the process ends.
pub(crate) async fn serve(listener: TcpListener, shown: Shown, guard: Arc<Guard>) {
    let server = Server {
        tls: guard.tls(),
        slots: Connections::register(&shown.registry).slots("metrics", Limits::default()),
        ..Server::default()
    };
    let connected = move |peer: &Peer| {
        let (shown, visitor) = (shown.clone(), guard.visitor(peer));
        move |request: Request<Incoming>| {
            let (shown, visitor) = (shown.clone(), visitor.clone());
            async move {
                let refusal = visitor.refusal(&request).await;
                refusal.unwrap_or_else(|| shown.answer(request.uri().path()))
            }
        }
    };
    server.serve_forever(listener, connected).await;
}

impl Shown {
    fn answer(&self, path: &str) -> Response<Body> {
        match path {
            "/healthz" | "/livez" => text(StatusCode::OK, "ok"),
            "/readyz" => match self.unready() {
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
                None => text(StatusCode::OK, "ok"),
            },
            "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, self.registry.render()),
            _ => text(StatusCode::NOT_FOUND, "not found"),
        }
    }

    fn unready(&self) -> Option<String> {
        let filling = (!*self.ready.borrow()).then(|| "caches are not filled yet".to_owned());
        self.rights.complaint().or(filling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_waits_for_the_caches_and_health_does_not() {
        let (filled, ready) = watch::channel(false);
        let shown = Shown {
            registry: Registry::new(),
            ready,
            rights: Rights::default(),
        };
        assert_eq!(shown.answer("/healthz").status(), 200);
        assert_eq!(shown.answer("/readyz").status(), 503);
        filled.send_replace(true);
        assert_eq!(shown.answer("/readyz").status(), 200);
        assert_eq!(shown.answer("/nothing").status(), 404);
    }
}
