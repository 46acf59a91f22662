//! Do real packets meet the fate the cases say?
//!
//! A network of namespaces in which the addresses of [`cases`](crate::cases) exist: a node n1 whose rules
//! are under test, pods on it, a second node with pods of its own, and clients outside. Every pod answers
//! on every port the cases use and says who asked.
//!
//! ```text
//!   client 198.51.100.9 ---- n1 192.168.0.2 ---- n2 192.168.0.3
//!          2001:db8:9::9     |  fd00:2::2        |  fd00:2::3
//!                     pods 10.0.1.x        pods 10.0.2.x, 10.0.3.x
//!                          fd00:1:1::x          fd00:1:2::x
//! ```

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pointsman_dataplane::{Fate, Packet, SeenAs};
use pointsman_model::{Address, Backend, IpFamily, Protocol};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType};

use crate::cases::{Case, Mode};
use crate::cluster::{Family, parse_fate, parse_packet};
use crate::netns::Namespace;

/// The pods on n1; the last one only asks.
const NEAR_PODS: [(&str, &str); 3] = [
    ("10.0.1.5", "fd00:1:1::5"),
    ("10.0.1.6", "fd00:1:1::6"),
    ("10.0.1.9", "fd00:1:1::9"),
];
/// The pods on n2, which share a namespace.
const FAR_PODS: [&str; 5] = ["10.0.2.5", "10.0.2.6", "10.0.3.5", "fd00:1:2::5", "fd00:1:2::6"];
/// The addresses of the client's namespace.
const CLIENTS: [&str; 5] = [
    "198.51.100.9",
    "198.51.100.99",
    "192.0.2.1",
    "2001:db8:9::9",
    "2001:db8:a::9",
];
/// The addresses of n1 that packets may come from.
const NODE: [&str; 4] = ["192.168.0.2", "127.0.0.1", "fd00:2::2", "::1"];
/// The ports every pod answers on.
const TCP_PORTS: [u16; 3] = [8080, 8081, 5301];
const UDP_PORTS: [u16; 2] = [8080, 5302];

/// How long a packet that should be answered may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to listen for an answer that should not come.
const SILENCE: Duration = Duration::from_millis(250);
/// How often to ask before an endpoint counts as never chosen: with three endpoints, all fair, one in
/// ten million runs would fail.
const TRIES: usize = 40;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An endpoint answered and told whom it saw.
    From(SocketAddr, IpAddr),
    /// The port was said to be closed.
    Refused,
    Silence,
}

/// Whether a client may be sent to another endpoint each time.
#[derive(Debug)]
enum Choice {
    Random,
    /// Never, whichever destination of the Service it asks; who has answered whom.
    Sticky(BTreeMap<IpAddr, SocketAddr>),
}

#[derive(Debug)]
pub struct Lab {
    node: Namespace,
    far_node: Namespace,
    client: Namespace,
    near_pods: Vec<Namespace>,
    far_pods: Namespace,
    servers: Vec<Server>,
}

impl Lab {
    /// Builds the network and starts the pods.
    pub fn new() -> io::Result<Self> {
        let mut lab = Self {
            node: Namespace::new()?,
            far_node: Namespace::new()?,
            client: Namespace::new()?,
            near_pods: NEAR_PODS
                .iter()
                .map(|_| Namespace::new())
                .collect::<io::Result<_>>()?,
            far_pods: Namespace::new()?,
            servers: Vec::new(),
        };
        lab.build_node();
        lab.build_client();
        lab.build_near_pods();
        lab.build_far_side();
        lab.start_servers();
        Ok(lab)
    }

    /// The namespace whose rules are under test.
    pub fn node(&self) -> &Namespace {
        &self.node
    }

    /// Sends a packet and waits for an answer.
    pub fn send(
        &self,
        from: IpAddr,
        to: SocketAddr,
        protocol: Protocol,
        patience: Duration,
    ) -> Option<Answer> {
        let space = self.space_of(from)?;
        Some(space.run(move || ask(from, to, protocol, patience)))
    }

