//! How do connections become requests?
//!
//! Heartbeats come over connections with a client certificate. For these slots are kept, whatever others do.

use crate::auth::authn::user_from_certificate;
use crate::dispatch::{Peer, handle};
use crate::server::Server;
use pointsman_http::{Connections, Limits, Slots};
use pointsman_telemetry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long a client may take for its headers (upstream's number).
const HEADERS: Duration = Duration::from_secs(32);
/// How long a connection may be idle (upstream's number).
const IDLE: Duration = Duration::from_secs(90);
/// How long data may stay unacknowledged before a client counts as gone.
const DEAD_PEER: Duration = Duration::from_secs(30);
/// Connections at once, over all listeners.
const CONNECTIONS: Limits = Limits {
    total: 20_000,
    kept: 4_000,
    source: 1_000,
};
/// Requests at once on one HTTP/2 connection. Upstream's limit is 250; watches of one client share it.
const MAX_STREAMS: u32 = 1_000;

/// Places for connections, which all listeners share.
pub fn slots(registry: &Registry) -> Arc<Slots> {
    Connections::register(registry).slots("https", CONNECTIONS)
}

/// What all listeners share.
pub struct Listening {
    pub tls: Arc<rustls::ServerConfig>,
    pub slots: Arc<Slots>,
    /// A higher number whenever other client certificates are believed.
    pub rounds: watch::Receiver<u64>,
}

impl Listening {
    /// Accepts connections until the server stops, then lets open requests finish.
    pub async fn run(self, server: Arc<Server>, listener: TcpListener) {
        let listening = pointsman_http::Server {
            tls: Some(self.tls),
            slots: self.slots,
            rounds: Some(self.rounds),
            head: HEADERS,
            idle: IDLE,
            head_bytes: Some(1 << 20),
            streams: Some(MAX_STREAMS),
            dead_peer: DEAD_PEER,
            ..pointsman_http::Server::default()
        };
        let mut stopping = server.stopping();
        let stop = async move { drop(stopping.wait_for(|stop| *stop).await) };
        let connected = move |peer: &pointsman_http::Peer| {
            let server = server.clone();
            let peer = Arc::new(Peer {
                certificate: peer.certificate.as_ref().and_then(user_from_certificate),
                loopback: peer.address.ip().is_loopback(),
                address: Some(peer.address.ip()),
            });
            move |request| handle(server.clone(), peer.clone(), request)
        };
        listening.serve(listener, stop, connected).await;
    }
}
