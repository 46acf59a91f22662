//! Nodes that die or are cut off: does everything that follows come at the profile's times?
//!
//! Profiles count in minutes, so the settings of the cluster, all of which can change while it runs, are
//! divided by a number. `POINTSMAN_TIME_SCALE=1` takes the profiles as they are, from the start of the cluster;
//! `docs/latency-profiles.md` says how to measure with it.

use crate::cluster::{Cluster, eventually, program};
use crate::harm::{CutOff, Dead};
use crate::history::{History, Observer, assert_always_well, condition, is_unreachable, name, taints};
use jiff::Timestamp;
use pointsman_api_client::Resource;
use pointsman_testkit::require_netns;
use serde_json::{Value, json};
use std::time::Duration;

const SLICES: Resource = Resource::new("discovery.k8s.io", "v1", "endpointslices");
const KILLED: &str = "n3";
const CUT_OFF: &str = "n4";
/// What is forgiven to a machine that is busy with other tests, in seconds.
const SLACK: f64 = 10.0;
/// The test hears of a last report later than the controllers by at most so much.
const SKEW: f64 = 0.25;

/// A profile's settings, in seconds.
#[derive(Clone, Copy)]
struct Profile {
    name: &'static str,
    report: f64,
    grace: f64,
    toleration: f64,
}

/// What happens to a silent node and its pod, in seconds since the last that was heard of it.
struct Fate {
    node: &'static str,
    unknown: f64,
    not_scheduled: f64,
    unready: f64,
    tainted: f64,
    evicted: f64,
}

const DEFAULT: Profile = Profile {
    name: "Default",
    report: 10.0,
    grace: 40.0,
    toleration: 300.0,
};
const MEDIUM: Profile = Profile {
    name: "MediumUpdateAverageReaction",
    report: 20.0,
    grace: 120.0,
    toleration: 60.0,
};
const LOW: Profile = Profile {
    name: "LowUpdateSlowReaction",
    report: 60.0,
    grace: 300.0,
    toleration: 60.0,
};

#[test]
fn nodes_are_lost_at_the_times_of_the_default_profile() {
    require_netns!();
    lose_nodes(DEFAULT);
}

#[test]
fn nodes_are_lost_at_the_times_of_the_low_profile() {
    require_netns!();
    lose_nodes(LOW);
}

#[test]
fn nodes_are_lost_at_the_times_of_the_medium_profile_and_welcomed_back() {
    require_netns!();
    let Lost { nodes, cut_off, .. } = &mut lose_nodes(MEDIUM);
    let heard = nodes.len();
    *cut_off = None;
    nodes.first("the node is welcomed back", heard, |node| {
        name(node) == CUT_OFF && condition(node, "Ready") == "True" && taints(node).is_empty()
    });
}

/// A cluster that lost two nodes.
struct Lost {
    cut_off: Option<CutOff>,
    nodes: History,
    _dead: Dead,
    _observer: Observer,
    _cluster: Cluster,
}

/// How much faster than the profile everything goes. Tolerations and leases count whole seconds.
fn scale() -> f64 {
    let text = std::env::var("POINTSMAN_TIME_SCALE").unwrap_or_else(|_| "20".to_owned());
    let scale: u32 = text.parse().unwrap();
    assert!(
        20_u32.is_multiple_of(scale),
        "POINTSMAN_TIME_SCALE must divide 20"
    );
    f64::from(scale)
}

fn lose_nodes(profile: Profile) -> Lost {
    let mut cluster = Cluster::not_started();
    // Divided values are nobody's profile: its owners would put them right.
    cluster.profile = (scale() == 1.0).then(|| profile.name.to_owned());
    let lease = format!("--node-lease-duration-seconds={}", 40.0 / scale());
    cluster.start_again(&["--nodes=4", &lease]);
    let observer = Observer::of(&cluster);
    if scale() != 1.0 {
        configure(&cluster, profile);
    }
    // What was said under other settings does not count.
    let nodes = observer.follow(Resource::NODES);
    let leases = observer.follow(Resource::LEASES);
    let pods = observer.follow(Resource::PODS);
    let slices = observer.follow(SLICES);
    run_pods(&cluster, &slices);
    for node in [KILLED, CUT_OFF] {
        eventually("the lease is renewed", || {
            let renewals = changes(node, &leases, |lease| &lease["spec"]["renewTime"]);
            (!renewals.is_empty()).then_some(())
        });
    }

    let dead = Dead::node(&cluster, KILLED);
    let cut_off = CutOff::node(&cluster, CUT_OFF);
    let fates = [KILLED, CUT_OFF].map(|node| fate(node, &nodes, &leases, &pods, &slices));
    report(profile, &fates);
    for fate in &fates {
        check(profile, fate);
    }
    assert_always_well(&nodes, &["n1", "n2"]);
    let others = pods.since(0);
    let other = others.iter().filter(|sight| name(&sight.object) == "pod-n1");
    for sight in other.skip_while(|sight| condition(&sight.object, "Ready") != "True") {
        assert_eq!(condition(&sight.object, "Ready"), "True", "{:#}", sight.object);
        assert_eq!(sight.object["metadata"]["deletionTimestamp"], Value::Null);
    }
    Lost {
        cut_off: Some(cut_off),
        nodes,
        _dead: dead,
        _observer: observer,
        _cluster: cluster,
    }
}

