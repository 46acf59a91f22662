//! Creating, replacing and patching.

use super::{CONFIG_MAPS, DEPLOYMENTS, LEASES, PODS};
use http::Method;
use pointsman_harness::wire::{message, version_of};
use pointsman_harness::{BARE, Server, config_map, pod};
use serde_json::{Value, json};

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "host"}]},
            },
        },
    })
}

fn lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": "me", "renewTime": "2026-01-02T03:04:05.678901Z"},
    })
}

#[tokio::test]
async fn the_server_fills_in_metadata_and_believes_no_other() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let mut sent = config_map("a", "1");
    sent["metadata"]["uid"] = "mine".into();
    sent["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    sent["metadata"]["deletionTimestamp"] = "2001-01-01T00:00:00Z".into();
    let made = http.post(CONFIG_MAPS, &sent).await.expect(201);
    let metadata = &made["metadata"];
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    assert!(
        !metadata["creationTimestamp"]
            .as_str()
            .unwrap()
            .starts_with("2001")
    );
    assert_eq!(metadata["creationTimestamp"].as_str().unwrap().len(), 20);
    assert_eq!(metadata.get("deletionTimestamp"), None);
    assert_eq!(metadata["namespace"], "default");
    http.post(CONFIG_MAPS, &config_map("a", "1"))
        .await
        .refused(409, "AlreadyExists");
    let mut versioned = config_map("b", "1");
    versioned["metadata"]["resourceVersion"] = "1".into();
    assert!(http.post(CONFIG_MAPS, &versioned).await.code >= 400);
}

#[tokio::test]
async fn generated_names_have_five_random_letters_after_the_prefix() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let mut sent = config_map("x", "1");
    sent["metadata"] = json!({"generateName": "job-"});
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..8 {
        let made = http.post(CONFIG_MAPS, &sent).await.expect(201);
        let name = made["metadata"]["name"].as_str().unwrap().to_owned();
        let suffix = name.strip_prefix("job-").unwrap();
        assert!(
            suffix.len() == 5 && suffix.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)),
            "{name}"
        );
        names.insert(name);
    }
    assert_eq!(names.len(), 8);
    sent["metadata"] = json!({"generateName": "n".repeat(70)});
    let made = http.post(CONFIG_MAPS, &sent).await.expect(201);
    assert_eq!(made["metadata"]["name"].as_str().unwrap().len(), 63);
    sent["metadata"] = json!({});
    http.post(CONFIG_MAPS, &sent).await.refused(422, "Invalid");
}

#[tokio::test]
async fn stale_writers_get_a_conflict() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let path = format!("{CONFIG_MAPS}/a");
    let first = http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    let mut second = first.clone();
    second["data"]["value"] = "2".into();
    let second = http.put(&path, &second).await.expect(200);
    assert_ne!(version_of(&first), version_of(&second));
    let conflict = http.put(&path, &first).await.refused(409, "Conflict");
    assert_eq!(
        (
            conflict["details"]["name"].as_str(),
            conflict["details"]["kind"].as_str()
        ),
        (Some("a"), Some("configmaps"))
    );
    http.put(&path, &config_map("a", "3")).await.expect(200);
    let stale = json!({"metadata": {"resourceVersion": version_of(&second)}, "data": {"value": "4"}});
    http.patch(&path, "merge", &stale).await.refused(409, "Conflict");
    let other = json!({"metadata": {"uid": "11111111-2222-4333-8444-555555555555"}});
    http.patch(&path, "merge", &other).await.refused(409, "Conflict");
    let mut other = config_map("a", "5");
    other["metadata"]["uid"] = "11111111-2222-4333-8444-555555555555".into();
    http.put(&path, &other).await.refused(409, "Conflict");
    // A lease is a lock: it cannot be taken by accident.
    http.post(LEASES, &lease("l")).await.expect(201);
    http.put(&format!("{LEASES}/l"), &lease("l"))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn a_write_that_changes_nothing_is_no_write() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let made = http.post(DEPLOYMENTS, &deployment("d")).await.expect(201);
    let path = format!("{DEPLOYMENTS}/d");
    let mut watch = http
        .watch(&format!(
            "{DEPLOYMENTS}?watch=1&resourceVersion={}",
            version_of(&made)
        ))
        .await;
    let same = http.put(&path, &made).await.expect(200);
    assert_eq!(version_of(&same), version_of(&made));
    let patched = http
        .patch(&path, "strategic-merge", &json!({"spec": {"replicas": 2}}))
        .await
        .expect(200);
    assert_eq!(version_of(&patched), version_of(&made));
    http.patch(&path, "merge", &json!({"spec": {"replicas": 3}}))
        .await
        .expect(200);
    let event = watch.expect().await;
    assert_eq!(
        (event.kind.as_str(), event.object["spec"]["replicas"].as_i64()),
        ("MODIFIED", Some(3))
    );
    assert_eq!(
        (
            &made["metadata"]["generation"],
            &event.object["metadata"]["generation"]
        ),
        (&json!(1), &json!(2))
    );
    let labelled = http
        .patch(&path, "merge", &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .expect(200);
    assert_eq!(labelled["metadata"]["generation"], 2);
}

