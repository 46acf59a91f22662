//! Do processes of a node reach node ports on localhost in nftables mode, and nobody else?

use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use pointsman_api_client::Resource;
use serde_json::json;

use crate::eventually;
use crate::features::{endpoint, ports};
use crate::node::{Answer, Network};

const GATE: &str = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true";

/// What a process of the node gets for a packet to a UDP port of localhost.
fn udp_answer(network: &Network, port: u16) -> std::io::ErrorKind {
    network.node.run(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        // Sending fails where a rule refuses; that it refused and did not drop, receiving says.
        let _ = socket.send(b"who");
        socket.recv(&mut [0; 64]).unwrap_err().kind()
    })
}

#[test]
fn node_ports_answer_on_localhost_in_nftables_mode_for_the_node_alone() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let listed = "--nodeport-addresses=primary,localhost";
    cluster.start_proxy(&["--proxy-mode=nftables", listed, GATE, "--iptables-sync-period=1s"]);
    let node_port = |port: u16, family: &str, protocol: &str| {
        json!({"type": "NodePort", "ipFamilies": [family], "ports":
            [{"port": 80, "targetPort": 8080, "protocol": protocol, "nodePort": port}]})
    };
    cluster.service("web", &node_port(30080, "IPv4", "TCP"));
    cluster.endpoints("web", &ports(), &[endpoint("10.0.1.5")]);
    cluster.service("six", &node_port(30081, "IPv6", "TCP"));
    cluster.endpoints("six", &ports(), &[endpoint("fd00:1::5")]);
    let udp = json!([{"name": "", "port": 8080, "protocol": "UDP"}]);
    cluster.service("dns", &node_port(30053, "IPv4", "UDP"));
    cluster.endpoints("dns", &udp, &[endpoint("10.0.1.5")]);
    for (host, port, endpoint) in [
        ("127.0.0.1", 30080, "10.0.1.5"),
        ("[::1]", 30081, "fd00:1::5"),
        ("10.0.1.1", 30080, "10.0.1.5"),
    ] {
        eventually(&format!("{host}:{port} answers on the node"), || {
            network.ask_on_node(host, port) == Answer::Said(endpoint.into())
        });
    }
    for family in ["IPv4", "IPv6"] {
        let listeners = format!("kubeproxy_nftables_localhost_nodeport_listeners{{ip_family=\"{family}\"}}");
        assert_eq!(cluster.metric(&listeners), 1.0, "{family}");
    }
    // What listeners cannot carry is refused at once, and counted.
    eventually("UDP is refused", || {
        udp_answer(&network, 30053) == std::io::ErrorKind::ConnectionRefused
    });
    let refused =
        "kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family=\"IPv4\",protocol=\"UDP\"}";
    eventually("refused packets are counted", || cluster.metric(refused) >= 1.0);
    only_the_node_gets_in(&network);
    cluster.delete(Resource::SERVICES, Some("default"), "web");
    eventually("the port is closed when the Service is gone", || {
        network.ask_on_node("127.0.0.1", 30080) == Answer::Refused
    });
}

/// With route_localnet, a neighbour on the network could send packets to 127.0.0.1 (CVE-2020-8558): nftables mode leaves it
/// off, and listeners look at who comes, should somebody else have set it.
fn only_the_node_gets_in(network: &Network) {
    let localnet = network.node.sh("cat /proc/sys/net/ipv4/conf/all/route_localnet");
    assert_eq!(localnet.trim(), "0");
    for (source, answer) in [("127.0.0.1", "10.0.1.5"), ("10.0.1.1", "")] {
        let ask = [
            "--http0.9",
            "-sm5",
            "--interface",
            source,
            "http://127.0.0.1:30080",
        ];
        let said = network.node.command("curl", &ask).unwrap().stdout;
        assert_eq!(String::from_utf8_lossy(&said), answer, "from {source}");
    }
}

#[test]
fn with_the_gate_alone_node_ports_are_refused_on_localhost() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    cluster.start_proxy(&["--proxy-mode=nftables", "--nodeport-addresses=all", GATE]);
    let web = json!({"type": "NodePort", "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30080}]});
    cluster.service("web", &web);
    cluster.endpoints("web", &ports(), &[endpoint("10.0.1.5")]);
    eventually("the node port answers", || {
        network.ask_on_node("10.0.2.1", 30080) == Answer::Said("10.0.1.5".into())
    });
    // Somebody else's listener is hidden by the rule, as kube-proxy does.
    let _other = network.node.run(|| TcpListener::bind("127.0.0.1:30080").unwrap());
    assert_eq!(network.ask_on_node("127.0.0.1", 30080), Answer::Refused);
}
