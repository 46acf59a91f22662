//! Requests through every check of a server, without a socket.

mod admission;
mod certificates;
mod identity;
mod lives;
mod ranges;

use super::*;
use crate::auth::User;
use crate::auth::authn::{AUTHENTICATED, MASTERS, NODES};
use crate::dispatch::{Peer, handle};
use crate::http::held::HeldBody;
use http::{Method, Response};
use http_body_util::{BodyExt, Full};
use pointsman_rules::admission::tolerations::TolerationSeconds;
use pointsman_rules::strategy::{ClusterSettings, IpRange};
use pointsman_rules::{Kind, kinds};
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

struct World {
    server: Arc<Server>,
    following: JoinHandle<()>,
    _home: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl World {
    async fn new() -> Self {
        Self::with(|_| ()).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut config = config(home.path().join("data"));
        change(&mut config);
        files::private_dir(&config.data_dir).unwrap();
        let store = open_store(&config).await.unwrap().unwrap();
        let (server, _) = assemble(&config, store).unwrap();
        let following = follow(&server).await.unwrap();
        bootstrap::run(&server, None).await.unwrap();
        Self {
            server,
            following,
            _home: home,
        }
    }

    async fn send(&self, user: &User, method: Method, path: &str, body: &Value) -> Response<HeldBody> {
        self.send_for(user, method, path, body, "application/json").await
    }

    async fn send_for(
        &self,
        user: &User,
        method: Method,
        path: &str,
        body: &Value,
        accept: &str,
    ) -> Response<HeldBody> {
        let peer = Peer {
            certificate: Some(user.clone()),
            loopback: true,
            address: None,
        };
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let message = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .header(http::header::ACCEPT, accept)
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        handle(self.server.clone(), Arc::new(peer), message).await
    }

    /// The answer's code and message; the message is empty unless the answer is a Status.
    async fn ask(&self, user: &User, method: Method, path: &str, body: &Value) -> (u16, String) {
        let response = self.send(user, method, path, body).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        let message = answer["message"].as_str().unwrap_or_default();
        (code, message.to_owned())
    }

    async fn grant(&self, user: &str, name: &str, verbs: &[&str]) {
        let rule = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs});
        self.grant_rule(user, name, rule).await;
    }

    async fn grant_rule(&self, user: &str, name: &str, rule: Value) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let role = json!({"metadata": {"name": name}, "rules": [rule]});
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            let path = format!("{rbac}/{plural}");
            let (code, why) = self.ask(&admin(), Method::POST, &path, &object).await;
            assert_eq!(code, 201, "{why}");
        }
    }
}

fn admin() -> User {
    User::new("admin", &[MASTERS])
}

fn config(data_dir: PathBuf) -> Config {
    Config {
        data_dir,
        listen: "127.0.0.1:0".parse().unwrap(),
        also_listen: Vec::new(),
        advertise: None,
        store: StoreChoice::Embedded,
        gates: pointsman_model::FeatureGates::default(),
        plugins: Default::default(),
        cluster: ClusterSettings {
            service_ranges: vec![IpRange {
                network: "10.96.0.0".parse().unwrap(),
                prefix: 16,
            }],
            node_ports: (30000, 32767),
        },
        tolerations: TolerationSeconds {
            not_ready: 300,
            unreachable: 300,
        },
        token_file: None,
        accounts: Default::default(),
        publish_root_ca: true,
        anonymous: true,
        extra_sans: Vec::new(),
        tls_files: None,
        client_ca_file: None,
        kubelet_certificate_authority: None,
        max_requests_inflight: 400,
        max_mutating_requests_inflight: 200,
        event_ttl: Duration::from_secs(3600),
        compaction_interval: Duration::from_secs(300),
        audit: None,
    }
}

#[tokio::test]
async fn a_watch_may_ask_for_the_longest_time_there_is() {
    let world = World::new().await;
    let seconds = i64::MAX;
    for bookmarks in [false, true] {
        let path =
            format!("/api/v1/namespaces?watch=1&timeoutSeconds={seconds}&allowWatchBookmarks={bookmarks}");
        let response = world.send(&admin(), Method::GET, &path, &Value::Null).await;
        assert_eq!(response.status(), 200);
        // The stream goes on after its first piece: its end is far, not in the past.
        let mut body = response.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(first.starts_with(br#"{"type":"ADDED""#));
        let next = tokio::time::timeout(Duration::from_millis(50), body.frame()).await;
        assert!(next.is_err(), "the watch ended or said more than there is");
    }
}

#[tokio::test]
async fn a_put_that_creates_needs_the_right_to_create() {
    let world = World::new().await;
    let jane = User::new("jane", &[]);
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}});
    let path = format!("{LEASES}/l");
    world.grant("jane", "changes", &["get", "update"]).await;
    for dry in ["", "?dryRun=All"] {
        let (code, why) = world
            .ask(&jane, Method::PUT, &format!("{path}{dry}"), &lease)
            .await;
        assert_eq!(code, 403, "{why}");
        let part = r#"User "jane" cannot create resource "leases" in API group "coordination.k8s.io""#;
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(
        world.ask(&jane, Method::GET, &path, &Value::Null).await.0,
        404,
        "nothing was made"
    );
    world.grant("jane", "makes", &["create"]).await;
    assert_eq!(world.ask(&jane, Method::PUT, &path, &lease).await.0, 201);
    // To change what is there, the right to update is enough.
    let john = User::new("john", &[]);
    world.grant("john", "johns", &["update"]).await;
    let made = world.server.find(&kinds::LEASE, "default", "l").unwrap().value();
    assert_eq!(world.ask(&john, Method::PUT, &path, &made).await.0, 200);
}

