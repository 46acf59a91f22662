//! Nodes that fall silent, lie, come back, or cannot be heard because somebody else is down.

use crate::fleet::{Clock, Fleet};
use pointsman_api_client::{Patch, Resource};
use pointsman_harness::cluster::{Cluster, Controllers};
use pointsman_harness::eventually;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const GRACE: Duration = Duration::from_secs(3);
const TOLERATION: Duration = Duration::from_secs(2);
const CONFIG_MAPS: Resource = Resource::core("configmaps");

/// A cluster in a hurry: everything that takes minutes takes seconds.
fn hurried(cluster: &Cluster, more: &[&str]) -> Controllers {
    let flags = [
        "--controllers=nodelifecycle,tainteviction,endpointslice",
        "--node-monitor-period=200ms",
        "--node-monitor-grace-period=3s",
        "--node-eviction-rate=10",
    ];
    cluster.lone_controllers(&[&flags, more].concat())
}

/// A ready pod on a node, which tolerates both taints for so long.
async fn pod(cluster: &Cluster, name: &str, node: &str, seconds: Option<u64>) {
    let toleration = |key: &str| {
        let key = format!("node.kubernetes.io/{key}");
        let mut toleration = json!({ "key": key, "operator": "Exists", "effect": "NoExecute" });
        if let Some(seconds) = seconds {
            toleration["tolerationSeconds"] = seconds.into();
        }
        toleration
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": {
            "nodeName": node, "containers": [{ "name": "c", "image": "host" }],
            "tolerations": [toleration("unreachable"), toleration("not-ready")],
        },
    });
    cluster.create(Resource::PODS, &pod).await;
    let number = name.bytes().map(u32::from).sum::<u32>() % 250;
    let ip = format!("10.1.0.{number}");
    let condition = json!({ "type": "Ready", "status": "True", "reason": "Kept", "message": "kept" });
    let status = json!({ "status": {
        "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }], "conditions": [condition],
    } });
    let api = cluster.client.api(Resource::PODS, Some("default"));
    let patch = Patch::Strategic(status.to_string().into_bytes());
    let _: Value = api.patch_status(name, patch).await.unwrap();
}

async fn get_pod(cluster: &Cluster, name: &str) -> Value {
    let api = cluster.client.api(Resource::PODS, Some("default"));
    api.get(name).await.unwrap()
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found.unwrap_or(&Value::Null)
}

async fn is_ready(cluster: &Cluster, name: &str) -> bool {
    condition(&get_pod(cluster, name).await, "Ready")["status"] == "True"
}

