//! What does a new connection cost with so many Services?
//!
//! All sizes are loaded first, each into a namespace of its own. Then the proxies and API servers end, and the
//! kernel alone carries connections, a short round for each size in turn, so that what else the machine does
//! meets all of them alike.

use crate::Size;
use crate::cluster::{Server, address};
use crate::contender::{Contender, Node};
use crate::measure::{quantile, started};
use crate::report::Connections;
use pointsman_testkit::netns::Namespace;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long connections are made, and how often.
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 9;
/// A SYN that is lost is sent again after a second. That says nothing about rules, so it is counted apart.
const LOST: Duration = Duration::from_millis(900);

/// One proxy's rules in the kernel, with a client before and a backend behind them.
struct Loaded {
    contender: Contender,
    services: usize,
    /// Its namespace has the rules; its proxy has ended.
    _node: Node,
    client: Namespace,
    _backend: Namespace,
}

/// Measures all contenders with each of these numbers of Services.
pub async fn run(program: &str, contenders: &[Contender], sizes: &[usize], limit: u64) -> Vec<Connections> {
    let mut loaded = Vec::new();
    for services in sizes {
        load(program, contenders, *services, limit, &mut loaded).await;
    }
    let mut rounds: Vec<[Vec<Round>; 2]> = loaded.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    for _ in 0..ROUNDS {
        for (it, [direct, through]) in loaded.iter().zip(&mut rounds) {
            direct.push(it.round(SocketAddr::from(([10, 9, 1, 5], 8080))));
            through.push(it.round(SocketAddr::from((address(it.services / 2), 80))));
        }
    }
    let results = loaded.iter().zip(rounds);
    results
        .map(|(it, [direct, through])| it.result(&direct, through))
        .collect()
}

async fn load(
    program: &str,
    contenders: &[Contender],
    services: usize,
    limit: u64,
    loaded: &mut Vec<Loaded>,
) {
    let size = Size {
        services,
        endpoints: 1,
    };
    let mut server = Server::start(program, size).await;
    // Namespaces of earlier sizes are still connected.
    for _ in 0..loaded.len() {
        server.next_link();
    }
    for contender in contenders {
        eprintln!(
            "data path: {} {} with {services} Services",
            contender.name,
            contender.mode.name()
        );
        let mut node = Node::new(&mut server, contender);
        let (client, backend) = connect(&node.space, services / 2);
        node.launch();
        if started(&node, limit).is_none() {
            eprintln!("data path: not within {limit} s");
            continue;
        }
        node.halt();
        loaded.push(Loaded {
            contender: contender.clone(),
            services,
            _node: node,
            client,
            _backend: backend,
        });
    }
    server.stop().await;
}

/// A client and a backend that has the address of a Service's endpoint.
fn connect(node: &Namespace, number: usize) -> (Namespace, Namespace) {
    let (client, backend) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    node.connect("clients", &client, "eth0");
    node.connect("pods", &backend, "eth0");
    node.sysctl("ipv4/ip_forward", "1");
    node.ip("addr add 10.9.2.1/24 dev clients");
    node.ip("addr add 10.9.1.1/24 dev pods");
    client.ip("addr add 10.9.2.9/24 dev eth0");
    client.ip("route add default via 10.9.2.1");
    backend.ip("addr add 10.9.1.5/24 dev eth0");
    backend.ip("route add default via 10.9.1.1");
    let endpoint = std::net::Ipv4Addr::from_bits(0x0b00_0000 + number as u32 * 8);
    backend.ip(&format!("addr add {endpoint}/32 dev eth0"));
    node.ip(&format!("route add {endpoint}/32 via 10.9.1.5"));
    let listener = backend.run(|| {
        let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
        // A queue of the usual 128 overflows whenever the acceptor waits some milliseconds for a processor,
        // and the connection that is turned away takes a second.
        rustix::net::listen(&listener, 4096).unwrap();
        listener
    });
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
        }
    });
    (client, backend)
}

/// What one round showed.
struct Round {
    /// Microseconds each connection took.
    times: Vec<f64>,
    lost: usize,
    seconds: f64,
}

impl Round {
    fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.seconds
    }
}

impl Loaded {
    /// One connection after the other.
    fn round(&self, target: SocketAddr) -> Round {
        self.client.run(move || {
            let (began, mut lost) = (Instant::now(), Duration::ZERO);
            let mut round = Round {
                times: Vec::new(),
                lost: 0,
                seconds: 0.0,
            };
            while began.elapsed() < ROUND + lost {
                let started = Instant::now();
                let stream =
                    TcpStream::connect_timeout(&target, Duration::from_secs(5)).expect("the Service answers");
                let took = started.elapsed();
                if took > LOST {
                    round.lost += 1;
                    lost += took;
                } else {
                    round.times.push(took.as_secs_f64() * 1e6);
                }
                // A reset frees the port at once.
                let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            }
            round.seconds = (began.elapsed() - lost).as_secs_f64();
            round
        })
    }

    /// The median round, and the latencies of all.
    fn result(&self, direct: &[Round], through: Vec<Round>) -> Connections {
        let median = |rounds: &[Round]| {
            let mut rates: Vec<f64> = rounds.iter().map(Round::per_second).collect();
            rates.sort_by(f64::total_cmp);
            quantile(&rates, 0.5).unwrap_or(0.0)
        };
        let per_second = median(&through);
        let lost = through.iter().map(|round| round.lost).sum();
        let mut times: Vec<f64> = through.into_iter().flat_map(|round| round.times).collect();
        times.sort_by(f64::total_cmp);
        Connections {
            contender: self.contender.name.to_owned(),
            mode: self.contender.mode,
            services: self.services,
            per_second,
            p50_us: quantile(&times, 0.5).unwrap_or(0.0),
            p99_us: quantile(&times, 0.99).unwrap_or(0.0),
            lost,
            direct_per_second: median(direct),
        }
    }
}
