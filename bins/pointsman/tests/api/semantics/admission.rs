//! What the server adds by itself: tolerations, taints, default objects, the other view of events.

use super::{NODES, PODS};
use pointsman_harness::wire::Http;
use pointsman_harness::{Server, eventually, pod};
use serde_json::{Value, json};

fn seconds(pod: &Value, taint: &str) -> Option<i64> {
    let tolerations = pod["spec"]["tolerations"].as_array()?;
    tolerations.iter().find(|toleration| toleration["key"] == taint)?["tolerationSeconds"].as_i64()
}

async fn new_pod_tolerates(http: &Http) -> (Option<i64>, Option<i64>) {
    let made = http
        .post(&format!("{PODS}?dryRun=All"), &pod("probe"))
        .await
        .expect(201);
    (
        seconds(&made, "node.kubernetes.io/not-ready"),
        seconds(&made, "node.kubernetes.io/unreachable"),
    )
}

#[tokio::test]
async fn default_tolerations_follow_the_flags_and_then_the_config_map() {
    let plain = Server::start(&[]).await;
    assert_eq!(
        new_pod_tolerates(&plain.admin().await).await,
        (Some(300), Some(300))
    );
    let flags = [
        "--default-not-ready-toleration-seconds",
        "60",
        "--default-unreachable-toleration-seconds",
        "61",
    ];
    let mut server = Server::start_to_be_restarted(&flags).await;
    let http = server.admin().await;
    assert_eq!(new_pod_tolerates(&http).await, (Some(60), Some(61)));
    // The server has made the map, and nobody has set anything in it yet.
    let settings = json!({"data": {"default-not-ready-toleration-seconds": "7", "default-unreachable-toleration-seconds": "0"}});
    let map = "/api/v1/namespaces/kube-system/configmaps/pointsman-apiserver";
    http.patch(map, "merge", &settings).await.expect(200);
    // An acknowledged setting is in force.
    assert_eq!(new_pod_tolerates(&http).await, (Some(7), Some(0)));
    let metrics = http.get("/metrics").await.text;
    assert!(
        metrics.contains("pointsman_apiserver_default_not_ready_toleration_seconds 7"),
        "{metrics}"
    );
    server.restart().await;
    let http = server.admin().await;
    assert_eq!(new_pod_tolerates(&http).await, (Some(7), Some(0)));
    let bad = json!({"data": {"default-not-ready-toleration-seconds": "soon"}});
    http.patch(map, "merge", &bad).await.expect(200);
    assert_eq!(new_pod_tolerates(&http).await, (Some(60), Some(0)));
    http.delete(map).await.expect(200);
    assert_eq!(new_pod_tolerates(&http).await, (Some(60), Some(61)));
    // A pod's own toleration wins.
    let mut own = pod("own");
    own["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]);
    let made = http.post(PODS, &own).await.expect(201);
    assert_eq!(seconds(&made, "node.kubernetes.io/not-ready"), Some(5));
    assert_eq!(seconds(&made, "node.kubernetes.io/unreachable"), Some(61));
}

#[tokio::test]
async fn a_new_node_is_not_ready_until_someone_says_so() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let made = http
        .post(NODES, &json!({"metadata": {"name": "n"}}))
        .await
        .expect(201);
    assert_eq!(
        made["spec"]["taints"],
        json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    );
    let ready = http
        .patch(&format!("{NODES}/n"), "merge", &json!({"spec": {"taints": null}}))
        .await
        .expect(200);
    assert_eq!(ready["spec"].get("taints"), None);
}

#[tokio::test]
async fn a_fresh_cluster_has_what_clients_expect() {
    let server = Server::start(&["--advertise-address", "192.0.2.10"]).await;
    let http = server.admin().await;
    for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let found = http
            .get(&format!("/api/v1/namespaces/{namespace}"))
            .await
            .expect(200);
        assert_eq!(found["status"]["phase"], "Active");
    }
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";
    let own = http.get(slices).await.expect(200);
    assert_eq!(
        own["items"][0]["endpoints"][0]["addresses"],
        json!(["192.0.2.10"])
    );
    http.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")
        .await
        .expect(200);
}

