//! Does a node change its proxy without anybody noticing?

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::eventually;
use crate::features::endpoint;
use crate::node::{Cluster, Network};

/// A table as kube-proxy writes it, as far as packets can tell.
const PREDECESSOR: &str = "
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
const SUCCESSOR: &str = "*filter
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