fn leaves(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_loses_traffic_then_pods_and_is_welcomed_back() {
    let cluster = Cluster::start().await;
    let fleet = Fleet::new(&cluster);
    for name in ["n1", "n2", "n3"] {
        fleet.join(&cluster, name, "a", Clock::Right).await;
    }
    cluster.service(json!({})).await;
    pod(&cluster, "leaves", "n1", Some(TOLERATION.as_secs())).await;
    pod(&cluster, "stays", "n1", None).await;
    pod(&cluster, "other", "n2", Some(0)).await;
    let loops = hurried(&cluster, &[]);
    loops.says("nodes: first lists are complete").await;

    let last_heard = fleet.silence("n1").await;
    let silent = fleet
        .wait("n1", "is unknown", |node| node.ready() == "Unknown")
        .await;
    assert!(
        last_heard.elapsed() >= GRACE,
        "a verdict after {:?}",
        last_heard.elapsed()
    );
    let reason = &condition(&silent.0, "Ready")["reason"];
    assert_eq!(reason, "NodeStatusUnknown");
    assert_eq!(condition(&silent.0, "MemoryPressure")["status"], "Unknown");
    let tainted = fleet
        .wait("n1", "is tainted", |node| node.taints().len() == 2)
        .await;
    let tainted_at = Instant::now();
    assert_eq!(
        tainted.taints(),
        ["unreachable:NoExecute", "unreachable:NoSchedule"]
    );
    assert!(tainted.0["spec"]["taints"][0]["timeAdded"].is_string());
    cluster
        .expect("web", &["leaves no/no/no", "other yes/yes/no", "stays no/no/no"])
        .await;
    let marked = get_pod(&cluster, "stays").await;
    let ready = condition(&marked, "Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("Kept"))
    );

    // Grace period and toleration, as the profile's arithmetic has it.
    let evicted = eventually("the pod is evicted", async || {
        let pod = get_pod(&cluster, "leaves").await;
        leaves(&pod).then_some(pod)
    })
    .await;
    assert!(
        last_heard.elapsed() >= GRACE + TOLERATION,
        "evicted too early: {:?}",
        last_heard.elapsed()
    );
    let late = tainted_at.elapsed().saturating_sub(TOLERATION);
    assert!(late < Duration::from_secs(5), "evicted {late:?} late");
    assert_eq!(
        condition(&evicted, "DisruptionTarget")["reason"],
        "DeletionByTaintManager"
    );
    assert!(
        !leaves(&get_pod(&cluster, "stays").await),
        "it tolerates for ever"
    );
    assert!(is_ready(&cluster, "other").await);
    for name in ["n2", "n3"] {
        let node = fleet.node(name).await;
        assert_eq!((node.ready(), node.taints().len()), ("True", 0), "{name}");
    }
    let events = cluster.kubectl(&["get", "events", "-A"]).await;
    assert!(
        events.contains("TaintManagerEviction") && events.contains("NodeNotReady"),
        "{events}"
    );

    fleet.revive("n1").await;
    fleet
        .wait("n1", "is free of taints", |node| node.taints().is_empty())
        .await;
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_says_it_is_not_ready_is_believed_and_its_pods_are_spared_when_it_recovers() {
    let cluster = Cluster::start().await;
    let fleet = Fleet::new(&cluster);
    fleet.join(&cluster, "n1", "a", Clock::Right).await;
    fleet.join(&cluster, "n2", "a", Clock::Right).await;
    pod(&cluster, "p", "n1", Some(6)).await;
    let loops = hurried(&cluster, &[]);
    loops.says("nodes: first lists are complete").await;
    fleet.report("n1", "False").await;
    fleet
        .wait("n1", "is tainted", |node| {
            node.taints() == ["not-ready:NoExecute", "not-ready:NoSchedule"]
        })
        .await;
    eventually("its pods are marked", async || {
        (!is_ready(&cluster, "p").await).then_some(())
    })
    .await;
    fleet.report("n1", "True").await;
    fleet
        .wait("n1", "is free of taints", |node| node.taints().is_empty())
        .await;
    eventually("people are told that the pod stays", async || {
        let events = cluster.kubectl(&["get", "events"]).await;
        events.contains("Cancelling deletion of Pod").then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!leaves(&get_pod(&cluster, "p").await));
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zone_in_trouble_is_treated_with_care_and_a_cluster_gone_silent_not_at_all() {
    let cluster = Cluster::start().await;
    let fleet = Fleet::new(&cluster);
    for name in ["a1", "a2", "a3", "a4"] {
        fleet.join(&cluster, name, "a", Clock::Right).await;
        pod(&cluster, &format!("p-{name}"), name, Some(60)).await;
    }
    fleet.join(&cluster, "b1", "b", Clock::Right).await;
    pod(&cluster, "p-b1", "b1", Some(60)).await;
    // One node of a zone in trouble in a hundred seconds, after the first.
    let loops = hurried(&cluster, &["--disrupted-node-marking-rate=0.01"]);
    loops.says("nodes: first lists are complete").await;
    fleet.silence_all(&["a1", "a2", "a3"]).await;
    for name in ["a1", "a2", "a3"] {
        fleet
            .wait(name, "is unknown", |node| {
                node.ready() == "Unknown" && node.taints() == ["unreachable:NoSchedule"]
            })
            .await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut ready = 0;
    for name in ["a1", "a2", "a3", "a4", "b1"] {
        let node = fleet.node(name).await;
        assert!(
            !node.evicts(),
            "a small zone in trouble stops evicting: {:?}",
            node.0
        );
        ready += usize::from(is_ready(&cluster, &format!("p-{name}")).await);
    }
    assert!(ready >= 4, "only {ready} of 5 pods still serve");

    // Now nobody is heard of: the fault must be ours.
    fleet.silence_all(&["a4", "b1"]).await;
    for name in ["a4", "b1"] {
        fleet
            .wait(name, "is unknown", |node| node.ready() == "Unknown")
            .await;
    }
    for name in ["a1", "a2", "a3", "a4", "b1"] {
        fleet
            .wait(name, "is free of NoExecute", |node| !node.evicts())
            .await;
        assert!(!leaves(&get_pod(&cluster, &format!("p-{name}")).await), "{name}");
    }
    assert!(is_ready(&cluster, "p-b1").await && is_ready(&cluster, "p-a4").await);
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_loops_and_a_dead_api_server_punish_nobody() {
    let mut cluster = Cluster::start().await;
    let fleet = Fleet::new(&cluster);
    for (name, clock) in [("n1", Clock::Right), ("n2", Clock::Right), ("mad", Clock::Mad)] {
        fleet.join(&cluster, name, "a", clock).await;
    }
    pod(&cluster, "p", "n1", Some(3)).await;
    let loops = hurried(&cluster, &[]);
    loops.says("nodes: first lists are complete").await;

    // New loops know nothing of the silence before them.
    fleet.silence("n1").await;
    tokio::time::sleep(GRACE / 2).await;
    loops.kill().await;
    let loops = hurried(&cluster, &[]);
    loops.says("nodes: first lists are complete").await;
    let begun = Instant::now();
    fleet
        .wait("n1", "is unknown", |node| node.ready() == "Unknown")
        .await;
    assert!(
        begun.elapsed() + Duration::from_millis(500) >= GRACE,
        "{:?}",
        begun.elapsed()
    );
    fleet.wait("n1", "is tainted", |node| node.evicts()).await;

    // Nobody can report while the server is down; once it is back, only the dead node is still dead.
    cluster.kill_server().await;
    tokio::time::sleep(GRACE + Duration::from_secs(1)).await;
    cluster.start_server(&[]).await;
    fleet.revive("n1").await;
    fleet
        .wait("n1", "is free of taints", |node| node.taints().is_empty())
        .await;
    tokio::time::sleep(GRACE).await;
    for name in ["n1", "n2", "mad"] {
        let node = fleet.node(name).await;
        assert_eq!((node.ready(), node.taints().len()), ("True", 0), "{name}");
    }
    assert!(
        !leaves(&get_pod(&cluster, "p").await),
        "its node came back while nobody could see"
    );
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_changes_at_run_time_and_nonsense_changes_nothing() {
    let cluster = Cluster::start().await;
    let fleet = Fleet::new(&cluster);
    fleet.join(&cluster, "n1", "a", Clock::Right).await;
    fleet.join(&cluster, "n2", "a", Clock::Right).await;
    let loops = hurried(&cluster, &[]);
    let api = cluster.client.api(CONFIG_MAPS, Some("kube-system"));
    let observed = async |what: &str, wanted: &str| {
        eventually(&format!("{what} is {wanted:?}"), async || {
            let map: Value = api.get("pointsman-controllers").await.ok()?;
            let found = map["metadata"]["annotations"][format!("pointsman.io/{what}")].as_str();
            (found.unwrap_or("").contains(wanted) && (found.is_some() || wanted.is_empty())).then_some(map)
        })
        .await
    };
    let set = async |key: &str, value: &str| {
        let patch = json!({ "data": { key: value } });
        let patch = Patch::Merge(patch.to_string().into_bytes());
        let _: Value = api.patch("pointsman-controllers", patch).await.unwrap();
    };
    const GRACE_OBSERVED: &str = "observed-node-monitor-grace-period";
    observed(GRACE_OBSERVED, "3s").await;

    set("nodeMonitorGracePeriod", "1m").await;
    observed(GRACE_OBSERVED, "1m").await;
    fleet.silence("n1").await;
    tokio::time::sleep(GRACE + Duration::from_secs(1)).await;
    assert_eq!(fleet.node("n1").await.ready(), "True", "a minute is not over");

    set("nodeMonitorGracePeriod", "soon").await;
    let map = observed("node-health-settings-error", "soon").await;
    assert_eq!(
        map["metadata"]["annotations"]["pointsman.io/observed-node-monitor-grace-period"],
        "1m"
    );
    set("nodeMonitorGracePeriod", "100ms").await;
    observed("node-health-settings-error", "at least the monitor period").await;
    set("nodeMonitorGracePeriod", "1m").await;
    observed("node-health-settings-error", "").await;
    eventually("people are told", async || {
        let events = cluster.kubectl(&["get", "events", "-n", "kube-system"]).await;
        events.contains("InvalidSettings").then_some(())
    })
    .await;

    let before = observed(GRACE_OBSERVED, "1m").await;
    let options = pointsman_api_client::DeleteOptions::default();
    api.delete("pointsman-controllers", &options).await.unwrap();
    let after = eventually("it is made again", async || {
        let map: Value = api.get("pointsman-controllers").await.ok()?;
        (map["metadata"]["uid"] != before["metadata"]["uid"]).then_some(map)
    })
    .await;
    assert_eq!(after["data"], before["data"]);
    assert_eq!(fleet.node("n1").await.ready(), "True");

    set("nodeMonitorGracePeriod", "2s").await;
    fleet
        .wait("n1", "is unknown", |node| node.ready() == "Unknown")
        .await;
    assert_eq!(fleet.node("n2").await.ready(), "True");
    loops.stop().await;
}
