//! What does an observer cost beside a real kube-proxy in a large cluster?
//!
//! `PEER_KUBE_PROXY` names the program, and without one this is not run. `POINTSMAN_PROGRAM` names a release build of ours,
//! without which the figures mean little; `POINTSMAN_SERVICES` makes the cluster smaller.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use pointsman_api_client::{Client, Resource};
use serde_json::{Value, json};

use crate::eventually_within;
use crate::features::endpoint;
use crate::node::{Cluster, Network};
use crate::observer_truth::start_kube_proxy;

const SERVICES: usize = 10_000;
const ENDPOINTS: u8 = 5;
/// How long it is watched, and how often something changes meanwhile.
const WATCHED: Duration = Duration::from_secs(60);
const PERIOD: Duration = Duration::from_secs(1);
/// What it may cost: a hundredth of a core, and this much memory.
const SHARE: f64 = 0.01;
const MEBIBYTES: f64 = 60.0;
/// A cold start of kube-proxy takes minutes at this size.
const PATIENCE: Duration = Duration::from_secs(900);

/// A slice with endpoints that no other Service has.
fn endpoints(service: usize, round: u8) -> Vec<Value> {
    let (high, low) = (service / 250, 1 + service % 250);
    let address = |number| format!("10.{}.{high}.{low}", 100 + number + round * ENDPOINTS);
    (0..ENDPOINTS).map(|number| endpoint(&address(number))).collect()
}

async fn create(client: &Client, number: usize) -> Result<(), pointsman_api_client::ApiError> {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{number}")},
        "spec": {"ports": [{"port": 80, "targetPort": 8080}]}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("s{number}-x"), "labels": {"kubernetes.io/service-name": format!("s{number}")}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080}], "endpoints": endpoints(number, 0)});
    for (resource, object) in [(Resource::SERVICES, service), (Resource::ENDPOINT_SLICES, slice)] {
        let api = client.api(resource, Some("default"));
        api.create::<Value>(object.to_string()).await?;
    }
    Ok(())
}

/// Seconds of processor time so far, and resident mebibytes now and at most.
fn usage(pid: u32) -> (f64, f64, f64) {
    let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let stat = read("stat");
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = |field: &str| field.parse::<f64>().unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let status = read("status");
    let mebibytes = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    };
    let seconds = (ticks(fields[11]) + ticks(fields[12])) / 100.0;
    (seconds, mebibytes("VmRSS:"), mebibytes("VmHWM:"))
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY, and minutes"]
fn an_observer_costs_little_beside_kube_proxy_in_a_large_cluster_in_nftables_mode() {
    costs_little_beside_kube_proxy("nftables");
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY, and minutes"]
fn an_observer_costs_little_beside_kube_proxy_in_a_large_cluster_in_iptables_mode() {
    costs_little_beside_kube_proxy("iptables");
}

fn costs_little_beside_kube_proxy(mode: &str) {
    pointsman_testkit::require_netns!();
    let services = std::env::var("POINTSMAN_SERVICES").map_or(SERVICES, |count| count.parse().unwrap());
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let made = cluster.call(async move |client| {
        let made = (0..services).map(|number| create(&client, number));
        stream::iter(made).buffer_unordered(32).try_collect::<()>().await
    });
    made.unwrap();
    start_kube_proxy(&mut cluster, mode);
    cluster.start_observer(mode);
    let said = |cluster: &Cluster<'_>| {
        cluster.metric("pointsman_proxy_watermark_resource_version{resource=\"endpointslices\"}")
    };
    let began = Instant::now();
    eventually_within(PATIENCE, "the first rules are said", || said(&cluster) > 0.0);
    eprintln!(
        "{mode}, {services} x {ENDPOINTS}: all rules are said after {:.0?}",
        began.elapsed()
    );

    let pid = cluster.pid("proxy");
    let (before, ..) = usage(pid);
    let (began, mut newest) = (Instant::now(), 0);
    for change in 0..WATCHED.as_secs() as u32 {
        let service = change as usize * 7 % services;
        let ports = json!([{"name": "", "port": 8080}]);
        newest = cluster.endpoints(&format!("s{service}"), &ports, &endpoints(service, 1));
        let next = began + PERIOD * (change + 1);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let (after, resident, most) = usage(pid);
    let share = (after - before) / began.elapsed().as_secs_f64();
    eprintln!(
        "{mode}, {services} x {ENDPOINTS}, 1 change/s: {:.2} % of a core, {resident:.1} MiB resident, {most:.1} MiB at most",
        share * 100.0
    );
    eventually_within(PATIENCE, "all changes are said", || {
        said(&cluster) >= newest as f64
    });
    // A debug build is not what the bounds are for.
    if std::env::var_os("POINTSMAN_PROGRAM").is_some() && services <= SERVICES {
        assert!(
            share <= SHARE && resident <= MEBIBYTES,
            "{share} of a core, {resident} MiB"
        );
    }
}
