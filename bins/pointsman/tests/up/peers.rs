//! A node that others do not reach gets no traffic, and that is all that happens to it.
//!
//! `POINTSMAN_CUTS=100` repeats cut and freeze so many times and prints what it took, `POINTSMAN_CUTS_WITHOUT=10` the cut that
//! they are compared with; docs/node-health.md has the figures.

use crate::cluster::{Cluster, eventually, program};
use crate::harm::{CutOff, Stopped};
use crate::history::{History, Observer, assert_always_well, name};
use crate::requests::Requests;
use crate::silent;
use jiff::Timestamp;
use pointsman_api_client::Resource;
use pointsman_testkit::require_netns;
use serde_json::{Value, json};

const SLICES: Resource = Resource::new("discovery.k8s.io", "v1", "endpointslices");
const NODES: [&str; 3] = ["n1", "n2", "n3"];

#[test]
fn a_node_that_is_cut_off_gets_no_traffic_while_one_with_a_frozen_agent_does() {
    require_netns!();
    // Leases are renewed every two seconds, so that a test can wait for them.
    let cluster = Cluster::start(&["--nodes=3", "--node-lease-duration-seconds=8"]);
    let observer = Observer::of(&cluster);
    let [nodes, leases, pods] =
        [Resource::NODES, Resource::LEASES, Resource::PODS].map(|kind| observer.follow(kind));
    let slices = observer.follow(SLICES);
    run_pods(&cluster, &slices);
    let requests = Requests::start(&cluster, &NODES);
    let cuts = rounds("POINTSMAN_CUTS");
    let (mut times, mut frozen, mut lost) = (Vec::new(), 0, Vec::new());
    for round in 0..cuts {
        let node = NODES[round % NODES.len()];
        let begin = Timestamp::now();
        freeze(&cluster, node, &leases, &slices);
        frozen += requests.lost(begin, &[]).len();
        let begin = Timestamp::now();
        let [out, back] = cut(&cluster, node, &slices, || {});
        let late = requests.lost(begin, &[node]);
        let last = last(&late, begin);
        // Kernels follow the slice within milliseconds; the rest is forgiven to a busy machine.
        assert!(
            last.is_none_or(|last| last < out + 2000),
            "{last:?} ms after the cut, slice after {out} ms"
        );
        lost.push(late.len());
        times.push([out, last.unwrap_or(0), back]);
    }
    report(&times);
    eprintln!("requests lost: {frozen} in {cuts} freezes, {}", per_cut(&lost));
    assert_eq!(frozen, 0, "pods of a frozen agent serve");
    let reasons = |reason: &str| {
        let field = format!("--field-selector=reason={reason}");
        cluster.kubectl(&["get", "events", "--all-namespaces", &field, "-o", "name"])
    };
    for reason in ["TrafficWithdrawn", "TrafficRestored"] {
        eventually("the votes are told on the node", || {
            (!reasons(reason).trim().is_empty()).then_some(())
        });
    }
    // Neither a condition nor a taint, and every pod is where it was.
    assert_always_well(&nodes, &NODES);
    for sight in pods.since(0) {
        assert_eq!(sight.object["metadata"]["deletionTimestamp"], Value::Null);
    }
}

/// What the above is compared with: only heartbeats say that a node is gone, here after five seconds.
#[test]
fn without_opinions_requests_are_lost_until_heartbeats_are_missed() {
    require_netns!();
    let mut cluster = Cluster::not_started();
    cluster.profile = None;
    cluster.start_again(&["--nodes=3", "--apart", "--opinions-of=nobody"]);
    let observer = Observer::of(&cluster);
    let slices = observer.follow(SLICES);
    run_pods(&cluster, &slices);
    let requests = Requests::start(&cluster, &NODES);
    let (mut times, mut lost) = (Vec::new(), Vec::new());
    for round in 0..rounds("POINTSMAN_CUTS_WITHOUT") {
        let node = NODES[round % NODES.len()];
        let begin = Timestamp::now();
        let [out, back] = cut(&cluster, node, &slices, || {});
        let late = requests.lost(begin, &[node]);
        let last = last(&late, begin);
        assert!(out > 3000 && last > Some(3000), "{out} ms, {last:?} ms");
        lost.push(late.len());
        times.push([out, last.unwrap_or(0), back]);
    }
    report(&times);
    eprintln!("requests lost {}", per_cut(&lost));
}

/// How often to repeat a cut.
fn rounds(variable: &str) -> usize {
    std::env::var(variable).map_or(1, |text| text.parse().unwrap())
}

/// Milliseconds from `begin` to the last of these requests.
fn last(requests: &[Timestamp], begin: Timestamp) -> Option<i128> {
    let times = requests.iter().map(|sent| sent.duration_since(begin).as_millis());
    times.max()
}

fn per_cut(lost: &[usize]) -> String {
    let mean = lost.iter().sum::<usize>() as f64 / lost.len() as f64;
    format!("{mean:.1} per cut, at most {:?}", lost.iter().max())
}