#[tokio::test]
async fn a_node_does_not_choose_the_addresses_of_its_pods() {
    let world = World::new().await;
    let node = User::new("system:node:n1", &[NODES]);
    let (nodes, n1) = ("/api/v1/nodes", "/api/v1/nodes/n1");
    for spec in [
        json!({"podCIDRs": ["0.0.0.0/0"]}),
        json!({"podCIDR": "10.0.0.0/24"}),
    ] {
        let grasping = json!({"metadata": {"name": "n1"}, "spec": spec});
        let (code, why) = world.ask(&node, Method::POST, nodes, &grasping).await;
        assert_eq!(
            (code, why.contains("not allowed to set podCIDRs")),
            (403, true),
            "{why}"
        );
    }
    let plain = json!({"metadata": {"name": "n1"}});
    assert_eq!(world.ask(&node, Method::POST, nodes, &plain).await.0, 201);
    let grasp = json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}});
    for path in [n1.to_owned(), format!("{n1}/status")] {
        // Through its status a spec is left as it is.
        let expected = if path == n1 { 403 } else { 200 };
        let (code, why) = world.ask(&node, Method::PATCH, &path, &grasp).await;
        assert_eq!(code, expected, "{why}");
    }
    assert_eq!(world.ask(&admin(), Method::PATCH, n1, &grasp).await.0, 200);
    // What it was given stays, and the rest of its Node is its own.
    let label = json!({"metadata": {"labels": {"example.com/a": "b"}}});
    assert_eq!(world.ask(&node, Method::PATCH, n1, &label).await.0, 200);
}

#[tokio::test]
async fn upstream_components_find_the_clients_authorities_and_a_range_that_is_ready() {
    let world = World::new().await;
    for (pem, forgotten) in [("one", "first"), ("two", "second")] {
        bootstrap::publish_client_authorities(&world.server, pem, forgotten)
            .await
            .unwrap();
        let map = world.server.find(
            &kinds::CONFIG_MAP,
            "kube-system",
            "extension-apiserver-authentication",
        );
        let data = &map.unwrap().value()["data"];
        assert_eq!(data["client-ca-file"], pem);
        assert_eq!(data["requestheader-client-ca-file"], "first", "it stays");
    }
    let kind = Kind::by_type("networking.k8s.io/v1", "ServiceCIDR").unwrap();
    let range = world.server.find(kind, "", "kubernetes").unwrap().value();
    let ready = &range["status"]["conditions"][0];
    assert_eq!(
        (ready["type"].as_str(), ready["status"].as_str()),
        (Some("Ready"), Some("True"))
    );
    assert_eq!(
        ready["message"], "Kubernetes Service CIDR is ready",
        "else it is applied anew"
    );
    let proxy = User::new("system:kube-proxy", &[]);
    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    assert_eq!(world.ask(&proxy, Method::GET, ranges, &json!(null)).await.0, 200);
}

#[tokio::test]
async fn a_namespace_that_takes_its_time_says_what_it_waits_for() {
    let world = World::new().await;
    let map = json!({"metadata": {"name": "m", "finalizers": ["lab.test/held"]}});
    let space = json!({"metadata": {"name": "d"}});
    for (path, object) in [
        ("/api/v1/namespaces", &space),
        ("/api/v1/namespaces/d/configmaps", &map),
    ] {
        assert_eq!(world.ask(&admin(), Method::POST, path, object).await.0, 201);
    }
    let working = tokio::spawn(namespaces::run(world.server.clone()));
    let mut changed = world.server.cache.of(&kinds::NAMESPACE).subscribe();
    let path = "/api/v1/namespaces/d";
    assert_eq!(world.ask(&admin(), Method::DELETE, path, &json!({})).await.0, 200);
    let said = async {
        loop {
            let namespace = world.server.find(&kinds::NAMESPACE, "", "d").unwrap().value();
            if let Some(conditions) = namespace["status"]["conditions"].as_array() {
                return conditions.clone();
            }
            changed.changed().await.unwrap();
        }
    };
    let said = tokio::time::timeout(Duration::from_secs(20), said).await.unwrap();
    assert_eq!(said[0]["type"], "NamespaceDeletionContentFailure");
    let left = "Some resources are remaining: configmaps has 1 resource instances";
    assert_eq!(
        (&said[1]["status"], &said[1]["message"]),
        (&json!("True"), &json!(left))
    );
    working.abort();
}

#[tokio::test]
async fn a_token_of_a_list_expires_with_the_history_however_little_is_written() {
    let world = World::new().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    for name in ["a", "b", "c"] {
        let quota = json!({"metadata": {"name": name}, "spec": {}});
        assert_eq!(world.ask(&admin(), Method::POST, quotas, &quota).await.0, 201);
    }
    let page = async |token: &str| {
        let path = format!("{quotas}?limit=1&continue={token}");
        let response = world.send(&admin(), Method::GET, &path, &Value::Null).await;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    let first = page("").await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    assert_eq!(page(token).await["items"][0]["metadata"]["name"], "b");
    let working = tokio::spawn(expiry::compact(world.server.clone(), Duration::from_millis(200)));
    let lease = json!({"metadata": {"name": "later"}});
    assert_eq!(world.ask(&admin(), Method::POST, LEASES, &lease).await.0, 201);
    let expired = async {
        loop {
            let answer = page(token).await;
            if answer["code"] == 410 {
                return answer;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let expired = tokio::time::timeout(Duration::from_secs(20), expired)
        .await
        .unwrap();
    let rest = page(expired["metadata"]["continue"].as_str().unwrap()).await;
    assert_eq!(rest["items"][0]["metadata"]["name"], "b");
    assert_eq!(rest["metadata"]["remainingItemCount"], 1);
    working.abort();
}
