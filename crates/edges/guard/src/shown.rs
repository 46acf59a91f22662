//! What does every role show at its listener? Health, readiness and metrics, and besides what is its own.

use crate::Guard;
use http::{Request, Response, StatusCode};
use pointsman_api_client::Rights;
use pointsman_http::{Body, Connections, Incoming, Limits, Peer, Server, reply, text};
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What answers are made of.
#[derive(Clone)]
pub struct Shown<F> {
    pub registry: Registry,
    /// Whether the role can do its work.
    pub ready: watch::Receiver<bool>,
    /// What is said as long as it cannot.
    pub unready: &'static str,
    pub rights: Rights,
    /// Answers for other paths.
    pub more: F,
}

impl<F> Shown<F>
where
    F: Fn(&str) -> Option<Response<Body>> + Clone + Send + Sync + 'static,
{
    /// Answers until the process ends.
    pub async fn serve(self, listener: TcpListener, guard: Arc<Guard>) {
        let server = Server {
            tls: guard.tls(),
            slots: Connections::register(&self.registry).slots("metrics", Limits::default()),
            ..Server::default()
        };
        let connected = move |peer: &Peer| {
            let (shown, visitor) = (self.clone(), guard.visitor(peer));
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

    fn answer(&self, path: &str) -> Response<Body> {
        match path {
            "/healthz" | "/livez" => text(StatusCode::OK, "ok"),
            "/readyz" => match self.complaint() {
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
                None => text(StatusCode::OK, "ok"),
            },
            "/metrics" => reply(StatusCode::OK, CONTENT_TYPE, self.registry.render()),
            path => (self.more)(path).unwrap_or_else(|| text(StatusCode::NOT_FOUND, "not found")),
        }
    }

    fn complaint(&self) -> Option<String> {
        let filling = (!*self.ready.borrow()).then(|| self.unready.to_owned());
        self.rights.complaint().or(filling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_waits_for_the_role_and_health_does_not() {
        let (filled, ready) = watch::channel(false);
        let shown = Shown {
            registry: Registry::new(),
            ready,
            unready: "caches are not filled yet",
            rights: Rights::default(),
            more: |path: &str| (path == "/own").then(|| text(StatusCode::OK, "own")),
        };
        assert_eq!(shown.answer("/healthz").status(), 200);
        assert_eq!(shown.answer("/readyz").status(), 503);
        filled.send_replace(true);
        assert_eq!(shown.answer("/readyz").status(), 200);
        assert_eq!(shown.answer("/own").status(), 200);
        assert_eq!(shown.answer("/nothing").status(), 404);
    }
}
