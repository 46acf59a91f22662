//! Connections to the pods of a node that is gone end, and nobody else's do.
//!
//! `POINTSMAN_CONNECTIONS=10000` holds so many connections to living pods meanwhile; docs/node-health.md has the figures.

use crate::cluster::{Cluster, eventually};
use crate::harm::{CutOff, Stopped, process_of};
use crate::history::{History, Observer, name};
use jiff::Timestamp;
use pointsman_api_client::Resource;
use pointsman_fabric::Netns;
use pointsman_testkit::require_netns;
use rustix::process::{Resource as Limit, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(3);
/// "Within a second of the bound", and what is forgiven to a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(4);
/// Clients of the dead node that wait for an answer.
const WAITING: usize = 10;
const LIST: &str = "pointsman-withdrawn-nodes";
/// Tells a process of this program where to serve.
const SERVE_AT: &str = "POINTSMAN_SERVE_AT";

#[test]
fn clients_of_a_dead_node_are_reset_and_all_others_stay_in_nftables_mode() {
    require_netns!();
    let lab = Lab::start("nftables");
    let held = Held::open(&lab);
    let cut = lab.lose_the_dead_node();

    // A proxy that ends takes its table back, and the next one waits for the bound anew.
    kill_process(process_of(&lab.cluster, "n1", "proxy"), Signal::TERM).unwrap();
    eventually("the table is gone", || (!lab.resets()).then_some(()));
    eventually("and back", || lab.resets().then_some(()));
    // One that hangs does not see that a node is back: the kernel forgets what it was to answer.
    let hung = Stopped::proxy(&lab.cluster, "n1");
    eventually("no address is left", || (lab.answered_for() == 0).then_some(()));
    drop(hung);
    eventually("the addresses are back", || {
        (lab.answered_for() > 0).then_some(())
    });

    lab.bring_it_back(cut);
    held.still_work();
}

#[test]
fn clients_of_a_dead_node_are_reset_and_all_others_stay_in_iptables_mode() {
    require_netns!();
    let lab = Lab::start("iptables");
    let held = Held::open(&lab);
    let cut = lab.lose_the_dead_node();
    lab.bring_it_back(cut);
    held.still_work();
}

/// Three nodes. `live` is served on n1 and n2, `dead` on n3; all clients are on n1.
struct Lab {
    cluster: Cluster,
    lists: History,
    _observer: Observer,
    client: Netns,
    live: SocketAddr,
    dead: SocketAddr,
    _pods: [Pod; 3],
}

impl Lab {
    fn start(mode: &str) -> Self {
        let bound = format!("--reset-dead-connections={}s", BOUND.as_secs());
        let cluster = Cluster::start(&["--nodes=3", "--proxy-mode", mode, &bound]);
        let observer = Observer::of(&cluster);
        let lists = observer.follow(Resource::LEASES);
        let pods = ["n1", "n2", "n3"].map(|node| Pod::start(&cluster, node));
        let [live, dead] = [("live", &pods[..2]), ("dead", &pods[2..])].map(|(name, pods)| {
            let made = objects(name, pods).to_string();
            cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &made);
            let path = "jsonpath={.spec.clusterIP}";
            let address = cluster.kubectl(&["get", "service", name, "-o", path]);
            SocketAddr::new(address.parse().unwrap(), 80)
        });
        let client = Netns::named(&format!("{}-n1", cluster.name)).unwrap();
        let lab = Self {
            cluster,
            lists,
            _observer: observer,
            client,
            live,
            dead,
            _pods: pods,
        };
        for service in [live, dead] {
            eventually("the Service is reached", || lab.connect(service).ok());
        }
        lab
    }

    fn connect(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(2));
        self.client.run(connect).unwrap()
    }

    /// Cuts n3 off and waits until everybody who waits for its pod knows.
    fn lose_the_dead_node(&self) -> CutOff {
        let (ended, ends) = mpsc::channel();
        for _ in 0..WAITING {
            let (mut stream, ended) = (self.connect(self.dead).unwrap(), ended.clone());
            std::thread::spawn(move || {
                let read = stream.read(&mut [0]).map_err(|error| error.kind());
                // A failing test may not wait for it.
                let _ = ended.send((read, Timestamp::now()));
            });
        }
        let before = self.lists.len();
        let cut = CutOff::node(&self.cluster, "n3");
        let at = Timestamp::now();
        let listed = self.lists.first("n3 is withdrawn", before, |lease| {
            name(lease) == LIST && lease["metadata"]["annotations"]["pointsman.io/withdrawn-nodes"] == "n3"
        });
        let mut times = Vec::new();
        for _ in 0..WAITING {
            let (read, ended_at) = ends.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(read, Err(ErrorKind::ConnectionReset));
            let took = Duration::try_from(ended_at.duration_since(listed.at)).unwrap();
            assert!(
                took + Duration::from_millis(500) >= BOUND && took < BOUND + SLACK,
                "{took:?}"
            );
            times.push(ended_at.duration_since(at).as_millis());
        }
        eprintln!(
            "listed {:?} after the cut, clients ended after {times:?} ms",
            listed.at.duration_since(at)
        );
        let refused = self.connect(self.dead).unwrap_err().kind();
        assert_eq!(refused, ErrorKind::ConnectionRefused, "new ones end at once");
        cut
    }

    fn bring_it_back(&self, cut: CutOff) {
        let mended = Timestamp::now();
        drop(cut);
        eventually("nobody is reset any more", || (!self.resets()).then_some(()));
        eprintln!(
            "no resets {:?} after the node was back",
            Timestamp::now().duration_since(mended)
        );
        eventually("the pod is reached", || self.connect(self.dead).ok());
    }

    /// Whether n1 has the table that resets connections.
    fn resets(&self) -> bool {
        self.nft(&["list", "tables"]).contains("pointsman-resets")
    }

    /// For how many addresses it does.
    fn answered_for(&self) -> usize {
        self.nft(&["list", "table", "ip", "pointsman-resets"])
            .matches("expires")
            .count()
    }

    fn nft(&self, arguments: &[&str]) -> String {
        let all = [&["n1", "--", "nft"], arguments].concat();
        String::from_utf8(self.cluster.pointsman("exec", &all).stdout).unwrap()
    }
}

