//! Is what a pod is kept from carried out, and what cannot be carried out told?

use crate::lab::on_a_node;
use serde_json::{Value, json};

#[test]
fn what_a_security_context_says_holds_inside() {
    on_a_node(async |lab| {
        let script = "set -e; grep -q 'CapBnd:.0*400$' /proc/self/status; \
            grep -q 'NoNewPrivs:.1' /proc/self/status; grep -q 'Seccomp:.2' /proc/self/status; \
            ! touch /tmp/mine 2>/dev/null; ! unshare --net true 2>/dev/null; [ $(id -u) = 4001 ]; \
            touch /data/all-is-so; exec sleep 3600";
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "strict" },
            "spec": {
                "nodeName": "n1", "terminationGracePeriodSeconds": 1,
                "securityContext": { "runAsNonRoot": true, "runAsUser": 4001, "fsGroup": 4001,
                                     "seccompProfile": { "type": "RuntimeDefault" } },
                "volumes": [{ "name": "data", "emptyDir": {} }],
                "containers": [{
                    "name": "c", "image": "host", "command": ["sh", "-c", script],
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    "readinessProbe": { "exec": { "command": ["test", "-e", "/data/all-is-so"] }, "periodSeconds": 1 },
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
                    },
                }],
            },
        });
        lab.http
            .post("/api/v1/namespaces/default/pods", &pod)
            .await
            .expect(201);
        lab.ready("strict").await;
    });
}

#[test]
fn what_cannot_be_carried_out_is_refused_at_the_pod() {
    on_a_node(async |lab| {
        let cases = [
            (
                "profile",
                json!({ "securityContext": { "seccompProfile": { "type": "Localhost", "localhostProfile": "p.json" } } }),
                "seccompProfile",
            ),
            (
                "armor",
                json!({ "securityContext": { "appArmorProfile": { "type": "RuntimeDefault" } } }),
                "AppArmor",
            ),
            (
                "fly",
                json!({ "securityContext": { "capabilities": { "add": ["FLY"] } } }),
                "FLY",
            ),
            (
                "card",
                json!({ "resources": { "limits": { "example.com/gpu": "1" } } }),
                "example.com/gpu",
            ),
        ];
        for (name, fields, word) in cases {
            let mut container = fields;
            container["command"] = json!(["sleep", "3600"]);
            lab.pod(name, container).await;
            let waiting = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
            let pod = lab
                .pod_when(name, |pod| waiting(pod)["reason"] == "CreateContainerConfigError")
                .await;
            let message = waiting(&pod)["message"].as_str().unwrap_or_default().to_owned();
            assert!(message.contains(word), "{name}: {message}");
        }
    });
}

#[test]
fn a_pod_that_requests_more_than_there_is_waits_and_says_for_what() {
    on_a_node(async |lab| {
        let requests = json!({ "requests": { "memory": "900Ti" } });
        lab.pod(
            "big",
            json!({ "command": ["sleep", "3600"], "resources": requests }),
        )
        .await;
        let events = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dbig";
        pointsman_harness::eventually("the event is there", async || {
            let found = lab.http.get(events).await.json();
            let items = found["items"].as_array().cloned().unwrap_or_default();
            let says = |event: &Value| {
                event["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("enough resource: memory"))
            };
            items.iter().any(says).then_some(())
        })
        .await;
        let pod = lab.http.get(&crate::lab::pod_path("big")).await.json();
        assert!(pod["status"]["podIP"].is_null(), "{pod:#}");
    });
}
