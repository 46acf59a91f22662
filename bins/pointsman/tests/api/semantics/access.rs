//! Who gets in, and how far.

use super::{CONFIG_MAPS, LEASES, NODES, PODS, SERVICES, SLICES};
use http::Method;
use pointsman_harness::wire::{Http, message};
use pointsman_harness::{Server, config_map, pod, token_file};
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

struct World {
    server: Server,
    admin: Http,
    _files: tempfile::TempDir,
}

async fn world() -> World {
    let files = tempfile::tempdir().unwrap();
    let tokens = token_file(
        files.path(),
        &[
            ("jane-token", "jane", "dev"),
            ("node-token", "system:node:n1", "system:nodes"),
            ("helper-token", "helper", ""),
        ],
    );
    let server = Server::start(&["--token-auth-file", &tokens]).await;
    let admin = server.admin().await;
    World {
        server,
        admin,
        _files: files,
    }
}

async fn grant(admin: &Http, name: &str, user: &str, rules: Value) {
    admin
        .post(
            &format!("{RBAC}/clusterroles"),
            &json!({"metadata": {"name": name}, "rules": rules}),
        )
        .await
        .expect(201);
    let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    admin
        .post(&format!("{RBAC}/clusterrolebindings"), &binding)
        .await
        .expect(201);
}

#[tokio::test]
async fn strangers_see_health_and_version_and_nothing_else() {
    let world = world().await;
    let nobody = world.server.with_token(None).await;
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(nobody.get(path).await.code, 200, "{path}");
    }
    for path in [
        "/api",
        "/apis",
        "/metrics",
        "/openapi/v3",
        PODS,
        "/api/v1/namespaces",
        "/nothing",
    ] {
        let refused = nobody.get(path).await.refused(403, "Forbidden");
        assert!(message(&refused).contains("system:anonymous"), "{refused}");
    }
    nobody
        .post(CONFIG_MAPS, &config_map("a", "1"))
        .await
        .refused(403, "Forbidden");
    let wrong = world.server.with_token(Some("wrong")).await;
    for path in ["/healthz", PODS] {
        wrong.get(path).await.refused(401, "Unauthorized");
    }
    let closed = Server::start(&["--anonymous-auth=false"]).await;
    closed
        .with_token(None)
        .await
        .get("/version")
        .await
        .refused(401, "Unauthorized");
}

