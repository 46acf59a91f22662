//! A client, a node whose table is under test, and endpoints that say who they are.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pointsman_dataplane::Index;
use pointsman_nft::TableSettings;
use pointsman_testkit::cluster::{Cluster, Family};
use pointsman_testkit::netns::Namespace;

use super::Proxy;

/// A client, a node with our table, and one namespace that has all endpoints' addresses.
pub struct Network {
    pub client: Namespace,
    pub node: Namespace,
    pub endpoints: Namespace,
    /// Set when the test ends.
    pub stop: Arc<AtomicBool>,
}

impl Network {
    pub fn new(addresses: &[IpAddr]) -> Self {
        let (client, node, endpoints) = (
            Namespace::new().unwrap(),
            Namespace::new().unwrap(),
            Namespace::new().unwrap(),
        );
        node.connect("to-client", &client, "eth0");
        node.connect("to-pods", &endpoints, "eth0");
        node.sysctl("ipv4/ip_forward", "1");
        node.sysctl("ipv6/conf/all/forwarding", "1");
        node.ip("addr add 192.168.0.2/24 dev to-client");
        node.ip("addr add 10.0.0.1/16 dev to-pods");
        node.ip("addr add fd00:a::2/64 dev to-client nodad");
        node.ip("addr add fd00:1::1/64 dev to-pods nodad");
        client.ip("addr add 192.168.0.9/24 dev eth0");
        client.ip("addr add fd00:a::9/64 dev eth0 nodad");
        client.ip("route add default via 192.168.0.2");
        client.ip("route add default via fd00:a::2");
        endpoints.ip("addr add 10.0.255.1/16 dev eth0");
        endpoints.ip("addr add fd00:1::ff/64 dev eth0 nodad");
        for address in addresses {
            let (bits, flag) = if address.is_ipv4() {
                (16, "")
            } else {
                (64, " nodad")
            };
            endpoints.ip(&format!("addr add {address}/{bits} dev eth0{flag}"));
        }
        endpoints.ip("route add default via 10.0.0.1");
        endpoints.ip("route add default via fd00:1::1");
        let network = Self {
            client,
            node,
            endpoints,
            stop: Arc::new(AtomicBool::new(false)),
        };
        network.serve(addresses);
        network
    }

    /// Every endpoint tells its clients its address and theirs, then waits for them to close.
    fn serve(&self, addresses: &[IpAddr]) {
        for address in addresses.iter().copied() {
            self.endpoints.run(move || {
                let listener = TcpListener::bind((address, 8080)).unwrap();
                std::thread::spawn(move || {
                    for stream in listener.incoming().map_while(Result::ok) {
                        answer(stream);
                    }
                });
            });
        }
    }

    /// The endpoint and the client address it saw, for each of `count` new connections.
    pub fn connect(&self, to: SocketAddr, count: usize) -> BTreeMap<(IpAddr, IpAddr), usize> {
        self.client.run(move || {
            let mut seen = BTreeMap::new();
            for _ in 0..count {
                *seen.entry(ask(to).unwrap()).or_default() += 1;
            }
            seen
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn answer(mut stream: TcpStream) {
    let (here, there) = (
        stream.local_addr().unwrap().ip(),
        stream.peer_addr().unwrap().ip(),
    );
    let _ = stream.write_all(format!("{here} {there}\n").as_bytes());
}

/// The endpoint that answers a new connection, and the client's address as it saw it.
pub fn ask(to: SocketAddr) -> std::io::Result<(IpAddr, IpAddr)> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let mut words = text.split_whitespace().map(|word| word.parse::<IpAddr>());
    match (words.next(), words.next()) {
        (Some(Ok(here)), Some(Ok(there))) => Ok((here, there)),
        _ => Err(std::io::Error::other(format!("not an answer: {text:?}"))),
    }
}

/// A cluster of one Service.
pub fn service(address: &str, endpoints: &[IpAddr], options: &str) -> String {
    let mut text = format!("node n1 ip=192.168.0.2,fd00:a::2\nservice default/web {address}:80 {options}\n");
    for endpoint in endpoints {
        let endpoint = SocketAddr::new(*endpoint, 8080);
        text.push_str(&format!("endpoint default/web {endpoint} node=n1\n"));
    }
    text
}

/// The addresses of so many endpoints.
pub fn pods(count: u8) -> Vec<IpAddr> {
    (1..=count)
        .map(|number| IpAddr::from([10, 0, 1, number]))
        .collect()
}

/// Programs a cluster on the node. Returns a function that programs another one.
pub fn programmed<A: Family>(network: &Network, cluster: String) -> impl Fn(String) + use<A> {
    let (jobs, queue) = std::sync::mpsc::channel::<(String, std::sync::mpsc::Sender<()>)>();
    network.node.run(move || {
        std::thread::spawn(move || {
            let mut index: Option<Index<A>> = None;
            let mut proxy: Option<Proxy<A>> = None;
            for (text, done) in queue {
                let cluster = Cluster::parse(&text);
                let index = index.get_or_insert_with(|| cluster.index());
                cluster.fold_into(index);
                let proxy = proxy.get_or_insert_with(|| Proxy::new(TableSettings::new(cluster.settings())));
                proxy.sync(index);
                let _ = done.send(());
            }
        });
    });
    let program = move |text: String| {
        let (done, finished) = std::sync::mpsc::channel();
        jobs.send((text, done)).expect("the programmer runs");
        finished.recv().expect("the programmer does not panic");
    };
    program(cluster);
    program
}
