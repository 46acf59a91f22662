//! Does a gate open when it should, and never later than it may?

use std::time::{Duration, Instant};

use pointsman_api_client::{DeleteOptions, Patch, Resource};
use serde_json::{Value, json};

use crate::programmer::Programmer;
use crate::site::Site;
use pointsman_harness::SOON;

const LIVE: &str = "pointsman_sli_programmers{state=\"live\"}";

#[tokio::test]
async fn a_gate_opens_when_the_last_programmer_has_the_slice() {
    let (one, two) = (Programmer::start("n1").await, Programmer::start("n2").await);
    let site = Site::start(&[&one, &two], |_| {}).await;
    let (ready, uid) = site.endpoint("a").await;
    one.commit(ready);
    two.commit(ready);
    site.metric_becomes(LIVE, 2.0).await;
    let lowest = "pointsman_sli_watermark_lowest_resource_version{resource=\"endpointslices\"}";
    site.metric_becomes(lowest, ready as f64).await;

    let pods = site.client.api(Resource::PODS, Some("default"));
    pods.delete("a", &DeleteOptions::default()).await.unwrap();
    let path = format!("/gate/v1/pods/default/a?uid={uid}&bound=30s");
    let asked = site.json(&path);
    tokio::pin!(asked);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut asked).await;
    assert!(
        early.is_err(),
        "the slice does not take it out of use yet: {early:?}"
    );
    let version = site.terminate("a", &uid).await;
    one.commit(version);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut asked).await;
    assert!(early.is_err(), "n2 is behind: {early:?}");
    let committed = Instant::now();
    two.commit(version);
    let answer = asked.await;
    assert!(committed.elapsed() < Duration::from_secs(5));
    assert_eq!(answer["outcome"], "everywhere");
    assert!(answer["waitedSeconds"].as_f64().unwrap() > 0.5, "{answer}");

    // The form for hooks that cannot name their pod.
    let path = "/gate/v1/namespaces/default/services/web?node=n1&bound=30s";
    assert_eq!(site.json(path).await["outcome"], "everywhere");
    let elsewhere = "/gate/v1/namespaces/default/services/web?node=n9";
    assert_eq!(site.json(elsewhere).await["outcome"], "not-deleting");
    let unknown = "/gate/v1/namespaces/default/services/other";
    assert_eq!(site.json(unknown).await["outcome"], "no-endpoints");
    site.metric_becomes(
        "pointsman_gate_opened_total{form=\"service\",outcome=\"everywhere\"}",
        1.0,
    )
    .await;
}

