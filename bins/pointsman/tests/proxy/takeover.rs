//! Does a node change its proxy without anybody noticing?

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::eventually;
use crate::features::endpoint;
use crate::node::{Cluster, Network};

/// A table as kube-proxy writes it, as far as packets can tell.
pub const PREDECESSOR: &str = "
table ip kube-proxy {
    chain service-web { meta l4proto tcp dnat to 10.0.1.5:8080; }
    chain service-echo { meta l4proto tcp dnat to 10.0.1.5:8081; }
    map service-ips {
        type ipv4_addr . inet_proto . inet_service : verdict
        elements = { VIP . tcp . 80 : goto service-web, VIP . tcp . 81 : goto service-echo }
    }
    set cluster-ips { type ipv4_addr; elements = { VIP } }
    chain reject-chain { reject; }
    chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
    chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
    chain nat-output { type nat hook output priority -100; jump services; }
    chain filter-forward { type filter hook forward priority 0; ct state new ip daddr @cluster-ips goto reject-chain; }
}
table ip6 kube-proxy {
    set cluster-ips { type ipv6_addr; }
}
";

/// A Service with an echo port; returns its address.
pub fn service(cluster: &Cluster<'_>) -> String {
    let spec = json!({"ports": [
        {"name": "web", "port": 80, "targetPort": 8080}, {"name": "echo", "port": 81, "targetPort": 8081},
    ]});
    let address = cluster.service("web", &spec);
    let ports = json!([{"name": "web", "port": 8080}, {"name": "echo", "port": 8081}]);
    cluster.endpoints("web", &ports, &[endpoint("10.0.1.5")]);
    // Others, so that loading takes more than one moment.
    for number in 0..40 {
        cluster.service(&format!("other-{number}"), &json!({"ports": [{"port": 80}]}));
    }
    address
}

/// Whether an open connection still works.
pub fn echoes(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    stream
        .write_all(b"ping")
        .and_then(|()| stream.read_exact(&mut answer))
        .is_ok()
        && answer == *b"ping"
}

#[test]
fn the_nftables_table_of_kube_proxy_is_taken_over_without_a_gap() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    let address = service(&cluster);
    let file = cluster.directory().join("predecessor.nft");
    std::fs::write(&file, PREDECESSOR.replace("VIP", &address)).unwrap();
    network.node.sh(&format!("nft -f {}", file.display()));
    let mut open = network.echo(&address, 81);
    assert!(echoes(&mut open));
    let traffic = network.traffic(&address, 80);
    eventually("the predecessor serves", || traffic.answered() > 50);
    cluster.start_proxy(&["--proxy-mode=nftables"]);
    eventually("the predecessor's tables are gone", || {
        let tables = network.node.sh("nft list tables");
        tables.contains("table ip pointsman") && !tables.contains("kube-proxy")
    });
    let so_far = traffic.answered();
    eventually("ours serves", || traffic.answered() > so_far + 50);
    assert_eq!(traffic.stop(), [], "no connection failed");
    assert!(echoes(&mut open), "an open connection goes on");
}

#[test]
fn a_node_changes_its_mode_and_back_without_a_gap() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    let address = service(&cluster);
    cluster.start_proxy(&["--proxy-mode=iptables"]);
    eventually("iptables rules are there", || {
        cluster.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}") > 0.0
    });
    let mut open = network.echo(&address, 81);
    let traffic = network.traffic(&address, 80);
    for (mode, gone) in [("nftables", "KUBE-SERVICES"), ("iptables", "table ip pointsman")] {
        eventually("connections are made", || traffic.answered() > 20);
        cluster.kill("proxy");
        cluster.start_proxy(&["--proxy-mode", mode]);
        eventually(&format!("{gone} is gone"), || {
            let rules = network.node.sh("nft list ruleset; iptables-nft-save");
            !rules.contains(gone)
        });
        let so_far = traffic.answered();
        eventually("the new mode serves", || traffic.answered() > so_far + 20);
    }
    assert_eq!(traffic.stop(), [], "no connection failed");
    assert!(echoes(&mut open), "an open connection goes on");
}

/// What kube-proxy's first sync in iptables mode does to the chains of ours that it shares.
pub const SUCCESSOR: &str = "*filter
:KUBE-SERVICES - [0:0]
COMMIT
*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d VIP -p tcp --dport 80 -j DNAT --to-destination 10.0.1.5:8080
-A KUBE-SERVICES -d VIP -p tcp --dport 81 -j DNAT --to-destination 10.0.1.5:8081
COMMIT
";