#[tokio::test]
async fn bodies_must_agree_with_the_url() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    http.put(&format!("{CONFIG_MAPS}/a"), &config_map("b", "1"))
        .await
        .refused(400, "BadRequest");
    let nameless = http.put(&format!("{CONFIG_MAPS}/a"), &json!({})).await;
    nameless.refused(400, "BadRequest");
    let mut elsewhere = config_map("c", "1");
    elsewhere["metadata"]["namespace"] = "kube-system".into();
    http.post(CONFIG_MAPS, &elsewhere)
        .await
        .refused(400, "BadRequest");
    http.post(CONFIG_MAPS, &pod("p")).await.refused(400, "BadRequest");
    let mut old = config_map("c", "1");
    old["apiVersion"] = "v2".into();
    http.post(CONFIG_MAPS, &old).await.refused(400, "BadRequest");
    let bare = json!({"metadata": {"name": "bare"}});
    assert_eq!(
        http.post(CONFIG_MAPS, &bare).await.expect(201)["kind"],
        "ConfigMap"
    );
    http.post("/api/v1/namespaces/nowhere/configmaps", &config_map("a", "1"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn put_creates_only_kinds_for_which_it_is_usual() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let lease = http.put(&format!("{LEASES}/l"), &lease("l")).await.expect(201);
    // Microseconds are kept.
    assert_eq!(lease["spec"]["renewTime"], "2026-01-02T03:04:05.678901Z");
    let endpoints = json!({"metadata": {"name": "e"}, "subsets": []});
    http.put("/api/v1/namespaces/default/endpoints/e", &endpoints)
        .await
        .expect(201);
    http.put(&format!("{PODS}/p"), &pod("p"))
        .await
        .refused(404, "NotFound");
    http.put(&format!("{DEPLOYMENTS}/d"), &deployment("d"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn patches_of_every_type_and_their_failures() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.post(DEPLOYMENTS, &deployment("d")).await.expect(201);
    let path = format!("{DEPLOYMENTS}/d");
    let add = json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "host"}]}}}});
    let merged = http.patch(&path, "strategic-merge", &add).await.expect(200);
    assert_eq!(
        merged["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let drop =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}});
    let merged = http.patch(&path, "strategic-merge", &drop).await.expect(200);
    assert_eq!(
        merged["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let replaced = http.patch(&path, "merge", &add).await.expect(200);
    assert_eq!(
        replaced["spec"]["template"]["spec"]["containers"][0]["name"],
        "side"
    );
    let ops = json!([
        {"op": "test", "path": "/spec/replicas", "value": 2},
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
    ]);
    assert_eq!(
        http.patch(&path, "json", &ops).await.expect(200)["metadata"]["labels"]["a"],
        "b"
    );
    let failing = json!([{"op": "test", "path": "/spec/replicas", "value": 99}]);
    http.patch(&path, "json", &failing).await.refused(422, "Invalid");
    http.patch(&path, "json", &json!([{"op": "remove", "path": "/spec/nothing"}]))
        .await
        .refused(422, "Invalid");
    http.patch(&path, "json", &json!({"op": "remove"}))
        .await
        .refused(400, "BadRequest");
    http.patch(&path, "merge", &json!([1]))
        .await
        .refused(400, "BadRequest");
    http.patch(&path, "merge", &json!({"metadata": {"name": "other"}}))
        .await
        .refused(400, "BadRequest");
    http.patch(&format!("{path}x"), "merge", &json!({}))
        .await
        .refused(404, "NotFound");
    let media = [("content-type", "application/apply-patch+yaml")];
    let apply = http
        .raw(
            Method::PATCH,
            &format!("{path}?fieldManager=me"),
            &media,
            b"{}".to_vec(),
        )
        .await;
    let refused = apply.refused(415, "UnsupportedMediaType");
    assert!(message(&refused).contains("server-side apply"), "{refused}");
    let media = [("content-type", "text/plain")];
    http.raw(Method::PATCH, &path, &media, b"{}".to_vec())
        .await
        .refused(415, "UnsupportedMediaType");
    let node = "/apis/config.openshift.io/v1/nodes/cluster";
    http.patch(node, "strategic-merge", &json!({}))
        .await
        .refused(415, "UnsupportedMediaType");
}

#[tokio::test]
async fn concurrent_patches_all_take_effect() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let patches = (0..20).map(|at| {
        let (http, path) = (http.clone(), path.clone());
        async move {
            http.patch(&path, "merge", &json!({"data": {format!("k{at}"): "v"}}))
                .await
                .expect(200)
        }
    });
    futures::future::join_all(patches).await;
    let found = http.get(&path).await.expect(200);
    assert_eq!(found["data"].as_object().unwrap().len(), 21);
}

#[tokio::test]
async fn dry_runs_answer_as_if_done_and_persist_nothing() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let made = http
        .post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a", "1"))
        .await
        .expect(201);
    assert!(made["metadata"]["uid"].is_string());
    http.get(&format!("{CONFIG_MAPS}/a"))
        .await
        .refused(404, "NotFound");
    assert_eq!(http.get(CONFIG_MAPS).await.expect(200)["items"], json!([]));
    let real = http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a?dryRun=All");
    assert_eq!(
        http.put(&path, &config_map("a", "2")).await.expect(200)["data"]["value"],
        "2"
    );
    assert_eq!(
        http.patch(&path, "merge", &json!({"data": {"value": "3"}}))
            .await
            .expect(200)["data"]["value"],
        "3"
    );
    http.delete(&path).await.expect(200);
    http.delete_with(&format!("{CONFIG_MAPS}/a"), &json!({"dryRun": ["All"]}))
        .await
        .expect(200);
    http.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a", "1"))
        .await
        .refused(409, "AlreadyExists");
    assert_eq!(http.get(&format!("{CONFIG_MAPS}/a")).await.expect(200), real);
    assert_eq!(http.delete(&format!("{CONFIG_MAPS}?dryRun=All")).await.code, 200);
    assert_eq!(http.get(&format!("{CONFIG_MAPS}/a")).await.expect(200), real);
    let wrong = http
        .post(&format!("{CONFIG_MAPS}?dryRun=Some"), &config_map("b", "1"))
        .await;
    assert!((400..500).contains(&wrong.code), "{}", wrong.text);
    let missing = http
        .post(
            "/api/v1/namespaces/nowhere/configmaps?dryRun=All",
            &config_map("b", "1"),
        )
        .await;
    missing.refused(404, "NotFound");
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_about_or_kept_but_never_lost() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let odd = |name: &str| {
        let mut object = pod(name);
        object["spec"]["flavour"] = "sweet".into();
        object["spec"]["containers"][0]["temperature"] = 7.into();
        object
    };
    let post = async |name: &str, mode: &str| {
        http.post(&format!("{PODS}?fieldValidation={mode}"), &odd(name))
            .await
    };
    let refused = post("a", "Strict").await.refused(400, "BadRequest");
    for field in ["spec.flavour", "spec.containers[0].temperature"] {
        assert!(
            message(&refused).contains(&format!("unknown field \"{field}\"")),
            "{refused}"
        );
    }
    let warned = post("warned", "Warn").await;
    assert!(
        warned.header("warning").starts_with("299 - \"unknown field"),
        "{:?}",
        warned.headers
    );
    warned.expect(201);
    let ignored = post("ignored", "Ignore").await;
    assert_eq!((ignored.code, ignored.header("warning")), (201, ""));
    // Without the parameter the server warns.
    let default = http.post(PODS, &odd("default")).await;
    assert!(!default.header("warning").is_empty());
    default.expect(201);
    for name in ["warned", "ignored", "default"] {
        let patch = json!({"metadata": {"labels": {"touched": "yes"}}});
        http.patch(
            &format!("{PODS}/{name}?fieldValidation=Ignore"),
            "strategic-merge",
            &patch,
        )
        .await
        .expect(200);
        let stored = http.get(&format!("{PODS}/{name}")).await.expect(200);
        assert_eq!(
            (
                &stored["spec"]["flavour"],
                &stored["spec"]["containers"][0]["temperature"]
            ),
            (&json!("sweet"), &json!(7))
        );
    }
    let twice = br#"{"metadata": {"name": "twice"}, "data": {"a": "1", "a": "2"}}"#.to_vec();
    let strict = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let media = [("content-type", "application/json")];
    let refused = http
        .raw(Method::POST, &strict, &media, twice.clone())
        .await
        .refused(400, "BadRequest");
    assert!(message(&refused).contains("duplicate field"), "{refused}");
    http.raw(Method::POST, CONFIG_MAPS, &media, twice)
        .await
        .expect(201);
    assert!(post("b", "Sometimes").await.code >= 400);
}