#[tokio::test]
async fn roles_grant_what_they_name_where_they_are_bound() {
    let world = world().await;
    let jane = world.server.with_token(Some("jane-token")).await;
    let refused = jane.get(PODS).await.refused(403, "Forbidden");
    for part in [
        "User \"jane\"",
        "cannot list resource \"pods\"",
        "in the namespace \"default\"",
    ] {
        assert!(message(&refused).contains(part), "{refused}");
    }
    jane.get("/api").await.expect(200);
    // A controller that may use its kind waits until there is one: it has to be told that there is none.
    let rules = json!([{"apiGroups": ["later.example"], "resources": ["things"], "verbs": ["list"]}]);
    grant(&world.admin, "later", "jane", rules).await;
    let later = "/apis/later.example/v1/namespaces/default/things";
    jane.get(later).await.refused(404, "NotFound");
    jane.post(later, &json!({})).await.refused(403, "Forbidden");
    jane.get("/apis/later.example/v1/others")
        .await
        .refused(403, "Forbidden");
    world.admin.namespace("team").await;
    let binding = json!({"metadata": {"name": "devs"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "dev"}]});
    let bindings = format!("{RBAC}/namespaces/team/rolebindings");
    world.admin.post(&bindings, &binding).await.expect(201);
    let team = "/api/v1/namespaces/team/configmaps";
    jane.post(team, &config_map("a", "1")).await.expect(201);
    jane.get(CONFIG_MAPS).await.refused(403, "Forbidden");
    jane.get("/api/v1/configmaps").await.refused(403, "Forbidden");
    // Names narrow a rule, also for a collection that is pinned to the name.
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "create"], "resourceNames": ["one"]}]);
    grant(&world.admin, "named", "jane", rules).await;
    world
        .admin
        .post(CONFIG_MAPS, &config_map("one", "1"))
        .await
        .expect(201);
    jane.get(&format!("{CONFIG_MAPS}/one")).await.expect(200);
    jane.get(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3Done"))
        .await
        .expect(200);
    jane.get(&format!("{CONFIG_MAPS}/two"))
        .await
        .refused(403, "Forbidden");
    jane.get(CONFIG_MAPS).await.refused(403, "Forbidden");
    jane.post(CONFIG_MAPS, &config_map("two", "1"))
        .await
        .refused(403, "Forbidden");
    world.admin.delete(&format!("{bindings}/devs")).await.expect(200);
    jane.get(team).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn nobody_grants_more_than_they_have() {
    let world = world().await;
    let rules = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["create", "update", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]);
    grant(&world.admin, "granter", "jane", rules).await;
    let jane = world.server.with_token(Some("jane-token")).await;
    let role = |name: &str, verb: &str| json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}]});
    let roles = format!("{RBAC}/clusterroles");
    jane.post(&roles, &role("fine", "get")).await.expect(201);
    let refused = jane
        .post(&roles, &role("more", "delete"))
        .await
        .refused(403, "Forbidden");
    assert!(message(&refused).contains("delete"), "{refused}");
    jane.patch(
        &format!("{roles}/fine"),
        "merge",
        &json!({"rules": role("", "delete")["rules"]}),
    )
    .await
    .refused(403, "Forbidden");
    let binding = json!({"metadata": {"name": "up"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    jane.post(&format!("{RBAC}/clusterrolebindings"), &binding)
        .await
        .refused(403, "Forbidden");
    let mut low = binding;
    low["roleRef"]["name"] = "fine".into();
    jane.post(&format!("{RBAC}/clusterrolebindings"), &low)
        .await
        .expect(201);
    let moved = json!({"roleRef": {"name": "granter"}});
    world
        .admin
        .patch(&format!("{RBAC}/clusterrolebindings/up"), "merge", &moved)
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn impersonation_needs_permission_and_is_complete() {
    let world = world().await;
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]);
    grant(&world.admin, "lister", "jane", rules).await;
    let helper = world.server.with_token(Some("helper-token")).await;
    let as_jane = [("impersonate-user", "jane")];
    helper
        .raw(Method::GET, PODS, &as_jane, Vec::new())
        .await
        .refused(403, "Forbidden");
    let rules = json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["jane"]}]);
    grant(&world.admin, "actor", "helper", rules).await;
    helper
        .raw(Method::GET, PODS, &as_jane, Vec::new())
        .await
        .expect(200);
    helper
        .raw(Method::GET, SERVICES, &as_jane, Vec::new())
        .await
        .refused(403, "Forbidden");
    let with_group = [
        ("impersonate-user", "jane"),
        ("impersonate-group", "system:masters"),
    ];
    helper
        .raw(Method::GET, PODS, &with_group, Vec::new())
        .await
        .refused(403, "Forbidden");
    let only_group = [("impersonate-group", "dev")];
    assert!([400, 403].contains(&helper.raw(Method::GET, PODS, &only_group, Vec::new()).await.code));
    // Who acts for someone else has only the other's rights.
    world
        .admin
        .raw(Method::GET, SERVICES, &as_jane, Vec::new())
        .await
        .refused(403, "Forbidden");
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let headers = [
        ("impersonate-user", "jane"),
        ("impersonate-group", "ops"),
        ("content-type", "application/json"),
    ];
    let seen = world
        .admin
        .raw(Method::POST, path, &headers, review.to_string().into_bytes())
        .await
        .expect(201);
    assert_eq!(seen["status"]["userInfo"]["username"], "jane");
    assert_eq!(
        seen["status"]["userInfo"]["groups"],
        json!(["ops", "system:authenticated"])
    );
}

