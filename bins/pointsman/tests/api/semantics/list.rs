//! Lists: pages, resource versions and selectors.

use super::{CONFIG_MAPS, NODES, PODS, SERVICES};
use pointsman_harness::wire::{Http, message, version_of};
use pointsman_harness::{BARE, Server, config_map, pod};
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

async fn fill(http: &Http, count: usize) {
    for at in 0..count {
        http.post(CONFIG_MAPS, &config_map(&format!("m{at:02}"), "first"))
            .await
            .expect(201);
    }
}

#[tokio::test]
async fn pages_come_from_one_snapshot_while_writes_go_on() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    fill(&http, 10).await;
    let first = http.get(&format!("{CONFIG_MAPS}?limit=4")).await.expect(200);
    assert_eq!(names(&first), ["m00", "m01", "m02", "m03"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 6);
    let version = version_of(&first);
    http.delete(&format!("{CONFIG_MAPS}/m05")).await.expect(200);
    http.post(CONFIG_MAPS, &config_map("m04a", "late"))
        .await
        .expect(201);
    http.put(&format!("{CONFIG_MAPS}/m06"), &config_map("m06", "second"))
        .await
        .expect(200);
    let mut seen: Vec<String> = Vec::new();
    let mut token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    loop {
        let page = http
            .get(&format!("{CONFIG_MAPS}?limit=4&continue={token}"))
            .await
            .expect(200);
        assert_eq!(version_of(&page), version);
        seen.extend(names(&page).into_iter().map(String::from));
        let sixth = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["metadata"]["name"] == "m06");
        assert!(
            sixth.is_none_or(|item| item["data"]["value"] == "first"),
            "{page}"
        );
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, ["m04", "m05", "m06", "m07", "m08", "m09"]);
    let selected = http
        .get(&format!("{CONFIG_MAPS}?limit=2&labelSelector=!x"))
        .await
        .expect(200);
    assert_eq!(selected["metadata"]["remainingItemCount"], Value::Null);
}

#[tokio::test]
async fn a_page_that_is_too_old_says_how_to_go_on() {
    let mut server = Server::start_to_be_restarted(&[BARE, "--etcd-compaction-interval", "1s"]).await;
    let http = server.admin().await;
    fill(&http, 6).await;
    let first = http.get(&format!("{CONFIG_MAPS}?limit=2")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    http.delete(&format!("{CONFIG_MAPS}/m03")).await.expect(200);
    server
        .restart_until_forgotten(CONFIG_MAPS, &version_of(&first))
        .await;
    let http = server.admin().await;
    let late = http.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await;
    let gone = late.refused(410, "Expired");
    let fresh = gone["metadata"]["continue"]
        .as_str()
        .expect("a token to go on with");
    let rest = http
        .get(&format!("{CONFIG_MAPS}?continue={fresh}"))
        .await
        .expect(200);
    assert_eq!(names(&rest), ["m02", "m04", "m05"]);
    let exact = format!(
        "{CONFIG_MAPS}?resourceVersion={}&resourceVersionMatch=Exact",
        version_of(&first)
    );
    http.get(&exact).await.refused(410, "Expired");
    for bad in ["%21", "e30", "abc"] {
        http.get(&format!("{CONFIG_MAPS}?continue={bad}"))
            .await
            .refused(400, "BadRequest");
    }
}

#[tokio::test]
async fn resource_versions_mean_what_the_table_says() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let old = version_of(&http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201));
    http.post(CONFIG_MAPS, &config_map("b", "1")).await.expect(201);
    let list = async |query: &str| http.get(&format!("{CONFIG_MAPS}?{query}")).await;
    for query in [
        "",
        "resourceVersion=0",
        "resourceVersionMatch=NotOlderThan&resourceVersion=0",
    ] {
        assert_eq!(names(&list(query).await.expect(200)), ["a", "b"], "{query}");
    }
    assert_eq!(
        names(&list(&format!("resourceVersion={old}")).await.expect(200)),
        ["a", "b"]
    );
    let exact = list(&format!("resourceVersion={old}&resourceVersionMatch=Exact"))
        .await
        .expect(200);
    assert_eq!((names(&exact), version_of(&exact)), (vec!["a"], old.clone()));
    let legacy = list(&format!("resourceVersion={old}&limit=5")).await.expect(200);
    assert_eq!(names(&legacy), ["a"]);
    let not_older = format!("resourceVersion={old}&limit=5&resourceVersionMatch=NotOlderThan");
    assert_eq!(names(&list(&not_older).await.expect(200)), ["a", "b"]);
    // A limit does not cut what is served from memory.
    assert_eq!(
        names(&list("resourceVersion=0&limit=1").await.expect(200)),
        ["a", "b"]
    );

    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=5&resourceVersionMatch=Sometimes",
        "sendInitialEvents=true&resourceVersion=0&resourceVersionMatch=NotOlderThan",
    ] {
        list(query).await.refused(422, "Invalid");
    }
    list("resourceVersion=yesterday").await.refused(400, "BadRequest");
    http.get(&format!("{CONFIG_MAPS}/a?resourceVersion=yesterday"))
        .await
        .refused(400, "BadRequest");
    http.get(&format!("{CONFIG_MAPS}/a?resourceVersion=0"))
        .await
        .expect(200);
    http.get(&format!("{CONFIG_MAPS}/a?resourceVersion={old}"))
        .await
        .expect(200);
}

