//! Deleting: preconditions, finalizers, grace, dependents, collections and namespaces.

use super::{CONFIG_MAPS, PODS};
use http::Method;
use pointsman_harness::wire::{Http, message, version_of};
use pointsman_harness::{BARE, Server, config_map, eventually, pod};
use serde_json::{Value, json};

async fn gone(http: &Http, path: &str) {
    eventually(&format!("{path} is gone"), async || {
        (http.get(path).await.code == 404).then_some(())
    })
    .await;
}

async fn bound(http: &Http, name: &str) -> String {
    let mut object = pod(name);
    object["spec"]["nodeName"] = "n1".into();
    http.post(PODS, &object).await.expect(201);
    format!("{PODS}/{name}")
}

#[tokio::test]
async fn preconditions_must_hold_and_the_answer_fits_the_kind() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let made = http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    for wrong in [
        json!({"uid": "11111111-2222-4333-8444-555555555555"}),
        json!({"resourceVersion": "1"}),
    ] {
        http.delete_with(&path, &json!({"preconditions": wrong}))
            .await
            .refused(409, "Conflict");
    }
    let right =
        json!({"preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": version_of(&made)}});
    let status = http.delete_with(&path, &right).await.expect(200);
    assert_eq!(
        (status["kind"].as_str(), status["status"].as_str()),
        (Some("Status"), Some("Success"))
    );
    assert_eq!(
        (&status["details"]["name"], &status["details"]["uid"]),
        (&json!("a"), &made["metadata"]["uid"])
    );
    http.delete(&path).await.refused(404, "NotFound");
    http.post(PODS, &pod("p")).await.expect(201);
    assert_eq!(http.delete(&format!("{PODS}/p")).await.expect(200)["kind"], "Pod");
    for wrong in [
        json!({"propagationPolicy": "Sideways"}),
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
    ] {
        assert!(
            (400..500).contains(&http.delete_with(&path, &wrong).await.code),
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn options_are_read_in_the_format_of_go_clients_too() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let path = bound(&http, "p").await;
    // An envelope with v1 DeleteOptions whose first field, the grace period, is 7.
    let body = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x02\x08\x07";
    let media = [("content-type", "application/vnd.kubernetes.protobuf")];
    let marked = http
        .raw(Method::DELETE, &path, &media, body.to_vec())
        .await
        .expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 7);
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_removed() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let mut held = config_map("a", "1");
    held["metadata"]["finalizers"] = json!(["x.example/one", "x.example/two"]);
    let made = http.post(CONFIG_MAPS, &held).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let mut watch = http
        .watch(&format!(
            "{CONFIG_MAPS}?watch=1&resourceVersion={}",
            version_of(&made)
        ))
        .await;
    let marked = http.delete(&path).await.expect(200);
    assert_eq!(
        (
            marked["kind"].as_str(),
            marked["metadata"]["deletionGracePeriodSeconds"].as_i64()
        ),
        (Some("ConfigMap"), Some(0))
    );
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let more = json!({"metadata": {"finalizers": ["x.example/one", "x.example/two", "x.example/three"]}});
    assert!((400..500).contains(&http.patch(&path, "merge", &more).await.code));
    let again = http
        .post(CONFIG_MAPS, &config_map("a", "1"))
        .await
        .refused(409, "AlreadyExists");
    assert!(message(&again).contains("being deleted"), "{again}");
    http.patch(
        &path,
        "merge",
        &json!({"metadata": {"finalizers": ["x.example/two"]}}),
    )
    .await
    .expect(200);
    http.patch(&path, "merge", &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    http.get(&path).await.refused(404, "NotFound");
    let kinds = [
        watch.expect().await.kind,
        watch.expect().await.kind,
        watch.expect().await.kind,
    ];
    assert_eq!(kinds, ["MODIFIED", "MODIFIED", "DELETED"]);
}

#[tokio::test]
async fn the_grace_of_a_pod_can_only_get_shorter() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let path = bound(&http, "p").await;
    let grace = |object: &Value| object["metadata"]["deletionGracePeriodSeconds"].as_i64();
    let first = http.delete(&path).await.expect(200);
    assert_eq!(grace(&first), Some(30));
    assert_eq!(first["metadata"]["generation"], 2);
    let longer = http
        .delete(&format!("{path}?gracePeriodSeconds=60"))
        .await
        .expect(200);
    assert_eq!(
        (grace(&longer), version_of(&longer)),
        (Some(30), version_of(&first))
    );
    let shorter = http
        .delete_with(&path, &json!({"gracePeriodSeconds": 5}))
        .await
        .expect(200);
    assert_eq!(grace(&shorter), Some(5));
    http.delete(&format!("{path}?gracePeriodSeconds=0"))
        .await
        .expect(200);
    http.get(&path).await.refused(404, "NotFound");
    // Nobody has to stop what never started, or has stopped already.
    http.post(PODS, &pod("free")).await.expect(201);
    http.delete(&format!("{PODS}/free")).await.expect(200);
    http.get(&format!("{PODS}/free")).await.refused(404, "NotFound");
    let path = bound(&http, "done").await;
    http.patch(
        &format!("{path}/status"),
        "merge",
        &json!({"status": {"phase": "Succeeded"}}),
    )
    .await
    .expect(200);
    http.delete(&path).await.expect(200);
    http.get(&path).await.refused(404, "NotFound");
    let path = bound(&http, "negative").await;
    assert_eq!(
        grace(
            &http
                .delete(&format!("{path}?gracePeriodSeconds=-5"))
                .await
                .expect(200)
        ),
        Some(1)
    );
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector_and_the_answer_lists_it() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    for name in ["a", "b", "c"] {
        let mut object = config_map(name, "1");
        object["metadata"]["labels"] = json!({"keep": if name == "c" { "yes" } else { "no" }});
        http.post(CONFIG_MAPS, &object).await.expect(201);
    }
    let deleted = http
        .delete(&format!("{CONFIG_MAPS}?labelSelector=keep%3Dno"))
        .await
        .expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        http.get(CONFIG_MAPS).await.expect(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    http.delete(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3Dc"))
        .await
        .expect(200);
    assert_eq!(http.get(CONFIG_MAPS).await.expect(200)["items"], json!([]));
    http.delete("/api/v1/namespaces")
        .await
        .refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn dependents_follow_their_last_owner() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let mut owners = Vec::new();
    for name in ["one", "two"] {
        let made = http.post(CONFIG_MAPS, &config_map(name, "1")).await.expect(201);
        owners.push(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": made["metadata"]["uid"]}),
        );
    }
    let mut child = config_map("child", "1");
    child["metadata"]["ownerReferences"] = json!(owners);
    http.post(CONFIG_MAPS, &child).await.expect(201);
    http.delete(&format!("{CONFIG_MAPS}/one")).await.expect(200);
    let path = format!("{CONFIG_MAPS}/child");
    eventually("the gone owner is forgotten", async || {
        let found = http.get(&path).await.expect(200);
        (found["metadata"]["ownerReferences"].as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    http.delete(&format!("{CONFIG_MAPS}/two")).await.expect(200);
    gone(&http, &path).await;
    // An owner that never was, or only shares its name, is no owner.
    http.post(CONFIG_MAPS, &config_map("one", "1")).await.expect(201);
    http.post(CONFIG_MAPS, &child).await.expect(201);
    gone(&http, &path).await;
    // A cluster-scoped owner may own in any namespace.
    let node = http
        .post("/api/v1/nodes", &json!({"metadata": {"name": "n"}}))
        .await
        .expect(201);
    let mut lease = json!({"metadata": {"name": "n"}, "spec": {}});
    lease["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": node["metadata"]["uid"]}]);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    http.post(leases, &lease).await.expect(201);
    http.delete("/api/v1/nodes/n").await.expect(200);
    gone(&http, &format!("{leases}/n")).await;
}

#[tokio::test]
async fn a_namespace_is_emptied_before_it_goes() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.namespace("doomed").await;
    let inside = "/api/v1/namespaces/doomed/configmaps";
    let mut held = config_map("held", "1");
    held["metadata"]["finalizers"] = json!(["x.example/hold"]);
    http.post(inside, &held).await.expect(201);
    http.post(inside, &config_map("free", "1")).await.expect(201);
    let pods = "/api/v1/namespaces/doomed/pods";
    let mut last = pod("last");
    last["metadata"]["finalizers"] = json!(["x.example/hold"]);
    http.post(pods, &last).await.expect(201);
    let namespace = http.get("/api/v1/namespaces/doomed").await.expect(200);
    assert_eq!(
        namespace["metadata"]["labels"]["kubernetes.io/metadata.name"],
        "doomed"
    );
    assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
    let marked = http.delete("/api/v1/namespaces/doomed").await.expect(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    let refused = http
        .post(inside, &config_map("late", "1"))
        .await
        .refused(403, "Forbidden");
    assert_eq!(
        refused["details"]["causes"][0]["reason"], "NamespaceTerminating",
        "{refused}"
    );
    eventually("the pod is asked to go", async || {
        let last = http.get(&format!("{pods}/last")).await.expect(200);
        last["metadata"]["deletionTimestamp"].is_string().then_some(())
    })
    .await;
    // What pods use is there as long as they are: it would have gone within the next looks.
    for _ in 0..20 {
        http.get(&format!("{inside}/free")).await.expect(200);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let let_go = json!({"metadata": {"finalizers": null}});
    http.patch(&format!("{pods}/last"), "merge", &let_go)
        .await
        .expect(200);
    gone(&http, &format!("{inside}/free")).await;
    eventually("the held one is asked to go", async || {
        let held = http.get(&format!("{inside}/held")).await.expect(200);
        held["metadata"]["deletionTimestamp"].is_string().then_some(())
    })
    .await;
    http.get("/api/v1/namespaces/doomed").await.expect(200);
    http.patch(
        &format!("{inside}/held"),
        "merge",
        &json!({"metadata": {"finalizers": null}}),
    )
    .await
    .expect(200);
    gone(&http, "/api/v1/namespaces/doomed").await;
    for protected in ["default", "kube-system", "kube-public"] {
        http.delete(&format!("/api/v1/namespaces/{protected}"))
            .await
            .refused(403, "Forbidden");
    }
    // The name can be used again, and nothing comes back.
    http.namespace("doomed").await;
    assert_eq!(http.get(inside).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn the_oldest_controllers_let_their_dependents_go_unless_told_otherwise() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let controllers = "/api/v1/namespaces/default/replicationcontrollers";
    let controller = json!({"metadata": {"name": "old"}, "spec": {"template": template}});
    for (options, kept) in [
        (json!({}), true),
        (json!({"orphanDependents": false}), false),
        (json!({"propagationPolicy": "Background"}), false),
    ] {
        let made = http.post(controllers, &controller).await.expect(201);
        let mut owned = config_map("owned", "1");
        owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ReplicationController",
            "name": "old", "uid": made["metadata"]["uid"]}]);
        http.post(CONFIG_MAPS, &owned).await.expect(201);
        let path = format!("{CONFIG_MAPS}/owned");
        http.delete_with(&format!("{controllers}/old"), &options)
            .await
            .expect(200);
        gone(&http, &format!("{controllers}/old")).await;
        if kept {
            let owned = http.get(&path).await.expect(200);
            assert_eq!(owned["metadata"].get("ownerReferences"), None, "{options}");
            http.delete(&path).await.expect(200);
        }
        gone(&http, &path).await;
    }
}