#[tokio::test]
async fn both_event_groups_show_the_same_events() {
    let server = Server::start(&["--event-ttl", "1h"]).await;
    let http = server.admin().await;
    let (core, new) = (
        "/api/v1/namespaces/default/events",
        "/apis/events.k8s.io/v1/namespaces/default/events",
    );
    let old_style = json!({"metadata": {"name": "old"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Failed", "message": "it failed", "type": "Warning", "count": 2,
        "source": {"component": "prober", "host": "n1"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:01:00Z"});
    http.post(core, &old_style).await.expect(201);
    let seen = http.get(&format!("{new}/old")).await.expect(200);
    assert_eq!(seen["apiVersion"], "events.k8s.io/v1");
    assert_eq!(
        (
            &seen["regarding"]["name"],
            &seen["note"],
            &seen["deprecatedCount"]
        ),
        (&json!("p"), &json!("it failed"), &json!(2))
    );
    let new_style = json!({"metadata": {"name": "new"}, "regarding": {"kind": "Node", "name": "n"},
        "eventTime": "2026-01-01T00:00:00.000001Z", "reportingController": "me", "reportingInstance": "me-1",
        "action": "Doing", "reason": "Done", "note": "it is done", "type": "Normal"});
    http.post(new, &new_style).await.expect(201);
    let seen = http.get(&format!("{core}/new")).await.expect(200);
    assert_eq!(
        (&seen["involvedObject"]["name"], &seen["message"]),
        (&json!("n"), &json!("it is done"))
    );
    assert_eq!(seen["eventTime"], "2026-01-01T00:00:00.000001Z");
    let failed = format!("{core}?fieldSelector=involvedObject.name%3Dp,type%3DWarning");
    assert_eq!(
        http.get(&failed).await.expect(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let mut watch = http.watch(&format!("{new}?watch=1")).await;
    for _ in 0..2 {
        assert_eq!(watch.expect().await.object["apiVersion"], "events.k8s.io/v1");
    }
    http.patch(&format!("{core}/old"), "strategic-merge", &json!({"count": 3}))
        .await
        .expect(200);
    assert_eq!(watch.expect().await.object["deprecatedCount"], 3);
}

#[tokio::test]
async fn events_are_forgotten_after_their_time() {
    let server = Server::start(&["--event-ttl", "1s"]).await;
    let http = server.admin().await;
    let events = "/api/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "R"});
    http.post(events, &event).await.expect(201);
    eventually("the event expires", async || {
        (http.get(&format!("{events}/e")).await.code == 404).then_some(())
    })
    .await;
}

#[tokio::test]
async fn external_addresses_are_denied_where_that_is_asked_for() {
    let services = "/api/v1/namespaces/default/services";
    let with = |addresses: &[&str]| json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "externalIPs": addresses}});
    let patch = |addresses: &[&str]| json!({"spec": {"externalIPs": addresses}});
    let one = format!("{services}/s");
    let mut server = Server::start_to_be_restarted(&[]).await;
    let both = ["192.0.2.1", "192.0.2.2"];
    let http = server.admin().await;
    http.post(services, &with(&both)).await.expect(201);
    server.set_flags(&["--enable-admission-plugins", "DenyServiceExternalIPs"]);
    server.restart().await;
    let http = server.admin().await;
    let mut other = with(&["192.0.2.1"]);
    other["metadata"]["name"] = "t".into();
    let refused = http.post(services, &other).await.refused(403, "Forbidden");
    let why = r#"services "t" is forbidden: Use of external IPs is denied by admission control."#;
    assert_eq!(refused["message"], why);
    // What is there may stay, and shrink; it does not grow.
    http.patch(&one, "merge", &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .expect(200);
    http.patch(&one, "merge", &patch(&["192.0.2.2"]))
        .await
        .expect(200);
    http.patch(&one, "merge", &patch(&both))
        .await
        .refused(403, "Forbidden");
    http.patch(&one, "merge", &patch(&[])).await.expect(200);
}
