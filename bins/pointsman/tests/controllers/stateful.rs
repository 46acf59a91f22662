//! StatefulSets, as `kubectl` drives them: order, partitions, undo, claims.

use pointsman_api_client::Resource;
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::{Value, json};

fn stateful_set(claims: bool) -> Value {
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "db" },
        "spec": {
            "replicas": 3, "serviceName": "db", "selector": { "matchLabels": { "app": "db" } },
            "template": {
                "metadata": { "labels": { "app": "db" } },
                "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "c", "image": "one" }] },
            },
        },
    });
    if claims {
        set["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
            json!([{ "name": "data", "mountPath": "/data" }]);
        set["spec"]["volumeClaimTemplates"] = json!([{
            "metadata": { "name": "data" },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        }]);
    }
    set
}

/// Name and image of every pod.
async fn pods(cluster: &Cluster) -> Vec<String> {
    let list: Value = cluster
        .client
        .get_path("/api/v1/namespaces/default/pods")
        .await
        .unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let mut pods: Vec<String> = items
        .iter()
        .map(|pod| {
            format!(
                "{} {}",
                text(&pod["metadata"]["name"]),
                text(&pod["spec"]["containers"][0]["image"])
            )
        })
        .collect();
    pods.sort();
    pods
}

async fn settles(cluster: &Cluster, expected: &[&str]) {
    eventually(&format!("pods are {expected:?}"), async || {
        (pods(cluster).await == expected).then_some(())
    })
    .await;
    let status = cluster
        .kubectl(&["rollout", "status", "statefulset/db", "--timeout=60s"])
        .await;
    assert!(
        status.contains("complete") || status.contains("roll out"),
        "{status}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_rolled_from_the_last_to_the_first_down_to_the_partition_and_back() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    let kubelet = cluster.kubelet();
    cluster
        .create(Resource::STATEFUL_SETS, &stateful_set(false))
        .await;
    settles(&cluster, &["db-0 one", "db-1 one", "db-2 one"]).await;
    let pod: Value = cluster
        .client
        .api(Resource::PODS, Some("default"))
        .get("db-2")
        .await
        .unwrap();
    assert_eq!(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "2");
    assert_eq!(
        (&pod["spec"]["hostname"], &pod["spec"]["subdomain"]),
        (&json!("db-2"), &json!("db"))
    );

    let held = json!({ "spec": { "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 2 } } } });
    cluster.patch(Resource::STATEFUL_SETS, "db", &held).await;
    cluster
        .kubectl(&["set", "image", "statefulset/db", "c=two"])
        .await;
    settles(&cluster, &["db-0 one", "db-1 one", "db-2 two"]).await;
    // A pod below the partition comes back with the template it had.
    cluster.kubectl(&["delete", "pod", "db-0"]).await;
    settles(&cluster, &["db-0 one", "db-1 one", "db-2 two"]).await;
    let free = json!({ "spec": { "updateStrategy": { "rollingUpdate": { "partition": 0 } } } });
    cluster.patch(Resource::STATEFUL_SETS, "db", &free).await;
    settles(&cluster, &["db-0 two", "db-1 two", "db-2 two"]).await;
    let undone = cluster.kubectl(&["rollout", "undo", "statefulset/db"]).await;
    assert!(undone.contains("rolled back"), "{undone}");
    settles(&cluster, &["db-0 one", "db-1 one", "db-2 one"]).await;
    let history = cluster.kubectl(&["rollout", "history", "statefulset/db"]).await;
    let revisions: Vec<&str> = history
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(revisions.ends_with(&["2", "3"]), "{history}");

    cluster
        .kubectl(&["scale", "statefulset", "db", "--replicas=1"])
        .await;
    settles(&cluster, &["db-0 one"]).await;
    cluster.kubectl(&["delete", "statefulset", "db"]).await;
    eventually("its pods go with it", async || {
        pods(&cluster).await.is_empty().then_some(())
    })
    .await;
    drop(kubelet);
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_written_for_every_pod_and_stay() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    let kubelet = cluster.kubelet();
    cluster.create(Resource::STATEFUL_SETS, &stateful_set(true)).await;
    settles(&cluster, &["db-0 one", "db-1 one", "db-2 one"]).await;
    let pod: Value = cluster
        .client
        .api(Resource::PODS, Some("default"))
        .get("db-1")
        .await
        .unwrap();
    let claimed = |volume: &Value| volume["persistentVolumeClaim"]["claimName"] == "data-db-1";
    assert!(
        pod["spec"]["volumes"].as_array().unwrap().iter().any(claimed),
        "{pod}"
    );
    cluster.kubectl(&["delete", "statefulset", "db"]).await;
    let claims = cluster
        .kubectl(&["get", "persistentvolumeclaims", "--no-headers"])
        .await;
    let claims: Vec<&str> = claims
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(claims, ["data-db-0", "data-db-1", "data-db-2"]);
    drop(kubelet);
    loops.stop().await;
}
