//! Do changes of Services begin when the API server wrote them?

use jiff::Timestamp;
use pointsman_api_client::{DeleteOptions, Patch, Resource};
use serde_json::{Value, json};

use crate::programmer::Programmer;
use crate::site::Site;

/// Waits for a change of this kind that is everywhere.
async fn change(site: &Site, kind: &str) -> Value {
    let found = |state: &Value| {
        let changes = state["changes"].as_array()?;
        let of_kind = |it: &&Value| it["kind"] == kind && it["allAfterSeconds"].is_number();
        changes.iter().find(of_kind).cloned()
    };
    site.until(kind, found).await
}

fn began(change: &Value) -> Timestamp {
    let text = change["triggered"].as_str();
    text.unwrap_or_else(|| panic!("nobody wrote down when it began: {change}"))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn changes_of_services_count_from_the_servers_write() {
    let programmer = Programmer::start("n1").await;
    let site = Site::start(&[&programmer], |_| {}).await;
    site.metric_becomes("pointsman_sli_programmers{state=\"live\"}", 1.0)
        .await;
    // Everything is in this programmer's kernel before the collector knows of it.
    programmer.commit(1_000_000);
    let api = site.client.api(Resource::SERVICES, Some("default"));
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] } });
    let patch = json!({ "spec": { "ports": [{ "port": 81 }] } });

    let asked = Timestamp::now();
    api.create::<Value>(service.to_string().into_bytes())
        .await
        .unwrap();
    let made = Timestamp::now();
    let created = change(&site, "service-created").await;
    assert!((asked..=made).contains(&began(&created)), "{created}");

    let asked = Timestamp::now();
    api.patch::<Value>("web", Patch::Merge(patch.to_string().into_bytes()))
        .await
        .unwrap();
    let made = Timestamp::now();
    let changed = change(&site, "service-changed").await;
    assert!((asked..=made).contains(&began(&changed)), "{changed}");

    let asked = Timestamp::now();
    api.delete("web", &DeleteOptions::default()).await.unwrap();
    let made = Timestamp::now();
    let deleted = change(&site, "service-deleted").await;
    assert!((asked..=made).contains(&began(&deleted)), "{deleted}");
    for change in [created, changed, deleted] {
        assert_eq!(change["dated"], "exact", "{change}");
    }
}
