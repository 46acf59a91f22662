//! Endpoints that a person writes for a Service without a selector show in slices, and go with it.

use pointsman_api_client::Resource;
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::{Value, json};

/// Addresses that all slices of the Service show, with the mark of readiness.
async fn shown(cluster: &Cluster) -> Vec<String> {
    let mut shown = Vec::new();
    for slice in cluster.slices("db").await {
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let ready = &endpoint["conditions"]["ready"];
            shown.push(format!("{} {ready}", endpoint["addresses"][0].as_str().unwrap()));
        }
    }
    shown.sort();
    shown
}

async fn shows(cluster: &Cluster, expected: &[&str]) {
    eventually(&format!("slices show {expected:?}"), async || {
        (shown(cluster).await == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_written_by_hand_are_mirrored_as_long_as_no_selector_makes_slices() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "db" }, "spec": { "ports": [{ "port": 5432 }] },
    });
    cluster.create(Resource::SERVICES, &service).await;
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": "db", "annotations": { "note": "x" } },
        "subsets": [{
            "addresses": [{ "ip": "192.0.2.1" }], "notReadyAddresses": [{ "ip": "192.0.2.2" }], "ports": [{ "port": 5432 }],
        }],
    });
    cluster.create(Resource::ENDPOINTS, &endpoints).await;
    shows(&cluster, &["192.0.2.1 true", "192.0.2.2 false"]).await;
    let slice = cluster.slices("db").await.remove(0);
    assert_eq!(slice["metadata"]["annotations"], json!({ "note": "x" }));
    let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
    // A slice that somebody edits or removes is healed.
    cluster
        .patch(Resource::ENDPOINT_SLICES, &name, &json!({ "endpoints": [] }))
        .await;
    shows(&cluster, &["192.0.2.1 true", "192.0.2.2 false"]).await;
    cluster.kubectl(&["delete", "endpointslice", &name]).await;
    shows(&cluster, &["192.0.2.1 true", "192.0.2.2 false"]).await;
    let moved = json!({ "subsets": [{ "addresses": [{ "ip": "192.0.2.3" }], "ports": [{ "port": 5432 }] }] });
    cluster.patch(Resource::ENDPOINTS, "db", &moved).await;
    shows(&cluster, &["192.0.2.3 true"]).await;

    // Pods take over, and give it back.
    cluster.pod("a", "10.1.0.1", true).await;
    cluster
        .patch(
            Resource::SERVICES,
            "db",
            &json!({ "spec": { "selector": { "app": "web" } } }),
        )
        .await;
    shows(&cluster, &["10.1.0.1 true"]).await;
    let endpoints = cluster.client.api(Resource::ENDPOINTS, Some("default"));
    eventually("the classic loop writes the Endpoints", async || {
        let endpoints: Value = endpoints.get("db").await.ok()?;
        (endpoints["subsets"][0]["addresses"][0]["ip"] == "10.1.0.1").then_some(())
    })
    .await;
    cluster
        .patch(Resource::SERVICES, "db", &json!({ "spec": { "selector": null } }))
        .await;
    let mirrored = |slice: &Value| {
        slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"]
            == "endpointslicemirroring-controller.k8s.io"
    };
    eventually("what the selector left behind is mirrored", async || {
        cluster.slices("db").await.iter().any(mirrored).then_some(())
    })
    .await;
    cluster.kubectl(&["delete", "service", "db"]).await;
    eventually("slices go with the Service", async || {
        cluster
            .slices("db")
            .await
            .iter()
            .all(|slice| !mirrored(slice))
            .then_some(())
    })
    .await;
    loops.stop().await;
}