    /// Sends the packets of a case through the rules that are in place and describes those that went
    /// wrong. Flows whose source or protocol does not exist here are left out.
    pub fn check<A: Family>(&self, case: &Case<'_>, mode: Mode) -> Vec<String> {
        let mut failures = Vec::new();
        let mut choice = if case.cluster.contains("affinity=") {
            Choice::Sticky(BTreeMap::new())
        } else {
            Choice::Random
        };
        for line in case.flows.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (packet, fate) = Case::flow(line, mode);
            let (packet, fate) = (parse_packet::<A>(packet), parse_fate::<A>(fate));
            let possible = packet.interface.is_none() && packet.protocol != Protocol::Sctp;
            if possible && self.space_of(packet.source.widen()).is_some() {
                let failure = self.check_flow(&packet, &fate, &mut choice).err();
                failures.extend(failure.map(|failure| format!("  {}: {packet}: {failure}", case.name)));
            }
        }
        failures
    }

    fn check_flow<A: Address>(
        &self,
        packet: &Packet<A>,
        fate: &Fate<A>,
        choice: &mut Choice,
    ) -> Result<(), String> {
        let (from, to) = (
            packet.source.widen(),
            SocketAddr::new(packet.destination.widen(), packet.port.get()),
        );
        let ask = |patience| {
            self.send(from, to, packet.protocol, patience)
                .unwrap_or(Answer::Silence)
        };
        match fate {
            Fate::Delivered(backends) => self.check_delivery(from, backends, choice, || ask(PATIENCE)),
            Fate::Rejected => expect(Answer::Refused, ask(PATIENCE)),
            Fate::Dropped => expect(Answer::Silence, ask(SILENCE)),
            Fate::Untouched => match ask(SILENCE) {
                Answer::From(by, _) if by != to => Err(format!("expected no translation, {by} answered")),
                _ => Ok(()),
            },
        }
    }

    fn check_delivery<A: Address>(
        &self,
        from: IpAddr,
        backends: &BTreeMap<Backend<A>, SeenAs>,
        choice: &mut Choice,
        ask: impl Fn() -> Answer,
    ) -> Result<(), String> {
        let expected: BTreeMap<SocketAddr, SeenAs> = backends
            .iter()
            .map(|(backend, seen_as)| {
                (
                    SocketAddr::new(backend.address.widen(), backend.port.get()),
                    *seen_as,
                )
            })
            .collect();
        let mut missing: Vec<SocketAddr> = expected.keys().copied().collect();
        for _ in 0..TRIES {
            let Answer::From(by, seen) = ask() else {
                return Err(format!("no answer from {missing:?}"));
            };
            let Some(seen_as) = expected.get(&by) else {
                return Err(format!("{by} must not be used"));
            };
            // The node's own packets can keep their source when they are masqueraded.
            if !NODE.contains(&from.to_string().as_str()) {
                let masqueraded = seen != from;
                if masqueraded != (*seen_as == SeenAs::Node) {
                    return Err(format!("{by} saw {seen}"));
                }
            }
            if let Choice::Sticky(held) = choice
                && *held.entry(from).or_insert(by) != by
            {
                return Err(format!(
                    "{by} answered although the client belonged to another endpoint"
                ));
            }
            missing.retain(|backend| *backend != by);
            if missing.is_empty() {
                return Ok(());
            }
        }
        match choice {
            Choice::Sticky(_) => Ok(()),
            Choice::Random => Err(format!("{missing:?} never answered")),
        }
    }

    fn space_of(&self, address: IpAddr) -> Option<&Namespace> {
        let text = address.to_string();
        if NODE.contains(&text.as_str()) {
            return Some(&self.node);
        }
        if CLIENTS.contains(&text.as_str()) {
            return Some(&self.client);
        }
        let pod = NEAR_PODS
            .iter()
            .position(|(four, six)| *four == text || *six == text)?;
        self.near_pods.get(pod)
    }

    fn build_node(&self) {
        for sysctl in [
            "ipv4/ip_forward",
            "ipv6/conf/all/forwarding",
            "ipv4/conf/all/route_localnet",
        ] {
            self.node.sysctl(sysctl, "1");
        }
        // The kernel limits how often it says that a port is closed; the cases ask more often.
        self.node.sysctl("ipv4/icmp_ratelimit", "0");
        self.node.sysctl("ipv6/icmp/ratelimit", "0");
        // More addresses for node ports to choose from.
        batch(
            &self.node,
            &["addr add 192.168.1.2/32 dev lo", "addr add 192.168.2.2/32 dev lo"],
        );
    }

    fn build_client(&self) {
        self.node.connect("ext0", &self.client, "eth0");
        let mut lines = Vec::new();
        for address in CLIENTS {
            let prefix = if address.contains(':') { "48 nodad" } else { "24" };
            let (length, flags) = prefix.split_once(' ').unwrap_or((prefix, ""));
            lines.push(format!("addr add {address}/{length} dev eth0 {flags}"));
        }
        lines.push("route add default via 198.51.100.1".to_owned());
        lines.push("-6 route add default via 2001:db8:9::1".to_owned());
        batch(
            &self.node,
            &[
                "addr add 198.51.100.1/24 dev ext0",
                "addr add 2001:db8:9::1/48 dev ext0 nodad",
                "route add default via 198.51.100.9",
                "-6 route add default via 2001:db8:9::9",
            ],
        );
        batch(&self.client, &lines);
    }

    fn build_near_pods(&self) {
        for (number, ((four, six), pod)) in NEAR_PODS.iter().zip(&self.near_pods).enumerate() {
            let link = format!("veth{number}");
            self.node.connect(&link, pod, "eth0");
            batch(
                &self.node,
                &[
                    format!("addr add 10.0.1.1/32 dev {link}"),
                    format!("addr add fd00:1:1::1/128 dev {link} nodad"),
                    format!("route add {four}/32 dev {link}"),
                    format!("-6 route add {six}/128 dev {link}"),
                ],
            );
            batch(
                pod,
                &[
                    format!("addr add {four}/32 dev eth0"),
                    format!("addr add {six}/128 dev eth0 nodad"),
                    "route add 10.0.1.1/32 dev eth0".to_owned(),
                    "-6 route add fd00:1:1::1/128 dev eth0".to_owned(),
                    "route add default via 10.0.1.1".to_owned(),
                    "-6 route add default via fd00:1:1::1".to_owned(),
                ],
            );
        }
    }

    fn build_far_side(&self) {
        for sysctl in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            self.far_node.sysctl(sysctl, "1");
        }
        self.node.connect("eth0", &self.far_node, "eth0");
        self.far_node.connect("pods", &self.far_pods, "eth0");
        batch(
            &self.node,
            &[
                "addr add 192.168.0.2/24 dev eth0",
                "addr add fd00:2::2/64 dev eth0 nodad",
                "route add 10.0.2.0/23 via 192.168.0.3",
                "-6 route add fd00:1:2::/48 via fd00:2::3",
            ],
        );
        batch(
            &self.far_node,
            &[
                "addr add 192.168.0.3/24 dev eth0",
                "addr add fd00:2::3/64 dev eth0 nodad",
                "route add default via 192.168.0.2",
                "-6 route add default via fd00:2::2",
                "addr add 10.0.2.1/23 dev pods",
                "addr add fd00:1:2::1/48 dev pods nodad",
            ],
        );
        let mut lines = Vec::new();
        for pod in FAR_PODS {
            let (length, flags) = if pod.contains(':') {
                (48, "nodad")
            } else {
                (23, "")
            };
            lines.push(format!("addr add {pod}/{length} dev eth0 {flags}"));
        }
        lines.push("route add default via 10.0.2.1".to_owned());
        lines.push("-6 route add default via fd00:1:2::1".to_owned());
        batch(&self.far_pods, &lines);
    }

    fn start_servers(&mut self) {
        let near = NEAR_PODS.iter().zip(&self.near_pods).take(2);
        let near = near.flat_map(|((four, six), pod)| [(*four, pod), (*six, pod)]);
        let far = FAR_PODS.iter().map(|pod| (*pod, &self.far_pods));
        for (address, space) in near.chain(far) {
            let address: IpAddr = address.parse().expect("an address");
            self.servers.push(space.run(move || Server::start(address)));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The servers wake up and end; then the namespaces can go.
        for server in self.servers.drain(..) {
            server.stopping.store(true, Ordering::Relaxed);
            let address = server.address;
            let near = NEAR_PODS
                .iter()
                .position(|(four, six)| address.to_string() == *four || address.to_string() == *six);
            let space = near
                .and_then(|pod| self.near_pods.get(pod))
                .unwrap_or(&self.far_pods);
            space.run(move || wake(address));
            for thread in server.threads {
                // A server that panicked has already been noticed by the test it served.
                let _ = thread.join();
            }
        }
    }
}

