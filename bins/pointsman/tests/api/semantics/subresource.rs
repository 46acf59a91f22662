//! Status, scale, binding, eviction and finalize.

use super::{DEPLOYMENTS, NODES, PODS, SERVICES};
use pointsman_harness::wire::version_of;
use pointsman_harness::{Server, pod};
use serde_json::json;

#[tokio::test]
async fn status_and_spec_are_written_through_their_own_doors() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let mut sent = pod("p");
    sent["status"] = json!({"phase": "Running", "podIP": "10.0.0.9"});
    let made = http.post(PODS, &sent).await.expect(201);
    assert_eq!(
        (made["status"]["phase"].as_str(), made["status"].get("podIP")),
        (Some("Pending"), None)
    );
    assert_eq!(made["status"]["qosClass"], "BestEffort");
    let path = format!("{PODS}/p");
    let mut through = made.clone();
    through["status"]["phase"] = "Running".into();
    through["metadata"]["labels"] = json!({"a": "b"});
    let kept = http.put(&path, &through).await.expect(200);
    assert_eq!(
        (
            kept["status"]["phase"].as_str(),
            kept["metadata"]["labels"]["a"].as_str()
        ),
        (Some("Pending"), Some("b"))
    );
    let mut through = kept.clone();
    through["status"]["phase"] = "Running".into();
    through["spec"]["containers"][0]["image"] = "other".into();
    let running = http.put(&format!("{path}/status"), &through).await.expect(200);
    assert_eq!(running["status"]["phase"], "Running");
    assert_eq!(running["spec"], kept["spec"]);
    assert_eq!(running["metadata"]["generation"], kept["metadata"]["generation"]);
    assert_eq!(
        http.get(&format!("{path}/status")).await.expect(200)["kind"],
        "Pod"
    );
    let condition = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    http.patch(&format!("{path}/status"), "strategic-merge", &condition)
        .await
        .expect(200);
    let other = json!({"status": {"conditions": [{"type": "Initialized", "status": "True"}]}});
    let both = http
        .patch(&format!("{path}/status"), "strategic-merge", &other)
        .await
        .expect(200);
    assert_eq!(both["status"]["conditions"].as_array().unwrap().len(), 2);
    http.put(&format!("{PODS}/missing/status"), &pod("missing"))
        .await
        .refused(404, "NotFound");
    // A node reports its status when it registers.
    let node = json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}});
    assert_eq!(
        http.post(NODES, &node).await.expect(201)["status"]["capacity"]["cpu"],
        "2"
    );
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    let made = http.post(SERVICES, &service).await.expect(201);
    assert_eq!(made["status"]["loadBalancer"].get("ingress"), None);
}

