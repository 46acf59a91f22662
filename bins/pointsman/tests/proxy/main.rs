//! Does a pod's health reach the kernel of a node, and how fast?
//!
//! The whole line with real parts: API server, controllers and proxy run as processes in a namespace that
//! is the node; a client and a backend live in namespaces of their own.
//!
//! ```text
//!   client 10.0.2.9 ---- node ---- backend 10.0.1.5:8080
//! ```

mod configuration;
mod doctor;
mod faults;
mod features;
mod image;
mod kubectl;
mod localhost;
mod metrics;
mod node;
mod observer;
mod observer_cost;
mod observer_truth;
mod peer;
mod peer_ipvs;
mod readers;
mod samples;
mod second_writer;
mod takeover;

use std::time::{Duration, Instant};

use node::{Answer, Network};
use pointsman_api_client::Resource;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_pods_readiness_decides_over_connections_in_iptables_mode() {
    pointsman_testkit::require_netns!();
    readiness_decides("iptables");
}

#[test]
fn a_pods_readiness_decides_over_connections_in_nftables_mode() {
    pointsman_testkit::require_netns!();
    readiness_decides("nftables");
}

fn readiness_decides(mode: &str) {
    let network = Network::new();
    let cluster = network.start(mode);
    cluster.create(Resource::NODES, None, NODE);
    let service = cluster.create(Resource::SERVICES, Some("default"), SERVICE);
    cluster.create(Resource::PODS, Some("default"), POD);
    let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();

    eventually("a Service without endpoints refuses", || {
        network.ask(&address, 80) == Answer::Refused
    });
    cluster.patch_pod_status("web-1", status("True"));
    eventually("a ready pod answers through the cluster address", || {
        network.ask(&address, 80) == Answer::Said("10.0.1.5".into())
    });
    cluster.patch_pod_status("web-1", status("False"));
    eventually("an unready pod is not asked any more", || {
        network.ask(&address, 80) == Answer::Refused
    });

    for series in [
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}",
        "pointsman_network_programming_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
        "pointsman_proxy_watermark_resource_version{resource=\"endpointslices\"}",
    ] {
        // Metrics follow the kernel, so the client may have been quicker.
        eventually(series, || cluster.metric(series) >= 1.0);
    }
    let line: serde_json::Value = serde_json::from_str(&cluster.first_line(10249, "/watermark")).unwrap();
    assert!(line["endpointSlices"].as_u64() >= Some(1), "{line}");
    assert!(cluster.get(10256, "/healthz").contains("\"nodeEligible\":true"));
    assert_eq!(cluster.get(10249, "/proxyMode"), mode);

    cluster.clean_up();
    assert!(!network.has_rules(), "--cleanup leaves no rules");
}

const NODE: &str = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}"#;
const SERVICE: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},
    "spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}"#;
const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-1","labels":{"app":"web"}},
    "spec":{"nodeName":"n1","containers":[{"name":"web","image":"host"}]}}"#;

/// What a kubelet says about a pod that runs.
fn status(ready: &str) -> String {
    let now = jiff::Timestamp::now();
    let condition =
        serde_json::json!({"type": "Ready", "status": ready, "lastTransitionTime": format!("{now:.0}")});
    serde_json::json!({"status": {
        "phase": "Running",
        "podIP": "10.0.1.5",
        "podIPs": [{"ip": "10.0.1.5"}],
        "conditions": [condition],
    }})
    .to_string()
}

/// Asks again and again until it is so.
fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, is_so);
}

/// The same for what takes its time on any machine.
fn eventually_within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
