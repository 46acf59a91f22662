//! How are the small HTTP servers of the proxy run?

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use pointsman_http::{Body, Incoming, Server, Slots, Wildcard, bind};
use tokio::net::TcpListener;

/// How long to wait before trying again to listen (upstream's number).
const LISTEN_RETRY: Duration = Duration::from_secs(5);

/// Listens and answers; tries again for ever if the address is taken.
pub(crate) async fn listen_and_serve(
    address: SocketAddr,
    what: &'static str,
    slots: Arc<Slots>,
    answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
) {
    loop {
        match bind(address, Wildcard::BothFamilies) {
            Ok(listener) => return serve(listener, what, slots, answer).await,
            Err(error) => tracing::warn!(%address, %error, "cannot listen for {what}, trying again"),
        }
        tokio::time::sleep(LISTEN_RETRY).await;
    }
}

/// Answers until the task ends.
pub(crate) async fn serve(
    listener: TcpListener,
    what: &'static str,
    slots: Arc<Slots>,
    answer: impl Fn(&Request<Incoming>) -> Response<Body> + Clone + Send + Sync + 'static,
) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving {what}");
    }
    let connected = move |_: &_| {
        let answer = answer.clone();
        move |request| std::future::ready(answer(&request))
    };
    let server = Server {
        slots,
        ..Server::default()
    };
    server.serve_forever(listener, connected).await;
}
