//! `kubectl drain` stops at a PodDisruptionBudget, and goes on when pods are ready elsewhere.

use pointsman_api_client::Resource;
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::{Value, json};

fn deployment(replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "c", "image": "host" }] },
            },
        },
    })
}

async fn allows(cluster: &Cluster, expected: i64) {
    let budgets = cluster
        .client
        .api(Resource::POD_DISRUPTION_BUDGETS, Some("default"));
    eventually(&format!("the budget allows {expected}"), async || {
        let budget: Value = budgets.get("web").await.ok()?;
        (budget["status"]["disruptionsAllowed"] == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_the_budget_and_an_eviction_beyond_it_says_why() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    cluster.node("n2", "b").await;
    let kubelet = cluster.kubelet();
    let created = cluster
        .kubectl(&[
            "create",
            "poddisruptionbudget",
            "web",
            "--selector=app=web",
            "--min-available=2",
        ])
        .await;
    assert!(created.contains("created"), "{created}");
    cluster.create(Resource::DEPLOYMENTS, &deployment(3)).await;
    allows(&cluster, 1).await;
    // Real kubectl evicts one after the other, each when the one before is replaced.
    let drained = cluster.kubectl(&["drain", "n1", "--timeout=60s"]).await;
    assert!(drained.contains("drained"), "{drained}");
    allows(&cluster, 1).await;

    cluster
        .kubectl(&["scale", "deployment", "web", "--replicas=2"])
        .await;
    allows(&cluster, 0).await;
    let pods: Value = cluster
        .client
        .get_path("/api/v1/namespaces/default/pods")
        .await
        .unwrap();
    let pods: Vec<&Value> = pods["items"].as_array().unwrap().iter().collect();
    let active = pods
        .iter()
        .find(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let name = active.unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    let refused = cluster.evict(&name).await;
    assert_eq!(
        (&refused["code"], &refused["reason"]),
        (&json!(429), &json!("TooManyRequests"))
    );
    assert_eq!(refused["details"]["causes"][0]["reason"], "DisruptionBudget");
    assert_eq!(
        refused["details"]["causes"][0]["message"],
        "The disruption budget web needs 2 healthy pods and has 2 currently"
    );
    let still: Value = cluster
        .client
        .api(Resource::PODS, Some("default"))
        .get(&name)
        .await
        .unwrap();
    assert!(still["metadata"]["deletionTimestamp"].is_null());
    drop(kubelet);
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evictions_that_come_together_share_what_is_allowed() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&["--controllers=disruption"]);
    cluster.node("n1", "a").await;
    for number in 1..=6 {
        cluster
            .pod(&format!("p{number}"), &format!("10.1.0.{number}"), true)
            .await;
    }
    cluster
        .kubectl(&[
            "create",
            "poddisruptionbudget",
            "web",
            "--selector=app=web",
            "--min-available=4",
        ])
        .await;
    allows(&cluster, 2).await;
    // Nobody but the API server counts now.
    loops.stop().await;
    let names: Vec<String> = (1..=6).map(|number| format!("p{number}")).collect();
    let answers = futures::future::join_all(names.iter().map(|name| cluster.evict(name))).await;
    let granted = answers
        .iter()
        .filter(|answer| answer["status"] == "Success")
        .count();
    assert_eq!(granted, 2, "{answers:?}");
}
