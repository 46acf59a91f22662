//! How are the small HTTP servers of the proxy run?

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use pointsman_guard::Guard;
use pointsman_http::{Body, Incoming, Peer, Server, Slots, Wildcard, bind};
use tokio::net::TcpListener;

/// How long to wait before trying again to listen (upstream's number).
const LISTEN_RETRY: Duration = Duration::from_secs(5);

/// Who gets in.
#[derive(Clone)]
pub(crate) struct Door {
    pub slots: Arc<Slots>,
    /// Asks for credentials; without it everybody may read.
    pub guard: Option<Arc<Guard>>,
}

/// Listens and answers; tries again for ever if the address is taken.
pub(crate) async fn listen_and_serve(
    address: SocketAddr,
    what: &'static str,
    door: Door,
    answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
) {
    loop {
        match bind(address, Wildcard::BothFamilies) {
            Ok(listener) => return serve(listener, what, door, answer).await,
            Err(error) => tracing::warn!(%address, %error, "cannot listen for {what}, trying again"),
        }
        tokio::time::sleep(LISTEN_RETRY).await;
    }
}

/// Answers until the task ends.
pub(crate) async fn serve(
    listener: TcpListener,
    what: &'static str,
    door: Door,
    answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving {what}");
    }
    let server = Server {
        tls: door.guard.as_ref().and_then(|guard| guard.tls()),
        slots: door.slots,
        ..Server::default()
    };
    let connected = move |peer: &Peer| {
        let visitor = door.guard.as_ref().map(|guard| guard.visitor(peer));
        let answer = answer.clone();
        move |request: Request<Incoming>| {
            let (visitor, answer) = (visitor.clone(), answer.clone());
            async move {
                let refusal = match &visitor {
                    Some(visitor) => visitor.refusal(&request).await,
                    None => None,
                };
                refusal.unwrap_or_else(|| answer(&request))
            }
        }
    };
    server.serve_forever(listener, connected).await;
}