/// Beside kubelets nobody but the proxies can tell.
#[test]
fn proxies_say_who_is_cut_off_where_agents_do_not() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=3", "--opinions-of=proxies"]);
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/proxy/peers.yaml");
    cluster.kubectl(&["apply", "-f", shipped]);
    // Proxies of `up` are not pods with an account.
    let [namespace, role, user] = [
        "-npointsman-peers",
        "--role=pointsman-proxy",
        "--user=system:kube-proxy",
    ];
    cluster.kubectl(&["create", "rolebinding", "up", namespace, role, user]);
    let observer = Observer::of(&cluster);
    let [nodes, leases] = [Resource::NODES, Resource::LEASES].map(|kind| observer.follow(kind));
    let slices = observer.follow(SLICES);
    for node in NODES {
        leases.first("its proxy says that it reaches everybody", 0, |lease| {
            name(lease) == node && opinions(lease) == Some("")
        });
    }
    run_pods(&cluster, &slices);
    let [out, back] = cut(&cluster, "n3", &slices, || {
        eventually("`explain` says why nobody is sent there", || {
            explained(&cluster)
                .contains("2 of 2 observers do not reach it (n1, n2)")
                .then_some(())
        });
        eventually("the page says who voted", || {
            let votes = &silent::state(&cluster)["programmers"]["list"][0]["withdrawn"];
            (*votes == "2 of 2 observers do not reach it (n1, n2)").then_some(())
        });
    });
    report(&[[out, 0, back]]);
    assert!(
        !explained(&cluster).contains("observers"),
        "{}",
        explained(&cluster)
    );
    for reason in ["TrafficWithdrawn", "TrafficRestored"] {
        let field = format!("--field-selector=reason={reason}");
        eventually("the votes are told on the node", || {
            let told = cluster.kubectl(&["get", "events", "-A", &field, "-o", "jsonpath={..message}"]);
            told.contains("n3").then_some(())
        });
    }
    assert_always_well(&nodes, &NODES);
    for sight in leases.since(0) {
        let lease = &sight.object;
        let of_agent = lease["metadata"]["namespace"] == "kube-node-lease";
        assert!(!of_agent || opinions(lease).is_none(), "{lease:#}");
    }
}

fn explained(cluster: &Cluster) -> String {
    let admin = cluster.data_dir().join("admin.kubeconfig");
    let mut command = cluster.command(&program());
    command.args(["explain", "default/web", "--node=n1"]);
    let output = command.env("KUBECONFIG", admin).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn opinions(lease: &Value) -> Option<&str> {
    lease["metadata"]["annotations"]["pointsman.io/unreachable-peers"].as_str()
}

fn run_pods(cluster: &Cluster, slices: &History) {
    let labels = json!({ "app": "web" });
    let mut items = vec![json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": labels, "ports": [{ "port": 80, "targetPort": 8080 }] },
    })];
    for node in NODES {
        let container = json!({ "name": "web", "image": "host", "command": [program(), "serve-http"] });
        items.push(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("pod-{node}"), "labels": labels },
            "spec": { "nodeName": node, "containers": [container] },
        }));
    }
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &list.to_string());
    slices.first("all pods are ready", 0, |slice| {
        NODES.iter().all(|node| is_ready(slice, node) == Some(true))
    });
}

fn is_ready(slice: &Value, node: &str) -> Option<bool> {
    let mut endpoints = slice["endpoints"].as_array()?.iter();
    let endpoint = endpoints.find(|endpoint| endpoint["nodeName"] == *node)?;
    endpoint["conditions"]["ready"].as_bool()
}

/// An agent that hangs answers nothing, but its node's kernel does, and its pods serve.
fn freeze(cluster: &Cluster, node: &str, leases: &History, slices: &History) {
    let before = slices.len();
    let frozen = Stopped::agent(cluster, node);
    let other = NODES.iter().find(|other| **other != node).unwrap();
    // Two renewals of another node: far longer than a verdict takes.
    let renewed = |lease: &Value| name(lease) == *other;
    for _ in 0..2 {
        leases.first("another node renews its lease", leases.len(), renewed);
    }
    drop(frozen);
    for sight in slices.since(before) {
        assert_ne!(is_ready(&sight.object, node), Some(false), "{:#}", sight.object);
    }
}

/// Milliseconds from the cut to the slice that says so, and from the mending to the one that says that. In between, the
/// node stays cut off `meanwhile`.
fn cut(cluster: &Cluster, node: &str, slices: &History, meanwhile: impl FnOnce()) -> [i128; 2] {
    let since = |begin: Timestamp, at: Timestamp| at.duration_since(begin).as_millis();
    let before = slices.len();
    let begin = Timestamp::now();
    let cut = CutOff::node(cluster, node);
    let out = slices.first("the node's endpoint is out of use", before, |slice| {
        is_ready(slice, node) == Some(false)
    });
    let others = NODES.iter().filter(|other| **other != node);
    assert!(
        others
            .into_iter()
            .all(|other| is_ready(&out.object, other) == Some(true)),
        "{:#}",
        out.object
    );
    meanwhile();
    let before = slices.len();
    let mended = Timestamp::now();
    drop(cut);
    let back = slices.first("the node's endpoint is in use again", before, |slice| {
        is_ready(slice, node) == Some(true)
    });
    [since(begin, out.at), since(mended, back.at)]
}

fn report(times: &[[i128; 3]]) {
    let steps = [
        "cut to out of the slice",
        "cut to the last request that was lost",
        "mended to back in the slice",
    ];
    for (index, what) in steps.iter().enumerate() {
        let mut all: Vec<i128> = times.iter().map(|round| round[index]).collect();
        all.sort_unstable();
        let quantile = |share: f64| all[((all.len() as f64 * share).ceil() as usize).max(1) - 1];
        eprintln!(
            "{what}: {} times, p50 {} ms, p99 {} ms, slowest {} ms",
            all.len(),
            quantile(0.5),
            quantile(0.99),
            quantile(1.0)
        );
    }
}
