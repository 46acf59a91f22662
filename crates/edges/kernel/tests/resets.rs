//! Do connections to a node that is gone end, whether their clients send or wait, and do all others stay?

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pointsman_dataplane::Programmer;
use pointsman_kernel::Commits;
use pointsman_kernel::nftables_backend::NftablesBackend;
use pointsman_kernel::resets::{Resets, Waker};
use pointsman_testkit::cluster::{Cluster, Family};
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

/// A client, a node with Services `dead` and `live`, and another node for the pods of each.
struct Lab {
    client: Namespace,
    node: Namespace,
    pods: [Namespace; 2],
}

/// The addresses of one family: of the node at its clients and theirs, of the Services, and of their pods.
struct Plan {
    bits: u8,
    to_client: [&'static str; 2],
    services: [&'static str; 2],
    /// The node's address at the pods, and the pod's.
    pods: [[&'static str; 2]; 2],
}

const FOUR: Plan = Plan {
    bits: 24,
    to_client: ["192.168.0.2", "192.168.0.9"],
    services: ["172.30.0.1", "172.30.0.2"],
    pods: [["10.0.1.254", "10.0.1.1"], ["10.0.2.254", "10.0.2.1"]],
};
const SIX: Plan = Plan {
    bits: 64,
    to_client: ["fd00:a::2", "fd00:a::9"],
    services: ["fd00:c::1", "fd00:c::2"],
    pods: [["fd00:1::fe", "fd00:1::1"], ["fd00:2::fe", "fd00:2::1"]],
};

fn make(plan: &Plan) -> Lab {
    let namespace = || Namespace::new().unwrap();
    let lab = Lab {
        client: namespace(),
        node: namespace(),
        pods: [namespace(), namespace()],
    };
    lab.node.sysctl("ipv4/ip_forward", "1");
    lab.node.sysctl("ipv6/conf/all/forwarding", "1");
    let add = |namespace: &Namespace, address: &str, link: &str| {
        let flag = if address.contains(':') { " nodad" } else { "" };
        namespace.ip(&format!("addr add {address}/{} dev {link}{flag}", plan.bits));
    };
    lab.node.connect("to-client", &lab.client, "eth0");
    add(&lab.node, plan.to_client[0], "to-client");
    add(&lab.client, plan.to_client[1], "eth0");
    // A node has a route for addresses of Services, if only the default one.
    lab.node
        .ip(&format!("route add default via {}", plan.to_client[1]));
    lab.client
        .ip(&format!("route add default via {}", plan.to_client[0]));
    for (index, (pods, [at_node, pod])) in lab.pods.iter().zip(plan.pods).enumerate() {
        let link = format!("to-pods{index}");
        lab.node.connect(&link, pods, "eth0");
        add(&lab.node, at_node, &link);
        add(pods, pod, "eth0");
        pods.ip(&format!("route add default via {at_node}"));
        let address: IpAddr = pod.parse().unwrap();
        pods.run(move || serve(SocketAddr::new(address, 8080)));
    }
    lab
}

/// Sends back whatever comes.
fn serve(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
}

/// A connection that works.
fn open(from: &Namespace, to: SocketAddr) -> TcpStream {
    from.run(move || {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        echo(&mut stream);
        stream
    })
}

fn echo(stream: &mut TcpStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

fn connections_to_a_node_that_is_gone_end<A: Family>(plan: &Plan) {
    let lab = make(plan);
    let [dead, live] = plan
        .services
        .map(|address| SocketAddr::new(address.parse().unwrap(), 80));
    let mut text = format!("node n1 ip={}\n", plan.to_client[0]);
    for (name, (service, [_, pod])) in ["dead", "live"].iter().zip([dead, live].iter().zip(plan.pods)) {
        let endpoint = SocketAddr::new(pod.parse().unwrap(), 8080);
        text += &format!("service default/{name} {service}\nendpoint default/{name} {endpoint} node=n1\n");
    }
    let commits = Commits::default();
    let (ours, mut backend) = lab.node.run({
        let commits = commits.clone();
        move || {
            let cluster = Cluster::parse(&text);
            let mut index = cluster.index::<A>();
            let mut backend = NftablesBackend::open(cluster.settings(), commits.clone()).unwrap();
            backend.sync(&index.checkout()).unwrap();
            (Resets::open(commits).unwrap(), backend)
        }
    });
    let mut resets = ours;
    let waits = open(&lab.client, dead);
    let mut sends = open(&lab.client, dead);
    let on_the_node = open(&lab.node, dead);
    let directly = open(
        &lab.client,
        SocketAddr::new(plan.pods[0][1].parse().unwrap(), 8080),
    );
    let mut lives: Vec<TcpStream> = [&lab.client, &lab.node].map(|from| open(from, live)).into();

    lab.pods[0].ip("link set eth0 down");
    let (ended, ends) = mpsc::channel();
    let streams = [
        ("waits", waits),
        ("is on the node", on_the_node),
        ("has no Service", directly),
    ];
    for (who, mut stream) in streams {
        let ended = ended.clone();
        std::thread::spawn(move || {
            let found = stream.read(&mut [0]).map_err(|error| error.kind());
            ended.send((who, found, Instant::now())).unwrap();
        });
    }
    let begin = Instant::now();
    let gone = BTreeSet::from([A::narrow(plan.pods[0][1].parse().unwrap()).unwrap()]);
    let (mut resets, woken) = lab.node.run({
        let gone = gone.clone();
        move || {
            assert!(resets.answer_for(&gone).unwrap());
            let woken = Waker::open(A::FAMILY).unwrap().wake(&gone).unwrap();
            (resets, woken)
        }
    });
    assert_eq!(woken, 4);
    for _ in 0..3 {
        let (who, found, at) = ends
            .recv_timeout(Duration::from_secs(10))
            .expect("every client is woken");
        assert_eq!(found, Err(ErrorKind::ConnectionReset), "who {who}");
        assert!(
            at - begin < Duration::from_secs(1),
            "who {who} waited for {:?}",
            at - begin
        );
    }
    let sent = sends.write_all(b"x").and_then(|()| sends.read(&mut [0]));
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let refused = lab
        .client
        .run(move || TcpStream::connect_timeout(&dead, Duration::from_secs(5)).map(drop));
    assert_eq!(
        refused.unwrap_err().kind(),
        ErrorKind::ConnectionRefused,
        "new ones too"
    );
    lives.iter_mut().for_each(echo);
    assert!(
        lab.node.run(move || backend.is_undisturbed().unwrap()),
        "the table is ours"
    );

    lab.pods[0].ip("link set eth0 up");
    lab.pods[0].sh(&format!(
        "ip addr show dev eth0 | grep -q {0} || ip addr add {0}/{1} dev eth0 nodad",
        plan.pods[0][1], plan.bits
    ));
    lab.pods[0].sh(&format!("ip route replace default via {}", plan.pods[0][0]));
    lab.node.run(move || {
        assert!(resets.sent::<A>().unwrap() >= 5);
        let nobody = BTreeSet::<A>::new();
        assert!(resets.answer_for(&nobody).unwrap() && !resets.answer_for(&nobody).unwrap());
        assert_eq!(resets.sent::<A>().unwrap(), 0);
    });
    assert_eq!(
        lab.node.sh("nft list tables | grep -c resets || true").trim(),
        "0"
    );
    drop(open(&lab.client, dead));
    lives.iter_mut().for_each(echo);
}

#[test]
fn connections_of_ipv4_to_a_node_that_is_gone_end_and_others_stay() {
    require_netns!();
    connections_to_a_node_that_is_gone_end::<Ipv4Addr>(&FOUR);
}

#[test]
fn connections_of_ipv6_to_a_node_that_is_gone_end_and_others_stay() {
    require_netns!();
    connections_to_a_node_that_is_gone_end::<Ipv6Addr>(&SIX);
}
