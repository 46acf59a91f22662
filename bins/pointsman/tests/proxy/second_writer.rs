//! Does a proxy notice that kube-proxy writes rules on its node, too?

use crate::eventually;
use crate::node::{Cluster, Network};
use crate::takeover::{PREDECESSOR, SUCCESSOR, service};

fn is_seen(cluster: &Cluster<'_>, mode: &str) -> bool {
    cluster.metric(&format!("pointsman_proxy_second_writer{{mode=\"{mode}\"}}")) == 1.0
}

/// Loads rules as kube-proxy would, after ours replaced what it left.
fn load(network: &Network, cluster: &Cluster<'_>, program: &str, rules: &str) {
    let file = cluster.directory().join("kube-proxy.rules");
    std::fs::write(&file, rules).unwrap();
    network.node.sh(&format!("{program} {}", file.display()));
}

/// What the proxy said about it: events on the Node, lines of its log, and `/healthz`, which stays good.
fn check_words(cluster: &Cluster<'_>, mode: &str) {
    let words = format!("kube-proxy in {mode} mode writes rules on this node");
    let health = cluster.get(10256, "/healthz");
    assert!(health.contains(&format!("kube-proxy in {mode} mode")), "{health}");
    assert!(cluster.status(10256, "/healthz").contains("200"));
    let events = || cluster.kubectl(&["get", "events", "-A", "-o", "json"]);
    eventually("there is an event", || events().contains("SecondServiceProxy"));
    let events: serde_json::Value = serde_json::from_str(&events()).unwrap();
    let items = events["items"].as_array().unwrap();
    let found: Vec<_> = items
        .iter()
        .filter(|event| event["reason"] == "SecondServiceProxy" && event["involvedObject"]["name"] == "n1")
        .collect();
    assert_eq!(found.len(), 1, "{events}");
    assert!(found[0]["message"].as_str().unwrap().contains(&words), "{events}");
    let log = std::fs::read_to_string(cluster.directory().join("proxy.log")).unwrap();
    assert_eq!(log.matches(&words).count(), 1, "{log}");
}

#[test]
fn tables_that_appear_after_the_predecessors_were_removed_have_a_second_writer() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let address = service(&cluster);
    let table = PREDECESSOR.replace("VIP", &address);
    load(&network, &cluster, "nft -f", &table);
    cluster.start_proxy(&["--proxy-mode=nftables", "--iptables-sync-period=1s"]);
    let there = || network.node.sh("nft list tables").contains("kube-proxy");
    eventually("what was left is removed", || !there());
    let looked =
        || cluster.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"}") > 0.0;
    eventually("both families are written", looked);
    // A later look has to find them, and the first look comes within a second.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(!is_seen(&cluster, "nftables"), "what was left is no writer");
    load(&network, &cluster, "nft -f", &table);
    eventually("the table is noticed", || is_seen(&cluster, "nftables"));
    check_words(&cluster, "nftables");
    let chains = SUCCESSOR.replace("VIP", &address);
    load(&network, &cluster, "iptables-nft-restore --noflush", &chains);
    eventually("so are chains", || is_seen(&cluster, "iptables"));
    network
        .node
        .sh("nft delete table ip kube-proxy; nft delete table ip6 kube-proxy");
    eventually("the table's writer is gone", || !is_seen(&cluster, "nftables"));
    network.node.sh("ip link add kube-ipvs0 type bridge");
    eventually("so is the link of IPVS mode", || is_seen(&cluster, "ipvs"));
}

#[test]
fn one_that_writes_over_our_own_chains_is_noticed() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let address = service(&cluster);
    cluster.start_proxy(&["--proxy-mode=iptables", "--iptables-sync-period=1s"]);
    let buckets = || network.node.sh("iptables-save").contains("KUBE-SERVICES-");
    eventually("rules are there", buckets);
    assert!(!is_seen(&cluster, "iptables"));
    let chains = SUCCESSOR.replace("VIP", &address);
    load(&network, &cluster, "iptables-restore --noflush", &chains);
    eventually("it is noticed", || is_seen(&cluster, "iptables"));
    check_words(&cluster, "iptables");
    eventually("ours are back", buckets);
}