/// The sockets of one pod address.
#[derive(Debug)]
struct Server {
    address: IpAddr,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Answers on all ports of an address of the current namespace.
    fn start(address: IpAddr) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let mut spawn = |serve: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().stack_size(128 * 1024);
            threads.push(builder.spawn(serve).expect("a thread"));
        };
        for port in TCP_PORTS {
            let listener = TcpListener::bind((address, port)).expect("the port is free");
            let stopping = Arc::clone(&stopping);
            spawn(Box::new(move || serve_tcp(&listener, &stopping)));
        }
        for port in UDP_PORTS {
            let socket = UdpSocket::bind((address, port)).expect("the port is free");
            let stopping = Arc::clone(&stopping);
            spawn(Box::new(move || serve_udp(&socket, &stopping)));
        }
        Self {
            address,
            stopping,
            threads,
        }
    }
}

fn serve_tcp(listener: &TcpListener, stopping: &AtomicBool) {
    let address = listener.local_addr().expect("bound");
    while let Ok((mut stream, peer)) = listener.accept() {
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        // A client that has gone away is no concern of the server.
        let _ = stream.write_all(format!("{address} {}", peer.ip()).as_bytes());
    }
}

fn serve_udp(socket: &UdpSocket, stopping: &AtomicBool) {
    let address = socket.local_addr().expect("bound");
    let mut buffer = [0; 16];
    while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        let _ = socket.send_to(format!("{address} {}", peer.ip()).as_bytes(), peer);
    }
}

