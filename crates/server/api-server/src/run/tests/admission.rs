//! What do requests hold, and until when?

use super::*;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn jane() -> User {
    User::new("jane", &[AUTHENTICATED])
}

impl World {
    /// A figure of the workload class: requests of `kind` (`mutating` or `readOnly`).
    fn figure(&self, name: &str, kind: &str) -> usize {
        let line =
            format!("apiserver_flowcontrol_{name}{{priority_level=\"workload\",request_kind=\"{kind}\"}} ");
        let text = self.server.metrics.registry.render();
        let value = text.lines().find_map(|found| found.strip_prefix(&line));
        value.expect("the figure is there").parse().unwrap()
    }

    fn executing(&self, kind: &str) -> usize {
        self.figure("current_executing_requests", kind)
    }

    async fn grant_maps(&self, verbs: &[&str]) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1/clusterrole";
        let rule = json!({"apiGroups": [""], "resources": ["configmaps", "pods", "pods/log", "nodes"], "verbs": verbs});
        let role = json!({"metadata": {"name": "maps"}, "rules": [rule]});
        let binding = json!({
            "metadata": {"name": "maps"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
        });
        for (path, object) in [("s", role), ("bindings", binding)] {
            let path = format!("{rbac}{path}");
            let (code, why) = self.ask(&admin(), Method::POST, &path, &object).await;
            assert_eq!(code, 201, "{why}");
        }
    }
}

#[tokio::test]
async fn every_route_is_admitted_and_keeps_its_seat_until_the_answer_is_sent() {
    let world = World::new().await;
    world.grant_maps(&["*"]).await;
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "b"}});
    for (method, path, body, code, kind) in [
        (Method::POST, REVIEWS, &review, 201, "mutating"),
        (Method::POST, MAPS, &map, 201, "mutating"),
        (Method::GET, "/version", &Value::Null, 200, "readOnly"),
        (Method::GET, "/apis", &Value::Null, 200, "readOnly"),
        (Method::GET, MAPS, &Value::Null, 200, "readOnly"),
        (
            Method::GET,
            "/api/v1/namespaces/default/configmaps?pretty=true",
            &Value::Null,
            200,
            "readOnly",
        ),
    ] {
        let before = world.figure("dispatched_requests_total", kind);
        let response = world.send(&jane(), method, path, body).await;
        assert_eq!(response.status(), code, "{path}");
        assert_eq!(
            world.figure("dispatched_requests_total", kind),
            before + 1,
            "{path}"
        );
        assert_eq!(world.executing(kind), 1, "{path}");
        response.into_body().collect().await.unwrap();
        assert_eq!(world.executing(kind), 0, "{path}");
    }
}

#[tokio::test]
async fn a_large_body_takes_more_seats() {
    let world = World::new().await;
    world.grant_maps(&["*"]).await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "x".repeat(500 << 10)}});
    let response = world.send(&jane(), Method::POST, MAPS, &map).await;
    assert_eq!(response.status(), 201);
    assert_eq!(world.figure("current_executing_seats", "mutating"), 8);
    drop(response);
    assert_eq!(world.figure("current_executing_seats", "mutating"), 0);
}

#[tokio::test]
async fn a_watch_keeps_no_seat_and_is_counted_until_it_ends() {
    let world = World::new().await;
    world.grant_maps(&["*"]).await;
    let long = || {
        let text = world.server.metrics.registry.render();
        text.contains("apiserver_longrunning_in_flight 1\n")
    };
    let before = world.figure("dispatched_requests_total", "readOnly");
    let response = world
        .send(&jane(), Method::GET, &format!("{MAPS}?watch=1"), &Value::Null)
        .await;
    assert_eq!(response.status(), 200);
    assert_eq!(world.figure("dispatched_requests_total", "readOnly"), before + 1);
    assert!(world.executing("readOnly") == 0 && long());
    drop(response);
    assert!(!long());
}

#[tokio::test]
async fn reviews_are_short() {
    let world = World::new().await;
    let review = json!({"spec": {"nonResourceAttributes": {"path": "x".repeat(70 << 10), "verb": "get"}}});
    let (code, why) = world.ask(&jane(), Method::POST, REVIEWS, &review).await;
    assert_eq!(code, 413, "{why}");
}
