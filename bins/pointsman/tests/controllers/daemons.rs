//! DaemonSets get a pod onto every node, as `kubectl` expects.

use pointsman_api_client::Resource;
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::{Value, json};

fn daemon(image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": {
                "metadata": { "labels": { "app": "agent" } },
                "spec": { "containers": [{ "name": "c", "image": image }] },
            },
        },
    })
}

/// Where its pods are, and which image each has.
async fn places(cluster: &Cluster) -> Vec<String> {
    let list: Value = cluster
        .client
        .get_path("/api/v1/namespaces/default/pods")
        .await
        .unwrap();
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let place = |pod: &Value| {
        let spec = &pod["spec"];
        format!(
            "{} {}",
            text(&spec["nodeName"]),
            text(&spec["containers"][0]["image"])
        )
    };
    let mut places: Vec<String> = pods.iter().map(place).collect();
    places.sort();
    places
}

async fn settles(cluster: &Cluster, expected: &[&str]) {
    eventually(&format!("pods are {expected:?}"), async || {
        (places(cluster).await == expected).then_some(())
    })
    .await;
    let status = cluster
        .kubectl(&["rollout", "status", "daemonset/agent", "--timeout=60s"])
        .await;
    assert!(status.contains("successfully rolled out"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_runs_on_every_node_also_on_new_ones_and_is_updated_one_by_one() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    cluster.node("n2", "b").await;
    let _kubelet = cluster.kubelet();
    cluster.create(Resource::DAEMON_SETS, &daemon("one")).await;
    settles(&cluster, &["n1 one", "n2 one"]).await;
    cluster.node("n3", "a").await;
    settles(&cluster, &["n1 one", "n2 one", "n3 one"]).await;
    cluster
        .kubectl(&["set", "image", "daemonset/agent", "c=two"])
        .await;
    settles(&cluster, &["n1 two", "n2 two", "n3 two"]).await;
    let row = cluster
        .kubectl(&["get", "daemonset", "agent", "--no-headers"])
        .await;
    let numbers: Vec<&str> = row.split_whitespace().skip(1).take(5).collect();
    assert_eq!(numbers, ["3"; 5], "{row}");

    cluster
        .kubectl(&["taint", "node", "n1", "own=use:NoExecute"])
        .await;
    settles(&cluster, &["n2 two", "n3 two"]).await;
    cluster.kubectl(&["delete", "daemonset", "agent"]).await;
    eventually("its pods go with it", async || {
        places(&cluster).await.is_empty().then_some(())
    })
    .await;
    loops.stop().await;
}
