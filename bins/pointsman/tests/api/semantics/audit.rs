//! What does the audit log say about requests?

use super::PODS;
use pointsman_harness::wire::Http;
use pointsman_harness::{Server, config_map, eventually, token_file};
use serde_json::{Value, json};
use std::path::Path;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    // The last line may be on its way.
    let lines = text.rsplit_once('\n').map_or("", |(whole, _)| whole).lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The event of this request and stage, once it is there.
async fn event(path: &Path, id: &str, stage: &str) -> Value {
    eventually(&format!("{stage} of {id} is in the audit log"), async || {
        let mut events = events(path).into_iter();
        events.find(|event| event["auditID"] == id && event["stage"] == stage)
    })
    .await
}

#[tokio::test]
async fn every_request_leaves_a_line_without_its_secrets() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("audit.log");
    let tokens = token_file(home.path(), &[("jane-token-7", "jane", "")]);
    let flags = [
        "--audit-log-path",
        log.to_str().unwrap(),
        "--token-auth-file",
        &tokens,
    ];
    let server = Server::start(&flags).await;
    let admin = server.admin().await;
    let created = admin.post(MAPS, &config_map("m", "confidential-9")).await;
    let id = created.header("audit-id").to_owned();
    created.expect(201);
    let made = event(&log, &id, "ResponseComplete").await;
    let expected = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "verb": "create",
        "requestURI": MAPS, "responseStatus": {"metadata": {}, "code": 201}, "sourceIPs": ["127.0.0.1"],
        "objectRef": {"resource": "configmaps", "namespace": "default", "apiVersion": "v1"},
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&made[field], value, "{field}: {made}");
    }
    assert!(
        made["user"]["groups"]
            .as_array()
            .unwrap()
            .contains(&json!("system:masters"))
    );
    assert!(made["stageTimestamp"].as_str() >= made["requestReceivedTimestamp"].as_str());

    let jane = server.with_token(Some("jane-token-7")).await;
    let refused = jane.get(&format!("{PODS}/p")).await;
    let id = refused.header("audit-id").to_owned();
    refused.refused(403, "Forbidden");
    let event_of = async |id: &str| event(&log, id, "ResponseComplete").await;
    let made = event_of(&id).await;
    assert_eq!(
        (&made["user"]["username"], &made["verb"]),
        (&json!("jane"), &json!("get"))
    );
    assert_eq!(made["objectRef"]["name"], "p");
    let status = &made["responseStatus"];
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(403), &json!("Forbidden"))
    );

    let headers = [("impersonate-user", "john")];
    let asked = admin
        .raw(http::Method::GET, "/version", &headers, Vec::new())
        .await;
    let made = event_of(asked.header("audit-id")).await;
    assert_eq!(made["impersonatedUser"]["username"], "john");
    assert!(made.get("objectRef").is_none());

    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("confidential-9") && !text.contains("jane-token-7"));
    let metrics = admin.get("/metrics").await.text;
    assert!(
        metrics.contains("apiserver_audit_error_total") || metrics.contains("apiserver_audit_event_total")
    );
}

#[tokio::test]
async fn a_watch_leaves_a_line_when_it_starts_and_one_when_it_ends() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("audit.log");
    let server = Server::start(&["--audit-log-path", log.to_str().unwrap()]).await;
    let http: Http = server.admin().await;
    let watch = http.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    let find = |stage: &str| {
        let watched = |event: &Value| event["verb"] == "watch" && event["stage"] == stage;
        events(&log).into_iter().find(watched)
    };
    let started = eventually("the watch has started", async || find("ResponseStarted")).await;
    assert!(find("ResponseComplete").is_none());
    drop(watch);
    let ended = eventually("the watch has ended", async || find("ResponseComplete")).await;
    assert_eq!(started["auditID"], ended["auditID"]);
}