/// Changes the settings of the running cluster, and returns when all components use them.
fn configure(cluster: &Cluster, profile: Profile) {
    let scale = scale();
    let scaled = |seconds: f64| format!("{}ms", (seconds * 1000.0 / scale).round());
    let toleration = (profile.toleration / scale).to_string();
    let map = |name: &str, data: Value| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": { "name": name, "namespace": "kube-system" } })
    };
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
        map("pointsman-controllers", json!({
            "nodeMonitorPeriod": scaled(5.0),
            "nodeMonitorGracePeriod": scaled(profile.grace),
            "nodeStartupGracePeriod": scaled(60.0),
            "nodeEvictionRate": (0.1 * scale).to_string(),
        })),
        map("pointsman-node", json!({ "nodeStatusUpdateFrequency": scaled(profile.report) })),
        map("pointsman-apiserver", json!({
            "default-not-ready-toleration-seconds": toleration,
            "default-unreachable-toleration-seconds": toleration,
        })),
    ] });
    // Nodes have to report more often before the controllers become impatient.
    for item in [1, 2, 0] {
        let text = list["items"][item].to_string();
        cluster.kubectl_with(&["apply", "--validate=false", "-f", "-"], &text);
        eventually("the settings are in force", || {
            is_in_force(cluster, item, profile).then_some(())
        });
    }
}

fn is_in_force(cluster: &Cluster, item: usize, profile: Profile) -> bool {
    let get = |arguments: &[&str]| -> Value {
        let all = [&["get", "-o", "json"], arguments].concat();
        serde_json::from_str(&cluster.kubectl(&all)).unwrap()
    };
    let says = |object: &Value, key: &str, seconds: f64| {
        let text = object["metadata"]["annotations"][format!("pointsman.io/{key}")].as_str();
        let found = text.and_then(pointsman_model::duration::parse);
        found.is_some_and(|found| (found.as_secs_f64() - seconds / scale()).abs() < 1e-3)
    };
    let namespace = "--namespace=kube-system";
    match item {
        0 => {
            let map = get(&["configmap", "pointsman-controllers", namespace]);
            says(&map, "observed-node-monitor-grace-period", profile.grace)
        }
        1 => {
            let nodes = get(&["nodes"]);
            let mut all = nodes["items"].as_array().unwrap().iter();
            all.all(|node| says(node, "node-status-update-frequency", profile.report))
        }
        _ => {
            let map = get(&["configmap", "pointsman-apiserver", namespace]);
            let key = "pointsman.io/observed-default-unreachable-toleration-seconds";
            let seconds = (profile.toleration / scale()).to_string();
            map["metadata"]["annotations"][key].as_str() == Some(&seconds)
        }
    }
}

/// Runs a pod on a node that lives and on each that does not, behind a Service.
fn run_pods(cluster: &Cluster, slices: &History) {
    let labels = json!({ "app": "web" });
    let mut items = vec![json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": labels, "ports": [{ "port": 80, "targetPort": 8080 }] },
    })];
    for node in ["n1", KILLED, CUT_OFF] {
        let container = json!({
            "name": "web", "image": "host", "command": [program(), "serve-http"],
            "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1 },
        });
        items.push(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("pod-{node}"), "labels": labels },
            "spec": { "nodeName": node, "terminationGracePeriodSeconds": 2, "containers": [container] },
        }));
    }
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &list.to_string());
    slices.first("all three pods are ready", 0, |slice| {
        ["n1", KILLED, CUT_OFF]
            .iter()
            .all(|node| is_endpoint_ready(slice, node) == Some(true))
    });
}

