//! The agent against a real API server, with a runtime that only pretends: pods, probes, restarts, ends,
//! heartbeats, and what happens when the agent or the server goes away for a while.

use pointsman_harness::agent::Cluster;
use pointsman_harness::eventually;
use pointsman_node_agent::gate::Gate;
use pointsman_runtime::fake::Scripted;
use pointsman_runtime::{ExecEnd, Runtime, StartFailure, VolumeName};
use serde_json::{Value, json};
use std::time::Duration;

fn pod(name: &str, container: Value) -> Value {
    let mut spec = json!({ "name": "c", "image": "host", "command": ["serve"] });
    for (key, value) in container.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "nodeName": "n1", "terminationGracePeriodSeconds": 2, "containers": [spec] },
    })
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    let mut found = conditions.into_iter().flatten();
    found
        .find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

fn is_ready(object: &Value) -> bool {
    condition(object, "Ready")["status"] == "True"
}

/// An exec probe that is asked as often as is allowed.
fn probe() -> Value {
    json!({ "exec": { "command": ["check"] }, "periodSeconds": 1, "periodMilliseconds": -500, "failureThreshold": 1 })
}

fn answers(code: i32) -> Scripted {
    Scripted {
        end: ExecEnd::Exited(code),
        ..Scripted::default()
    }
}

#[tokio::test]
async fn a_node_registers_beats_and_follows_its_settings() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let node = eventually("the node is registered", async || cluster.node().await).await;
    assert_eq!(condition(&node, "MemoryPressure")["status"], "False");
    let lease = eventually("the lease is there", async || cluster.lease().await.ok()).await;
    assert_eq!(lease["spec"]["holderIdentity"], "n1");
    assert_eq!(
        lease["metadata"]["ownerReferences"][0]["uid"],
        node["metadata"]["uid"]
    );
    // Without addresses for pods it is not ready; with them it is, at once.
    assert_eq!(condition(&node, "Ready")["reason"], "KubeletNotReady");
    cluster.give_range("10.9.0.0/24").await;
    let node = eventually("the node is ready", async || {
        cluster.node().await.filter(is_ready)
    })
    .await;
    let frequency =
        |node: &Value| node["metadata"]["annotations"]["pointsman.io/node-status-update-frequency"].clone();
    assert_eq!(frequency(&node), "10s");
    cluster.label_node("pointsman.io/pool", "edge").await;
    let settings = json!({ "nodeStatusUpdateFrequency": "20s", "nodeStatusUpdateFrequency.edge": "1m" });
    cluster.configure("kube-system", "pointsman-node", settings).await;
    eventually("the pool's frequency is in force", async || {
        let node = cluster.node().await?;
        (frequency(&node) == "1m0s").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_becomes_ready_with_its_probe_and_ends_when_it_is_deleted() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/24").await;
    cluster.runtime.script_exec("c", &["check"], answers(1));
    cluster
        .create(&pod("web", json!({ "readinessProbe": probe() })))
        .await;
    let running = cluster
        .pod_when("web", |pod| pod["status"]["phase"] == "Running")
        .await;
    assert!(!is_ready(&running));
    assert_eq!(condition(&running, "Ready")["reason"], "ContainersNotReady");
    assert_eq!(running["status"]["podIP"], running["status"]["podIPs"][0]["ip"]);
    assert!(
        running["status"]["podIP"]
            .as_str()
            .unwrap()
            .starts_with("10.9.0.")
    );
    cluster.runtime.script_exec("c", &["check"], answers(0));
    let ready = cluster.pod_when("web", is_ready).await;
    let changed = ready["metadata"]["annotations"]["pointsman.io/last-change-time"]
        .as_str()
        .unwrap();
    let since = condition(&ready, "Ready")["lastTransitionTime"].as_str().unwrap();
    assert_eq!(changed.len(), "2026-11-15T20:00:00.123456Z".len(), "{changed}");
    assert_eq!(changed[..19], since[..19]);

    cluster.delete("web").await;
    cluster.gone("web").await;
    eventually("nothing of it is left", async || {
        cluster.running().await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_cannot_run_waits_with_a_reason_and_what_crashes_is_restarted() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/24").await;
    cluster.create(&pod("foreign", json!({ "image": "nginx" }))).await;
    let from = json!([{ "configMapRef": { "name": "later" } }]);
    cluster.create(&pod("early", json!({ "envFrom": from }))).await;
    cluster
        .runtime
        .fail_start("nothing", Some(StartFailure::NotFound));
    cluster
        .create(&pod("lost", json!({ "command": ["nothing"] })))
        .await;
    let waits = |reason: &'static str| {
        move |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
    };
    cluster.pod_when("foreign", waits("ImageNotSupported")).await;
    cluster
        .pod_when("early", waits("CreateContainerConfigError"))
        .await;
    let lost = cluster.pod_when("lost", waits("CrashLoopBackOff")).await;
    let status = &lost["status"]["containerStatuses"][0];
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 127);
    assert_eq!(status["lastState"]["terminated"]["reason"], "StartError");
    cluster
        .configure("default", "later", json!({ "COLOUR": "blue" }))
        .await;
    let early = cluster.pod_when("early", is_ready).await;
    let id = cluster.container(&early, "c", 0);
    let env = cluster.runtime.spec(&id).unwrap().env;
    assert!(env.contains(&("COLOUR".into(), "blue".into())), "{env:?}");

    assert!(cluster.runtime.exit(&id, 3));
    let restarted = cluster
        .pod_when("early", |pod| {
            is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1
        })
        .await;
    let status = &restarted["status"]["containerStatuses"][0];
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3);
}

