//! How do questions come in, and how do answers leave?

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Query, ResponseCode};
use parking_lot::RwLock;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::answer::{Step, answer};
use crate::metrics::Metrics;
use crate::owner::Known;
use crate::upstream::{Forwarder, framed};
use crate::wire::{self, Question, Received, Reply, Transport};

/// Bytes of questions that may wait to be read: thousands of pods may ask at the same moment.
const BUFFER: usize = 4 << 20;
/// The most connections at a time; others wait to be accepted.
const MOST_CONNECTIONS: usize = 512;
/// How long a connection may be silent, or not take an answer.
const IDLE: Duration = Duration::from_secs(5);
/// How long to wait after a failure of the socket itself.
const PAUSE: Duration = Duration::from_millis(50);

/// Where a packet is read, whichever way it came.
#[derive(Clone)]
pub(crate) struct Desk {
    pub known: Arc<RwLock<Known>>,
    pub forwarder: Forwarder,
    pub metrics: Metrics,
}

/// What becomes of a packet.
enum Handled {
    Nothing,
    Answer(Vec<u8>),
    /// Somebody else has to be asked first.
    Waiting(Waiting),
}

/// A question for somebody else, with its place among those.
struct Waiting {
    question: Box<Question>,
    transport: Transport,
    /// What the zone said about it.
    begun: Option<(Reply, Query)>,
    since: Instant,
    _slot: OwnedSemaphorePermit,
}

impl Desk {
    fn handle(&self, packet: &[u8], transport: Transport) -> Handled {
        let since = Instant::now();
        let question = match wire::read(packet) {
            Received::Ignored => {
                self.metrics.ignored.inc();
                return Handled::Nothing;
            }
            Received::Refused(_, packet) => {
                self.metrics.response(&packet);
                return Handled::Answer(packet);
            }
            Received::Question(question) => question,
        };
        self.metrics.request(transport, question.kind());
        let step = {
            let known = self.known.read();
            answer(&known.zone, known.complete, &question)
        };
        let begun = match step {
            Step::Reply(reply) => return self.here(reply, &question, transport, since),
            Step::Forward => None,
            Step::Follow(reply, query) => Some((reply, query)),
        };
        match self.forwarder.slot() {
            Some(_slot) => Handled::Waiting(Waiting {
                question,
                transport,
                begun,
                since,
                _slot,
            }),
            None => self.here(Reply::new(ResponseCode::ServFail), &question, transport, since),
        }
    }

    fn here(&self, reply: Reply, question: &Question, transport: Transport, since: Instant) -> Handled {
        let packet = reply.encode(question, transport);
        self.metrics.answered_here(since);
        self.metrics.response(&packet);
        Handled::Answer(packet)
    }

    async fn ask(&self, waiting: Waiting) -> Vec<u8> {
        let Waiting {
            question,
            transport,
            begun,
            since,
            _slot,
        } = waiting;
        let packet = match begun {
            None => self.forwarder.forward(&question, transport).await,
            Some((reply, query)) => self.forwarder.follow(reply, query, &question, transport).await,
        };
        self.metrics.answered_elsewhere(since.elapsed());
        self.metrics.response(&packet);
        packet
    }
}

/// A socket for datagrams. A wildcard takes those of both families, as the listener for connections does.
pub(crate) fn bind_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let everything = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    let socket = match address.ip().is_unspecified() {
        true => open_udp(everything).or_else(|_| open_udp(address)),
        false => open_udp(address),
    };
    UdpSocket::from_std(socket?.into())
}

fn open_udp(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // What the system allows is better than a refusal to start.
    if let Err(error) = sockopt::set_socket_recv_buffer_size(&socket, BUFFER) {
        tracing::debug!(%error, "the receive buffer stays as it is");
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Answers datagrams for ever.
pub(crate) async fn udp(socket: UdpSocket, desk: Desk) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; wire::LONGEST_QUESTION];
    let mut waiting = JoinSet::new();
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(_) = waiting.join_next() => continue,
        };
        let (length, from) = match received {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "cannot receive a datagram");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match desk.handle(&buffer[..length], Transport::Udp) {
            Handled::Nothing => {}
            Handled::Answer(packet) => send(&socket, &packet, from).await,
            Handled::Waiting(question) => {
                let (desk, socket) = (desk.clone(), Arc::clone(&socket));
                waiting.spawn(async move { send(&socket, &desk.ask(question).await, from).await });
            }
        }
    }
}

/// An answer that cannot be sent is lost, as any datagram may be.
async fn send(socket: &UdpSocket, packet: &[u8], to: SocketAddr) {
    if let Err(error) = socket.send_to(packet, to).await {
        tracing::debug!(%to, %error, "an answer cannot be sent");
    }
}

/// Answers connections for ever.
pub(crate) async fn tcp(listener: TcpListener, desk: Desk) {
    let serve = move |stream, _| {
        let desk = desk.clone();
        async move {
            // Whoever breaks off needs no explanation.
            let _ = converse(stream, &desk).await;
        }
    };
    pointsman_http::accept(listener, MOST_CONNECTIONS, std::future::pending(), serve).await;
}

/// Answers questions one after another until the other side is silent.
async fn converse(mut stream: TcpStream, desk: &Desk) -> io::Result<()> {
    loop {
        let question = timeout(IDLE, async {
            let length = usize::from(stream.read_u16().await?);
            if length > wire::LONGEST_QUESTION {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut question = vec![0; length];
            stream.read_exact(&mut question).await?;
            Ok::<_, io::Error>(question)
        });
        let question = question.await??;
        let packet = match desk.handle(&question, Transport::Tcp) {
            Handled::Nothing => return Ok(()),
            Handled::Answer(packet) => packet,
            Handled::Waiting(waiting) => desk.ask(waiting).await,
        };
        timeout(IDLE, stream.write_all(&framed(&packet))).await??;
    }
}