#[tokio::test]
async fn a_node_that_hangs_holds_a_deletion_up_to_the_bound_and_is_named() {
    let (one, two) = (Programmer::start("n1").await, Programmer::start("n2").await);
    let site = Site::start(&[&one, &two], |_| {}).await;
    let (ready, uid) = site.endpoint("a").await;
    one.commit(ready);
    two.commit(ready);
    site.metric_becomes(LIVE, 2.0).await;
    two.hang();
    let version = site.terminate("a", &uid).await;
    one.commit(version);
    let asked = Instant::now();
    let path = format!("/gate/v1/pods/default/a?uid={uid}&bound=1s");
    let answer = site.json(&path).await;
    assert!(asked.elapsed() >= Duration::from_secs(1));
    assert_eq!(answer["outcome"], "bound");
    assert_eq!(answer["behind"], serde_json::json!(["n2"]));
    let deadline = Instant::now() + SOON;
    loop {
        let path = "/api/v1/namespaces/default/events";
        let events: Value = site.client.get_path(path).await.unwrap();
        let mut items = events["items"].as_array().unwrap().iter();
        if let Some(event) = items.find(|event| event["reason"] == "ShutdownGateTimedOut") {
            assert_eq!(event["involvedObject"]["name"], "a");
            assert!(event["message"].as_str().unwrap().contains("n2"), "{event}");
            break;
        }
        assert!(Instant::now() < deadline, "no event: {events}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_silent_programmer_is_behind_until_its_node_is_unreachable() {
    let (one, two) = (Programmer::start("n1").await, Programmer::start("n2").await);
    let site = Site::start(&[&one, &two], |_| {}).await;
    let nodes = site.client.api(Resource::NODES, None);
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n2" } });
    let _: Value = nodes.create(node.to_string().into_bytes()).await.unwrap();
    let (ready, uid) = site.endpoint("a").await;
    one.commit(ready);
    two.commit(ready);
    site.metric_becomes(LIVE, 2.0).await;
    two.hang();
    site.metric_becomes("pointsman_sli_programmers{state=\"silent\"}", 1.0)
        .await;
    let version = site.terminate("a", &uid).await;
    one.commit(version);
    let path = format!("/gate/v1/pods/default/a?uid={uid}&bound=200ms");
    let answer = site.json(&path).await;
    assert_eq!(
        (&answer["outcome"], &answer["behind"]),
        (&json!("bound"), &json!(["n2"]))
    );
    let unreachable = json!({ "spec": { "taints": [
        { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" }] } });
    let patch = Patch::Merge(unreachable.to_string().into_bytes());
    let _: Value = nodes.patch("n2", patch).await.unwrap();
    site.metric_becomes("pointsman_sli_programmers{state=\"unreachable\"}", 1.0)
        .await;
    assert_eq!(site.json(&path).await["outcome"], "everywhere");
}

#[tokio::test]
async fn a_node_without_a_programmer_is_not_waited_for() {
    // Nobody answers for it; the port is one that a listener had and gave back.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let site = Site::start(&[], |config| config.programmer_port = port).await;
    let nodes = site.client.api(Resource::NODES, None);
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "virtual" },
        "status": { "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }] } });
    let _: Value = nodes.create(node.to_string().into_bytes()).await.unwrap();
    let silent = "pointsman_sli_programmers{state=\"silent\"}";
    site.metric_becomes(silent, 1.0).await;
    let label = json!({ "metadata": { "labels": { "pointsman.io/programmer": "none" } } });
    let patch = Patch::Merge(label.to_string().into_bytes());
    let _: Value = nodes.patch("virtual", patch).await.unwrap();
    site.metric_becomes(silent, 0.0).await;
}

#[tokio::test]
async fn pods_that_are_not_being_deleted_get_an_answer_at_once() {
    let one = Programmer::start("n1").await;
    let site = Site::start(&[&one], |_| {}).await;
    let (ready, uid) = site.endpoint("a").await;
    one.commit(ready);
    let lowest = "pointsman_sli_watermark_lowest_resource_version{resource=\"endpointslices\"}";
    site.metric_becomes(lowest, ready as f64).await;
    let pod = format!("/gate/v1/pods/default/a?uid={uid}&bound=60s");
    let asked = Instant::now();
    for path in [
        pod.as_str(),
        "/gate/v1/pods/default/a?bound=60s",
        "/gate/v1/namespaces/default/services/web?bound=60s",
    ] {
        assert_eq!(site.json(path).await["outcome"], "not-deleting", "{path}");
    }
    assert!(asked.elapsed() < SOON, "nobody waited for a bound");
    let waiting = site.metric("pointsman_gate_waiting").await;
    assert_eq!(waiting, 0.0);
}

#[tokio::test]
async fn one_address_cannot_keep_all_gates_busy() {
    // Both ends of every connection are here.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let one = Programmer::start("n1").await;
    let site = Site::start(&[&one], |_| {}).await;
    let (ready, uid) = site.endpoint("a").await;
    one.commit(ready);
    // Nobody has the slice that takes it out of use: whoever asks waits.
    site.terminate("a", &uid).await;
    site.metric_becomes(LIVE, 1.0).await;
    let path = format!("/gate/v1/pods/default/a?uid={uid}&bound=60s");
    let mut held = tokio::task::JoinSet::new();
    let address = site.address();
    for _ in 0..600 {
        let path = path.clone();
        held.spawn(async move { crate::site::get(address, &path).await });
    }
    let mut refused = 0;
    while refused < 600 - 512 {
        let (code, body) = held.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(code, 429, "{body}");
        refused += 1;
    }
    site.metric_becomes("pointsman_gate_waiting", 512.0).await;
    // They hang up, and their places are free.
    held.abort_all();
    site.metric_becomes("pointsman_gate_waiting", 0.0).await;
    let other = format!("/gate/v1/pods/default/a?uid={uid}&bound=0s");
    assert_eq!(site.json(&other).await["outcome"], "bound");
}

#[tokio::test]
async fn pods_without_endpoints_or_programmers_do_not_wait() {
    let site = Site::start(&[], |_| {}).await;
    let asked = Instant::now();
    let answer = site.json("/gate/v1/pods/default/nobody?bound=30s").await;
    assert_eq!(answer["outcome"], "no-endpoints");
    let (_, uid) = site.endpoint("a").await;
    site.terminate("a", &uid).await;
    let deadline = Instant::now() + SOON;
    loop {
        let path = format!("/gate/v1/pods/default/a?uid={uid}&bound=30s");
        // The watch may still be on its way to the collector.
        if site.json(&path).await["outcome"] == "no-programmers" {
            break;
        }
        assert!(Instant::now() < deadline);
    }
    assert!(asked.elapsed() < Duration::from_secs(20));
    assert_eq!(site.get("/gate/v1/pods/default").await.0, 400);
}
