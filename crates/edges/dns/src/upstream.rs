//! Who answers questions that are not about the cluster?
//!
//! So many questions at a time, each with a deadline. A question goes out in words of our own, from a port and with a
//! number that nobody can guess, and only an answer to that very question is passed on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::config::Upstream;
use crate::metrics::Metrics;
use crate::wire::{self, Question, Reply, Transport};

/// The most questions that wait for others at a time.
const MOST: usize = 1000;
/// How long one server may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long all of them may take: shorter than clients wait before they ask again.
const DEADLINE: Duration = Duration::from_millis(4_500);
/// How often a datagram may be lost before the question is given up.
const ATTEMPTS: usize = 3;
/// The most name servers that a file may name, as everywhere.
const MOST_SERVERS: usize = 3;
/// How often the file is looked at: a machine may move to another network.
const LOOK: Duration = Duration::from_secs(5);

/// The servers at the time.
type Servers = Arc<[SocketAddr]>;

/// The way to name servers outside, with room for so many who wait.
#[derive(Clone)]
pub(crate) struct Forwarder {
    servers: watch::Receiver<Servers>,
    slots: Arc<Semaphore>,
    /// The one that answered last is asked first.
    good: Arc<AtomicUsize>,
    metrics: Metrics,
}

impl Forwarder {
    pub fn new(servers: watch::Receiver<Servers>, metrics: Metrics) -> Self {
        Self {
            servers,
            slots: Arc::new(Semaphore::new(MOST)),
            good: Arc::default(),
            metrics,
        }
    }

    /// A place among those who wait; none if there are too many.
    pub fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok();
        if slot.is_none() {
            self.metrics.rejected.inc();
        }
        slot
    }

    /// The whole answer of another server, ready to be sent.
    pub async fn forward(&self, question: &Question, transport: Transport) -> Vec<u8> {
        let mut message = asking(question.query.clone(), question);
        message.edns.clone_from(&question.edns);
        match self.ask(&message, transport).await {
            Some(packet) => wire::passed_on(packet, question, transport),
            None => Reply::new(ResponseCode::ServFail).encode(question, transport),
        }
    }

    /// Completes an answer that ended with a name which others know about.
    pub async fn follow(
        &self,
        mut reply: Reply,
        query: Query,
        question: &Question,
        transport: Transport,
    ) -> Vec<u8> {
        let message = asking(query, question);
        let mut found = self.read(&message, Transport::Udp).await;
        if found.as_ref().is_some_and(|found| found.metadata.truncation) {
            found = self.read(&message, Transport::Tcp).await;
        }
        match found {
            Some(found) => {
                reply.code = found.metadata.response_code;
                reply.authoritative = false;
                reply.answers.extend(found.answers);
                reply.authorities = found.authorities;
            }
            None => reply = Reply::new(ResponseCode::ServFail),
        }
        reply.encode(question, transport)
    }

    async fn read(&self, message: &Message, transport: Transport) -> Option<Message> {
        Message::from_vec(&self.ask(message, transport).await?).ok()
    }

    async fn ask(&self, message: &Message, transport: Transport) -> Option<Vec<u8>> {
        let servers = Arc::clone(&self.servers.borrow());
        let packet = message.to_vec().ok()?;
        let asked = timeout(DEADLINE, self.ask_each(&servers, &packet, transport)).await;
        asked.ok().flatten()
    }

    async fn ask_each(&self, servers: &[SocketAddr], packet: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let first = self.good.load(Ordering::Relaxed);
        let mut refusal = None;
        for attempt in 0..ATTEMPTS {
            let at = (first + attempt) % servers.len().max(1);
            let server = *servers.get(at)?;
            let exchange = async {
                match transport {
                    Transport::Udp => over_udp(server, packet).await,
                    Transport::Tcp => over_tcp(server, packet).await,
                }
            };
            let outcome = match timeout(ATTEMPT, exchange).await {
                Ok(Ok(answer)) => match wire::code(&answer) {
                    // Another one may be willing, or well.
                    ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp => {
                        refusal = Some(answer);
                        "refused"
                    }
                    _ => {
                        self.good.store(at, Ordering::Relaxed);
                        self.metrics.asked(server, "answered");
                        return Some(answer);
                    }
                },
                Ok(Err(error)) => {
                    tracing::debug!(%server, %error, "a name server cannot be asked");
                    "failed"
                }
                Err(_) => "timeout",
            };
            self.metrics.asked(server, outcome);
            // Asking the same one again helps against lost datagrams only.
            if refusal.is_some() && attempt + 1 >= servers.len() {
                break;
            }
        }
        refusal
    }
}

/// A question of ours, with a number that nobody can guess.
fn asking(query: Query, question: &Question) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = question.metadata.recursion_desired;
    message.metadata.checking_disabled = question.metadata.checking_disabled;
    message.metadata.authentic_data = question.metadata.authentic_data;
    message.add_query(query);
    message
}

