//! A node whose pods run from images.

use crate::lab::{Lab, is_true, pod_path};
use pointsman_fabric::Netns;
use pointsman_harness::containerd::{BUSYBOX, Containerd};
use pointsman_harness::eventually;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Runs a test on a node with a containerd of its own.
pub fn on_a_node_with_images(test: impl AsyncFnOnce(&mut Lab) + Send) {
    if !rustix::process::geteuid().is_root() {
        return pointsman_testkit::skip::skip("a node needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = format!(
        "--container-runtime-endpoint=unix://{}/socket",
        directory.path().display()
    );
    // The flags of a test are there for ever.
    let flags: &'static [&'static str] = Vec::leak(vec![&*String::leak(socket)]);
    crate::lab::on_a_prepared_node(
        flags,
        || Containerd::start(directory.path(), &Netns::current().unwrap()),
        test,
    );
}

fn state<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    &pod["status"]["containerStatuses"][0]["state"][kind]
}

fn script(text: &str) -> Value {
    json!({ "image": BUSYBOX, "command": ["sh", "-c", text] })
}

#[test]
fn a_pod_of_an_image_is_probed_logged_restarted_and_stopped_politely() {
    on_a_node_with_images(async |lab| {
        let version =
            lab.http.get("/api/v1/nodes/n1").await.json()["status"]["nodeInfo"]["containerRuntimeVersion"]
                .clone();
        assert!(
            version.as_str().unwrap().starts_with("containerd://"),
            "{version}"
        );
        let mut web = script(
            "trap 'echo bye; touch /tmp/polite; exit 0' TERM; echo hello $GREETING; mkdir -p /tmp; while :; do sleep 0.02; done",
        );
        web["env"] = json!([{ "name": "GREETING", "value": "you" }]);
        web["readinessProbe"] = json!({
            "exec": { "command": ["ls", "/tmp/ready"] }, "periodSeconds": 1, "periodMilliseconds": -500, "failureThreshold": 1,
        });
        web["lifecycle"] = json!({ "preStop": { "exec": { "command": ["touch", "/tmp/hooked"] } } });
        lab.pod("web", web).await;
        let running = lab.pod_when("web", |pod| state(pod, "running").is_object()).await;
        assert!(!is_true(&running, "Ready"));
        assert!(
            running["status"]["podIP"]
                .as_str()
                .unwrap()
                .starts_with("10.88.0."),
            "{}",
            running["status"]
        );
        let marked = lab.in_containers("touch /tmp/ready");
        assert_eq!(marked, 1);
        lab.ready("web").await;
        assert_eq!(lab.kubectl(&["logs", "web"]).await, "hello you\n");
        let begun = Instant::now();
        // Less than a test waits, more than an end takes on a busy machine.
        let path = format!("{}?gracePeriodSeconds=25", pod_path("web"));
        lab.http.delete(&path).await.expect(200);
        lab.pod_when("web", Value::is_null).await;
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it was killed: {:?}",
            begun.elapsed()
        );

        lab.pod("twice", script("echo run; sleep 0.2; exit 4")).await;
        let restarted = lab
            .pod_when("twice", |pod| {
                state(pod, "waiting")["reason"] == "CrashLoopBackOff"
            })
            .await;
        let status = &restarted["status"]["containerStatuses"][0];
        assert_eq!(
            (
                &status["restartCount"],
                &status["lastState"]["terminated"]["exitCode"]
            ),
            (&json!(1), &json!(4))
        );
        assert_eq!(lab.kubectl(&["logs", "twice", "--previous"]).await, "run\n");

        // The image's own program, its user and what it is kept from.
        lab.pod("plain", json!({ "image": BUSYBOX })).await;
        lab.ready("plain").await;
        lab.pod(
            "rooted",
            json!({ "image": BUSYBOX, "securityContext": { "runAsNonRoot": true } }),
        )
        .await;
        let refused = lab
            .pod_when("rooted", |pod| state(pod, "waiting")["message"].is_string())
            .await;
        assert_eq!(
            state(&refused, "waiting")["message"],
            "container has runAsNonRoot and image will run as root"
        );

        // Commands with streams, and files through them.
        let output = lab
            .server
            .kubectl_command()
            .args(["exec", "plain", "--", "sh", "-c", "echo here; exit 3"])
            .output()
            .await
            .unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"here\n"[..]));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "copied").unwrap();
        lab.kubectl(&["cp", file.to_str().unwrap(), "plain:/copy"]).await;
        assert_eq!(
            lab.kubectl(&["exec", "plain", "--", "cat", "/copy"]).await,
            "copied"
        );
    });
}

