//! Do the counters say what happened to packets?

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use pointsman_dataplane::{Programmer, Settings};
use pointsman_iptables::rule::PacketCounter;
use pointsman_kernel::counters;
use pointsman_kernel::iptables::Variant;
use pointsman_kernel::iptables_backend::IptablesBackend;
use pointsman_netlink::conntrack::Tuple;
use pointsman_netlink_io::{Buffers, Conntrack};
use pointsman_testkit::cluster::Cluster;
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

const CLUSTER: &str = "node n1 ip=10.2.0.1
    service default/web 172.30.0.10:80 nodeport=30080
    endpoint default/web 10.2.0.2:8080 node=n1";

/// A node between a client at 10.1.0.2 and a server at 10.2.0.2.
fn network() -> [Namespace; 3] {
    let [client, node, server] = [(); 3].map(|()| Namespace::new().unwrap());
    for (space, subnet) in [(&client, 1), (&server, 2)] {
        node.connect(&format!("to{subnet}"), space, "eth0");
        node.ip(&format!("addr add 10.{subnet}.0.1/24 dev to{subnet}"));
        space.ip(&format!("addr add 10.{subnet}.0.2/24 dev eth0"));
        space.ip(&format!("route add default via 10.{subnet}.0.1"));
    }
    for sysctl in ["ipv4/ip_forward", "ipv4/conf/all/route_localnet"] {
        node.sysctl(sysctl, "1");
    }
    // Connection tracking then calls packets invalid that begin in the middle of a connection.
    node.sysctl("netfilter/nf_conntrack_tcp_loose", "0");
    [client, node, server]
}

fn connect(to: &'static str) -> TcpStream {
    TcpStream::connect_timeout(&to.parse().unwrap(), Duration::from_secs(20)).unwrap()
}

fn forget_all_flows() {
    let mut tracker = Conntrack::open(Buffers::default()).unwrap();
    let mut flows = Vec::new();
    tracker
        .visit(2, &Tuple::default(), &mut |flow| flows.push(flow))
        .unwrap();
    for flow in flows {
        tracker.delete(2, &flow).unwrap();
    }
}

/// Connects three times to a node port on localhost, and lets one packet of a forgotten connection be dropped.
fn check(variant: Variant, named: bool) {
    let [client, node, server] = network();
    let listener = server.run(|| TcpListener::bind("0.0.0.0:8080").unwrap());
    let counted = move |counter| counters::read(counter);
    node.run(move || {
        assert!(!named || counters::make_named(), "this kernel has nfacct");
        let cluster = Cluster::parse(CLUSTER);
        let settings = Settings {
            named_counters: named,
            ..cluster.settings::<Ipv4Addr>()
        };
        let batch = cluster.index().checkout();
        IptablesBackend::new(settings, variant).sync(&batch).unwrap();
        assert_eq!(counted(PacketCounter::LocalhostAccepted), Some(0));
        for _ in 0..3 {
            connect("127.0.0.1:30080");
        }
        // Neither of these goes to localhost.
        connect("10.2.0.1:30080");
        connect("10.2.0.2:8080");
        assert_eq!(counted(PacketCounter::LocalhostAccepted), Some(3));
        assert_eq!(counted(PacketCounter::InvalidDropped), Some(0));
    });
    let mut stream = client.run(|| connect("10.2.0.2:8080"));
    node.run(forget_all_flows);
    stream.write_all(b"late").unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while node.run(move || counted(PacketCounter::InvalidDropped)) == Some(0) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(node.run(move || counted(PacketCounter::InvalidDropped)) > Some(0));
    drop(listener);
}

#[test]
fn counters_that_rules_name_count_with_either_interface() {
    require_netns!();
    check(Variant::Nft, true);
    check(Variant::Legacy, true);
}

#[test]
fn where_the_kernel_has_none_the_rules_own_counters_are_read() {
    require_netns!();
    check(Variant::Nft, false);
}

#[test]
fn nothing_is_said_before_there_are_rules() {
    require_netns!();
    let namespace = Namespace::new().unwrap();
    let counted = namespace.run(|| PacketCounter::ALL.map(counters::read));
    assert_eq!(counted, [None, None]);
}
