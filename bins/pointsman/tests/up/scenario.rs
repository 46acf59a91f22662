//! Do the scenarios tell the truth, and does the gate lose nothing?

use crate::cluster::{Cluster, eventually};
use pointsman_cluster::claim::{Known, look_up};
use pointsman_cluster::own_faults::{self, PARTIAL_FAILURES};
use pointsman_testkit::require_netns;
use serde_json::Value;

#[test]
fn a_scenario_fails_when_a_proxy_counted_a_fault_of_its_own() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=2", "--proxy-mode=iptables"]);
    let Ok(Known::Running(record)) = look_up(&cluster.name) else {
        panic!("the cluster runs");
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let create = || cluster.kubectl(&["create", "service", "clusterip", "planted", "--tcp=80"]);
    create();
    // Rules that a partial sync takes out are gone already, unless the proxy heals them before it is asked to.
    eventually("a partial sync fails", || {
        let flushed = cluster.pointsman("exec", &["n2", "--", "iptables", "-t", "filter", "-F"]);
        assert!(flushed.status.success(), "{flushed:?}");
        cluster.kubectl(&["delete", "service", "planted"]);
        create();
        let counted = runtime.block_on(own_faults::of_cluster(&record, &[])).unwrap();
        (!counted.is_empty()).then_some(())
    });
    let load = ["rolling", "--updates=1", "--replicas=1", "--rate=10"];
    let done = cluster.pointsman("scenario", &load);
    let errors = String::from_utf8_lossy(&done.stderr);
    let named = format!("n2 counted {PARTIAL_FAILURES}{{ip_family=\"IPv4\"}}");
    assert!(!done.status.success() && errors.contains(&named), "{errors}");
}

/// Plays a scenario and returns what it says.
fn play(cluster: &Cluster, arguments: &[&str]) -> Value {
    let mut all = vec!["--output=json"];
    all.extend(arguments);
    let done = cluster.pointsman("scenario", &all);
    let said = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{errors}");
    serde_json::from_str(&said).unwrap()
}

#[test]
fn rolling_updates_lose_requests_without_the_gate_and_none_with_it() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=2"]);
    let load = ["rolling", "--updates=4", "--replicas=2", "--rate=300"];
    let on = play(&cluster, &load);
    assert!(on["requests"]["answered"].as_u64().unwrap() > 100, "{on:#}");
    assert_eq!(on["requests"]["failed"], 0, "{on:#}");
    assert_eq!(on["gates"]["outcomes"]["everywhere"], 8, "{on:#}");
    assert_eq!(on["gates"]["afterDeletion"]["count"], 8, "{on:#}");

    let mut without = load.to_vec();
    without.push("--gate=off");
    let off = play(&cluster, &without);
    assert!(off["requests"]["failed"].as_u64().unwrap() > 0, "{off:#}");
    assert_eq!(off["gates"]["outcomes"], serde_json::json!({}), "{off:#}");
}

#[test]
fn rolling_updates_of_containers_lose_nothing_with_the_gate() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=2", "--runtime=containerd"]);
    for gate in ["--gate=on", "--gate=pod-hook"] {
        let load = ["rolling", "--updates=3", "--replicas=2", "--rate=100", gate];
        let said = play(&cluster, &load);
        assert!(said["requests"]["answered"].as_u64().unwrap() > 100, "{said:#}");
        assert_eq!(said["requests"]["failed"], 0, "{gate}: {said:#}");
        assert_eq!(said["gates"]["outcomes"], serde_json::json!({ "everywhere": 6 }));
    }
}

#[test]
fn rolling_updates_lose_nothing_when_hooks_ask_the_gate_for_their_pod_or_their_service() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=2"]);
    for gate in ["--gate=service-hook", "--gate=pod-hook"] {
        let load = ["rolling", "--updates=6", "--replicas=2", "--rate=300", gate];
        let said = play(&cluster, &load);
        assert!(said["requests"]["answered"].as_u64().unwrap() > 100, "{said:#}");
        assert_eq!(said["requests"]["failed"], 0, "{gate}: {said:#}");
        if gate == "--gate=pod-hook" {
            assert_eq!(said["gates"]["outcomes"], serde_json::json!({ "everywhere": 12 }));
        }
    }
}