#[test]
fn an_image_that_is_not_there_says_so_as_the_kubelet_does() {
    on_a_node_with_images(async |lab| {
        lab.pod("missing", json!({ "image": "127.0.0.1:1/no/such:1" }))
            .await;
        let reason = |reason: &'static str| move |pod: &Value| state(pod, "waiting")["reason"] == reason;
        lab.pod_when("missing", reason("ErrImagePull")).await;
        let waits = lab.pod_when("missing", reason("ImagePullBackOff")).await;
        let message = state(&waits, "waiting")["message"].as_str().unwrap();
        assert!(
            message.starts_with("Back-off pulling image \"127.0.0.1:1/no/such:1\""),
            "{message}"
        );
        lab.pod(
            "never",
            json!({ "image": "127.0.0.1:1/no/such:1", "imagePullPolicy": "Never" }),
        )
        .await;
        lab.pod_when("never", reason("ErrImageNeverPull")).await;
    });
}

#[test]
fn containers_stay_and_stay_ready_when_the_agent_is_killed_and_what_ends_meanwhile_is_known() {
    on_a_node_with_images(async |lab| {
        let probe = json!({ "exec": { "command": ["ls", "/bin"] }, "periodSeconds": 1 });
        let mut stays = script("exec sleep 3600");
        stays["readinessProbe"] = probe;
        lab.pod("stays", stays).await;
        lab.pod("ends", script("while ! ls /tmp/end; do sleep 0.05; done; exit 6"))
            .await;
        let before = lab.ready("stays").await;
        lab.ready("ends").await;
        lab.kill_agent().await;
        let running = lab.running_tasks();
        // Not at once: the end of the container would end the command in it, too.
        let later = "mkdir -p /tmp; { (sleep 1; touch /tmp/end) >/dev/null 2>&1 & }";
        assert_eq!(lab.in_containers(later), 2);
        // The runtime deletes the task of a container that has ended, so that it is seen as ended for a moment only.
        eventually("one has ended", async || {
            (lab.running_tasks() == running - 1).then_some(())
        })
        .await;
        lab.start_agent();
        let ended = lab
            .pod_when("ends", |pod| {
                pod["status"]["containerStatuses"][0]["restartCount"] == 1
            })
            .await;
        let last = &ended["status"]["containerStatuses"][0]["lastState"]["terminated"];
        assert_eq!(last["exitCode"], 6, "{last}");
        let path = format!(
            "/api/v1/namespaces/default/pods?watch=true&timeoutSeconds=1&fieldSelector=metadata.name=stays&resourceVersion={}",
            before["metadata"]["resourceVersion"].as_str().unwrap()
        );
        for event in lab.http.watch(&path).await.rest().await {
            assert!(is_true(&event.object, "Ready"), "{:#}", event.object["status"]);
        }
        let stays = lab.http.get(&pod_path("stays")).await.json();
        assert_eq!(stays["status"]["podIP"], before["status"]["podIP"]);
        assert_eq!(stays["status"]["containerStatuses"][0]["restartCount"], 0);
    });
}

#[test]
fn a_pod_whose_sandbox_dies_gets_another_one_and_starts_again_in_it() {
    on_a_node_with_images(async |lab| {
        let mut web = script("exec httpd -f -p 8080");
        web["readinessProbe"] = json!({ "tcpSocket": { "port": 8080 }, "periodSeconds": 1 });
        lab.pod("web", web).await;
        lab.ready("web").await;
        assert_eq!(lab.kill_sandboxes(), 1);
        let again = lab
            .pod_when("web", |pod| {
                is_true(pod, "Ready") && pod["status"]["containerStatuses"][0]["restartCount"] == 1
            })
            .await;
        assert!(state(&again, "running").is_object(), "{:#}", again["status"]);
        let events = lab
            .kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"])
            .await;
        assert!(events.contains("SandboxChanged"), "{events}");
    });
}