async fn over_udp(server: SocketAddr, packet: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A socket for each question: the kernel chooses its port by chance.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut buffer = vec![0; wire::LONGEST_QUESTION];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if is_answer_to(packet, &buffer[..length]) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn over_tcp(server: SocketAddr, packet: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(&framed(packet)).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    match is_answer_to(packet, &answer) {
        true => Ok(answer),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A message as it goes over a stream.
pub(crate) fn framed(packet: &[u8]) -> Vec<u8> {
    let length = u16::try_from(packet.len()).unwrap_or(u16::MAX);
    let mut framed = Vec::with_capacity(packet.len() + 2);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&packet[..length.into()]);
    framed
}

/// Whether an answer has the number and the question of a packet that was sent. What we send has one question, whose
/// name is written out.
fn is_answer_to(asked: &[u8], answer: &[u8]) -> bool {
    let (Some(end), Some(header)) = (question_end(asked), answer.first_chunk::<12>()) else {
        return false;
    };
    header[..2] == asked[..2]
        && header[2] & 0x80 != 0
        && header[4..6] == [0, 1]
        && answer
            .get(12..end)
            .is_some_and(|question| question.eq_ignore_ascii_case(&asked[12..end]))
}

fn question_end(packet: &[u8]) -> Option<usize> {
    let mut at = 12;
    loop {
        match usize::from(*packet.get(at)?) {
            0 => return Some(at + 5).filter(|end| *end <= packet.len()),
            length => at += length + 1,
        }
    }
}

/// Keeps the list of servers as the file says, for ever. Without a file it stays as it is.
pub(crate) async fn keep(upstream: Upstream, listen: Vec<SocketAddr>, servers: watch::Sender<Servers>) {
    let Upstream::File(path) = upstream else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(LOOK).await;
        let found = from_file(&path, &listen).await;
        servers.send_if_modified(|known| {
            let changed = **known != *found;
            if changed {
                tracing::info!(servers = ?found, "other name servers");
                *known = found.into();
            }
            changed
        });
    }
}

/// The servers to begin with.
pub(crate) async fn first(upstream: &Upstream, listen: &[SocketAddr]) -> Servers {
    let found = match upstream {
        Upstream::File(path) => from_file(path, listen).await,
        Upstream::Servers(servers) => without_own(servers.clone(), listen),
    };
    if found.is_empty() {
        tracing::warn!("no name servers: questions that are not about the cluster get no answer");
    }
    found.into()
}

async fn from_file(path: &Path, listen: &[SocketAddr]) -> Vec<SocketAddr> {
    let path: PathBuf = path.to_owned();
    match tokio::fs::read_to_string(&path).await {
        Ok(text) => without_own(name_servers(&text), listen),
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "name servers cannot be read");
            Vec::new()
        }
    }
}

/// A question to ourselves would come back for ever.
fn without_own(servers: Vec<SocketAddr>, listen: &[SocketAddr]) -> Vec<SocketAddr> {
    without_own_at(servers, listen, is_here)
}

fn without_own_at(
    servers: Vec<SocketAddr>,
    listen: &[SocketAddr],
    is_here: impl Fn(IpAddr) -> bool,
) -> Vec<SocketAddr> {
    let is_own = |server: &SocketAddr| {
        listen.iter().any(|own| {
            let same = own.ip() == server.ip() || (own.ip().is_unspecified() && is_here(server.ip()));
            own.port() == server.port() && same
        })
    };
    servers.into_iter().filter(|server| !is_own(server)).collect()
}

/// Whether it is an address of this machine: those, and no others, can be bound.
fn is_here(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

/// The name servers in the text of a `resolv.conf`.
fn name_servers(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words
            .next()
            .filter(|word| *word == "nameserver")
            .and(words.next())?;
        Some(SocketAddr::new(address.parse().ok()?, 53))
    });
    servers.take(MOST_SERVERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_as_resolvers_do() {
        let text = "# nameserver 1.1.1.1\nsearch a b\nnameserver 10.0.0.1\n nameserver\tfd00::1 \nnameserver x\n\
                    nameserver 10.0.0.2\nnameserver 10.0.0.3\noptions ndots:1\n";
        let found = name_servers(text);
        let expected = ["10.0.0.1:53", "[fd00::1]:53", "10.0.0.2:53"];
        assert_eq!(found, expected.map(|it| it.parse().unwrap()));
    }

    #[test]
    fn nobody_is_sent_in_a_circle() {
        let servers =
            ["127.0.0.1:53", "10.0.0.1:53", "127.0.0.1:54", "10.0.0.2:53"].map(|it| it.parse().unwrap());
        // The machine has the loopback and 10.0.0.1.
        let is_here = |address: IpAddr| address.is_loopback() || address == IpAddr::from([10, 0, 0, 1]);
        let left = |own: &str| without_own_at(servers.to_vec(), &[own.parse().unwrap()], is_here);
        assert_eq!(left("0.0.0.0:53"), servers[2..]);
        assert_eq!(left("[::]:53"), servers[2..]);
        assert_eq!(left("10.0.0.1:53"), [servers[0], servers[2], servers[3]]);
    }

    #[test]
    fn addresses_of_this_machine_are_known() {
        assert!(is_here(IpAddr::from([127, 0, 0, 1])));
        // Of the range for documentation: no machine has it.
        assert!(!is_here(IpAddr::from([192, 0, 2, 1])));
    }

    #[test]
    fn only_an_answer_to_the_very_question_counts() {
        let name = wire::name("example.org").unwrap();
        let mut message = Message::query();
        message.add_query(Query::query(name, hickory_proto::rr::RecordType::A));
        let asked = message.to_vec().unwrap();
        let mut answer = asked.clone();
        assert!(!is_answer_to(&asked, &answer), "a question");
        answer[2] |= 0x80;
        assert!(is_answer_to(&asked, &answer));
        answer[13] = b'E';
        assert!(is_answer_to(&asked, &answer), "letters may change");
        answer[14] = b'y';
        assert!(!is_answer_to(&asked, &answer), "another name");
        for end in 0..asked.len() {
            assert!(!is_answer_to(&asked, &asked[..end]));
        }
        answer.clone_from(&asked);
        answer[2] |= 0x80;
        answer[0] ^= 1;
        assert!(!is_answer_to(&asked, &answer), "another number");
    }
}
