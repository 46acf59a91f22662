//! Whatever breaks in between, the end state is right: nothing doubled, nothing lost.

use pointsman_api_client::{Event, Patch, Resource, Scope, Watcher};
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Slices only, by whoever leads, with short patience.
const ELECTED: [&str; 5] = [
    "--controllers=endpointslice",
    "--metrics-listen=off",
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=200ms",
];

fn ip(number: usize) -> String {
    format!("10.1.{}.{}", number / 200, number % 200 + 1)
}

/// Every pod once, ready or not by its number.
fn expected(pods: usize, ready: impl Fn(usize) -> bool) -> Vec<String> {
    let word = |number: usize| if ready(number) { "yes/yes/no" } else { "no/no/no" };
    let mut lines: Vec<String> = (0..pods)
        .map(|number| format!("p{number} {}", word(number)))
        .collect();
    lines.sort();
    lines
}

async fn expect(cluster: &Cluster, lines: &[String]) {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    cluster.expect("web", &lines).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_killed_in_the_middle_of_writes_leaves_nothing_wrong() {
    let mut cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=*,-scheduler", "--max-endpoints-per-slice=5"]);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    for number in 0..12 {
        cluster.pod(&format!("p{number}"), &ip(number), true).await;
    }
    for round in 0..3 {
        // Changes are on their way when the server dies.
        for number in 0..12 {
            cluster
                .set_ready(&format!("p{number}"), (number + round) % 2 == 0)
                .await;
        }
        cluster.kill_server().await;
        cluster.start_server(&[]).await;
    }
    expect(&cluster, &expected(12, |number| number % 2 == 0)).await;
    assert!(cluster.slices("web").await.len() <= 12usize.div_ceil(5) + 1);
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happened_during_a_gap_that_nobody_can_fill_is_found_out() {
    let mut cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=endpointslice,endpoint"]);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    for number in 0..3 {
        cluster.pod(&format!("p{number}"), &ip(number), true).await;
    }
    expect(&cluster, &expected(3, |_| true)).await;
    cluster
        .change_behind_their_backs(async |cluster| {
            cluster.remove_pod("p0").await;
            cluster.set_ready("p1", false).await;
            cluster.pod("p3", &ip(3), true).await;
        })
        .await;
    cluster
        .expect("web", &["p1 no/no/no", "p2 yes/yes/no", "p3 yes/yes/no"])
        .await;
    loops.says("listing again").await;
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_not_doubled_by_a_server_that_dies() {
    let mut cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    let _kubelet = cluster.kubelet();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "web" },
        "spec": {
            "replicas": 20, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": "host" }] },
            },
        },
    });
    // Every pod that ever showed up.
    let pods = Arc::new(Mutex::new(BTreeSet::new()));
    let mut watcher = Watcher::<Value>::new(cluster.client.clone(), Scope::all(Resource::PODS));
    let seen = pods.clone();
    let watch = tokio::spawn(async move {
        loop {
            if let Event::Applied { object, .. } = watcher.next().await {
                seen.lock().unwrap().insert(object["metadata"]["uid"].to_string());
            }
        }
    });
    cluster.create(Resource::REPLICA_SETS, &set).await;
    cluster.kill_server().await;
    cluster.start_server(&[]).await;
    let settled = async |wanted: i64| {
        let api = cluster.client.api(Resource::REPLICA_SETS, Some("default"));
        eventually(
            &format!("{wanted} replicas are ready and no other pod is left"),
            async || {
                let set: Value = api.get("web").await.ok()?;
                let list: Value = cluster
                    .client
                    .get_path("/api/v1/namespaces/default/pods")
                    .await
                    .ok()?;
                let count = |field: &str| set["status"][field].as_i64().unwrap_or(0);
                let counts = [
                    count("replicas"),
                    count("readyReplicas"),
                    list["items"].as_array()?.len() as i64,
                ];
                (counts == [wanted; 3]).then_some(())
            },
        )
        .await;
    };
    settled(20).await;
    assert_eq!(pods.lock().unwrap().len(), 20, "pods were created and lost");
    cluster
        .patch(
            Resource::REPLICA_SETS,
            "web",
            &json!({ "spec": { "replicas": 3 } }),
        )
        .await;
    settled(3).await;
    assert_eq!(pods.lock().unwrap().len(), 20, "a pod was created in vain");
    watch.abort();
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_leaders_for_a_while_agree_in_the_end() {
    let cluster = Cluster::start().await;
    let slices_only = [
        "--controllers=endpointslice,endpoint",
        "--max-endpoints-per-slice=4",
    ];
    let (first, second) = (
        cluster.lone_controllers(&slices_only),
        cluster.lone_controllers(&slices_only),
    );
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    for number in 0..10 {
        cluster.pod(&format!("p{number}"), &ip(number), true).await;
    }
    for number in 0..10 {
        cluster.set_ready(&format!("p{number}"), number % 3 != 0).await;
    }
    expect(&cluster, &expected(10, |number| number % 3 != 0)).await;
    first.kill().await;
    cluster.set_ready("p0", true).await;
    expect(&cluster, &expected(10, |number| number % 3 != 0 || number == 0)).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_a_stopped_one_at_once() {
    let cluster = Cluster::start().await;
    let first = cluster.controllers(&ELECTED);
    first.says("first lists are complete").await;
    let second = cluster.controllers(&ELECTED);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    cluster.pod("p0", "10.1.0.1", true).await;
    expect(&cluster, &expected(1, |_| true)).await;
    assert!(!second.log().contains("starting loops"), "two leaders");
    first.kill().await;
    cluster.set_ready("p0", false).await;
    expect(&cluster, &expected(1, |_| false)).await;
    let third = cluster.controllers(&ELECTED);
    let stopped = Instant::now();
    second.stop().await;
    third.says("starting loops").await;
    cluster.set_ready("p0", true).await;
    expect(&cluster, &expected(1, |_| true)).await;
    assert!(stopped.elapsed() < Duration::from_secs(30));
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_slept_through_its_lease_steps_down() {
    let cluster = Cluster::start().await;
    let sleeper = cluster.controllers(&ELECTED);
    sleeper.says("first lists are complete").await;
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    cluster.pod("p0", "10.1.0.1", true).await;
    expect(&cluster, &expected(1, |_| true)).await;
    sleeper.signal(Signal::STOP);
    let next = cluster.controllers(&ELECTED);
    next.says("first lists are complete").await;
    cluster.set_ready("p0", false).await;
    expect(&cluster, &expected(1, |_| false)).await;
    // For a moment both believe to lead.
    sleeper.signal(Signal::CONT);
    cluster.set_ready("p0", true).await;
    sleeper.says("loops stopped with the end of leadership").await;
    expect(&cluster, &expected(1, |_| true)).await;
    assert_eq!(cluster.slices("web").await.len(), 1);
    next.stop().await;
    sleeper.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loops_stop_when_the_lease_cannot_be_renewed_and_come_back_with_the_server() {
    let mut cluster = Cluster::start().await;
    let loops = cluster.controllers(&ELECTED);
    loops.says("first lists are complete").await;
    cluster.kill_server().await;
    loops.says("loops stopped with the end of leadership").await;
    cluster.start_server(&[]).await;
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    cluster.pod("p0", "10.1.0.1", true).await;
    expect(&cluster, &expected(1, |_| true)).await;
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_conflicts_loses_no_final_state() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=endpointslice,endpoint"]);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    for number in 0..5 {
        cluster.pod(&format!("p{number}"), &ip(number), false).await;
    }
    expect(&cluster, &expected(5, |_| false)).await;
    let name = cluster.slices("web").await[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let client = cluster.client.clone();
    // Somebody writes to the slice all the time.
    let storm = tokio::spawn(async move {
        let api = client.api(Resource::ENDPOINT_SLICES, Some("default"));
        for number in 0.. {
            let patch = json!({ "metadata": { "annotations": { "storm": number.to_string() } } });
            let _ = api
                .patch::<Value>(&name, Patch::Merge(patch.to_string().into_bytes()))
                .await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    for round in 0..6 {
        for number in 0..5 {
            cluster
                .set_ready(&format!("p{number}"), (round + number) % 2 == 0)
                .await;
        }
    }
    storm.abort();
    expect(&cluster, &expected(5, |number| number % 2 == 1)).await;
    let slices = cluster.slices("web").await;
    let names: BTreeSet<&str> = slices
        .iter()
        .filter_map(|slice| slice["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names.len(), 1);
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_pods_are_no_endpoints_and_no_obstacle() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=endpointslice,endpoint"]);
    cluster.node("n1", "a").await;
    cluster
        .service(json!({ "ports": [{ "name": "http", "port": 80, "targetPort": "http" }] }))
        .await;
    let pod = |name: &str, phase: &str, ips: Value, ports: Value, node: &str| {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "web" } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "host", "ports": ports }] },
        });
        (pod, json!({ "status": { "phase": phase, "podIPs": ips } }))
    };
    let http = json!([{ "name": "http", "containerPort": 8080 }]);
    let twice =
        json!([{ "name": "http", "containerPort": 8080 }, { "name": "other", "containerPort": 8080 }]);
    let cases = [
        pod("no-address", "Running", json!([]), http.clone(), "n1"),
        pod(
            "other-family",
            "Running",
            json!([{ "ip": "fd00::5" }]),
            http.clone(),
            "n1",
        ),
        pod(
            "done",
            "Succeeded",
            json!([{ "ip": "10.1.0.3" }]),
            http.clone(),
            "n1",
        ),
        pod(
            "failed",
            "Failed",
            json!([{ "ip": "10.1.0.4" }]),
            http.clone(),
            "n1",
        ),
        pod(
            "pending",
            "Pending",
            json!([{ "ip": "10.1.0.5" }]),
            http.clone(),
            "n1",
        ),
        pod("twice", "Running", json!([{ "ip": "10.1.0.6" }]), twice, "n1"),
        pod(
            "lost",
            "Running",
            json!([{ "ip": "10.1.0.7" }]),
            http,
            "no-such-node",
        ),
    ];
    let api = cluster.client.api(Resource::PODS, Some("default"));
    for (pod, status) in &cases {
        cluster.create(Resource::PODS, pod).await;
        let name = pod["metadata"]["name"].as_str().unwrap();
        let patch = Patch::Merge(status.to_string().into_bytes());
        let _: Value = api.patch_status(name, patch).await.unwrap();
    }
    cluster
        .expect("web", &["pending no/no/no", "twice no/no/no"])
        .await;
    // Its node shows up after all.
    cluster.node("no-such-node", "b").await;
    cluster
        .expect("web", &["lost no/no/no", "pending no/no/no", "twice no/no/no"])
        .await;
    loops.stop().await;
}
