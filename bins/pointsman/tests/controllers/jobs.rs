//! Jobs run to their end, as `kubectl wait` expects, and none of their pods stays behind.

use pointsman_api_client::{Patch, Resource};
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::{Value, json};

fn job(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "host" }] });
    spec["template"] = json!({ "spec": pod });
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name }, "spec": spec })
}

async fn pods(cluster: &Cluster) -> Vec<Value> {
    let list: Value = cluster
        .client
        .get_path("/api/v1/namespaces/default/pods")
        .await
        .unwrap();
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Ends every pod that runs, until the Job is done.
async fn run_to_end(cluster: &Cluster, name: &str, phase: &str) -> Value {
    let api = cluster.client.api(Resource::PODS, Some("default"));
    let jobs = cluster.client.api(Resource::JOBS, Some("default"));
    eventually(&format!("job {name} is done"), async || {
        for pod in pods(cluster)
            .await
            .iter()
            .filter(|pod| pod["status"]["phase"] == "Running")
        {
            let ended = json!({ "status": { "phase": phase, "conditions": null } }).to_string();
            let pod = pod["metadata"]["name"].as_str().unwrap();
            let _ = api
                .patch_status::<Value>(pod, Patch::Merge(ended.into_bytes()))
                .await;
        }
        let job: Value = jobs.get(name).await.unwrap();
        let ends = |condition: &Value| {
            ["Complete", "Failed"]
                .map(Value::from)
                .contains(&condition["type"])
        };
        let conditions = job["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions.iter().any(ends).then_some(job)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_completes_and_its_pods_go_with_it() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    let kubelet = cluster.kubelet();
    let created = cluster.kubectl(&["create", "job", "one", "--image=host"]).await;
    assert_eq!(created, "job.batch/one created\n");
    run_to_end(&cluster, "one", "Succeeded").await;
    let waited = cluster
        .kubectl(&["wait", "--for=condition=complete", "job/one", "--timeout=60s"])
        .await;
    assert!(waited.contains("condition met"), "{waited}");
    let row = cluster.kubectl(&["get", "job", "one", "--no-headers"]).await;
    assert_eq!(
        row.split_whitespace().take(3).collect::<Vec<_>>(),
        ["one", "Complete", "1/1"]
    );
    let finished = pods(&cluster).await;
    assert_eq!(finished.len(), 1, "kept for its log");
    let held = finished[0]["metadata"]["finalizers"].as_array();
    assert!(held.is_none_or(Vec::is_empty), "it is counted: {held:?}");
    cluster.kubectl(&["delete", "job", "one"]).await;

    let indexed = json!({ "completions": 5, "parallelism": 2, "completionMode": "Indexed", "ttlSecondsAfterFinished": 1 });
    cluster.create(Resource::JOBS, &job("many", indexed)).await;
    let done = run_to_end(&cluster, "many", "Succeeded").await;
    assert_eq!(done["status"]["completedIndexes"], "0-4");
    assert_eq!(
        (&done["status"]["succeeded"], &done["status"]["terminating"]),
        (&json!(5), &json!(0))
    );
    eventually("a Job goes after its time to live, with its pods", async || {
        let jobs = cluster.client.api(Resource::JOBS, Some("default"));
        (jobs.get::<Value>("many").await.is_err() && pods(&cluster).await.is_empty()).then_some(())
    })
    .await;
    drop(kubelet);
    loops.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_fails_is_suspended_and_survives_a_kill_of_the_loops() {
    let cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[]);
    cluster.node("n1", "a").await;
    let kubelet = cluster.kubelet();
    cluster
        .create(Resource::JOBS, &job("bad", json!({ "backoffLimit": 0 })))
        .await;
    let failed = run_to_end(&cluster, "bad", "Failed").await;
    let conditions = failed["status"]["conditions"].as_array().unwrap();
    let end = conditions
        .iter()
        .find(|condition| condition["type"] == "Failed")
        .unwrap();
    assert_eq!(end["reason"], "BackoffLimitExceeded");
    assert_eq!(failed["status"]["failed"], 1);

    let two = json!({ "completions": 3, "parallelism": 3 });
    cluster.create(Resource::JOBS, &job("long", two)).await;
    let running = async |expected: usize| {
        eventually(&format!("{expected} pods run"), async || {
            let pods = pods(&cluster).await;
            let mine = pods
                .iter()
                .filter(|pod| pod["metadata"]["labels"]["job-name"] == "long");
            let run = mine.filter(|pod| pod["status"]["phase"] == "Running");
            (run.count() == expected).then_some(())
        })
        .await;
    };
    running(3).await;
    cluster
        .patch(Resource::JOBS, "long", &json!({ "spec": { "suspend": true } }))
        .await;
    running(0).await;
    loops.kill().await;
    let loops = cluster.lone_controllers(&[]);
    cluster
        .patch(Resource::JOBS, "long", &json!({ "spec": { "suspend": false } }))
        .await;
    running(3).await;
    let done = run_to_end(&cluster, "long", "Succeeded").await;
    assert_eq!(
        (&done["status"]["succeeded"], &done["status"]["failed"]),
        (&json!(3), &Value::Null)
    );
    // Its pods are removed although nobody counts them any more.
    cluster.kubectl(&["delete", "job", "long", "bad"]).await;
    eventually("no pod waits for a Job that is gone", async || {
        pods(&cluster).await.is_empty().then_some(())
    })
    .await;
    drop(kubelet);
    loops.stop().await;
}
