//! The same objects as tables, as metadata, indented, or only their head.

use super::{CONFIG_MAPS, PODS};
use http::Method;
use pointsman_harness::{Server, config_map, pod};
use serde_json::{Value, json};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

#[tokio::test]
async fn tables_carry_metadata_the_object_or_nothing() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    http.post(PODS, &pod("p")).await.expect(201);
    let table = http.get_as(PODS, TABLE).await.expect(200);
    assert_eq!(
        (table["kind"].as_str(), table["apiVersion"].as_str()),
        (Some("Table"), Some("meta.k8s.io/v1"))
    );
    assert!(table["metadata"]["resourceVersion"].is_string());
    let columns: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    let row = &table["rows"][0];
    assert_eq!(
        row["cells"].as_array().unwrap()[..3],
        [json!("p"), json!("0/1"), json!("Pending")]
    );
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    let with = http
        .get_as(&format!("{PODS}?includeObject=Object"), TABLE)
        .await
        .expect(200);
    assert_eq!(with["rows"][0]["object"]["spec"]["containers"][0]["name"], "c");
    let without = http
        .get_as(&format!("{PODS}/p?includeObject=None"), TABLE)
        .await
        .expect(200);
    assert_eq!(
        without["rows"][0].get("object").cloned().unwrap_or(Value::Null),
        Value::Null
    );
    http.get_as(&format!("{PODS}/missing"), TABLE)
        .await
        .refused(404, "NotFound");
    let paged = http
        .get_as("/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=2", TABLE)
        .await
        .expect(200);
    assert!(paged["metadata"]["continue"].is_string());
    assert_eq!(paged["rows"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_watched_table_names_its_columns_once() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    http.post(PODS, &pod("p")).await.expect(201);
    let mut watch = http.watch_as(&format!("{PODS}?watch=1"), TABLE).await;
    let first = watch.expect().await;
    assert_eq!(first.object["kind"], "Table");
    assert!(!first.object["columnDefinitions"].as_array().unwrap().is_empty());
    http.post(PODS, &pod("q")).await.expect(201);
    let second = watch.expect().await;
    assert_eq!(second.kind, "ADDED");
    // As upstream: not none, but those that were named before.
    assert_eq!(second.object["columnDefinitions"], Value::Null);
    assert_eq!(second.object["rows"][0]["cells"][0], "q");
    let initial = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = http.watch_as(&format!("{PODS}?{initial}"), TABLE).await;
    for kind in ["ADDED", "ADDED", "BOOKMARK"] {
        let event = watch.expect().await;
        let annotations = &event.object["rows"][0]["object"]["metadata"]["annotations"];
        let ends = annotations["k8s.io/initial-events-end"] == "true";
        assert_eq!((event.kind.as_str(), ends), (kind, kind == "BOOKMARK"));
    }
}

#[tokio::test]
async fn metadata_alone_is_served_to_those_who_need_no_more() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let made = http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    let one = http
        .get_as(&format!("{CONFIG_MAPS}/a"), PARTIAL)
        .await
        .expect(200);
    assert_eq!(
        (one["kind"].as_str(), one["apiVersion"].as_str()),
        (Some("PartialObjectMetadata"), Some("meta.k8s.io/v1"))
    );
    assert_eq!((&one["metadata"], one.get("data")), (&made["metadata"], None));
    let list = http.get_as(CONFIG_MAPS, PARTIAL_LIST).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    assert!(list["items"][0].get("data").is_none());
    let mut watch = http.watch_as(&format!("{CONFIG_MAPS}?watch=1"), PARTIAL).await;
    let event = watch.expect().await;
    assert_eq!(
        (event.object["kind"].as_str(), event.object.get("data")),
        (Some("PartialObjectMetadata"), None)
    );
}

