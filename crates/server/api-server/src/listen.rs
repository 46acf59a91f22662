//! How do connections become requests?

use crate::auth::authn::user_from_certificate;
use crate::dispatch::{Peer, handle};
use crate::server::Server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// How long a client may take for its TLS handshake or its headers. Upstream allows 32 s for headers.
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(32);
/// How long data may stay unacknowledged before a client counts as gone.
const DEAD_PEER: Duration = Duration::from_secs(30);
/// How long open requests get at shutdown.
const DRAIN: Duration = Duration::from_secs(5);
/// Connections at once; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 20_000;
/// Requests at once on one HTTP/2 connection. Upstream's limit is 250; watches of one client share it.
const MAX_STREAMS: u32 = 1_000;

/// Accepts connections until the server stops, then lets open requests finish.
pub async fn run(server: Arc<Server>, listener: TcpListener, tls: Arc<rustls::ServerConfig>) {
    let acceptor = TlsAcceptor::from(tls);
    let graceful = Arc::new(GracefulShutdown::new());
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut stop = server.stopping();
    loop {
        let place = places
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match stream {
            Ok((stream, from)) => {
                let watcher = graceful.watcher();
                let (server, acceptor) = (server.clone(), acceptor.clone());
                tokio::spawn(async move {
                    serve(server, acceptor, stream, from.ip().is_loopback(), watcher).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: wait for some to be given back.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    if let Some(graceful) = Arc::into_inner(graceful) {
        let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
    }
}

async fn serve(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    loopback: bool,
    watcher: hyper_util::server::graceful::Watcher,
) {
    tune(&stream);
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let certificate = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first());
    let peer = Arc::new(Peer {
        certificate: certificate.and_then(user_from_certificate),
        loopback,
    });
    let service = service_fn(move |request| {
        let (server, peer) = (server.clone(), peer.clone());
        async move { Ok::<_, Infallible>(handle(server, peer, request).await) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(1 << 20);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(1 << 20)
        .keep_alive_interval(DEAD_PEER)
        .keep_alive_timeout(DEAD_PEER);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// Small writes go out at once, and a peer that vanished is noticed.
fn tune(stream: &TcpStream) {
    let tuned = stream.set_nodelay(true).and_then(|()| {
        rustix::net::sockopt::set_tcp_user_timeout(stream, DEAD_PEER.as_millis() as u32)?;
        rustix::net::sockopt::set_socket_keepalive(stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(stream, DEAD_PEER)?;
        Ok(())
    });
    if let Err(error) = tuned {
        tracing::debug!(%error, "cannot tune a connection");
    }
}
