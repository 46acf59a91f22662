//! Do objects of custom kinds come and go with their definitions, and follow what changes in them?

use pointsman_harness::wire::{Http, version_of};
use pointsman_harness::{Server, config_map, eventually};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.lab.test";
const MERGE: &str = "merge";

fn objects(version: &str) -> String {
    format!("/apis/lab.test/{version}/namespaces/default/gadgets")
}

/// The first version is the stored one.
fn definition(versions: &[&str], size: Value) -> Value {
    let spec = json!({"type": "object", "properties": {"size": size, "color": {"type": "string"}}});
    let versions: Vec<Value> = versions
        .iter()
        .enumerate()
        .map(|(at, version)| {
            json!({"name": version, "served": true, "storage": at == 0,
                   "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}})
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.lab.test"},
        "spec": {"group": "lab.test", "scope": "Namespaced", "versions": versions,
                 "names": {"plural": "gadgets", "kind": "Gadget"}},
    })
}

fn integer() -> Value {
    json!({"type": "integer"})
}

fn gadget(name: &str) -> Value {
    json!({"apiVersion": "lab.test/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": {"color": "red"}})
}

async fn names(admin: &Http, version: &str) -> Vec<String> {
    let list = admin.get(&objects(version)).await.expect(200);
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| {
            assert_eq!(item["apiVersion"], format!("lab.test/{version}"));
            item["metadata"]["name"].as_str().unwrap().to_owned()
        })
        .collect()
}

/// Deletes the definition and leaves its objects where they are, as whoever takes its finalizer away does.
async fn delete_the_definition_only(admin: &Http) {
    let free = json!({"metadata": {"finalizers": null}});
    admin.patch(DEFINITION, MERGE, &free).await.expect(200);
    admin.delete(DEFINITION).await.expect(200);
    admin.get(&objects("v1")).await.expect(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_outlived_their_definition_are_shown_when_it_comes_back() {
    let mut server = Server::start_to_be_restarted(&["--etcd-compaction-interval=1s"]).await;
    let admin = server.admin().await;
    let made = definition(&["v1"], integer());
    admin.post(DEFINITIONS, &made).await.expect(201);
    let kept = admin.post(&objects("v1"), &gadget("kept")).await.expect(201);
    for restarts in [false, true] {
        delete_the_definition_only(&admin).await;
        if restarts {
            // Nothing of the history in which there was a definition may help.
            let maps = "/api/v1/namespaces/default/configmaps";
            let later = admin.post(maps, &config_map("later", "1")).await.expect(201);
            // The last version of all would never be forgotten.
            admin.delete(&format!("{maps}/later")).await.expect(200);
            server.restart_until_forgotten(maps, &version_of(&later)).await;
        }
        admin.post(DEFINITIONS, &made).await.expect(201);
        assert_eq!(names(&admin, "v1").await, ["kept"], "after a restart: {restarts}");
        let found = admin.get(&format!("{}/kept", objects("v1"))).await.expect(200);
        assert_eq!(version_of(&found), version_of(&kept));
        admin
            .post(&objects("v1"), &gadget("kept"))
            .await
            .refused(409, "AlreadyExists");
    }
    // They are objects like others: seen, changed and deleted with the definition.
    let mut watch = admin.watch(&format!("{}?watch=1", objects("v1"))).await;
    assert_eq!(watch.expect().await.brief(), "ADDED kept");
    let change = json!({"spec": {"size": 2}});
    let path = format!("{}/kept", objects("v1"));
    admin.patch(&path, MERGE, &change).await.expect(200);
    assert_eq!(watch.expect().await.brief(), "MODIFIED kept");
    admin.delete(DEFINITION).await.expect(200);
    assert_eq!(watch.expect().await.brief(), "DELETED kept");
    eventually("the definition is gone", async || {
        (admin.get(DEFINITION).await.code == 404).then_some(())
    })
    .await;
    admin.post(DEFINITIONS, &made).await.expect(201);
    assert_eq!(names(&admin, "v1").await, [""; 0]);
    admin.post(&objects("v1"), &gadget("kept")).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_shows_what_was_stored_under_another_one() {
    let mut server = Server::start_to_be_restarted(&[]).await;
    let admin = server.admin().await;
    let made = definition(&["v1"], integer());
    admin.post(DEFINITIONS, &made).await.expect(201);
    admin.post(&objects("v1"), &gadget("old")).await.expect(201);

    let spec = |versions: &[&str]| json!({"spec": definition(versions, integer())["spec"]});
    let both = spec(&["v2", "v1"]);
    admin.patch(DEFINITION, MERGE, &both).await.expect(200);
    admin.post(&objects("v1"), &gadget("new")).await.expect(201);
    for version in ["v1", "v2"] {
        assert_eq!(names(&admin, version).await, ["new", "old"], "{version}");
    }
    server.restart().await;
    for version in ["v1", "v2"] {
        assert_eq!(
            names(&admin, version).await,
            ["new", "old"],
            "{version} after a restart"
        );
    }
    // The first version goes once nothing is said to be stored under it.
    let stored = json!({"status": {"storedVersions": ["v2"]}});
    let status = format!("{DEFINITION}/status");
    admin.patch(&status, MERGE, &stored).await.expect(200);
    admin.patch(DEFINITION, MERGE, &spec(&["v2"])).await.expect(200);
    admin.get(&objects("v1")).await.expect(404);
    assert_eq!(names(&admin, "v2").await, ["new", "old"]);
    server.restart().await;
    assert_eq!(names(&admin, "v2").await, ["new", "old"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_default_that_is_added_later_is_seen_in_what_is_stored() {
    let mut server = Server::start_to_be_restarted(&[]).await;
    let admin = server.admin().await;
    admin
        .post(DEFINITIONS, &definition(&["v1"], integer()))
        .await
        .expect(201);
    let old = admin.post(&objects("v1"), &gadget("old")).await.expect(201);
    assert_eq!(old["spec"]["size"], Value::Null);
    let mut sized = definition(&["v1"], json!({"type": "integer", "default": 7}));
    sized["metadata"] = json!({});
    admin.patch(DEFINITION, MERGE, &sized).await.expect(200);
    let path = format!("{}/old", objects("v1"));
    let shown = admin.get(&path).await.expect(200);
    assert_eq!(shown["spec"], json!({"color": "red", "size": 7}));
    assert_eq!(version_of(&shown), version_of(&old), "nothing was written");
    server.restart().await;
    assert_eq!(admin.get(&path).await.expect(200)["spec"]["size"], 7);
    let change = json!({"spec": {"color": "blue"}});
    let changed = admin.patch(&path, MERGE, &change).await.expect(200);
    assert_eq!(changed["spec"], json!({"color": "blue", "size": 7}));
}
