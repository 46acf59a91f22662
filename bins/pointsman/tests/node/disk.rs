//! Is a pod ended that has more on disk than it may?

use crate::lab::{is_true, on_a_node};
use serde_json::json;

#[test]
fn a_pod_over_its_limit_is_evicted_and_one_within_stays() {
    on_a_node(async |lab| {
        let pod = |name: &str, grace: u64, limit: &str, size: Option<&str>| {
            let scratch = size.map_or(json!({}), |size| json!({ "sizeLimit": size }));
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
                "spec": {
                    "nodeName": "n1", "terminationGracePeriodSeconds": grace,
                    "volumes": [{ "name": "data", "emptyDir": scratch }],
                    "containers": [{
                        "name": "c", "image": "host",
                        "command": ["sh", "-c", "trap '' TERM; dd if=/dev/zero of=/data/file bs=1M count=3; while :; do sleep 0.1; done"],
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                        "resources": { "limits": { "ephemeral-storage": limit } },
                    }],
                },
            })
        };
        let pods = [
            pod("fits", 1, "64Mi", Some("8Mi")),
            pod("all", 60, "2Mi", None),
            pod("volume", 60, "64Mi", Some("1Mi")),
        ];
        for pod in &pods {
            lab.http
                .post("/api/v1/namespaces/default/pods", pod)
                .await
                .expect(201);
        }
        for (name, message) in [
            (
                "all",
                "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
            ),
            (
                "volume",
                "Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". ",
            ),
        ] {
            let ended = lab.pod_when(name, |pod| pod["status"]["phase"] == "Failed").await;
            let status = &ended["status"];
            assert_eq!(
                (&status["reason"], &status["message"]),
                (&json!("Evicted"), &json!(message))
            );
            let exit = &status["containerStatuses"][0]["state"]["terminated"]["exitCode"];
            assert_eq!(exit, 137, "it is not asked for long");
        }
        let events = lab.kubectl(&["get", "events", "--field-selector=reason=Evicted", "-o", "name"]);
        assert_eq!(events.await.lines().count(), 2);
        assert!(is_true(&lab.ready("fits").await, "Ready"));
    });
}
