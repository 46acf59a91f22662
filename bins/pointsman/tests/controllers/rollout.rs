//! Deployments roll, pause and go back as `kubectl rollout` expects.

use pointsman_api_client::{Patch, Resource};
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::{Value, json};

fn deployment(image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": 4,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": image }] },
            },
        },
    })
}

async fn images(cluster: &Cluster) -> Vec<String> {
    let list: Value = cluster
        .client
        .get_path("/api/v1/namespaces/default/pods")
        .await
        .unwrap();
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    let mut images: Vec<String> = pods
        .iter()
        .map(|pod| {
            pod["spec"]["containers"][0]["image"]
                .as_str()
                .unwrap_or("")
                .to_owned()
        })
        .collect();
    images.sort();
    images
}

async fn rolled_out(cluster: &Cluster) {
    let status = cluster
        .kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"])
        .await;
    assert!(status.contains("successfully rolled out"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_rolls_pauses_and_goes_back() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    cluster.node("n2", "b").await;
    let _kubelet = cluster.kubelet();
    cluster.service(json!({})).await;
    cluster.create(Resource::DEPLOYMENTS, &deployment("one")).await;
    rolled_out(&cluster).await;
    assert_eq!(images(&cluster).await, ["one"; 4]);
    eventually("all pods are endpoints", async || {
        let endpoints = cluster.endpoints("web").await;
        (endpoints.len() == 4 && endpoints.iter().all(|it| it.ends_with("yes/yes/no"))).then_some(())
    })
    .await;

    cluster
        .kubectl(&["set", "image", "deployment/web", "c=two"])
        .await;
    rolled_out(&cluster).await;
    eventually("no old pod is left", async || {
        (images(&cluster).await == ["two"; 4]).then_some(())
    })
    .await;
    let history = cluster.kubectl(&["rollout", "history", "deployment/web"]).await;
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");

    cluster.kubectl(&["rollout", "pause", "deployment/web"]).await;
    cluster
        .kubectl(&["set", "image", "deployment/web", "c=three"])
        .await;
    // A paused Deployment scales, but does not roll.
    cluster
        .kubectl(&["scale", "deployment/web", "--replicas=5"])
        .await;
    eventually("it scales", async || {
        (images(&cluster).await == ["two"; 5]).then_some(())
    })
    .await;
    cluster.kubectl(&["rollout", "resume", "deployment/web"]).await;
    rolled_out(&cluster).await;
    eventually("it rolls", async || {
        (images(&cluster).await == ["three"; 5]).then_some(())
    })
    .await;

    let undone = cluster
        .kubectl(&["rollout", "undo", "deployment/web", "--to-revision=1"])
        .await;
    assert!(undone.contains("rolled back"), "{undone}");
    rolled_out(&cluster).await;
    eventually("it went back", async || {
        (images(&cluster).await == ["one"; 5]).then_some(())
    })
    .await;
    let history = cluster.kubectl(&["rollout", "history", "deployment/web"]).await;
    assert!(history.contains("\n4 ") && !history.contains("\n1 "), "{history}");
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_spread_and_those_without_a_place_say_why() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=*,-endpointslice,-endpoint"]);
    let mut wanted = deployment("one");
    wanted["spec"]["template"]["spec"]["nodeSelector"] = json!({ "topology.kubernetes.io/zone": "a" });
    cluster.create(Resource::DEPLOYMENTS, &wanted).await;
    eventually("pods say that they found no node", async || {
        let list: Value = cluster
            .client
            .get_path("/api/v1/namespaces/default/pods")
            .await
            .unwrap();
        let pods = list["items"].as_array()?.clone();
        let told = |pod: &Value| {
            pod["status"]["conditions"]
                .to_string()
                .contains("0/0 nodes are available")
        };
        (pods.len() == 4 && pods.iter().all(told)).then_some(())
    })
    .await;
    cluster.node("elsewhere", "b").await;
    cluster.node("n1", "a").await;
    cluster.node("n2", "a").await;
    let nodes = eventually("all pods found nodes", async || {
        let list: Value = cluster
            .client
            .get_path("/api/v1/namespaces/default/pods")
            .await
            .unwrap();
        let names = list["items"]
            .as_array()?
            .iter()
            .map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned));
        let mut names = names.collect::<Option<Vec<String>>>()?;
        names.sort();
        Some(names)
    })
    .await;
    assert!(nodes.iter().all(|node| node == "n1" || node == "n2"), "{nodes:?}");
    let events = cluster.kubectl(&["get", "events"]).await;
    assert!(
        events.contains("FailedScheduling") && events.contains("SuccessfulCreate"),
        "{events}"
    );
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_pods_beyond_the_threshold_are_removed() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "a").await;
    for name in ["a", "b", "c"] {
        cluster.pod(name, "10.1.0.1", false).await;
        let done = json!({ "status": { "phase": "Succeeded" } });
        let api = cluster.client.api(Resource::PODS, Some("default"));
        let patch = Patch::Merge(done.to_string().into_bytes());
        let _: Value = api.patch_status(name, patch).await.unwrap();
    }
    cluster.pod("runs", "10.1.0.2", true).await;
    let loops = cluster.lone_controllers(&["--controllers=podgc", "--terminated-pod-gc-threshold=1"]);
    eventually("one finished pod and the running one are left", async || {
        let list: Value = cluster
            .client
            .get_path("/api/v1/namespaces/default/pods")
            .await
            .unwrap();
        let pods = list["items"].as_array()?;
        let names: Vec<&str> = pods
            .iter()
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .collect();
        (names.len() == 2 && names.contains(&"runs")).then_some(())
    })
    .await;
    loops.stop().await;
}
