//! Who gets a token, and what is it good for?

use super::*;
use crate::cache::{Fate, Observer};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::AUTHORIZATION;

const TOKENS: &str = "/api/v1/namespaces/d/serviceaccounts/default/token";
const PODS: &str = "/api/v1/namespaces/d/pods";

fn node(name: &str) -> User {
    User::new(format!("system:node:{name}"), &[NODES, AUTHENTICATED])
}

impl World {
    /// A world with namespace `d`, and in it pod `web` on node `n1`.
    async fn with_pod() -> Self {
        let world = Self::new().await;
        world
            .made("/api/v1/namespaces", json!({"metadata": {"name": "d"}}))
            .await;
        let container = json!({"name": "c", "image": "host", "command": ["x"], "envFrom": [{"secretRef": {"name": "own"}}]});
        let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "containers": [container]}});
        world.made(PODS, pod).await;
        world
    }

    async fn made(&self, path: &str, object: Value) -> Value {
        self.answer(&admin(), Method::POST, path, &object, 201).await
    }

    async fn answer(&self, user: &User, method: Method, path: &str, body: &Value, code: u16) -> Value {
        let response = self.send(user, method, path, body).await;
        let got = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(got, code, "{path}: {answer}");
        answer
    }

    async fn bearer(&self, token: &str) -> (u16, Value) {
        let message = http::Request::builder()
            .method(Method::POST)
            .uri("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header(AUTHORIZATION, format!("Bearer {token}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from_static(b"{}")))
            .unwrap();
        let response = handle(self.server.clone(), Arc::new(Peer::default()), message).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap())
    }

    async fn token(&self, spec: Value) -> String {
        let answer = self.made(TOKENS, json!({"spec": spec})).await;
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    async fn pod_ref(&self) -> Value {
        let pod = self
            .answer(&admin(), Method::GET, &format!("{PODS}/web"), &Value::Null, 200)
            .await;
        json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": pod["metadata"]["uid"]})
    }
}

