//! What people see of a pod: its words, its hooks, its end.

use crate::lab::{on_a_node, pod_path};
use pointsman_harness::eventually;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

#[test]
fn kubectl_shows_what_containers_say_and_said() {
    on_a_node(async |lab| {
        // Says a line per second of its life, and ends for the first time when it is told to.
        let script = "echo run $(cat /mark/n); echo to-stderr >&2; i=0; \
                      while [ ! -e /mark/end ]; do i=$((i+1)); echo line $i; sleep 0.2; done; \
                      rm /mark/end; echo 2 >/mark/n; echo last words; exit 3";
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "talk" },
            "spec": {
                "nodeName": "n1", "terminationGracePeriodSeconds": 1,
                "volumes": [{ "name": "mark", "emptyDir": {} }],
                "initContainers": [{
                    "name": "init", "image": "host", "command": ["sh", "-c", "echo getting ready; echo 1 >/mark/n"],
                    "volumeMounts": [{ "name": "mark", "mountPath": "/mark" }],
                }],
                "containers": [{
                    "name": "c", "image": "host", "command": ["sh", "-c", script],
                    "volumeMounts": [{ "name": "mark", "mountPath": "/mark" }],
                    "lifecycle": { "postStart": { "exec": { "command": ["touch", "/mark/started"] } } },
                }, {
                    "name": "end", "image": "host",
                    "command": ["sh", "-c", "sleep 2; test -e /mark/started && touch /mark/end; sleep 3600"],
                    "volumeMounts": [{ "name": "mark", "mountPath": "/mark" }],
                }],
            },
        });
        lab.http
            .post("/api/v1/namespaces/default/pods", &pod)
            .await
            .expect(201);
        lab.ready("talk").await;
        let init = lab.kubectl(&["logs", "talk", "-c", "init"]).await;
        assert_eq!(init, "getting ready\n");

        // Followed, the log goes on until the container ends.
        let mut following = lab
            .server
            .kubectl_command()
            .args(["logs", "-f", "talk", "-c", "c"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
        let mut followed = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            followed.push(line);
        }
        assert!(following.wait().await.unwrap().success());
        // The two outputs are two pipes: only each of them has an order.
        for expected in ["run 1", "to-stderr", "line 3"] {
            assert!(followed.iter().any(|line| line == expected), "{followed:?}");
        }
        assert_eq!(followed.last().unwrap(), "last words");

        // The container was started again; its first run can still be read.
        let restarted = lab
            .pod_when("talk", |pod| {
                let statuses = pod["status"]["containerStatuses"].as_array();
                let mut statuses = statuses.into_iter().flatten();
                statuses.any(|status| status["restartCount"] == 1)
            })
            .await;
        let before = restarted["status"]["containerStatuses"][0]["lastState"]["terminated"].clone();
        assert_eq!(
            (&before["exitCode"], &before["reason"]),
            (&json!(3), &json!("Error"))
        );
        let previous = lab
            .kubectl(&["logs", "talk", "-c", "c", "--previous", "--tail=1"])
            .await;
        assert_eq!(previous, "last words\n");
        let now = eventually("the second run speaks", async || {
            let text = lab.kubectl(&["logs", "talk", "-c", "c", "--timestamps"]).await;
            text.contains("run 2").then_some(text)
        })
        .await;
        let stamped = |line: &str| line.starts_with("20") && line.ends_with(" run 2");
        assert!(now.lines().any(stamped), "{now}");

        // Mistakes are told.
        let http = &lab.http;
        let path = format!("{}/log", pod_path("talk"));
        http.get(&path).await.refused(400, "BadRequest");
        http.get(&format!("{path}?container=x"))
            .await
            .refused(400, "BadRequest");
        http.get(&format!("{path}?container=c&tailLines=-1"))
            .await
            .refused(400, "BadRequest");
        http.get("/api/v1/namespaces/default/pods/none/log")
            .await
            .refused(404, "NotFound");
    });
}