#[test]
fn rules_stay_until_a_successor_has_its_own_and_then_only_ours_go() {
    pointsman_testkit::require_netns!();
    for mode in ["iptables", "nftables"] {
        let network = Network::new();
        let mut cluster = network.start_server();
        let address = service(&cluster);
        cluster.start_proxy(&["--proxy-mode", mode]);
        eventually("rules are there", || {
            cluster.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}") > 0.0
        });
        let traffic = network.traffic(&address, 80);
        eventually("ours serves", || traffic.answered() > 20);
        cluster.kill("proxy");
        let early = cluster.run(&["proxy", "--cleanup-own"]);
        assert!(!early.status.success(), "packets still need them");
        let (text, load) = match mode {
            "iptables" => (SUCCESSOR, "iptables-restore --noflush"),
            _ => (PREDECESSOR, "nft -f"),
        };
        let file = cluster.directory().join("successor");
        std::fs::write(&file, text.replace("VIP", &address)).unwrap();
        network.node.sh(&format!("{load} {}", file.display()));
        let done = cluster.run(&["proxy", "--cleanup-own"]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let rules = network.node.sh("nft list ruleset; iptables-save");
        assert!(
            !rules.contains("KUBE-SERVICES-") && !rules.contains("pointsman"),
            "{rules}"
        );
        let so_far = traffic.answered();
        eventually("the successor serves", || traffic.answered() > so_far + 20);
        assert_eq!(traffic.stop(), [], "{mode}: no connection failed");
    }
}

/// Stands in for IPVS, of which this kernel may have nothing: it picks up, after all other translations, what arrives
/// for the cluster address that the node has on `kube-ipvs0`.
const IPVS: &str = "
table ip ipvs-stand-in {
    chain services {
        ip daddr VIP tcp dport 80 dnat to 10.0.1.5:8080
        ip daddr VIP tcp dport 81 dnat to 10.0.1.5:8081
    }
    chain prerouting { type nat hook prerouting priority -50; jump services; }
    chain output { type nat hook output priority -50; jump services; }
    chain postrouting { type nat hook postrouting priority 50; ip saddr VIP masquerade; }
}
";

/// Chains of IPVS mode, without what looks into sets.
const IPVS_CHAINS: &str = "*filter
:KUBE-NODE-PORT - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
-A INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT
-A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-A OUTPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER
-A KUBE-PROXY-FIREWALL -j KUBE-SOURCE-RANGES-FIREWALL
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -j KUBE-LOAD-BALANCER
COMMIT
";

#[test]
fn a_node_leaves_ipvs_mode_without_a_gap_and_its_link_waits_for_open_connections() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let address = service(&cluster);
    // A bridge, as the kernel may have no dummy; like kube-proxy's link it is not set up.
    network.node.ip("link add kube-ipvs0 type bridge");
    network.node.ip(&format!("addr add {address}/32 dev kube-ipvs0"));
    for (name, text, load) in [
        ("ipvs.nft", IPVS, "nft -f"),
        ("chains", IPVS_CHAINS, "iptables-restore --noflush"),
    ] {
        let file = cluster.directory().join(name);
        std::fs::write(&file, text.replace("VIP", &address)).unwrap();
        network.node.sh(&format!("{load} {}", file.display()));
    }
    let traffic = [&network.client, &network.node].map(|from| Network::traffic_from(from, &address, 80));
    let more = |what: &str| {
        let so_far = traffic.each_ref().map(|traffic| traffic.answered());
        eventually(what, || {
            let now = traffic.each_ref().map(|traffic| traffic.answered());
            now[0] > so_far[0] + 20 && now[1] > so_far[1] + 20
        });
    };
    more("the predecessor serves");
    // Its own address is the cluster address.
    let mut of_node = Network::echo_from(&network.node, &address, 81);
    assert_eq!(of_node.local_addr().unwrap().ip().to_string(), address);
    cluster.start_proxy(&["--proxy-mode=ipvs", "--iptables-sync-period=1s"]);
    let log = || std::fs::read_to_string(cluster.directory().join("proxy.log")).unwrap();
    eventually("it waits for a connection", || {
        log().contains("kube-ipvs0 goes when its connections have ended")
    });
    assert!(log().contains("mode ipvs: rules are written in nftables mode instead"));
    let chains = network.node.sh("iptables-save");
    assert!(!chains.contains("KUBE-"), "{chains}");
    network.node.sh("nft delete table ip ipvs-stand-in");
    more("ours serves");
    assert!(echoes(&mut of_node), "the node's connection goes on");
    let new = Network::echo_from(&network.node, &address, 81);
    assert_ne!(
        new.local_addr().unwrap().ip().to_string(),
        address,
        "new ones need the link no more"
    );
    drop(of_node);
    let links = || network.node.ip("-o link");
    eventually("the link is gone", || !links().contains("kube-ipvs0"));
    let local = network.node.ip("route show table local");
    assert!(!local.contains(&address), "{local}");
    more("ours serves without it");
    let [outside, node] = traffic.map(crate::node::Traffic::stop);
    assert_eq!((outside, node), (Vec::new(), Vec::new()), "no connection failed");
    assert_eq!(
        cluster.metric("pointsman_proxy_second_writer{mode=\"ipvs\"}"),
        0.0
    );
}