#[tokio::test]
async fn versions_of_the_future_are_waited_for_and_then_refused() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    let list = http.get(CONFIG_MAPS).await.expect(200);
    let now: u64 = version_of(&list).parse().unwrap();
    let soon = format!("{CONFIG_MAPS}?resourceVersion={}", now + 1);
    let writing = async {
        http.post(CONFIG_MAPS, &config_map("late", "x")).await.expect(201);
    };
    let (fresh, ()) = tokio::join!(http.get(&soon), writing);
    let fresh: u64 = version_of(&fresh.expect(200)).parse().unwrap();
    assert!(fresh > now, "asked for {soon}, got {fresh}");
    let far = now + 100_000;
    let paths = [
        format!("{CONFIG_MAPS}?resourceVersion={far}"),
        format!("{CONFIG_MAPS}/late?resourceVersion={far}"),
        format!(
            "{CONFIG_MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={far}"
        ),
    ];
    let answers = futures::future::join_all(paths.iter().map(|path| http.get(path))).await;
    for answer in answers {
        let retry = answer.header("retry-after").to_owned();
        let status = answer.refused(504, "Timeout");
        assert_eq!(
            status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge",
            "{status}"
        );
        assert_eq!(
            (status["details"]["retryAfterSeconds"].as_i64(), retry.as_str()),
            (Some(1), "1")
        );
    }
}

#[tokio::test]
async fn selectors_choose_and_bad_ones_are_refused() {
    let server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    for (name, labels) in [
        ("a", json!({"tier": "gold", "n": "3"})),
        ("b", json!({"tier": "tin", "n": "5"})),
        ("c", json!({})),
    ] {
        let mut object = pod(name);
        object["metadata"]["labels"] = labels;
        http.post(PODS, &object).await.expect(201);
    }
    let chosen = async |selector: &str| {
        let list = http
            .get(&format!("{PODS}?labelSelector={selector}"))
            .await
            .expect(200);
        names(&list).join(" ")
    };
    for (selector, expected) in [
        ("tier=gold", "a"),
        ("tier%3D%3Dgold", "a"),
        ("tier!=gold", "b c"),
        ("tier%20in%20(gold,tin)", "a b"),
        ("tier%20notin%20(gold)", "b c"),
        ("tier", "a b"),
        ("!tier", "c"),
        ("tier,n%3E4", "b"),
        ("n%3C4", "a"),
    ] {
        assert_eq!(chosen(selector).await, expected, "{selector}");
    }
    for bad in ["a%20in%20b", "=x", "a=b=c", "a%3Ex", "%28"] {
        http.get(&format!("{PODS}?labelSelector={bad}"))
            .await
            .refused(400, "BadRequest");
        http.get(&format!("{PODS}?watch=1&labelSelector={bad}"))
            .await
            .refused(400, "BadRequest");
    }
    let by_field =
        async |path: &str, selector: &str| http.get(&format!("{path}?fieldSelector={selector}")).await;
    assert_eq!(names(&by_field(PODS, "metadata.name=b").await.expect(200)), ["b"]);
    assert_eq!(
        names(
            &by_field(PODS, "status.phase=Pending,metadata.name!=b")
                .await
                .expect(200)
        ),
        ["a", "c"]
    );
    assert_eq!(
        names(&by_field(PODS, "spec.nodeName=").await.expect(200)).len(),
        3
    );
    assert_eq!(
        names(
            &by_field("/api/v1/services", "spec.type=ClusterIP")
                .await
                .expect(200)
        ),
        ["kubernetes"]
    );
    assert_eq!(
        names(
            &by_field("/api/v1/namespaces", "status.phase=Active")
                .await
                .expect(200)
        )
        .len(),
        4
    );
    by_field(NODES, "spec.unschedulable=true").await.expect(200);
    for bad in ["spec.color=red", "metadata.name", "metadata.labels=x"] {
        let refused = by_field(SERVICES, bad).await.refused(400, "BadRequest");
        assert!(
            message(&refused).contains(bad.split('=').next().unwrap()),
            "{refused}"
        );
    }
}
