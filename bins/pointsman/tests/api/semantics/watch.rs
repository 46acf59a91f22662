//! Watches: what is seen, in which order, and how they end.

use super::{CONFIG_MAPS, PODS};
use pointsman_harness::http2::{Connection, Frame};
use pointsman_harness::wire::{Http, Watch, version_of};
use pointsman_harness::{BARE, Server, config_map, pod, token_file};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const INITIAL: &str =
    "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn number(object: &Value) -> u64 {
    version_of(object).parse().unwrap()
}

async fn briefs(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    for _ in 0..count {
        seen.push(watch.expect().await.brief());
    }
    seen
}

async fn labelled(http: &Http, name: &str, tier: &str) -> Value {
    let patch = json!({"metadata": {"labels": {"tier": tier}}});
    http.patch(&format!("{CONFIG_MAPS}/{name}"), "merge", &patch)
        .await
        .expect(200)
}

#[tokio::test]
async fn a_list_and_a_watch_from_it_have_no_gap_and_no_duplicate() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    let list = http.get(CONFIG_MAPS).await.expect(200);
    http.put(&format!("{CONFIG_MAPS}/a"), &config_map("a", "2"))
        .await
        .expect(200);
    let mut watch = http
        .watch(&format!(
            "{CONFIG_MAPS}?watch=1&resourceVersion={}",
            version_of(&list)
        ))
        .await;
    http.post(CONFIG_MAPS, &config_map("b", "1")).await.expect(201);
    let before = http.get(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    http.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    let events = [watch.expect().await, watch.expect().await, watch.expect().await];
    assert_eq!(
        events.each_ref().map(|event| event.brief()),
        ["MODIFIED a", "ADDED b", "DELETED a"]
    );
    let versions = events.each_ref().map(|event| number(&event.object));
    assert!(
        versions.is_sorted() && versions[0] > number(&list),
        "{versions:?}"
    );
    for event in &events {
        assert_eq!(
            (event.object["kind"].as_str(), event.object["apiVersion"].as_str()),
            (Some("ConfigMap"), Some("v1"))
        );
    }
    // The last event has the last content and the version of the removal.
    assert_eq!(events[2].object["data"], before["data"]);
    assert!(number(&events[2].object) > number(&before));
    let now = number(&http.get(CONFIG_MAPS).await.expect(200));
    assert!(number(&events[2].object) <= now);
}