#[test]
fn a_pod_is_told_to_stop_by_its_hook_and_its_signal() {
    on_a_node(async |lab| {
        let directory = tempfile::tempdir().unwrap();
        let said = directory.path().join("said");
        let script = "trap 'echo signal >>/out/said; exit 0' TERM; while :; do sleep 0.05; done";
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "polite" },
            "spec": {
                "nodeName": "n1", "terminationGracePeriodSeconds": 20,
                "volumes": [{ "name": "out", "hostPath": { "path": directory.path() } }],
                "containers": [{
                    "name": "c", "image": "host", "command": ["sh", "-c", script],
                    "volumeMounts": [{ "name": "out", "mountPath": "/out" }],
                    "lifecycle": { "preStop": { "exec": { "command": ["sh", "-c", "echo hook >>/out/said"] } } },
                }],
            },
        });
        lab.http
            .post("/api/v1/namespaces/default/pods", &pod)
            .await
            .expect(201);
        lab.ready("polite").await;
        lab.delete("polite").await;
        assert_eq!(std::fs::read_to_string(said).unwrap(), "hook\nsignal\n");
    });
}

#[test]
fn the_agent_answers_those_who_may_ask_and_nobody_else() {
    on_a_node(async |lab| {
        let keys = lab.server.kubeconfig().with_file_name("pki");
        let ask = async |who: Option<&str>, path: &str| {
            let mut command = tokio::process::Command::new("curl");
            command.args(["-sk", "-o", "/dev/null", "-w", "%{http_code}"]);
            if let Some(who) = who {
                command.arg("--cert").arg(keys.join(format!("{who}.crt")));
                command.arg("--key").arg(keys.join(format!("{who}.key")));
            }
            let answer = command.arg(lab.agent_url(path)).output().await.unwrap();
            String::from_utf8(answer.stdout).unwrap()
        };
        for (who, path, code) in [
            (None, "/healthz", "200"),
            (None, "/metrics", "401"),
            (None, "/pods", "401"),
            (Some("admin"), "/pods", "200"),
            (Some("admin"), "/configz", "200"),
            (Some("admin"), "/nothing", "404"),
            (Some("sli"), "/metrics", "200"),
            (Some("sli"), "/pods", "403"),
            (Some("proxy"), "/metrics", "403"),
            // Another node's agent has no business here.
            (Some("node-n1"), "/containerLogs/default/x/c", "403"),
            (Some("admin"), "/containerLogs/default/x/c", "404"),
        ] {
            assert_eq!(ask(who, path).await, code, "{who:?} {path}");
        }
    });
}

#[test]
fn the_agent_knows_accounts_by_their_tokens() {
    on_a_node(async |lab| {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let named = |name: &str| json!({ "metadata": { "name": name } });
        let token = async |name: &str, audiences: &[&str]| {
            let spec = json!({ "spec": { "audiences": audiences, "expirationSeconds": 3600 } });
            let answer = lab.http.post(&format!("{accounts}/{name}/token"), &spec).await;
            answer.expect(201)["status"]["token"].as_str().unwrap().to_owned()
        };
        for name in ["reader", "other"] {
            lab.http.post(accounts, &named(name)).await.expect(201);
        }
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "reader" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:pointsman-sli" },
            "subjects": [{ "kind": "ServiceAccount", "namespace": "default", "name": "reader" }],
        });
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        lab.http.post(bindings, &binding).await.expect(201);
        let ask = async |token: &str, path: &str| {
            let mut command = tokio::process::Command::new("curl");
            command.args(["-sk", "-o", "/dev/null", "-w", "%{http_code}"]);
            command.args(["-H", &format!("Authorization: Bearer {token}")]);
            let answer = command.arg(lab.agent_url(path)).output().await.unwrap();
            String::from_utf8(answer.stdout).unwrap()
        };
        let reader = token("reader", &[]).await;
        for (token, path, code) in [
            (reader.clone(), "/metrics", "200"),
            (reader.clone(), "/pods", "403"),
            (reader.clone(), "/exec/default/x/c?command=true", "403"),
            (token("other", &[]).await, "/metrics", "403"),
            // One for another audience is not for this door.
            (
                token("reader", &["pointsman.io/metrics"]).await,
                "/metrics",
                "401",
            ),
            (format!("{reader}x"), "/metrics", "401"),
            (String::new(), "/metrics", "401"),
        ] {
            assert_eq!(ask(&token, path).await, code, "{path} {}", token.len());
        }
        assert!(!lab.agent_log().contains(&reader[..40]), "tokens are in no log");
    });
}