#[tokio::test]
async fn a_pods_token_is_its_accounts_until_the_pod_is_gone() {
    let world = World::with_pod().await;
    let reference = world.pod_ref().await;
    let token = world.token(json!({"boundObjectRef": reference})).await;
    for _ in 0..2 {
        let (code, who) = world.bearer(&token).await;
        assert_eq!(code, 201, "{who}");
        let who = &who["status"]["userInfo"];
        assert_eq!(who["username"], "system:serviceaccount:d:default");
        assert_eq!(who["groups"][1], "system:serviceaccounts:d");
        assert_eq!(
            who["extra"]["authentication.kubernetes.io/pod-uid"][0],
            reference["uid"]
        );
        assert_eq!(who["extra"]["authentication.kubernetes.io/node-name"][0], "n1");
    }
    let review = json!({"spec": {"token": token}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let known = world.made(reviews, review).await;
    assert_eq!(
        known["status"]["audiences"],
        json!(["https://kubernetes.default.svc"])
    );
    let elsewhere = json!({"spec": {"token": token, "audiences": ["vault"]}});
    assert_eq!(
        world.made(reviews, elsewhere).await["status"],
        json!({"authenticated": false})
    );
    let now = json!({"gracePeriodSeconds": 0});
    world
        .answer(&admin(), Method::DELETE, &format!("{PODS}/web"), &now, 200)
        .await;
    let (code, status) = world.bearer(&token).await;
    assert_eq!((code, &status["reason"]), (401, &json!("Unauthorized")));
    let unbound = world.token(json!({})).await;
    assert_eq!(world.bearer(&unbound).await.0, 201);
    let accounts = "/api/v1/namespaces/d/serviceaccounts/default";
    world
        .answer(&admin(), Method::DELETE, accounts, &json!({}), 200)
        .await;
    assert_eq!(world.bearer(&unbound).await.0, 401, "its account is gone");
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_refused_with_upstreams_words() {
    let world = World::with_pod().await;
    let ask = async |user: User, spec: Value| {
        world
            .ask(&user, Method::POST, TOKENS, &json!({"spec": spec}))
            .await
    };
    let mut reference = world.pod_ref().await;
    for (spec, code, words) in [
        (json!({"expirationSeconds": 599}), 422, "less than 10 minutes"),
        (json!({"expirationSeconds": 1_i64 << 33}), 422, "larger than 2^32"),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "x"}}),
            404,
            "pods \"x\" not found",
        ),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Service", "name": "x"}}),
            400,
            "cannot bind token",
        ),
    ] {
        let (got, why) = ask(admin(), spec).await;
        assert!(got == code && why.contains(words), "{got} {why}");
    }
    assert_eq!(ask(node("n1"), json!({"boundObjectRef": reference})).await.0, 201);
    let (code, why) = ask(node("n2"), json!({"boundObjectRef": reference})).await;
    assert!(
        code == 403 && why.contains("scheduled on a different node"),
        "{why}"
    );
    assert_eq!(ask(node("n1"), json!({})).await.0, 403);
    reference["uid"] = json!("other");
    assert_eq!(ask(admin(), json!({"boundObjectRef": reference})).await.0, 409);
    let missing = TOKENS.replace("default", "nobody");
    assert_eq!(
        world
            .ask(&admin(), Method::POST, &missing, &json!({"spec": {}}))
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn every_namespace_has_an_account_that_its_pods_get() {
    let world = World::with_pod().await;
    let pod = world
        .answer(&admin(), Method::GET, &format!("{PODS}/web"), &Value::Null, 200)
        .await;
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    let volume = &pod["spec"]["volumes"][0];
    assert!(volume["name"].as_str().unwrap().starts_with("kube-api-access-"));
    assert_eq!(
        pod["spec"]["containers"][0]["volumeMounts"][0]["name"],
        volume["name"]
    );
    let other = json!({
        "metadata": {"name": "x"},
        "spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "host"}]},
    });
    let (code, why) = world.ask(&admin(), Method::POST, PODS, &other).await;
    let words = r#"pods "x" is forbidden: error looking up service account d/robot: serviceaccounts "robot" not found"#;
    assert_eq!((code, why.as_str()), (403, words));
}

#[tokio::test]
async fn a_node_reads_the_secrets_that_its_pods_name() {
    let world = World::with_pod().await;
    for name in ["own", "other"] {
        let secret = json!({"metadata": {"name": name}, "stringData": {"password": "hunter2"}});
        world.made("/api/v1/namespaces/d/secrets", secret).await;
    }
    let get = async |user: &User, path: &str| {
        let path = format!("/api/v1/namespaces/d/{path}");
        world.ask(user, Method::GET, &path, &Value::Null).await
    };
    assert_eq!(get(&node("n1"), "secrets/own").await.0, 200);
    assert_eq!(
        get(&node("n1"), "secrets?fieldSelector=metadata.name%3Down")
            .await
            .0,
        200
    );
    for path in [
        "secrets/other",
        "secrets",
        "secrets?fieldSelector=metadata.name%3Dother",
        "configmaps/x",
    ] {
        let (code, why) = get(&node("n1"), path).await;
        assert!(
            code == 403 && why.contains("no relationship found"),
            "{path}: {why}"
        );
    }
    assert_eq!(get(&node("n2"), "secrets/own").await.0, 403);
}

#[tokio::test]
async fn keys_are_published_and_forged_tokens_are_refused() {
    let world = World::with_pod().await;
    let get = async |path: &str| world.answer(&admin(), Method::GET, path, &Value::Null, 200).await;
    let found = get("/.well-known/openid-configuration").await;
    assert_eq!(found["issuer"], "https://kubernetes.default.svc");
    assert_eq!(found["id_token_signing_alg_values_supported"], json!(["ES256"]));
    assert_eq!(get("/openid/v1/jwks").await["keys"][0]["crv"], "P-256");
    let token = world.token(json!({})).await;
    let mut parts: Vec<&str> = token.split('.').collect();
    let forged = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    parts[0] = &forged;
    for bad in [
        parts.join("."),
        format!("{}.{}.", parts[0], parts[1]),
        "ey.".repeat(9000),
        "ey".into(),
    ] {
        let (code, status) = world.bearer(&bad).await;
        assert_eq!((code, &status["message"]), (401, &json!("Unauthorized")));
    }
}

#[tokio::test]
async fn a_node_gets_what_the_volumes_of_its_pods_need_and_nothing_of_other_nodes() {
    let world = World::with_pod().await;
    let claims = "/api/v1/namespaces/d/persistentvolumeclaims";
    let request = json!({"accessModes": ["ReadWriteOnce"], "volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"name": "c"}, "spec": request});
    let claim = world.made(claims, claim).await;
    let bound = json!({"namespace": "d", "name": "c", "uid": claim["metadata"]["uid"]});
    let csi = json!({
        "driver": "disk.example.com", "volumeHandle": "1",
        "nodeStageSecretRef": {"namespace": "store", "name": "staged"},
        "controllerPublishSecretRef": {"namespace": "store", "name": "attached"},
    });
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": bound, "csi": csi});
    world
        .made(
            "/api/v1/persistentvolumes",
            json!({"metadata": {"name": "v"}, "spec": spec}),
        )
        .await;
    world
        .made("/api/v1/namespaces", json!({"metadata": {"name": "store"}}))
        .await;
    let driver =
        json!({"metadata": {"name": "disk.example.com"}, "spec": {"tokenRequests": [{"audience": "disk"}]}});
    world.made("/apis/storage.k8s.io/v1/csidrivers", driver).await;
    for name in ["staged", "attached"] {
        world
            .made(
                "/api/v1/namespaces/store/secrets",
                json!({"metadata": {"name": name}}),
            )
            .await;
    }
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
    let spec = json!({"nodeName": "n1", "volumes": volumes, "containers": [{"name": "c", "image": "host"}]});
    let pod = world
        .made(PODS, json!({"metadata": {"name": "db"}, "spec": spec}))
        .await;
    let read = async |of: &str, name: &str| {
        let path = format!("/api/v1/namespaces/store/secrets/{name}");
        world.ask(&node(of), Method::GET, &path, &Value::Null).await.0
    };
    assert_eq!(read("n1", "staged").await, 200);
    assert_eq!(read("n1", "attached").await, 403, "for a controller");
    assert_eq!(read("n2", "staged").await, 403);
    let token = async |audience: &str| {
        let reference =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "db", "uid": pod["metadata"]["uid"]});
        let body = json!({"spec": {"audiences": [audience], "boundObjectRef": reference}});
        world.ask(&node("n1"), Method::POST, TOKENS, &body).await.0
    };
    assert_eq!((token("disk").await, token("vault").await), (201, 403));
    for name in ["n1", "n2"] {
        let slice = json!({"metadata": {"name": name}, "spec": {
            "nodeName": name, "driver": "gpu.example.com", "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        }});
        world.made("/apis/resource.k8s.io/v1/resourceslices", slice).await;
    }
    let delete = async |selector: &str| {
        let path = format!("/apis/resource.k8s.io/v1/resourceslices{selector}");
        world.ask(&node("n1"), Method::DELETE, &path, &json!({})).await.0
    };
    assert_eq!(delete("?fieldSelector=spec.nodeName%3Dn2").await, 403);
    assert_eq!(delete("?fieldSelector=spec.nodeName%3Dn1").await, 200);
}

#[tokio::test]
async fn the_authority_is_left_to_kube_controller_manager_for_a_while_where_it_leads() {
    use crate::background::accounts;
    use std::time::{Duration, Instant};
    let world = World::new().await;
    world.server.root_ca.send_replace("an authority".into());
    let lease = |renewed: jiff::Timestamp| {
        json!({"metadata": {"name": "kube-controller-manager"}, "spec": {
            "holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": format!("{renewed:.6}")}})
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let now = jiff::Timestamp::now();
    let dead = now - jiff::SignedDuration::from_secs(60);
    let has = |name: &str, kind: &'static Kind, what: &str| world.server.find(kind, name, what).is_ok();
    let new = async |name: &str| {
        let namespace = json!({"metadata": {"name": name}});
        world.made("/api/v1/namespaces", namespace).await;
        assert!(has(name, &kinds::SERVICE_ACCOUNT, "default"));
        has(name, &kinds::CONFIG_MAP, "kube-root-ca.crt")
    };
    assert!(new("alone").await);
    world.made(leases, lease(dead)).await;
    assert!(new("after-its-death").await);
    let path = format!("{leases}/kube-controller-manager");
    world
        .answer(&admin(), Method::PATCH, &path, &lease(now), 200)
        .await;
    assert!(!new("beside").await);
    let before = Instant::now() - Duration::from_secs(6);
    assert!(accounts::equip(&world.server, "beside", before).await.unwrap());
    assert!(
        has("beside", &kinds::CONFIG_MAP, "kube-root-ca.crt"),
        "nobody else did"
    );
}

#[tokio::test]
async fn an_authority_that_somebody_emptied_comes_back_and_another_one_stays() {
    let world = World::with_pod().await;
    world.server.root_ca.send_replace("pem".into());
    let working = tokio::spawn(accounts::run(world.server.clone()));
    let says = || {
        let map = world.server.find(&kinds::CONFIG_MAP, "d", "kube-root-ca.crt");
        map.map(|map| map.value()["data"]["ca.crt"].clone())
            .unwrap_or_default()
    };
    let mut changed = world.server.cache.of(&kinds::CONFIG_MAP).subscribe();
    let mut shown = async || {
        let shown = async {
            while says() != "pem" {
                changed.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), shown)
            .await
            .expect("the authority is there");
    };
    world.server.wanting.observe(
        &world.server.find(&kinds::NAMESPACE, "", "d").unwrap(),
        Fate::Written,
    );
    shown().await;
    let path = "/api/v1/namespaces/d/configmaps/kube-root-ca.crt";
    let change = async |text: &str| {
        world
            .answer(
                &admin(),
                Method::PATCH,
                path,
                &json!({"data": {"ca.crt": text}}),
                200,
            )
            .await
    };
    change("").await;
    shown().await;
    working.abort();
    change("other").await;
    accounts::equip(&world.server, "d", std::time::Instant::now())
        .await
        .unwrap();
    assert_eq!(says(), "other");
}