#[tokio::test]
async fn a_node_keeps_to_its_own_node_lease_and_pods() {
    let world = world().await;
    let node = world.server.with_token(Some("node-token")).await;
    node.post(NODES, &json!({"metadata": {"name": "n1"}}))
        .await
        .expect(201);
    node.post(NODES, &json!({"metadata": {"name": "n2"}}))
        .await
        .refused(403, "Forbidden");
    world
        .admin
        .post(NODES, &json!({"metadata": {"name": "n2"}}))
        .await
        .expect(201);
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    node.patch(&format!("{NODES}/n1/status"), "strategic-merge", &status)
        .await
        .expect(200);
    node.patch(&format!("{NODES}/n2/status"), "strategic-merge", &status)
        .await
        .refused(403, "Forbidden");
    node.patch(
        &format!("{NODES}/n1"),
        "merge",
        &json!({"spec": {"taints": null}}),
    )
    .await
    .refused(403, "Forbidden");
    node.get(&format!("{NODES}/n2")).await.expect(200);

    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    let made = node.post(NODE_LEASES, &lease("n1")).await.expect(201);
    node.put(&format!("{NODE_LEASES}/n1"), &made).await.expect(200);
    node.post(NODE_LEASES, &lease("n2"))
        .await
        .refused(403, "Forbidden");
    world.admin.post(NODE_LEASES, &lease("n2")).await.expect(201);
    node.get(&format!("{NODE_LEASES}/n2"))
        .await
        .refused(403, "Forbidden");
    node.patch(&format!("{NODE_LEASES}/n2"), "merge", &lease("n2"))
        .await
        .refused(403, "Forbidden");
    node.post(LEASES, &lease("n1")).await.refused(403, "Forbidden");

    for (name, place) in [("mine", "n1"), ("other", "n2")] {
        let mut object = pod(name);
        object["spec"]["nodeName"] = place.into();
        world.admin.post(PODS, &object).await.expect(201);
    }
    let running = json!({"status": {"phase": "Running"}});
    node.patch(&format!("{PODS}/mine/status"), "merge", &running)
        .await
        .expect(200);
    node.patch(&format!("{PODS}/other/status"), "merge", &running)
        .await
        .refused(403, "Forbidden");
    node.patch(
        &format!("{PODS}/mine"),
        "merge",
        &json!({"metadata": {"labels": {"a": "b"}}}),
    )
    .await
    .refused(403, "Forbidden");
    node.get(PODS).await.refused(403, "Forbidden");
    let own = node
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await
        .expect(200);
    assert_eq!(own["items"].as_array().unwrap().len(), 1);
    node.delete(&format!("{PODS}/other?gracePeriodSeconds=0"))
        .await
        .refused(403, "Forbidden");
    node.delete(&format!("{PODS}/mine?gracePeriodSeconds=0"))
        .await
        .expect(200);
    node.post(CONFIG_MAPS, &config_map("a", "1"))
        .await
        .refused(403, "Forbidden");
    node.get(SLICES).await.expect(200);
}

#[tokio::test]
async fn each_role_of_the_program_has_what_it_needs_and_no_more() {
    let world = world().await;
    let controllers = world.server.role("controllers").await;
    let proxy = world.server.role("proxy").await;
    let sli = world.server.role("sli").await;
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [], "ports": []});
    controllers.post(SLICES, &slice).await.expect(201);
    controllers
        .post(
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
            &json!({"metadata": {"name": "l"}}),
        )
        .await
        .expect(201);
    controllers
        .post(SERVICES, &json!({"metadata": {"name": "s"}}))
        .await
        .refused(403, "Forbidden");
    for reader in [&proxy, &sli] {
        reader.get("/api/v1/services").await.expect(200);
        reader
            .get("/apis/discovery.k8s.io/v1/endpointslices")
            .await
            .expect(200);
        reader.post(SLICES, &slice).await.refused(403, "Forbidden");
        reader.get("/api/v1/configmaps").await.refused(403, "Forbidden");
    }
    assert_eq!(sli.get("/metrics").await.code, 200);
    proxy.get(PODS).await.refused(403, "Forbidden");
}