#[tokio::test]
async fn readiness_does_not_flap_when_the_agent_restarts_and_pods_without_objects_go() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/24").await;
    cluster
        .create(&pod("web", json!({ "readinessProbe": probe() })))
        .await;
    cluster.create(&pod("orphan", json!({}))).await;
    let before = cluster.pod_when("web", is_ready).await;
    cluster.pod_when("orphan", is_ready).await;
    agent.stop().await;
    cluster.delete_now("orphan").await;
    let flaps = cluster.count_changes("web", |pod| is_ready(pod).to_string());
    let agent = cluster.agent().await;
    eventually("the pod of the deleted object is gone", async || {
        (cluster.running().await.len() == 1).then_some(())
    })
    .await;
    // A few rounds of the probe.
    let execs = cluster.runtime.execs();
    eventually("the probe goes on", async || {
        (cluster.runtime.execs() > execs + 2).then_some(())
    })
    .await;
    assert_eq!(flaps.seen().await, ["true"]);
    let after = cluster.pod("web").await.unwrap();
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(
        condition(&after, "Ready")["lastTransitionTime"],
        condition(&before, "Ready")["lastTransitionTime"]
    );
    agent.stop().await;
}

#[tokio::test]
async fn probing_goes_on_without_a_server_and_the_last_state_arrives_afterwards() {
    let mut cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/24").await;
    cluster
        .create(&pod("web", json!({ "readinessProbe": probe() })))
        .await;
    cluster.pod_when("web", is_ready).await;
    cluster.stop_server().await;
    for code in [1, 0, 1] {
        let execs = cluster.runtime.execs();
        cluster.runtime.script_exec("c", &["check"], answers(code));
        eventually("the probe goes on", async || {
            (cluster.runtime.execs() > execs + 1).then_some(())
        })
        .await;
    }
    cluster.start_server().await;
    cluster.pod_when("web", |pod| !is_ready(pod)).await;
}

#[tokio::test]
async fn a_condition_that_somebody_else_wrote_is_set_right() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/24").await;
    cluster.create(&pod("web", json!({}))).await;
    cluster.pod_when("web", is_ready).await;
    let flips = cluster.count_changes("web", |pod| is_ready(pod).to_string());
    flips.started().await;
    // As the node lifecycle controller does when the node is silent.
    let marked = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    cluster.patch_status("web", &marked).await;
    cluster.pod_when("web", is_ready).await;
    eventually("both changes were seen", async || {
        (flips.seen().await == ["true", "false", "true"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_container_deaf_to_its_signal_is_killed_when_its_grace_is_over() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/24").await;
    cluster.runtime.ignore_stop("c");
    cluster.create(&pod("web", json!({}))).await;
    cluster.pod_when("web", is_ready).await;
    let asked = tokio::time::Instant::now();
    cluster.delete("web").await;
    cluster.gone("web").await;
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(2), "killed after {took:?}");
}

#[tokio::test]
async fn a_gate_holds_the_signal_back_until_it_opens() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut cluster = Cluster::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    cluster.gate = Some(Gate {
        url: url.parse().unwrap(),
        bound: Duration::from_secs(20),
    });
    let _agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/24").await;
    cluster.create(&pod("web", json!({}))).await;
    cluster.pod_when("web", is_ready).await;
    cluster.delete("web").await;
    let (mut asked, _) = listener.accept().await.unwrap();
    let mut request = vec![0; 1024];
    let read = asked.read(&mut request).await.unwrap();
    let request = String::from_utf8_lossy(&request[..read]).into_owned();
    assert!(
        request.starts_with("GET /gate/v1/pods/default/web?uid="),
        "{request}"
    );
    // While the gate is closed, the pod serves and is ready.
    let pods = cluster.runtime.list().await.unwrap();
    assert!(matches!(
        pods[0].containers[0].status,
        pointsman_runtime::ContainerStatus::Running { .. }
    ));
    assert!(is_ready(&cluster.pod("web").await.unwrap()));
    let body = r#"{"outcome":"everywhere","waitedSeconds":0.1,"behind":[]}"#;
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    asked.write_all(answer.as_bytes()).await.unwrap();
    cluster.gone("web").await;
}

#[tokio::test]
async fn volumes_follow_their_objects() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/24").await;
    cluster.configure("default", "conf", json!({ "a": "1" })).await;
    let mut object = pod("web", json!({}));
    object["spec"]["volumes"] = json!([{ "name": "v", "configMap": { "name": "conf" } }]);
    cluster.create(&object).await;
    let uid = cluster
        .container(&cluster.pod_when("web", is_ready).await, "c", 0)
        .pod;
    let volume = VolumeName::try_new("v").unwrap();
    let content = || {
        let files = cluster.runtime.files(&uid, &volume).unwrap().files;
        String::from_utf8(files["a"].bytes.clone()).unwrap()
    };
    assert_eq!(content(), "1");
    cluster.reconfigure("default", "conf", json!({ "a": "2" })).await;
    eventually("the file has changed", async || (content() == "2").then_some(())).await;
}
