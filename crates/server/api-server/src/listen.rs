//! How do connections become requests?

use crate::auth::authn::user_from_certificate;
use crate::dispatch::{Peer, handle};
use crate::server::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// How long a client may take for its headers (upstream's number).
const HEADERS: Duration = Duration::from_secs(32);
/// How long data may stay unacknowledged before a client counts as gone.
const DEAD_PEER: Duration = Duration::from_secs(30);
/// Connections at once; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 20_000;
/// Requests at once on one HTTP/2 connection. Upstream's limit is 250; watches of one client share it.
const MAX_STREAMS: u32 = 1_000;

/// Accepts connections until the server stops, then lets open requests finish.
pub async fn run(server: Arc<Server>, listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
    let listening = pointsman_http::Server {
        tls: Some(tls),
        connections: MAX_CONNECTIONS,
        head: HEADERS,
        head_bytes: Some(1 << 20),
        streams: Some(MAX_STREAMS),
        dead_peer: Some(DEAD_PEER),
        ..pointsman_http::Server::default()
    };
    let mut stopping = server.stopping();
    let stop = async move { drop(stopping.wait_for(|stop| *stop).await) };
    let connected = move |peer: &pointsman_http::Peer| {
        let server = server.clone();
        let peer = Arc::new(Peer {
            certificate: peer.certificate.as_ref().and_then(user_from_certificate),
            loopback: peer.address.ip().is_loopback(),
        });
        move |request| handle(server.clone(), peer.clone(), request)
    };
    listening.serve(listener, stop, connected).await;
}
