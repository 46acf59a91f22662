//! How do processes of a node reach node ports on 127.0.0.1 and ::1 in nftables mode (KEP-6032)?
//!
//! By a listener for each TCP node port that carries bytes to an endpoint, as kube-proxy's does. Rules could not: a
//! packet with a loopback source leaves `lo` only where `route_localnet` is set, which opens 127.0.0.0/8 to the
//! network (CVE-2020-8558), and never with the source ::1.
//!
//! Connections outlive their listener, as those that the kernel translates outlive their rules.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pointsman_dataplane::localhost::{Choice, Listening};
use pointsman_http::{Wildcard, bind};
use pointsman_kernel::nftables_backend::refused_on_localhost;
use pointsman_model::{Address, Backend, IpFamily, NodePort, Protocol, ServiceName};
use pointsman_telemetry::{Counter, Definition, Family, Gauge, Registry};
use rustix::net::sockopt;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How long an endpoint may take to accept (upstream's number).
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Connections at once through all listeners of a family, two descriptors each; further ones wait to be accepted.
const CONNECTIONS: usize = 1024;
/// The wait after a failed accept: mostly no descriptor is left, and asking again at once helps nobody.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is measured of one family.
#[derive(Clone, Debug, Default)]
pub struct LocalhostMetrics {
    /// Ports that are served.
    pub listeners: Gauge,
    /// Ports that could not be opened.
    pub failures: Counter,
    /// Packets that the table refused, by [`Protocol::ALL`].
    pub refused: [Counter; 3],
}

/// The same of all families.
pub(crate) struct Defined {
    listeners: Family<Gauge>,
    failures: Family<Counter>,
    refused: Family<Counter>,
}

impl Defined {
    pub fn new(registry: &Registry) -> Self {
        let define = |name, help| Definition::new(name, help).labels(&["ip_family"]);
        Self {
            listeners: registry.gauges(define(
                "kubeproxy_nftables_localhost_nodeport_listeners",
                "Node ports that are served on a loopback address.",
            )),
            failures: registry.counters(define(
                "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
                "Failed attempts to serve a node port on a loopback address, mostly because the port was taken.",
            )),
            refused: registry.counters(
                define(
                    "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
                    "Packets to node ports of a loopback address that were refused, as of the last sync period.",
                )
                .labels(&["ip_family", "protocol"]),
            ),
        }
    }

    pub fn of(&self, family: &str) -> LocalhostMetrics {
        LocalhostMetrics {
            listeners: self.listeners.with(&[family]),
            failures: self.failures.with(&[family]),
            refused: ["TCP", "UDP", "SCTP"].map(|protocol| self.refused.with(&[family, protocol])),
        }
    }
}

/// Counts on by what the kernel counted since the last time; its numbers begin anew with the table.
pub(crate) fn count_refused<A: Address>(last: &mut [u64; 3], metrics: &LocalhostMetrics) {
    let counted = match refused_on_localhost::<A>() {
        Ok(counted) => counted,
        Err(error) => {
            tracing::debug!(family = %A::FAMILY, %error, "refused packets cannot be counted");
            return;
        }
    };
    for (protocol, packets) in counted {
        let place = Protocol::ALL.iter().position(|it| *it == protocol).unwrap_or(0);
        let before = std::mem::replace(&mut last[place], packets);
        metrics.refused[place].add(packets.checked_sub(before).unwrap_or(packets));
    }
}

/// The listeners of one family.
#[derive(Debug)]
pub(crate) struct Listeners<A> {
    open: BTreeMap<NodePort, Open<A>>,
    connections: Arc<Semaphore>,
    metrics: LocalhostMetrics,
}

#[derive(Debug)]
struct Open<A> {
    service: ServiceName,
    choice: Arc<Mutex<Choice<A>>>,
    /// Ends with the value, a moment later; empty while the port cannot be had.
    task: JoinSet<()>,
    /// The log has why the port cannot be had.
    reported: bool,
}

impl<A: Address> Listeners<A> {
    /// No listeners yet.
    pub fn new(metrics: LocalhostMetrics) -> Self {
        Self {
            open: BTreeMap::new(),
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            metrics,
        }
    }

    /// Opens, changes and closes listeners after a batch.
    pub fn apply(&mut self, listening: Listening<A>) {
        let Listening { changed, wanted } = listening;
        self.open
            .retain(|port, open| wanted.contains_key(port) || !changed.contains(&open.service));
        for (port, listener) in wanted {
            match self.open.get_mut(&port) {
                Some(open) => {
                    open.service = listener.service.clone();
                    lock(&open.choice).update(listener);
                }
                None => {
                    let mut open = Open {
                        service: listener.service.clone(),
                        choice: Arc::new(Mutex::new(Choice::new(listener))),
                        task: JoinSet::new(),
                        reported: false,
                    };
                    self.listen(port, &mut open);
                    self.open.insert(port, open);
                }
            }
        }
        self.count();
    }

    /// Opens what could not be opened so far: whoever had the port may have given it up.
    pub fn try_again(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        for (port, open) in open.iter_mut().filter(|(_, open)| open.task.is_empty()) {
            self.listen(*port, open);
        }
        self.open = open;
        self.count();
    }

    fn listen(&self, port: NodePort, open: &mut Open<A>) {
        let address = SocketAddr::new(loopback(A::FAMILY), port.0.get());
        match bind(address, Wildcard::OwnFamily) {
            Ok(listener) => {
                let (choice, connections) = (Arc::clone(&open.choice), Arc::clone(&self.connections));
                open.task.spawn(accept(listener, choice, connections));
            }
            Err(error) => {
                self.metrics.failures.inc();
                let service = &open.service;
                if !std::mem::replace(&mut open.reported, true) {
                    tracing::warn!(%service, %address, %error, "the node port cannot be served on localhost, trying again");
                }
            }
        }
    }

    fn count(&self) {
        let listening = self.open.values().filter(|open| !open.task.is_empty());
        self.metrics.listeners.set(listening.count() as f64);
    }
}

const fn loopback(family: IpFamily) -> std::net::IpAddr {
    match family {
        IpFamily::V4 => std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        IpFamily::V6 => std::net::IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    }
}

fn lock<A>(choice: &Mutex<Choice<A>>) -> std::sync::MutexGuard<'_, Choice<A>> {
    choice.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept<A: Address>(
    listener: TcpListener,
    choice: Arc<Mutex<Choice<A>>>,
    connections: Arc<Semaphore>,
) {
    loop {
        let (client, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection on localhost was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // With route_localnet, which iptables mode leaves set, a neighbour of the node gets here.
        if !peer.ip().is_loopback() {
            refuse(&client);
            continue;
        }
        let Ok(place) = Arc::clone(&connections).acquire_owned().await else {
            return;
        };
        let endpoint = lock(&choice).next(Instant::now(), |count| fastrand::usize(..count.max(1)));
        let Some(endpoint) = endpoint else {
            refuse(&client);
            continue;
        };
        tokio::spawn(async move {
            carry(client, endpoint).await;
            drop(place);
        });
    }
}

/// Carries bytes both ways until both sides have ended or one fails.
async fn carry<A: Address>(mut client: TcpStream, to: Backend<A>) {
    match connect(to).await {
        Ok(mut endpoint) => {
            let outcome = keep_alive(&client).and(keep_alive(&endpoint));
            if let Err(error) = outcome {
                tracing::debug!(%to, %error, "a connection from localhost has no keep-alive");
            }
            if let Err(error) = copy_bidirectional(&mut client, &mut endpoint).await {
                tracing::debug!(%to, %error, "a connection from localhost broke");
                refuse(&client);
                refuse(&endpoint);
            }
        }
        Err(error) => {
            tracing::debug!(%to, %error, "the endpoint did not accept a connection from localhost");
            refuse(&client);
        }
    }
}

async fn connect<A: Address>(to: Backend<A>) -> io::Result<TcpStream> {
    let address = SocketAddr::new(to.address.widen(), to.port.get());
    tokio::time::timeout(CONNECT_PATIENCE, TcpStream::connect(address))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// As Go does for both sides: small writes go at once, and a peer that vanished is noticed.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
    Ok(sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?)
}

/// Lets the peer see a reset instead of an orderly end, which could pass for an empty answer.
fn refuse(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener as Blocking};

    use pointsman_dataplane::localhost::Listener;
    use pointsman_model::Port;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn listeners() -> Listeners<Ipv4Addr> {
        Listeners::new(LocalhostMetrics::default())
    }

    /// A port that is free at the moment, and a change that wants a listener there.
    fn wanted(service: &str, port: u16, endpoint: u16) -> Listening<Ipv4Addr> {
        let service = ServiceName::new("default", service).unwrap();
        let listener = Listener {
            service: service.clone(),
            endpoints: [Backend {
                address: Ipv4Addr::LOCALHOST,
                port: Port::new(endpoint).unwrap(),
            }]
            .into(),
            affinity: None,
        };
        Listening {
            changed: [service].into(),
            wanted: [(NodePort(Port::new(port).unwrap()), listener)].into(),
        }
    }

    fn free_port() -> u16 {
        Blocking::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port()
    }

    #[tokio::test]
    async fn an_end_of_one_side_is_passed_on_and_the_other_side_goes_on() {
        let endpoint = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free_port();
        let mut listeners = listeners();
        listeners.apply(wanted("web", port, endpoint.local_addr().unwrap().port()));
        assert_eq!(listeners.metrics.listeners.get(), 1.0);
        let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut server, _) = endpoint.accept().await.unwrap();
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "question");
        // The listener goes; the connection stays.
        let mut gone = wanted("web", port, 1);
        gone.wanted.clear();
        listeners.apply(gone);
        assert_eq!(listeners.metrics.listeners.get(), 0.0);
        server.write_all(b"answer").await.unwrap();
        drop(server);
        text.clear();
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "answer");
    }

    #[tokio::test]
    async fn a_client_sees_a_failure_where_the_endpoint_does_not_accept() {
        let port = free_port();
        let mut listeners = listeners();
        listeners.apply(wanted("web", port, free_port()));
        let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let error = client.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_counted_and_tried_again_and_changes_hands() {
        let taken = Blocking::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let endpoint = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut listeners = listeners();
        listeners.apply(wanted("web", port, 1));
        let metrics = listeners.metrics.clone();
        assert_eq!((metrics.failures.get(), metrics.listeners.get()), (1, 0.0));
        drop(taken);
        listeners.try_again();
        assert_eq!(metrics.listeners.get(), 1.0);
        // Another Service takes the port over, and then the first one goes.
        listeners.apply(wanted("other", port, endpoint.local_addr().unwrap().port()));
        let mut gone = wanted("web", port, 1);
        gone.wanted.clear();
        listeners.apply(gone);
        let _client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert!(endpoint.accept().await.is_ok());
    }
}
