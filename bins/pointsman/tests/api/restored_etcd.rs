//! An etcd that goes back in time under a running server.

use pointsman_harness::wire::{Http, version_of};
use pointsman_harness::{SOON, Server, config_map};
use pointsman_testkit::etcd::Etcd;
use std::time::{Duration, Instant};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Waits until the server shows exactly these maps of the test.
async fn wait_for(http: &Http, expected: &[&str]) {
    let deadline = Instant::now() + SOON;
    loop {
        let answer = http.try_get(MAPS).await.ok().filter(|answer| answer.code == 200);
        let list = answer.map(|answer| answer.json()).unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let names = items.iter().filter_map(|map| map["metadata"]["name"].as_str());
        let names: Vec<&str> = names.filter(|name| name.starts_with("m-")).collect();
        if names == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{names:?} instead of {expected:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn create(http: &Http, name: &str) -> u64 {
    let deadline = Instant::now() + SOON;
    loop {
        // An etcd that was just restarted may have no leader yet.
        match http.try_post(MAPS, &config_map(name, "x")).await {
            Ok(answer) if answer.code == 201 => return version_of(&answer.json()).parse().unwrap(),
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_restored_to_an_older_revision_is_read_anew_and_watchers_start_over() {
    let mut etcd = Etcd::start();
    let store = format!("etcd={}", etcd.url());
    let server = Server::start(&["--store", &store]).await;
    let http = server.admin().await;
    create(&http, "m-old").await;
    let copy = etcd.save();
    wait_for(&http, &["m-old"]).await;
    for name in ["m-lost-1", "m-lost-2"] {
        create(&http, name).await;
    }
    let newest = create(&http, "m-lost-3").await;
    let mut watch = http
        .watch(&format!("{MAPS}?watch=true&resourceVersion={newest}"))
        .await;
    etcd.restore(&copy);
    wait_for(&http, &["m-old"]).await;
    let end = watch.expect().await;
    assert_eq!(
        (end.kind.as_str(), end.object["code"].as_i64()),
        ("ERROR", Some(410))
    );
    create(&http, "m-new").await;
    wait_for(&http, &["m-new", "m-old"]).await;
    // A client that saw the lost writes and only now comes back.
    let ahead = http
        .get(&format!("{MAPS}?watch=true&resourceVersion={}", newest + 1000))
        .await;
    let status = ahead.refused(504, "Timeout");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("Too large resource version")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_restored_and_written_past_the_old_revision_is_noticed() {
    let mut etcd = Etcd::start();
    let store = format!("etcd={}", etcd.url());
    let server = Server::start(&["--store", &store]).await;
    let http = server.admin().await;
    create(&http, "m-old").await;
    let copy = etcd.save();
    wait_for(&http, &["m-old"]).await;
    let lost = create(&http, "m-lost").await;
    // While the server cannot look, another one writes another history, until its revisions are beyond the first one's.
    server.freeze();
    etcd.restore(&copy);
    let other = Server::start(&["--store", &store]).await;
    let others = other.admin().await;
    let mut names = Vec::new();
    loop {
        let name = format!("m-new-{:03}", names.len());
        let revision = create(&others, &name).await;
        names.push(name);
        if revision > lost {
            break;
        }
    }
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.push("m-old");
    wait_for(&others, &names).await;
    server.thaw();
    wait_for(&http, &names).await;
}
