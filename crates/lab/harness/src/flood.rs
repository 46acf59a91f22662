//! How does a server look under connections that say little and never end by themselves?

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// How long an attacker whose connection was closed waits before the next one.
const AGAIN: Duration = Duration::from_secs(2);
/// The beginning of HTTP/2: a preface and empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What a connection does before it falls silent.
#[derive(Clone, Copy, Debug)]
enum Says {
    Nothing,
    OneByte,
    OnlyTheHandshake,
    OneByteOfHttp,
    TheBeginningOfHttp2,
}

const KINDS: [Says; 8] = [
    Says::Nothing,
    Says::OneByte,
    Says::Nothing,
    Says::OnlyTheHandshake,
    Says::Nothing,
    Says::OneByteOfHttp,
    Says::Nothing,
    Says::TheBeginningOfHttp2,
];

/// An attack that goes on until the value is dropped.
pub struct Flood {
    open: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    _connections: JoinSet<()>,
}

impl Flood {
    /// Opens so many connections from one address to a server that speaks TLS, and opens them again when they are
    /// closed.
    pub fn start(server: SocketAddr, from: Ipv4Addr, connections: usize) -> Self {
        // Each of them needs a descriptor of ours, too.
        let limit = getrlimit(Resource::Nofile);
        let current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
        let (open, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for says in KINDS.into_iter().cycle().take(connections) {
            let (open, closed) = (open.clone(), closed.clone());
            tasks.spawn(async move {
                loop {
                    let _ = hold(server, from, says, &open).await;
                    closed.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
        Self {
            open,
            closed,
            _connections: tasks,
        }
    }

    /// Connections that are open at the moment, as far as the attacker knows: some may still wait to be accepted.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections that the server has closed or refused so far.
    pub fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }
}

/// Says what is to be said and waits for the end.
async fn hold(server: SocketAddr, from: Ipv4Addr, says: Says, open: &AtomicUsize) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let mut stream = socket.connect(server).await?;
    let said: &[u8] = match says {
        Says::Nothing | Says::OneByte => {
            // The first byte of a handshake.
            let said = if matches!(says, Says::OneByte) {
                &[0x16][..]
            } else {
                &[]
            };
            stream.write_all(said).await?;
            return wait(stream, open).await;
        }
        Says::OnlyTheHandshake => b"",
        Says::OneByteOfHttp => b"P",
        Says::TheBeginningOfHttp2 => HTTP2,
    };
    let name = ServerName::from(server.ip());
    let mut stream = TlsConnector::from(client()).connect(name, stream).await?;
    stream.write_all(said).await?;
    stream.flush().await?;
    wait(stream, open).await
}

async fn wait(mut stream: impl tokio::io::AsyncRead + Unpin, open: &AtomicUsize) -> std::io::Result<()> {
    open.fetch_add(1, Ordering::Relaxed);
    let ended = stream.read_to_end(&mut Vec::new()).await;
    open.fetch_sub(1, Ordering::Relaxed);
    ended.map(drop)
}

fn client() -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(&pointsman_http::unverified());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}
