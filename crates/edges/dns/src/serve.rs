//! What can be asked over HTTP? Health, readiness, metrics and the stream of watermarks.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use pointsman_api_client::Rights;
use pointsman_guard::Guard;
use pointsman_http::{Body, Connections, Incoming, Limits, Peer, Server, reply, text};
use pointsman_telemetry::{CONTENT_TYPE, Registry};
use pointsman_watermarks::Watermarks;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What answers are made of.
#[derive(Clone)]
pub(crate) struct Shown {
    pub registry: Registry,
    /// Whether all names are known.
    pub ready: watch::Receiver<bool>,
    pub rights: Rights,
    pub watermarks: Watermarks,
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
            path => self
                .watermarks
                .answer(path)
                .unwrap_or_else(|| text(StatusCode::NOT_FOUND, "not found")),
        }
    }

    fn unready(&self) -> Option<String> {
        let filling = (!*self.ready.borrow()).then(|| "not all names are known yet".to_owned());
        self.rights.complaint().or(filling)
    }
}