/// Sends back what comes to an address of the node's pods, until it is dropped.
struct Pod {
    node: String,
    address: String,
    server: Child,
}

impl Pod {
    fn start(cluster: &Cluster, node: &str) -> Self {
        let range = cluster.kubectl(&["get", "node", node, "-o", "jsonpath={.spec.podCIDR}"]);
        let (network, _) = range.split_once('/').unwrap();
        let (network, _) = network.rsplit_once('.').unwrap();
        let address = format!("{network}.200");
        let add = [node, "--", "ip", "address", "add", &address, "dev", "lo"];
        let added = cluster.pointsman("exec", &add);
        assert!(
            added.status.success(),
            "{}",
            String::from_utf8_lossy(&added.stderr)
        );
        // Descriptors are counted by process: both ends of 10,000 connections can be more than one may have.
        let mut server = Command::new(std::env::current_exe().unwrap());
        server
            .args(["--exact", "resets::the_other_ends_of_connections"])
            .env(SERVE_AT, format!("{address}:8080"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let namespace = Netns::named(&format!("{}-{node}", cluster.name)).unwrap();
        let server = namespace.run(|| server.spawn().unwrap()).unwrap();
        Self {
            node: node.to_owned(),
            address,
            server,
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// No test by itself: the others start this program with it and an address.
#[test]
fn the_other_ends_of_connections() {
    let Ok(address) = std::env::var(SERVE_AT) else {
        return;
    };
    allow_many_descriptors();
    std::thread::spawn(|| {
        // Whoever started it is gone.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
}

fn allow_many_descriptors() {
    let limits = getrlimit(Limit::Nofile);
    let all = Rlimit {
        current: limits.maximum,
        ..limits
    };
    setrlimit(Limit::Nofile, all).unwrap();
}

fn objects(name: &str, pods: &[Pod]) -> serde_json::Value {
    let endpoint = |pod: &Pod| json!({ "addresses": [pod.address], "nodeName": pod.node });
    let endpoints: Vec<_> = pods.iter().map(endpoint).collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": format!("{name}-1"), "labels": { "kubernetes.io/service-name": name } },
        "ports": [{ "port": 8080, "protocol": "TCP" }], "endpoints": endpoints,
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [service, slice] })
}

/// Connections to living pods.
struct Held(Vec<TcpStream>);

impl Held {
    fn open(lab: &Lab) -> Self {
        let count = std::env::var("POINTSMAN_CONNECTIONS").map_or(300, |text| text.parse().unwrap());
        allow_many_descriptors();
        let held = Self((0..count).map(|_| lab.connect(lab.live).unwrap()).collect());
        held.still_work();
        held
    }

    /// None was reset, and each carries a byte there and back.
    fn still_work(&self) {
        for (index, mut stream) in self.0.iter().enumerate() {
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let echo = stream.write_all(b"x").and_then(|()| stream.read_exact(&mut [0]));
            assert!(echo.is_ok(), "connection {index}: {echo:?}");
        }
        eprintln!("{} connections to living pods work", self.0.len());
    }
}
