//! Do dashboards for kube-proxy find what they ask for?

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::eventually;
use crate::node::Network;

/// kube-proxy's metrics, as data.
const UPSTREAM: &str = include_str!("kube_proxy_metrics.txt");

/// Type and labels by name, of all lines that a mode has.
fn upstream(mode: &str) -> BTreeMap<String, (String, String)> {
    let lines = UPSTREAM.lines().filter(|line| !line.starts_with(['#', '-']));
    let fields = lines.map(|line| line.split(' ').collect::<Vec<_>>());
    let of_mode = fields.filter(|fields| fields[3] == "*" || fields[3] == mode);
    of_mode
        .map(|fields| {
            (
                fields[0].to_owned(),
                (fields[1].to_owned(), fields[2].replace('-', "")),
            )
        })
        .collect()
}

/// The same for ours, by the reference that is made from the definitions.
fn ours(mode: &str) -> BTreeMap<String, (String, String)> {
    let made = Command::new(env!("CARGO_BIN_EXE_pointsman"))
        .arg("metrics-reference")
        .output();
    let page = String::from_utf8(made.unwrap().stdout).unwrap();
    let sections = page.split("\n## ");
    let wanted = sections.filter(|section| {
        section.starts_with("Every role") || section.starts_with(&format!("pointsman proxy, {mode}"))
    });
    let rows = wanted.flat_map(str::lines).filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let kind = cells[2].split(',').next().unwrap().to_owned();
        let labels = cells[3].replace(['`', ' '], "");
        (cells[1].trim_matches('`').to_owned(), (kind, labels))
    })
    .collect()
}

#[test]
fn every_metric_of_kube_proxy_is_there_with_its_type_and_labels_or_a_reason_is_given() {
    for mode in ["iptables", "nftables"] {
        let ours = ours(mode);
        for (name, expected) in upstream(mode) {
            assert_eq!(ours.get(&name), Some(&expected), "{name} in {mode} mode");
        }
        // What is given up has a reason, and is not there by now.
        for line in UPSTREAM.lines().filter(|line| line.starts_with('-')) {
            let fields: Vec<&str> = line.splitn(6, ' ').collect();
            assert!(fields.len() == 6 && fields[5].len() > 5, "no reason: {line}");
            assert!(!ours.contains_key(fields[1]), "{} is there by now", fields[1]);
        }
    }
    let count = |prefix| UPSTREAM.lines().filter(|line| line.starts_with(prefix)).count();
    let (shown, left_out) = (count("rest_client_"), count("- rest_client_"));
    let said = format!("| `rest_client_*`: {shown} of requests | all; {left_out} of limits");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proxy.md");
    assert!(std::fs::read_to_string(page).unwrap().contains(&said), "{said}");
}

#[test]
fn a_running_proxy_shows_its_requests_build_gates_and_whole_configuration() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.start_proxy(&[
        "--proxy-mode=iptables",
        "--feature-gates=MinimizeIPTablesRestore=false",
        "--oom-score-adj=-5",
    ]);
    eventually("the proxy writes rules", || {
        cluster.metric("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}") > 0.0
    });
    let lists = "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"127.0.0.1:6443\"}";
    assert!(cluster.metric(lists) >= 2.0, "lists and watches");
    let times = "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"127.0.0.1:6443\"}";
    assert!(cluster.metric(times) >= cluster.metric(lists));
    let gate = "kubernetes_feature_enabled{name=\"MinimizeIPTablesRestore\",stage=\"\"}";
    let text = cluster.get(10249, "/metrics");
    assert!(text.lines().any(|line| line == format!("{gate} 0")), "{text}");
    assert!(text.contains("kubernetes_build_info{"), "{text}");
    cluster.kill("apiserver");
    let failed = "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"127.0.0.1:6443\"}";
    eventually("requests without an answer are counted", || {
        cluster.metric(failed) > 0.0
    });

    let shown: Value = serde_json::from_str(&cluster.get(10249, "/configz")).unwrap();
    let shown = &shown["kubeproxy.config.k8s.io"];
    let fields = [
        "apiVersion",
        "bindAddress",
        "bindAddressHardFail",
        "clientConnection.acceptContentTypes",
        "clientConnection.burst",
        "clientConnection.contentType",
        "clientConnection.kubeconfig",
        "clientConnection.qps",
        "clusterCIDR",
        "configSyncPeriod",
        "conntrack.maxPerCore",
        "conntrack.min",
        "conntrack.tcpBeLiberal",
        "conntrack.tcpCloseWaitTimeout",
        "conntrack.tcpEstablishedTimeout",
        "conntrack.udpStreamTimeout",
        "conntrack.udpTimeout",
        "detectLocal.bridgeInterface",
        "detectLocal.interfaceNamePrefix",
        "detectLocalMode",
        "enableProfiling",
        "featureGates",
        "healthzBindAddress",
        "hostnameOverride",
        "iptables.localhostNodePorts",
        "iptables.masqueradeAll",
        "iptables.masqueradeBit",
        "iptables.minSyncPeriod",
        "iptables.syncPeriod",
        "ipvs.excludeCIDRs",
        "ipvs.minSyncPeriod",
        "ipvs.scheduler",
        "ipvs.strictARP",
        "ipvs.syncPeriod",
        "ipvs.tcpFinTimeout",
        "ipvs.tcpTimeout",
        "ipvs.udpTimeout",
        "kind",
        "logging",
        "metricsBindAddress",
        "mode",
        "nftables.masqueradeAll",
        "nftables.masqueradeBit",
        "nftables.minSyncPeriod",
        "nftables.syncPeriod",
        "nodePortAddresses",
        "oomScoreAdj",
        "portRange",
        "showHiddenMetricsForVersion",
        "winkernel.enableDSR",
        "winkernel.forwardHealthCheckVip",
        "winkernel.networkName",
        "winkernel.rootHnsEndpointName",
        "winkernel.sourceVip",
    ];
    for field in fields {
        let pointer = format!("/{}", field.replace('.', "/"));
        assert!(shown.pointer(&pointer).is_some(), "{field} in {shown:#}");
    }
    assert_eq!(shown["oomScoreAdj"], -5);
}
