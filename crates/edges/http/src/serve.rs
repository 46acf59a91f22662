//! How do connections become requests?
//!
//! Everything that a client may be slow with has a deadline: the handshake, the first request, the next one. Which protocol
//! is spoken is agreed on in the handshake, so that nobody waits for a client to show it. Answers may go on without a
//! limit: watches do.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustix::net::sockopt;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;

use crate::accept::accept;
use crate::book::Limits;
use crate::gathered::Gathered;
use crate::quiet::{Patience, Quiet, TooLong};
use crate::reply::{text, without_body};
use crate::slots::{Reason, Slot, Slots};
use crate::together::{Streams, Together, apart};
use crate::turns;

/// How long a client that was idle may take to read that the connection ends.
const GOODBYE: Duration = Duration::from_secs(5);

/// How a listener treats its clients.
#[derive(Clone, Debug)]
pub struct Server {
    /// Without it, plain HTTP/1 is spoken.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Places for connections.
    pub slots: Arc<Slots>,
    /// How long a client may take for its TLS handshake.
    pub handshake: Duration,
    /// How long a client may take for the head of its first request.
    pub head: Duration,
    /// How long a connection may be open between an answer and the head of the next request.
    pub idle: Duration,
    /// The longest head of a request; without it, the usual limits of the protocol's implementation.
    pub head_bytes: Option<u32>,
    /// Requests at once on one HTTP/2 connection; without it, the implementation's limit.
    pub streams: Option<u32>,
    /// How long data or an HTTP/2 ping may stay unacknowledged before a client counts as gone.
    pub dead_peer: Duration,
    pub requests: Requests,
    /// Connections that were made before it changes are asked to end: their clients may be believed no more.
    pub rounds: Option<watch::Receiver<u64>>,
    /// How long open requests get at the end.
    pub drain: Duration,
}

/// How many requests come on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// Any number. At the end, connections on which nothing is asked are closed.
    Many,
    /// One. At the end, also who has not asked yet gets an answer.
    One,
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The certificate that the client showed, and that the TLS configuration believed.
    pub certificate: Option<CertificateDer<'static>>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            tls: None,
            slots: Slots::new(Limits::default()),
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(90),
            head_bytes: None,
            streams: None,
            dead_peer: Duration::from_secs(30),
            requests: Requests::Many,
            rounds: None,
            drain: Duration::from_secs(5),
        }
    }
}

impl Server {
    /// Answers until the future is dropped, without a word at the end.
    pub async fn serve_forever<H, A, B>(
        self,
        listener: TcpListener,
        connected: impl Fn(&Peer) -> H + Send + Sync + 'static,
    ) where
        H: Fn(Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.serve(listener, std::future::pending(), connected).await;
    }

    /// Answers until `stop`, then lets open requests finish. `connected` makes what answers the requests
    /// of one connection.
    pub async fn serve<H, A, B>(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
        connected: impl Fn(&Peer) -> H + Send + Sync + 'static,
    ) where
        H: Fn(Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (closing, closes) = watch::channel(false);
        let (drain, server, connected) = (self.drain, Arc::new(self), Arc::new(connected));
        let open = accept(listener, usize::MAX, stop, |stream, address| {
            server
                .clone()
                .admit(stream, address, connected.clone(), closes.clone())
        });
        let open: JoinSet<()> = open.await;
        // Who may ask once still gets the time to do so.
        closing.send_replace(server.requests == Requests::Many);
        let _ = timeout(drain, open.join_all()).await;
    }

    /// Serves a connection for as long as it has a slot.
    async fn admit<H, A, B>(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        connected: Arc<impl Fn(&Peer) -> H + Send + Sync + 'static>,
        closes: watch::Receiver<bool>,
    ) where
        H: Fn(Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let Some((slot, eviction)) = self.slots.enter(address.ip()) else {
            return;
        };
        let mut rounds = self.rounds.clone();
        if let Some(rounds) = &mut rounds {
            rounds.mark_unchanged();
        }
        let end = End { closes, rounds };
        let ended = tokio::select! {
            () = eviction.wait() => Err(Reason::SourceLimit),
            ended = self.connection(stream, address, connected, slot, end) => ended,
        };
        if let Err(reason) = ended {
            self.slots.count(reason);
        }
    }