#[test]
#[ignore = "needs PEER_KUBE_PROXY"]
fn rolling_updates_through_kube_proxy_lose_nothing_with_the_gate_and_an_observer() {
    require_netns!();
    let kube_proxy = std::env::var("PEER_KUBE_PROXY").expect("PEER_KUBE_PROXY names a kube-proxy");
    let updates = std::env::var("POINTSMAN_UPDATES").unwrap_or_else(|_| "20".into());
    for mode in ["nftables", "iptables"] {
        let (mode, peer) = (
            format!("--proxy-mode={mode}"),
            format!("--kube-proxy={kube_proxy}"),
        );
        let cluster = Cluster::start(&["--nodes=2", &mode, &peer]);
        let updates = format!("--updates={updates}");
        let load = ["rolling", &updates, "--replicas=2", "--rate=100"];
        let on = play(&cluster, &load);
        eprintln!("{mode}, with the gate: {on:#}");
        assert!(on["requests"]["answered"].as_u64().unwrap() > 100, "{on:#}");
        assert_eq!(on["requests"]["failed"], 0, "{on:#}");
        assert_eq!(on["gates"]["outcomes"]["bound"], Value::Null, "{on:#}");

        let mut without = load.to_vec();
        without.push("--gate=off");
        let off = play(&cluster, &without);
        eprintln!("{mode}, without: {off:#}");
        assert!(off["requests"]["failed"].as_u64().unwrap() > 0, "{off:#}");
    }
}

#[test]
fn the_scenario_sees_every_kind_of_change_in_packets_and_in_the_report() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=2"]);
    // What the machine's own delays make of it is allowed besides.
    let said = play(
        &cluster,
        &[
            "--services=10",
            "--pods-per-node=1",
            "--flips=4",
            "--lives=1",
            "--rolls=1",
            "--scale-ups=1",
            "--hollow=20",
            "--objective=60s",
            "--error-bound=50ms",
            "--coverage-bound=0.6",
        ],
    );
    let rows = said["changes"].as_array().unwrap();
    let kinds: Vec<&str> = rows.iter().map(|row| row["change"].as_str().unwrap()).collect();
    for kind in [
        "not ready",
        "ready",
        "rolling update: new pod ready",
        "rolling update: old pod terminating",
        "scale-up: first pod ready",
        "Service created",
        "Service port changed",
        "Service deleted",
    ] {
        assert!(kinds.contains(&kind), "{kind} in {said:#}");
    }
    let all = rows.last().unwrap();
    assert!(all["samples"].as_u64().unwrap() >= 2 * 10, "{said:#}");
    let (error, jitter) = (all["error"]["p50Ms"].as_f64(), said["jitterMs"].as_f64());
    assert!(error.unwrap() < 5.0 + 4.0 * jitter.unwrap(), "{said:#}");
    for form in ["pooled", "exact"] {
        assert!(said["sli"][form]["samples"].as_u64().unwrap() > 0, "{said:#}");
    }
    assert!(
        said["hollow"]["exact"]["samples"].as_u64().unwrap() > 0,
        "{said:#}"
    );
    // Nothing is in a kernel within a microsecond, so this X is missed, and the run says so and fails.
    let few = [
        "--services=0",
        "--pods-per-node=1",
        "--flips=1",
        "--lives=0",
        "--rolls=0",
        "--scale-ups=0",
    ];
    let bounds = [
        "--output=json",
        "--objective=1us",
        "--error-bound=60s",
        "--coverage-bound=0",
    ];
    let missed = cluster.pointsman("scenario", &[&few[..], &bounds[..]].concat());
    let errors = String::from_utf8_lossy(&missed.stderr);
    assert_eq!(missed.status.code(), Some(1), "{errors}");
    assert!(errors.contains("SLI misses X: pooled p99"), "{errors}");
    // Pods that became ready before the load, their Services and a Deployment are not in its window: one flip is.
    let said: Value = serde_json::from_slice(&missed.stdout).unwrap();
    assert_eq!(said["sli"]["exact"]["samples"], 1, "{said:#}");
    // The same is played again where the first run left nothing behind.
    let objects = cluster.kubectl(&["get", "pods,services,namespaces,nodes", "-A", "-o", "name"]);
    assert!(!objects.contains("scenario"), "{objects}");
}