#[tokio::test]
async fn without_a_version_a_watch_starts_with_what_is_there() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    for name in ["a", "b"] {
        http.post(CONFIG_MAPS, &config_map(name, "1")).await.expect(201);
    }
    for query in ["watch=true", "watch=1&resourceVersion=0"] {
        let mut watch = http
            .watch(&format!("{CONFIG_MAPS}?{query}&timeoutSeconds=2"))
            .await;
        assert_eq!(briefs(&mut watch, 2).await, ["ADDED a", "ADDED b"], "{query}");
    }
    let mut streaming = http.watch(&format!("{CONFIG_MAPS}?{INITIAL}")).await;
    assert_eq!(briefs(&mut streaming, 2).await, ["ADDED a", "ADDED b"]);
    let mark = streaming.expect().await;
    assert_eq!(mark.kind, "BOOKMARK");
    assert_eq!(
        mark.object["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let from_list = http.get(CONFIG_MAPS).await.expect(200);
    assert!(number(&mark.object) <= number(&from_list));
    labelled(&http, "b", "x").await;
    assert_eq!(streaming.expect().await.brief(), "MODIFIED b");
    let silent = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    assert_eq!(
        http.watch(&format!("{CONFIG_MAPS}?{silent}")).await.rest().await,
        []
    );
    http.get(&format!("{CONFIG_MAPS}?watch=1&sendInitialEvents=true"))
        .await
        .refused(422, "Invalid");
    http.get(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=x"))
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn objects_enter_and_leave_a_selected_set() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    let list = http.get(CONFIG_MAPS).await.expect(200);
    let from = format!("watch=1&resourceVersion={}", version_of(&list));
    let mut watch = http
        .watch(&format!("{CONFIG_MAPS}?{from}&labelSelector=tier%3Dgold"))
        .await;
    let entered = labelled(&http, "a", "gold").await;
    labelled(&http, "a", "tin").await;
    labelled(&http, "a", "gold").await;
    http.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    let events = [
        watch.expect().await,
        watch.expect().await,
        watch.expect().await,
        watch.expect().await,
    ];
    let kinds = events.each_ref().map(|event| event.kind.as_str());
    assert_eq!(kinds, ["ADDED", "DELETED", "ADDED", "DELETED"]);
    // Leaving shows what was seen before, with the version of the change that made it leave.
    assert_eq!(events[1].object["metadata"]["labels"]["tier"], "gold");
    assert!(number(&events[1].object) > number(&entered));

    let mut pending = http
        .watch(&format!("{PODS}?watch=1&fieldSelector=status.phase%3DPending"))
        .await;
    http.post(PODS, &pod("p")).await.expect(201);
    assert_eq!(pending.expect().await.brief(), "ADDED p");
    let running = json!({"status": {"phase": "Running"}});
    http.patch(&format!("{PODS}/p/status"), "merge", &running)
        .await
        .expect(200);
    let left = pending.expect().await;
    assert_eq!(
        (left.kind.as_str(), left.object["status"]["phase"].as_str()),
        ("DELETED", Some("Pending"))
    );
}

#[tokio::test]
async fn one_object_is_watched_by_path_selector_and_old_prefix() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.namespace("other").await;
    for name in ["a", "b"] {
        http.post(CONFIG_MAPS, &config_map(name, "1")).await.expect(201);
    }
    http.post("/api/v1/namespaces/other/configmaps", &config_map("a", "1"))
        .await
        .expect(201);
    let version = version_of(&http.get(CONFIG_MAPS).await.expect(200));
    let mut watches = Vec::new();
    for path in [
        format!("{CONFIG_MAPS}/a?watch=1&resourceVersion={version}"),
        format!("{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Da&resourceVersion={version}"),
        format!("/api/v1/watch/namespaces/default/configmaps/a?resourceVersion={version}"),
        format!(
            "/api/v1/configmaps?watch=1&fieldSelector=metadata.namespace%3Ddefault,metadata.name%3Da&resourceVersion={version}"
        ),
    ] {
        watches.push((path.clone(), http.watch(&path).await));
    }
    labelled(&http, "b", "x").await;
    http.delete("/api/v1/namespaces/other/configmaps/a")
        .await
        .expect(200);
    labelled(&http, "a", "x").await;
    for (path, mut watch) in watches {
        assert_eq!(watch.expect().await.brief(), "MODIFIED a", "{path}");
    }
}

#[tokio::test]
async fn a_watch_ends_in_time_after_a_bookmark_to_resume_from() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let list = http.get(CONFIG_MAPS).await.expect(200);
    // A write elsewhere moves the bookmark.
    http.post(PODS, &pod("p")).await.expect(201);
    let newest = number(&http.get(PODS).await.expect(200));
    let begun = Instant::now();
    let query = format!(
        "watch=1&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={}",
        version_of(&list)
    );
    let events = http.watch(&format!("{CONFIG_MAPS}?{query}")).await.rest().await;
    let took = begun.elapsed();
    assert!(
        (Duration::from_millis(2500)..Duration::from_secs(10)).contains(&took),
        "{took:?}"
    );
    let last = events.last().expect("a bookmark before the end");
    assert_eq!(
        (last.kind.as_str(), last.object["kind"].as_str()),
        ("BOOKMARK", Some("ConfigMap"))
    );
    assert!(number(&last.object) >= newest);
    assert_eq!(
        last.object["metadata"]
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "creationTimestamp")
            .count(),
        1
    );
    let without = http
        .watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1"))
        .await
        .rest()
        .await;
    assert_eq!(without, []);
}

#[tokio::test]
async fn a_version_that_is_too_old_ends_the_watch_with_410() {
    let mut server = Server::start_to_be_restarted(&[BARE, "--etcd-compaction-interval", "1s"]).await;
    let http = server.admin().await;
    let old = version_of(&http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201));
    http.put(&format!("{CONFIG_MAPS}/a"), &config_map("a", "2"))
        .await
        .expect(200);
    server.restart_until_forgotten(CONFIG_MAPS, &old).await;
    let http = server.admin().await;
    let events = http
        .watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={old}"))
        .await
        .rest()
        .await;
    let [error] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (error.kind.as_str(), error.object["code"].as_u64()),
        ("ERROR", Some(410))
    );
    assert_eq!(
        (error.object["kind"].as_str(), error.object["reason"].as_str()),
        (Some("Status"), Some("Expired"))
    );
}

#[tokio::test]
async fn watches_end_when_the_server_is_asked_to_stop() {
    let mut server = Server::start_to_be_restarted(&[BARE]).await;
    let http = server.admin().await;
    let mut watch = http.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    server.terminate().await;
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_connection_takes_no_more_requests_before_its_watches_end() {
    let files = tempfile::tempdir().unwrap();
    let tokens = token_file(files.path(), &[("secret", "jane", "system:masters")]);
    let mut server = Server::start(&["--token-auth-file", &tokens]).await;
    let mut connection = Connection::get(&server, "/api/v1/pods?watch=1", "secret").await;
    while connection.next().await != Some(Frame::Answer) {}
    let frames = async {
        let mut frames = Vec::new();
        while let Some(frame) = connection.next().await {
            frames.push(frame);
        }
        frames.retain(|frame| matches!(frame, Frame::Farewell | Frame::End));
        frames
    };
    let (frames, ()) = tokio::join!(frames, server.terminate());
    assert_eq!(frames.first(), Some(&Frame::Farewell), "{frames:?}");
    assert_eq!(frames.iter().filter(|frame| **frame == Frame::End).count(), 1);
}
