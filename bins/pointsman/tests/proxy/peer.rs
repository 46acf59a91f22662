//! Does a node change from a real kube-proxy to ours and back without anybody noticing?
//!
//! `PEER_KUBE_PROXY` names the program, and without one these tests are not run (`--run-ignored all` runs them).
//! [`takeover`](crate::takeover) has stand-ins that always run.

use std::time::Instant;

use serde_json::json;

use crate::eventually;
use crate::features::{answers, endpoint};
use crate::node::{Cluster, Network};
use crate::takeover::{echoes, service};

pub const SYNCED: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";

pub fn start_kube_proxy(cluster: &mut Cluster<'_>, program: &str, mode: &str) {
    let kubeconfig = cluster.kubeconfig.display().to_string();
    let arguments = [
        "--kubeconfig",
        &kubeconfig,
        "--hostname-override=n1",
        "--cluster-cidr=10.0.0.0/16,fd00::/48",
        "--proxy-mode",
        mode,
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0s",
        "--conntrack-tcp-timeout-close-wait=0s",
    ];
    cluster.spawn_program("kube-proxy", program, &arguments);
}

/// From the real one to ours and back, with connections all the time.
fn there_and_back(mode: &str) {
    let program = std::env::var("PEER_KUBE_PROXY").expect("PEER_KUBE_PROXY names a kube-proxy");
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let address = service(&cluster);
    start_kube_proxy(&mut cluster, &program, mode);
    answers(&network, &address, "10.0.1.5");
    let mut open = network.echo(&address, 81);
    let traffic = network.traffic(&address, 80);
    let more = |what: &str| {
        let so_far = traffic.answered();
        eventually(what, || traffic.answered() > so_far + 100);
    };
    more("kube-proxy serves");

    let began = Instant::now();
    cluster.kill("kube-proxy");
    cluster.start_proxy(&["--proxy-mode", mode]);
    eventually("ours has written its rules", || cluster.metric(SYNCED) > 0.0);
    let rules = || network.node.sh("nft list ruleset; iptables-save");
    eventually("only ours are left", || {
        let rules = rules();
        !rules.contains("table ip kube-proxy")
            && (rules.contains("table ip pointsman") || rules.contains("KUBE-SERVICES-"))
    });
    let there = began.elapsed();
    more("ours serves");

    cluster.kill("proxy");
    let early = cluster.run(&["proxy", "--cleanup-own"]);
    assert!(!early.status.success(), "packets still need our rules");
    more("rules without a proxy serve");
    let began = Instant::now();
    start_kube_proxy(&mut cluster, &program, mode);
    eventually("kube-proxy has taken over and ours can go", || {
        cluster.run(&["proxy", "--cleanup-own"]).status.success()
    });
    let back = began.elapsed();
    let left = rules();
    assert!(
        !left.contains("KUBE-SERVICES-") && !left.contains("pointsman"),
        "{left}"
    );
    more("kube-proxy serves again");

    // What kube-proxy does afterwards must not stumble over anything of ours.
    cluster.kubectl(&["delete", "service", "other-38", "other-39"]);
    let late = cluster.service("late", &json!({"ports": [{"port": 80, "targetPort": 8080}]}));
    cluster.endpoints(
        "late",
        &json!([{"name": "", "port": 8080}]),
        &[endpoint("10.0.1.6")],
    );
    answers(&network, &late, "10.0.1.6");
    eventually("removed Services are gone", || {
        !rules().contains("default/other-39")
    });
    for failures in [
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"}",
    ] {
        assert_eq!(cluster.metric(failures), 0.0, "{failures}");
    }
    assert!(echoes(&mut open), "an open connection goes on");
    let answered = traffic.answered();
    assert_eq!(traffic.stop(), [], "no connection failed");
    eprintln!("{mode}: {answered} connections, none failed; there in {there:.2?}, back in {back:.2?}");
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY"]
fn a_real_kube_proxy_in_iptables_mode_is_replaced_and_comes_back_without_a_gap() {
    pointsman_testkit::require_netns!();
    there_and_back("iptables");
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY"]
fn a_real_kube_proxy_in_nftables_mode_is_replaced_and_comes_back_without_a_gap() {
    pointsman_testkit::require_netns!();
    there_and_back("nftables");
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY"]
fn a_kube_proxy_that_comes_back_is_noticed_in_any_mode_beside_any_of_ours() {
    pointsman_testkit::require_netns!();
    let program = std::env::var("PEER_KUBE_PROXY").expect("PEER_KUBE_PROXY names a kube-proxy");
    for (ours, theirs) in [
        ("nftables", "nftables"),
        ("nftables", "iptables"),
        ("iptables", "nftables"),
        ("iptables", "iptables"),
    ] {
        let network = Network::new();
        let mut cluster = network.start_server();
        cluster.node_object();
        let address = service(&cluster);
        cluster.start_proxy(&["--proxy-mode", ours]);
        answers(&network, &address, "10.0.1.5");
        let seen = format!("pointsman_proxy_second_writer{{mode=\"{theirs}\"}}");
        assert_eq!(cluster.metric(&seen), 0.0);
        let began = Instant::now();
        start_kube_proxy(&mut cluster, &program, theirs);
        eventually("it is noticed", || cluster.metric(&seen) == 1.0);
        eprintln!(
            "{ours} beside kube-proxy in {theirs} mode: noticed after {:?}",
            began.elapsed()
        );
    }
}
