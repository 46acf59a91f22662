//! What does a new connection cost with so many Services?

use crate::Size;
use crate::cluster::{Server, address};
use crate::contender::{Contender, Node};
use crate::measure::{quantile, started};
use crate::report::Connections;
use pointsman_testkit::netns::Namespace;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long connections are made, and how often.
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;

/// Measures all contenders with this many Services.
pub async fn run(program: &str, contenders: &[Contender], services: usize, limit: u64) -> Vec<Connections> {
    let size = Size {
        services,
        endpoints: 1,
    };
    let mut server = Server::start(program, size).await;
    let mut measured = Vec::new();
    for contender in contenders {
        eprintln!(
            "data path: {} {} with {services} Services",
            contender.name,
            contender.mode.name()
        );
        let mut node = Node::new(&mut server, contender);
        let target = SocketAddr::from((address(services / 2), 80));
        let (client, _backend) = connect(&node.space, services / 2);
        node.launch();
        if started(&node, limit).is_none() {
            eprintln!("data path: not within {limit} s");
            continue;
        }
        let direct = rate(&client, SocketAddr::from(([10, 9, 1, 5], 8080)));
        let through = rate(&client, target);
        measured.push(Connections {
            contender: contender.name.to_owned(),
            mode: contender.mode,
            services,
            per_second: through.per_second,
            p50_us: through.p50_us,
            p99_us: through.p99_us,
            direct_per_second: direct.per_second,
        });
    }
    server.stop().await;
    measured
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
    let listener = backend.run(|| TcpListener::bind("0.0.0.0:8080").unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
        }
    });
    (client, backend)
}

struct Rate {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

/// One connection after the other; the best round counts, as others share the machine.
fn rate(client: &Namespace, target: SocketAddr) -> Rate {
    let rounds = (0..ROUNDS).map(|_| client.run(move || round(target)));
    rounds
        .max_by(|one, other| one.per_second.total_cmp(&other.per_second))
        .expect("there are rounds")
}

fn round(target: SocketAddr) -> Rate {
    let began = Instant::now();
    let mut times = Vec::new();
    while began.elapsed() < ROUND {
        let started = Instant::now();
        let stream =
            TcpStream::connect_timeout(&target, Duration::from_secs(5)).expect("the Service answers");
        times.push(started.elapsed().as_secs_f64() * 1e6);
        // A reset frees the port at once.
        let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    }
    let per_second = times.len() as f64 / began.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    Rate {
        per_second,
        p50_us: quantile(&times, 0.5).unwrap_or(0.0),
        p99_us: quantile(&times, 0.99).unwrap_or(0.0),
    }
}