/// Lets every server of an address notice that it should stop.
fn wake(address: IpAddr) {
    for port in TCP_PORTS {
        drop(TcpStream::connect_timeout(
            &SocketAddr::new(address, port),
            PATIENCE,
        ));
    }
    let any: SocketAddr = if address.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    if let Ok(socket) = UdpSocket::bind(any) {
        for port in UDP_PORTS {
            let _ = socket.send_to(b"stop", (address, port));
        }
    }
}

/// Asks from a given source address of the current namespace.
fn ask(from: IpAddr, to: SocketAddr, protocol: Protocol, patience: Duration) -> Answer {
    match try_ask(from, to, protocol, patience) {
        Ok(text) => {
            let (by, seen) = text.split_once(' ').expect("two addresses");
            Answer::From(by.parse().expect("an address"), seen.parse().expect("an address"))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Answer::Refused,
        Err(_) => Answer::Silence,
    }
}

fn try_ask(from: IpAddr, to: SocketAddr, protocol: Protocol, patience: Duration) -> io::Result<String> {
    let domain = match IpFamily::of(from) {
        IpFamily::V4 => AddressFamily::INET,
        IpFamily::V6 => AddressFamily::INET6,
    };
    let kind = if protocol == Protocol::Udp {
        SocketType::DGRAM
    } else {
        SocketType::STREAM
    };
    let socket: OwnedFd = rustix::net::socket(domain, kind, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    // The send timeout also bounds connect(2).
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    rustix::net::connect(&socket, &to)?;
    let mut buffer = vec![0; 128];
    let length = if protocol == Protocol::Udp {
        let socket = UdpSocket::from(socket);
        // Where a rule of this very machine refuses or drops it, sending fails; which of them it was, receiving says.
        let _ = socket.send(b"who");
        socket.recv(&mut buffer)?
    } else {
        TcpStream::from(socket).read(&mut buffer)?
    };
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned()).and_then(|text| match text.is_empty() {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok(text),
    })
}

fn expect(expected: Answer, answer: Answer) -> Result<(), String> {
    if answer == expected {
        Ok(())
    } else {
        Err(format!("expected {expected:?}, got {answer:?}"))
    }
}

/// Runs several `ip` commands at once.
fn batch(space: &Namespace, lines: &[impl AsRef<str>]) {
    let script: Vec<String> = lines.iter().map(|line| format!("ip {}", line.as_ref())).collect();
    space.sh(&script.join("\n"));
}
