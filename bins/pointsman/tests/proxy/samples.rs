//! Is every change of a Service that alters rules a sample of the SLI, and nothing else?

use pointsman_api_client::{ApiError, Patch, Resource};
use serde_json::{Value, json};

use crate::eventually;
use crate::node::{Cluster, Network};

const POOLED: [&str; 2] = [
    "kubeproxy_network_programming_duration_seconds",
    "pointsman_network_programming_duration_seconds",
];
const EXACT: &str =
    "pointsman_network_programming_samples_total{ip_family=\"IPv4\",resource=\"services\",dated=\"exact\"}";

#[test]
fn changes_of_services_are_samples_in_iptables_mode() {
    pointsman_testkit::require_netns!();
    services_are_measured("iptables");
}

#[test]
fn changes_of_services_are_samples_in_nftables_mode() {
    pointsman_testkit::require_netns!();
    services_are_measured("nftables");
}

fn services_are_measured(mode: &str) {
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80, "targetPort": 8080}]});
    cluster.service("web", &spec);
    cluster.start_proxy(&["--proxy-mode", mode, "--iptables-min-sync-period=0s"]);
    // Its version is that of a write which changes nothing.
    up_to_date(&cluster, patch(&cluster, &json!({})));
    assert_eq!(samples(&cluster), [0.0; 3], "a start invents nothing");

    let changes = [
        json!({"spec": {"ports": [{"port": 81, "targetPort": 8080}]}}),
        json!({"spec": {"ports": [{"port": 81, "targetPort": 8080, "nodePort": 30099}]}}),
        json!({"spec": {"externalIPs": ["192.0.2.7"]}}),
        json!({"spec": {"sessionAffinity": "ClientIP"}}),
        json!({"spec": {"internalTrafficPolicy": "Local"}}),
        json!({"spec": {"externalTrafficPolicy": "Local"}}),
        json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.8"}]}}}),
        json!({"spec": {"loadBalancerSourceRanges": ["198.51.100.0/24"]}}),
    ];
    for (count, change) in (1_u32..).zip(changes) {
        patch(&cluster, &change);
        eventually(&change.to_string(), || samples(&cluster) == [f64::from(count); 3]);
    }
    for idle in [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"spec": {"selector": {"app": "other"}}}),
    ] {
        up_to_date(&cluster, patch(&cluster, &idle));
        assert_eq!(samples(&cluster), [8.0; 3], "{idle} touches no rule");
    }
    cluster.delete(Resource::SERVICES, Some("default"), "web");
    eventually("the deletion is a sample", || samples(&cluster) == [9.0; 3]);
    // Nothing was dated before its write: nine changes took less time than the whole test did.
    let sum = cluster.metric(&format!("{}_sum{{ip_family=\"IPv4\"}}", POOLED[0]));
    assert!(sum > 0.0 && sum < 9.0 * crate::PATIENCE.as_secs_f64(), "{sum} s");
}

/// Samples in both metrics, and those among them that the API server's microseconds date.
fn samples(cluster: &Cluster<'_>) -> [f64; 3] {
    let [coarse, fine] = POOLED.map(|name| cluster.metric(&format!("{name}_count{{ip_family=\"IPv4\"}}")));
    [coarse, fine, cluster.metric(EXACT)]
}

/// Changes the Service, or its status; returns its version.
fn patch(cluster: &Cluster<'_>, change: &Value) -> f64 {
    let (of_status, body) = (change["status"].is_object(), change.to_string());
    let patched = cluster.call(async move |client| -> Result<Value, ApiError> {
        let services = client.api(Resource::SERVICES, Some("default"));
        let patch = Patch::Merge(body.into_bytes());
        match of_status {
            true => services.patch_status("web", patch).await,
            false => services.patch("web", patch).await,
        }
    });
    let version = patched.unwrap()["metadata"]["resourceVersion"].clone();
    version.as_str().unwrap().parse().unwrap()
}

/// Waits until everything up to this version is in the kernel.
fn up_to_date(cluster: &Cluster<'_>, version: f64) {
    let mark = "pointsman_proxy_watermark_resource_version{resource=\"services\"}";
    eventually("the proxy has the version", || cluster.metric(mark) >= version);
}
