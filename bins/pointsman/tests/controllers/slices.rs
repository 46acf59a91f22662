//! Slices and Endpoints follow Services and pods.

use pointsman_api_client::{DeleteOptions, Resource};
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use pointsman_model::Moment;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Moment::from_micros(i64::try_from(since.as_micros()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_whole_life_shows_in_its_slice() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=endpointslice"]);
    cluster.node("n1", "a").await;
    let before = now();
    cluster.service(json!({})).await;
    let placeholder = eventually("an empty slice says that nothing was found", async || {
        cluster.slices("web").await.pop()
    })
    .await;
    assert!(placeholder["endpoints"].as_array().is_none_or(Vec::is_empty));
    assert_eq!(placeholder["metadata"]["ownerReferences"][0]["kind"], "Service");
    let created = Moment::parse(placeholder["metadata"]["annotations"][TRIGGER].as_str().unwrap()).unwrap();
    assert!(
        created >= before && created <= now(),
        "{created} is when it was created"
    );

    cluster.pod("a", "10.1.0.1", false).await;
    cluster.expect("web", &["a no/no/no"]).await;
    let flip = now();
    cluster.set_ready("a", true).await;
    cluster.expect("web", &["a yes/yes/no"]).await;
    let slice = cluster.slices("web").await.pop().unwrap();
    let told = Moment::parse(slice["metadata"]["annotations"][TRIGGER].as_str().unwrap()).unwrap();
    // The condition has whole seconds; what counts does not lie before the truth all the same.
    assert!(
        told >= flip && told <= now(),
        "{told} is not when the pod became ready"
    );
    let endpoint = &slice["endpoints"][0];
    assert_eq!(
        (&endpoint["zone"], &endpoint["nodeName"]),
        (&json!("a"), &json!("n1"))
    );
    assert_eq!(slice["ports"][0]["port"], 8080);

    cluster.delete_pod("a").await;
    cluster.expect("web", &["a no/yes/yes"]).await;
    cluster.set_ready("a", false).await;
    cluster.expect("web", &["a no/no/yes"]).await;
    cluster.remove_pod("a").await;
    cluster.expect("web", &[]).await;
    assert_eq!(cluster.slices("web").await.len(), 1, "the slice stays, empty");
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_readers_find_the_same_in_endpoints_and_both_go_with_the_service() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=endpointslice,endpoint"]);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    cluster.pod("a", "10.1.0.1", true).await;
    cluster.pod("b", "10.1.0.2", false).await;
    let api = cluster.client.api(Resource::ENDPOINTS, Some("default"));
    let ips = async || {
        let endpoints: Value = api.get("web").await.ok()?;
        let subset = &endpoints["subsets"][0];
        let ip = |list: &str| subset[list][0]["ip"].as_str().unwrap_or("").to_owned();
        Some((ip("addresses"), ip("notReadyAddresses")))
    };
    let expected = ("10.1.0.1".to_owned(), "10.1.0.2".to_owned());
    eventually("Endpoints tell ready and not ready apart", async || {
        ips().await.filter(|ips| *ips == expected)
    })
    .await;
    // Somebody breaks it by hand.
    cluster
        .patch(Resource::ENDPOINTS, "web", &json!({ "subsets": [] }))
        .await;
    eventually("Endpoints are healed", async || {
        ips().await.filter(|ips| *ips == expected)
    })
    .await;

    let services = cluster.client.api(Resource::SERVICES, Some("default"));
    services.delete("web", &DeleteOptions::default()).await.unwrap();
    eventually("Endpoints go with the Service", async || {
        api.get::<Value>("web").await.err()
    })
    .await;
    eventually("slices go with the Service", async || {
        cluster.slices("web").await.is_empty().then_some(())
    })
    .await;
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_edited_or_deleted_by_hand_are_healed_and_strangers_left_alone() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=endpointslice"]);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    cluster.pod("a", "10.1.0.1", true).await;
    cluster.expect("web", &["a yes/yes/no"]).await;
    let name = cluster.slices("web").await[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();

    cluster
        .patch(Resource::ENDPOINT_SLICES, &name, &json!({ "endpoints": [] }))
        .await;
    cluster.expect("web", &["a yes/yes/no"]).await;
    let foreign =
        json!({ "metadata": { "labels": { "added-by-hand": "x" }, "annotations": { "note": "kept" } } });
    cluster.patch(Resource::ENDPOINT_SLICES, &name, &foreign).await;
    eventually(
        "a foreign label is removed, a foreign annotation kept",
        async || {
            let slice = cluster.slices("web").await.pop()?;
            let clean = slice["metadata"]["labels"]["added-by-hand"].is_null();
            (clean && slice["metadata"]["annotations"]["note"] == "kept").then_some(())
        },
    )
    .await;

    let api = cluster.client.api(Resource::ENDPOINT_SLICES, Some("default"));
    api.delete(&name, &DeleteOptions::default()).await.unwrap();
    eventually("a new slice takes its place", async || {
        let slices = cluster.slices("web").await;
        (slices.len() == 1 && slices[0]["metadata"]["name"] != *name).then_some(())
    })
    .await;
    cluster.expect("web", &["a yes/yes/no"]).await;

    let manual = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "manual", "labels": { "kubernetes.io/service-name": "web" } },
        "endpoints": [{ "addresses": ["192.0.2.1"], "targetRef": { "kind": "Pod", "name": "elsewhere" } }], "ports": [],
    });
    cluster.create(Resource::ENDPOINT_SLICES, &manual).await;
    cluster.set_ready("a", false).await;
    cluster.expect("web", &["a no/no/no", "elsewhere -/-/-"]).await;
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_changes_takes_its_slices_along() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=endpointslice", "--max-endpoints-per-slice=2"]);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    for (name, ip) in [("a", "10.1.0.1"), ("b", "10.1.0.2"), ("c", "10.1.0.3")] {
        cluster.pod(name, ip, true).await;
    }
    cluster
        .expect("web", &["a yes/yes/no", "b yes/yes/no", "c yes/yes/no"])
        .await;
    assert_eq!(cluster.slices("web").await.len(), 2);
    let ports = json!({ "spec": { "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 9090 }] } });
    cluster.patch(Resource::SERVICES, "web", &ports).await;
    eventually("all slices have the new port", async || {
        let slices = cluster.slices("web").await;
        slices
            .iter()
            .all(|slice| slice["ports"][0]["port"] == 9090)
            .then_some(())
    })
    .await;
    assert_eq!(
        cluster.slices("web").await.len(),
        2,
        "slices are reused, not replaced"
    );
    cluster
        .patch(
            Resource::SERVICES,
            "web",
            &json!({ "spec": { "selector": { "app": "other" } } }),
        )
        .await;
    cluster.expect("web", &[]).await;
    cluster
        .patch(
            Resource::SERVICES,
            "web",
            &json!({ "spec": { "selector": { "app": "web" }, "publishNotReadyAddresses": true } }),
        )
        .await;
    cluster.set_ready("c", false).await;
    cluster
        .expect("web", &["a yes/yes/no", "b yes/yes/no", "c yes/no/no"])
        .await;
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_upstreams_names_and_tell_churn_by_condition() {
    let cluster = Cluster::start().await;
    let loops = cluster.controllers(&["--leader-elect=false", "--metrics-listen=127.0.0.1:0"]);
    let line = loops.says("serving health and metrics").await;
    let address = line.split("address=").nth(1).unwrap().trim().to_owned();
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    cluster.pod("a", "10.1.0.1", true).await;
    cluster.expect("web", &["a yes/yes/no"]).await;
    cluster.remove_pod("a").await;
    let text = eventually("the removal is counted by condition", async || {
        let text = get(&address, "/metrics").await;
        text.contains(r#"endpoint_changes_total{operation="removed",condition="#)
            .then_some(text)
    })
    .await;
    for name in [
        "endpoints_added_per_sync_bucket",
        "endpoints_removed_per_sync_count",
        "endpoints_desired",
        "num_endpoint_slices",
        "desired_endpoint_slices",
        "changes{operation=\"create\"}",
        "endpointslices_changed_per_sync_bucket",
        "syncs{result=\"success\"}",
        "services_count_by_traffic_distribution",
    ] {
        let name = format!("endpoint_slice_controller_{name}");
        assert!(text.contains(&name), "{name} is missing in\n{text}");
    }
    assert!(get(&address, "/readyz").await.ends_with("ok"));
    loops.stop().await;
}

async fn get(address: &str, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}