#[tokio::test]
async fn items_leave_what_they_are_to_their_list() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let made = http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    http.post(CONFIG_MAPS, &config_map("b", "2")).await.expect(201);
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    let events = "/api/v1/namespaces/default/events";
    http.post(events, &event).await.expect(201);
    // A kind as it is stored, and one that is a view of another; custom resources name it (`custom.rs`).
    for path in [CONFIG_MAPS, "/apis/events.k8s.io/v1/namespaces/default/events"] {
        for accept in ["application/json", PARTIAL_LIST] {
            let list = http.get_as(path, accept).await.expect(200);
            let items = list["items"].as_array().unwrap();
            assert!(!items.is_empty());
            for item in items {
                assert_eq!((item.get("kind"), item.get("apiVersion")), (None, None), "{path}");
            }
        }
    }
    let mut nameless = made.clone();
    for field in ["kind", "apiVersion"] {
        nameless.as_object_mut().unwrap().remove(field);
    }
    let list = http.get(CONFIG_MAPS).await.expect(200);
    let of_a = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["metadata"]["name"] == "a");
    assert_eq!(of_a, Some(&nameless));
    let none = http.get("/api/v1/namespaces/none/configmaps").await.expect(200);
    assert_eq!(none["items"], json!([]));
}

#[tokio::test]
async fn answers_can_be_indented_or_headless_and_impossible_forms_are_refused() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    http.post(CONFIG_MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let plain = http.get(&path).await;
    assert_eq!(plain.text.trim_end().lines().count(), 1);
    assert_eq!(plain.header("content-type"), "application/json");
    assert_eq!(plain.header("cache-control"), "no-cache, private");
    assert!(!plain.header("audit-id").is_empty());
    let pretty = http.get(&format!("{path}?pretty=true")).await;
    assert!(pretty.text.lines().count() > 5);
    assert_eq!(pretty.json(), plain.json());
    let browser = http
        .raw(Method::GET, &path, &[("user-agent", "curl/8.0")], Vec::new())
        .await;
    assert!(browser.text.lines().count() > 5);
    let head = http.raw(Method::HEAD, &path, &[], Vec::new()).await;
    assert_eq!((head.code, head.text.as_str()), (200, ""));
    assert_eq!(
        http.raw(Method::HEAD, &format!("{path}x"), &[], Vec::new())
            .await
            .code,
        404
    );
    http.get_as(&path, "application/vnd.kubernetes.protobuf")
        .await
        .refused(406, "NotAcceptable");
    http.get_as(&path, "text/html, */*").await.expect(200);
    let fallback = http
        .get_as(&path, "application/vnd.kubernetes.protobuf,application/json")
        .await;
    assert_eq!(fallback.expect(200)["kind"], "ConfigMap");
    let yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: fromyaml\ndata:\n  k: v\n";
    let made = http
        .raw(
            Method::POST,
            CONFIG_MAPS,
            &[("content-type", "application/yaml")],
            yaml.to_vec(),
        )
        .await;
    assert_eq!(made.expect(201)["data"]["k"], "v");
}

#[tokio::test]
async fn discovery_comes_in_both_forms_and_is_cached_by_its_tag() {
    let server = Server::start(&[]).await;
    let http = server.admin().await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    for path in ["/api", "/apis"] {
        let answer = http.get_as(path, aggregated).await;
        assert!(
            answer.header("content-type").contains("as=APIGroupDiscoveryList"),
            "{:?}",
            answer.headers
        );
        let tag = answer.header("etag").to_owned();
        assert!(tag.starts_with('"'), "{tag}");
        let known = [("accept", aggregated), ("if-none-match", tag.as_str())];
        assert_eq!(http.raw(Method::GET, path, &known, Vec::new()).await.code, 304);
        assert_eq!(answer.expect(200)["kind"], "APIGroupDiscoveryList");
    }
    assert_eq!(http.get("/api").await.expect(200)["kind"], "APIVersions");
    let groups = http.get("/apis").await.expect(200);
    assert_eq!(groups["kind"], "APIGroupList");
    for group in groups["groups"].as_array().unwrap() {
        let version = group["preferredVersion"]["groupVersion"].as_str().unwrap();
        assert_eq!(
            http.get(&format!("/apis/{version}")).await.expect(200)["kind"],
            "APIResourceList"
        );
    }
    let index = http.get("/openapi/v3").await.expect(200);
    for (_, entry) in index["paths"].as_object().unwrap() {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        assert!(http.get(url).await.expect(200)["paths"].is_object(), "{url}");
    }
    assert_eq!(http.get("/apis/nothing.example").await.code, 404);
    assert!(
        http.get("/version").await.expect(200)["gitVersion"]
            .as_str()
            .unwrap()
            .starts_with("v1.")
    );
    http.get("/version?timeout=soon").await.refused(400, "BadRequest");
}