#[tokio::test]
async fn scale_is_a_view_of_its_parent() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "host"}]}}}});
    let made = http.post(DEPLOYMENTS, &deployment).await.expect(201);
    let path = format!("{DEPLOYMENTS}/d/scale");
    let scale = http.get(&path).await.expect(200);
    assert_eq!(
        (scale["kind"].as_str(), scale["apiVersion"].as_str()),
        (Some("Scale"), Some("autoscaling/v1"))
    );
    assert_eq!(
        (
            scale["spec"]["replicas"].as_i64(),
            scale["status"]["selector"].as_str()
        ),
        (Some(2), Some("app=d"))
    );
    assert_eq!(version_of(&scale), version_of(&made));
    let mut more = scale.clone();
    more["spec"]["replicas"] = 5.into();
    let changed = http.put(&path, &more).await.expect(200);
    assert_eq!(changed["spec"]["replicas"], 5);
    http.put(&path, &more).await.refused(409, "Conflict");
    let unversioned = json!({"metadata": {"name": "d"}, "spec": {"replicas": 6}});
    http.put(&path, &unversioned).await.expect(200);
    http.patch(&path, "merge", &json!({"spec": {"replicas": 7}}))
        .await
        .expect(200);
    let found = http.get(&format!("{DEPLOYMENTS}/d")).await.expect(200);
    assert_eq!(
        (
            found["spec"]["replicas"].as_i64(),
            found["metadata"]["generation"].as_i64()
        ),
        (Some(7), Some(4))
    );
    http.patch(&path, "merge", &json!({"spec": {"replicas": -1}}))
        .await
        .refused(422, "Invalid");
    http.get(&format!("{DEPLOYMENTS}/missing/scale"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    for name in ["a", "b", "c"] {
        http.post(PODS, &pod(name)).await.expect(201);
    }
    let binding = |name: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
    };
    let bound = http
        .post(&format!("{PODS}/a/binding"), &binding("a", "n1"))
        .await
        .expect(201);
    assert_eq!(
        (bound["kind"].as_str(), bound["status"].as_str()),
        (Some("Status"), Some("Success"))
    );
    let found = http.get(&format!("{PODS}/a")).await.expect(200);
    assert_eq!(found["spec"]["nodeName"], "n1");
    let scheduled = found["status"]["conditions"].as_array().unwrap();
    assert!(
        scheduled
            .iter()
            .any(|c| c["type"] == "PodScheduled" && c["status"] == "True"),
        "{found}"
    );
    http.post(&format!("{PODS}/a/binding"), &binding("a", "n2"))
        .await
        .refused(409, "Conflict");
    http.post("/api/v1/namespaces/default/bindings", &binding("b", "n1"))
        .await
        .expect(201);
    http.post(&format!("{PODS}/missing/binding"), &binding("missing", "n1"))
        .await
        .refused(404, "NotFound");
    assert!(
        http.post(&format!("{PODS}/c/binding"), &binding("c", ""))
            .await
            .code
            >= 400
    );

    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    http.post(&format!("{PODS}/a/eviction"), &eviction)
        .await
        .expect(201);
    let evicted = http.get(&format!("{PODS}/a")).await.expect(200);
    assert!(evicted["metadata"]["deletionTimestamp"].is_string());
    let conditions = evicted["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().any(|c| c["type"] == "DisruptionTarget"),
        "{evicted}"
    );
    http.post(&format!("{PODS}/b/binding"), &binding("b", "n1"))
        .await
        .refused(409, "Conflict");
}

#[tokio::test]
async fn what_is_not_served_is_refused_clearly() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    http.post(PODS, &pod("p")).await.expect(201);
    for (path, code) in [
        // Without an upgrade of the connection.
        ("exec?command=ls", 400),
        ("attach", 400),
        ("portforward", 400),
        ("ephemeralcontainers", 404),
        ("nothing", 404),
    ] {
        let answer = http.post(&format!("{PODS}/p/{path}"), &json!({})).await;
        assert!([code, 405, 501].contains(&answer.code), "{path}: {}", answer.text);
        assert_eq!(answer.json()["kind"], "Status", "{path}");
    }
    let hook = json!({"metadata": {"name": "a"}});
    http.post(
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        &hook,
    )
    .await
    .refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn logs_of_pods_without_a_node_are_empty_and_those_of_silent_nodes_are_not_there() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    http.post(PODS, &pod("p")).await.expect(201);
    let empty = http.get(&format!("{PODS}/p/log")).await;
    assert_eq!((empty.code, empty.text.as_str()), (200, ""));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
    }});
    http.post("/api/v1/nodes", &node).await.expect(201);
    let mut bound = pod("b");
    bound["spec"]["nodeName"] = "n1".into();
    http.post(PODS, &bound).await.expect(201);
    http.get(&format!("{PODS}/b/log"))
        .await
        .refused(503, "ServiceUnavailable");
    let path = format!("{PODS}/b/log?sinceSeconds=1&sinceTime=2026-11-15T20:00:00Z");
    http.get(&path).await.refused(400, "BadRequest");
}
