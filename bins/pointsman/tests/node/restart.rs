//! What happens to pods when their agent is killed?

use crate::lab::{is_true, on_a_node, pod_path};
use serde_json::json;
use std::time::Duration;

#[test]
fn pods_stay_and_stay_ready_when_the_agent_is_killed_and_started_again() {
    on_a_node(async |lab| {
        let probe = json!({ "exec": { "command": ["test", "-e", "/proc/1"] }, "periodSeconds": 1 });
        for name in ["a", "b", "c"] {
            let command = json!(["sh", "-c", "echo $$; exec sleep 3600"]);
            lab.pod(name, json!({ "command": command, "readinessProbe": probe }))
                .await;
        }
        for name in ["a", "b", "c"] {
            lab.ready(name).await;
        }
        let version = lab.http.get("/api/v1/pods").await.json()["metadata"]["resourceVersion"].clone();
        for _ in 0..2 {
            lab.kill_agent().await;
            lab.start_agent();
            // Long enough for every probe to run again.
            tokio::time::sleep(Duration::from_millis(2500)).await;
        }
        let path = format!(
            "/api/v1/namespaces/default/pods?watch=true&timeoutSeconds=1&resourceVersion={}",
            version.as_str().unwrap()
        );
        let events = lab.http.watch(&path).await.rest().await;
        for event in events {
            assert!(is_true(&event.object, "Ready"), "{:#}", event.object["status"]);
        }
        for name in ["a", "b", "c"] {
            let pod = lab.http.get(&pod_path(name)).await.json();
            let status = &pod["status"]["containerStatuses"][0];
            assert_eq!(status["restartCount"], 0, "{status}");
            assert!(!status["state"]["running"].is_null());
        }
    });
}