    async fn connection<H, A, B>(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        connected: Arc<impl Fn(&Peer) -> H + Send + Sync + 'static>,
        slot: Slot,
        end: End,
    ) -> Result<(), Reason>
    where
        H: Fn(Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.notice_dead_peers(&stream);
        let mut peer = Peer {
            address,
            certificate: None,
        };
        let Some(tls) = self.tls.clone() else {
            let answer = connected(&peer);
            return self.exchange(stream, Protocol::Http1, answer, slot, end).await;
        };
        let handshake = turns::handshake(TlsAcceptor::from(tls).accept(stream));
        let handshake = timeout(self.handshake, handshake).await;
        let stream = handshake
            .map_err(|_| Reason::HandshakeTimeout)?
            .map_err(|error| {
                tracing::debug!(%address, %error, "TLS handshake failed");
                Reason::HandshakeFailed
            })?;
        let session = stream.get_ref().1;
        let chain = session.peer_certificates();
        peer.certificate = chain.and_then(|chain| Some(chain.first()?.clone().into_owned()));
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        if peer.certificate.is_some() && slot.certify().is_err() {
            return Ok(());
        }
        let answer = connected(&peer);
        match is_http2 {
            true => {
                let stream = Gathered::new(stream);
                self.exchange(stream, Protocol::Http2, answer, slot, end).await
            }
            false => self.exchange(stream, Protocol::Http1, answer, slot, end).await,
        }
    }

    async fn exchange<S, H, A, B>(
        &self,
        stream: S,
        protocol: Protocol,
        answer: H,
        slot: Slot,
        End { mut closes, rounds }: End,
    ) -> Result<(), Reason>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        H: Fn(Request<Incoming>) -> A,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let quiet = Quiet::new(Instant::now());
        let requests = quiet.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = requests.begin();
            let whole = matches!(protocol, Protocol::Http1) || request.method() != Method::HEAD;
            let response = slot.ask().map(|()| answer(request));
            async move {
                let Ok(response) = response else {
                    return Ok(too_many().map(Either::Right));
                };
                let response = match protocol {
                    Protocol::Http1 => Some(response.await),
                    Protocol::Http2 => apart(response).await,
                };
                Ok::<_, Infallible>(match response {
                    Some(response) if !whole => without_body(response).map(Either::Right),
                    Some(response) => response.map(|body| {
                        // The request is open until its body has been sent.
                        Either::Left(body.map_err(move |error| {
                            let _ = &busy;
                            std::io::Error::other(error)
                        }))
                    }),
                    None => text(StatusCode::INTERNAL_SERVER_ERROR, "the answer failed").map(Either::Right),
                })
            }
        });
        let streams = Streams::default();
        let builder = self.builder(protocol, streams.clone());
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = Together::new(connection.into_owned(), streams);
        let patience = Patience {
            first: self.head,
            next: self.idle,
        };
        let outdated = next_round(rounds);
        let quiet = tokio::select! {
            ended = &mut connection => {
                log_end(ended);
                return Ok(());
            }
            over = quiet.too_long(patience) => Some(over),
            () = async { drop(closes.wait_for(|closes| *closes).await) } => None,
            () = outdated => None,
        };
        match quiet {
            Some(TooLong::NeverAsked) => Err(Reason::RequestTimeout),
            Some(TooLong::Idle) => {
                connection.connection().graceful_shutdown();
                let _ = timeout(GOODBYE, connection).await;
                Err(Reason::Idle)
            }
            None => {
                connection.connection().graceful_shutdown();
                log_end(connection.await);
                Ok(())
            }
        }
    }

    fn builder(&self, protocol: Protocol, streams: Streams) -> Builder<Streams> {
        let builder = Builder::new(streams);
        let mut builder = match protocol {
            Protocol::Http1 => builder.http1_only(),
            Protocol::Http2 => builder.http2_only(),
        };
        let mut http1 = builder.http1();
        // `Quiet` knows whether it is the first request, and how much patience there is.
        http1
            .header_read_timeout(None)
            .keep_alive(self.requests == Requests::Many);
        if let Some(most) = self.head_bytes {
            http1.max_buf_size(most as usize);
        }
        let mut http2 = builder.http2();
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(self.dead_peer)
            .keep_alive_timeout(self.dead_peer);
        if let Some(most) = self.head_bytes {
            http2.max_header_list_size(most);
        }
        if let Some(most) = self.streams {
            http2.max_concurrent_streams(most);
        }
        builder
    }

    fn notice_dead_peers(&self, stream: &TcpStream) {
        let millis = u32::try_from(self.dead_peer.as_millis()).unwrap_or(u32::MAX);
        let tuned = sockopt::set_tcp_user_timeout(stream, millis)
            .and_then(|()| sockopt::set_socket_keepalive(stream, true))
            .and_then(|()| sockopt::set_tcp_keepidle(stream, self.dead_peer));
        if let Err(error) = tuned {
            tracing::debug!(%error, "cannot set the timeouts of a connection");
        }
    }
}

/// What asks a connection to end.
struct End {
    /// Turns true when the server stops.
    closes: watch::Receiver<bool>,
    rounds: Option<watch::Receiver<u64>>,
}

async fn next_round(rounds: Option<watch::Receiver<u64>>) {
    if let Some(mut rounds) = rounds
        && rounds.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Http1,
    Http2,
}

fn too_many() -> Response<crate::Body> {
    let mut response = text(
        StatusCode::TOO_MANY_REQUESTS,
        "there are too many connections, or too many from your address",
    );
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn log_end(ended: Result<(), Box<dyn Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests;