/// Whether a slice says that the pod on a node is ready; nothing if it does not know it.
fn is_endpoint_ready(slice: &Value, node: &str) -> Option<bool> {
    let mut endpoints = slice["endpoints"].as_array()?.iter();
    let endpoint = endpoints.find(|endpoint| endpoint["targetRef"]["name"] == format!("pod-{node}"))?;
    endpoint["conditions"]["ready"].as_bool()
}

/// Waits for the end of a node and looks back.
fn fate(node: &'static str, nodes: &History, leases: &History, pods: &History, slices: &History) -> Fate {
    let patience = Duration::from_secs_f64(60.0 + 400.0 / scale());
    let unknown = nodes.first_within(patience, "the node is called unknown", 0, |object| {
        name(object) == node && condition(object, "Ready") == "Unknown"
    });
    let last = last_heard(node, nodes, leases, unknown.at);
    let since = |at: Timestamp| at.duration_since(last).as_secs_f64();
    let tainted = |effect: &'static str| {
        let sight = nodes.first("the node is tainted", 0, |object| {
            name(object) == node && is_unreachable(object, effect)
        });
        since(sight.at)
    };
    let begun = slices.since(0);
    let ready = begun
        .iter()
        .position(|sight| is_endpoint_ready(&sight.object, node) == Some(true));
    let unready = slices.first("its pod is out of service", ready.unwrap(), |slice| {
        is_endpoint_ready(slice, node) == Some(false)
    });
    let evicted = pods.first_within(patience, "its pod is evicted", 0, |pod| {
        name(pod) == format!("pod-{node}") && pod["metadata"]["deletionTimestamp"].is_string()
    });
    Fate {
        node,
        unknown: since(unknown.at),
        not_scheduled: tainted("NoSchedule"),
        unready: since(unready.at),
        tainted: tainted("NoExecute"),
        evicted: since(evicted.at),
    }
}

/// When the node itself was last heard before the verdict: its last report or the last renewal of its lease.
fn last_heard(node: &str, nodes: &History, leases: &History, verdict: Timestamp) -> Timestamp {
    let beats = changes(node, nodes, |node| &node["status"]["conditions"]);
    let renewals = changes(node, leases, |lease| &lease["spec"]["renewTime"]);
    let all = beats.into_iter().chain(renewals);
    all.filter(|at| *at < verdict).max().unwrap()
}

/// When a part of an object changed. How it was at first is no change: nobody knows since when it is so.
fn changes(node: &str, history: &History, part: fn(&Value) -> &Value) -> Vec<Timestamp> {
    let sights = history.since(0);
    let sights: Vec<_> = sights
        .iter()
        .filter(|sight| name(&sight.object) == node)
        .collect();
    let pairs = sights.windows(2);
    pairs
        .filter(|pair| part(&pair[0].object) != part(&pair[1].object))
        .map(|pair| pair[1].at)
        .collect()
}

/// Nothing comes before its time, and everything comes with the next look and in its turn.
fn check(profile: Profile, fate: &Fate) {
    let scale = scale();
    let (grace, toleration) = (profile.grace / scale, profile.toleration / scale);
    let look = 5.0 / scale;
    let turn = 10.0 / scale;
    let between = |what: &str, measured: f64, earliest: f64, latest: f64| {
        assert!(
            (earliest - SKEW..=latest + SLACK).contains(&measured),
            "{} with {}: {what} after {measured:.3} s, not between {earliest:.3} s and {latest:.3} s",
            fate.node,
            profile.name
        );
    };
    between("unknown", fate.unknown, grace, grace + look);
    between("NoSchedule", fate.not_scheduled, grace, grace + look);
    between("pods unready", fate.unready, grace, grace + look);
    between("NoExecute", fate.tainted, grace, grace + look + turn);
    let sum = grace + toleration;
    between("pods evicted", fate.evicted, sum, sum + look + turn);
    let tolerated = fate.evicted - fate.tainted;
    between("tolerated", tolerated, toleration, toleration);
}

fn report(profile: Profile, fates: &[Fate]) {
    let scale = scale();
    let sum = (profile.grace + profile.toleration) / scale;
    for fate in fates {
        let how = if fate.node == KILLED { "killed" } else { "cut off" };
        eprintln!(
            "| {} / {scale} | {how} | {:.2} s | {:.2} s | {:.2} s | {:.2} s | {:.2} s | {sum:.2} s | {:.2} s |",
            profile.name,
            profile.grace / scale,
            fate.unknown,
            fate.not_scheduled,
            fate.unready,
            fate.tainted,
            fate.evicted,
        );
    }
}
