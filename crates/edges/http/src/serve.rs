//! How do connections become requests?

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::net::sockopt;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::accept::accept;

/// How a listener treats its clients.
#[derive(Clone, Debug)]
pub struct Server {
    /// Without it, plain HTTP/1 is spoken.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Connections at once; more wait in the kernel's queue.
    pub connections: usize,
    /// How long a client may take for its TLS handshake.
    pub handshake: Duration,
    /// How long a client may take for the head of a request.
    pub head: Duration,
    /// The longest head of a request; without it, the usual limits of the protocol's implementation.
    pub head_bytes: Option<u32>,
    /// Requests at once on one HTTP/2 connection; without it, the implementation's limit.
    pub streams: Option<u32>,
    /// How long data may stay unacknowledged before a client counts as gone.
    pub dead_peer: Option<Duration>,
    pub requests: Requests,
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
            connections: 10_000,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            head_bytes: None,
            streams: None,
            dead_peer: None,
            requests: Requests::Many,
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
        let graceful = GracefulShutdown::new();
        let (drain, server, connected) = (self.drain, Arc::new(self), Arc::new(connected));
        let open = accept(listener, server.connections, stop, |stream, address| {
            let watcher = graceful.watcher();
            server
                .clone()
                .connection(stream, address, connected.clone(), watcher)
        });
        let open: JoinSet<()> = open.await;
        let ended = async {
            match server.requests {
                Requests::Many => drop(tokio::join!(open.join_all(), graceful.shutdown())),
                // Connections take the end of `graceful` for a request to close, so it stays until then.
                Requests::One => drop((open.join_all().await, graceful)),
            }
        };
        let _ = tokio::time::timeout(drain, ended).await;
    }

    async fn connection<H, A, B>(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        connected: Arc<impl Fn(&Peer) -> H + Send + Sync + 'static>,
        watcher: Watcher,
    ) where
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
            return self.exchange(stream, connected(&peer), watcher).await;
        };
        let handshake = TlsAcceptor::from(tls).accept(stream);
        match tokio::time::timeout(self.handshake, handshake).await {
            Ok(Ok(stream)) => {
                let chain = stream.get_ref().1.peer_certificates();
                peer.certificate = chain.and_then(|chain| Some(chain.first()?.clone().into_owned()));
                self.exchange(stream, connected(&peer), watcher).await;
            }
            Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
        }
    }

    async fn exchange<S, H, A, B>(&self, stream: S, answer: H, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        H: Fn(Request<Incoming>) -> A,
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let service = service_fn(move |request| {
            let response = answer(request);
            async move { Ok::<_, Infallible>(response.await) }
        });
        let builder = self.builder();
        let connection = builder
            .serve_connection(TokioIo::new(stream), service)
            .into_owned();
        let ended = watcher.watch(connection).await;
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
    }

    fn builder(&self) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        if self.tls.is_none() {
            builder = builder.http1_only();
        }
        let mut http1 = builder.http1();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(self.head)
            .keep_alive(self.requests == Requests::Many);
        if let Some(most) = self.head_bytes {
            http1.max_buf_size(most as usize);
        }
        let mut http2 = builder.http2();
        http2.timer(TokioTimer::new());
        if let Some(most) = self.head_bytes {
            http2.max_header_list_size(most);
        }
        if let Some(most) = self.streams {
            http2.max_concurrent_streams(most);
        }
        if let Some(patience) = self.dead_peer {
            http2.keep_alive_interval(patience).keep_alive_timeout(patience);
        }
        builder
    }

    fn notice_dead_peers(&self, stream: &TcpStream) {
        let Some(patience) = self.dead_peer else { return };
        let millis = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let tuned = sockopt::set_tcp_user_timeout(stream, millis)
            .and_then(|()| sockopt::set_socket_keepalive(stream, true))
            .and_then(|()| sockopt::set_tcp_keepidle(stream, patience));
        if let Err(error) = tuned {
            tracing::debug!(%error, "cannot set the timeouts of a connection");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Target, get, text};
    use http::StatusCode;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::{Notify, oneshot};

    const SOON: Duration = Duration::from_secs(20);

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Both ends of TLS with a certificate of their own.
    fn tls() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    }

    #[tokio::test]
    async fn questions_are_answered_with_and_without_tls() {
        let (server, client) = tls();
        for (tls, client) in [(None, None), (Some(server), Some(client))] {
            let (listener, address) = listener().await;
            let server = Server {
                tls,
                ..Server::default()
            };
            let serving = tokio::spawn(server.serve_forever(listener, |peer| {
                assert!(peer.address.ip().is_loopback());
                |request: Request<Incoming>| async move { text(StatusCode::OK, request.uri().to_string()) }
            }));
            let target = match client {
                Some(client) => Target::secure(address, client),
                None => Target::parse(&format!("http://{address}/p")).unwrap(),
            };
            let answer = target.get("/a?b=c", 64, SOON).await.unwrap();
            assert!(answer.ends_with(b"/a?b=c"), "{answer:?}");
            serving.abort();
        }
    }

    #[tokio::test]
    async fn open_requests_are_finished_at_the_end_and_idle_connections_closed() {
        let (listener, address) = listener().await;
        let (stop, stopped) = oneshot::channel::<()>();
        let (asked, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (entered, released) = (asked.clone(), release.clone());
        let serving =
            tokio::spawn(
                Server::default().serve(listener, async { drop(stopped.await) }, move |_| {
                    let (entered, released) = (entered.clone(), released.clone());
                    move |_| {
                        let (entered, released) = (entered.clone(), released.clone());
                        async move {
                            entered.notify_one();
                            released.notified().await;
                            text(StatusCode::OK, "done")
                        }
                    }
                }),
            );
        let uri = format!("http://{address}/").parse().unwrap();
        let request = tokio::spawn(async move { get(&uri, &[], 64, SOON).await.unwrap() });
        asked.notified().await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        stop.send(()).unwrap();
        assert_eq!(idle.read(&mut [0; 1]).await.unwrap(), 0);
        release.notify_one();
        assert_eq!(request.await.unwrap().1, "done");
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_of_single_requests_answers_all_who_connected() {
        let (listener, address) = listener().await;
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let server = Server {
            requests: Requests::One,
            drain: SOON,
            ..Server::default()
        };
        let serving = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            let answer = |_: &Peer| |_| async { text(StatusCode::OK, "here") };
            server.serve(listener, stopped, answer).await;
            seen.store(true, Ordering::SeqCst);
        });
        let mut late = TcpStream::connect(address).await.unwrap();
        stop.send(()).unwrap();
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!ended.load(Ordering::SeqCst));
        late.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        late.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("here"), "{answer}");
        // Those that connected only to see whether somebody still listens are gone, too.
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_does_not_ask_is_dropped() {
        let (listener, address) = listener().await;
        let server = Server {
            head: Duration::from_millis(30),
            ..Server::default()
        };
        let serving =
            tokio::spawn(server.serve_forever(listener, |_| |_| async { text(StatusCode::OK, "never") }));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HT").await.unwrap();
        let mut answer = Vec::new();
        let _ = slow.read_to_end(&mut answer).await;
        assert!(!answer.ends_with(b"never"));
        serving.abort();
    }
}
