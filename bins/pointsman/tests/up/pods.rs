//! Pods on nodes: run, read, reached, deleted; and agents that die under load.

use crate::cluster::{Cluster, eventually};
use pointsman_testkit::require_netns;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");

/// A container that says who it is and answers on port 8080.
fn server() -> Value {
    json!({
        "name": "web", "image": "host",
        "command": ["sh", "-c", format!("echo I am $(hostname); exec {PROGRAM} serve-http")],
        "readinessProbe": {
            "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1, "periodMilliseconds": -800,
        },
    })
}

#[test]
fn kubectl_runs_reads_and_deletes_pods_on_two_nodes_that_talk_to_each_other() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=2"]);
    for (name, node) in [("one", "n1"), ("two", "n2")] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "nodeName": node, "terminationGracePeriodSeconds": 5, "containers": [server()] },
        });
        cluster.kubectl_with(&["create", "-f", "-"], &pod.to_string());
    }
    cluster.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/one",
        "pod/two",
        "--timeout=60s",
    ]);
    let wide = cluster.kubectl(&["get", "pods", "-o", "wide", "--no-headers"]);
    for (line, node) in wide.lines().zip(["n1", "n2"]) {
        assert!(line.contains("1/1") && line.contains(node), "{wide}");
    }
    for (from, to) in [("one", "two"), ("two", "one"), ("one", "one")] {
        assert_eq!(cluster.kubectl(&["logs", to]), format!("I am {to}\n"));
        let address = cluster.kubectl(&["get", "pod", to, "-o", "jsonpath={.status.podIP}"]);
        let ask =
            format!("exec 3<>/dev/tcp/{address}/8080; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
        let answer = cluster.pointsman("exec", &[from, "--", "bash", "-c", &ask]);
        let text = String::from_utf8_lossy(&answer.stdout);
        assert!(
            text.contains(&format!("\"{to}\"")),
            "{from} asked {to} at {address}: {answer:?}"
        );
    }
    let uids = cluster.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
    assert_eq!(processes_of(&uids).len(), 2);
    cluster.kubectl(&["delete", "pod", "one", "two"]);
    assert_eq!(cluster.kubectl(&["get", "pods", "--no-headers"]), "");
    assert!(processes_of(&uids).is_empty());
    let namespaces = pointsman_fabric::Netns::names().unwrap();
    let is_of_pod = |name: &&String| uids.split(' ').any(|uid| name.contains(uid));
    assert_eq!(namespaces.iter().find(is_of_pod), None);
}

#[test]
fn a_client_in_a_pod_lists_with_the_token_of_its_own_account() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=1"]);
    cluster.kubectl(&["create", "serviceaccount", "robot"]);
    let rights = ["--clusterrole=cluster-admin", "--serviceaccount=default:robot"];
    cluster.kubectl(&[&["create", "clusterrolebinding", "robot"], &rights[..]].concat());
    cluster.kubectl(&["create", "secret", "generic", "own", "--from-literal=a=hunter2"]);
    let look = format!(
        "cd /var/run/secrets/kubernetes.io/serviceaccount && cat namespace && stat -f -c \" %T\" token \
         && {PROGRAM} profile status; echo $SECRET; sleep 1000"
    );
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "client" },
        "spec": {
            "serviceAccountName": "robot", "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": "host", "command": ["sh", "-c", look],
                "env": [{ "name": "SECRET", "valueFrom": { "secretKeyRef": { "name": "own", "key": "a" } } }],
            }],
        },
    });
    cluster.kubectl_with(&["create", "-f", "-"], &pod.to_string());
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/client", "--timeout=60s"]);
    let said = eventually("the client has answered", || {
        let said = cluster.kubectl(&["logs", "client"]);
        said.contains("hunter2").then_some(said)
    });
    // The client of `profile status` is kube-rs with nothing but what the pod has.
    assert!(said.starts_with("default tmpfs\n"), "{said}");
    assert!(said.contains("No profile was ever asked for"), "{said}");
}

#[test]
fn agents_killed_under_load_flap_no_readiness_and_lose_no_process() {
    require_netns!();
    const PODS: usize = 12;
    let cluster = Cluster::start(&["--nodes=2"]);
    cluster.kubectl_with(
        &["create", "--validate=false", "-f", "-"],
        &workload(PODS).to_string(),
    );
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let uids = cluster.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
    let before = processes_of(&uids);
    assert_eq!(before.len(), PODS);

    let seen = cluster.data_dir().join("seen.json");
    let watching = Ended(
        Command::new("kubectl")
            .env("KUBECONFIG", cluster.data_dir().join("admin.kubeconfig"))
            .args(["get", "pods", "--watch", "-o", "json"])
            .stdout(File::create(&seen).unwrap())
            .spawn()
            .unwrap(),
    );
    eventually("the watch has begun", || {
        (objects(&seen).len() >= PODS).then_some(())
    });
    let target = format!("--target={address}:80");
    let load = [
        "exec",
        "--name",
        &cluster.name,
        "n1",
        "--",
        PROGRAM,
        "load",
        &target,
        "--duration=8s",
        "--rate=100",
    ];
    let load = Command::new(PROGRAM)
        .args(load)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..3 {
        let agents = agents(&cluster);
        assert_eq!(agents.len(), 2, "an agent for each node");
        for agent in &agents {
            kill_process(Pid::from_raw(*agent).unwrap(), Signal::KILL).unwrap();
        }
        eventually("both agents are back", || {
            let back = self::agents(&cluster);
            (back.len() == 2 && back.is_disjoint(&agents)).then_some(())
        });
        // Long enough for every probe to run again.
        std::thread::sleep(Duration::from_millis(1_500));
    }
    let output = load.wait_with_output().unwrap();
    let (ok, failed) = crate::traffic::count(&output.stdout);
    assert!(ok > 100 && failed == 0, "{ok} answered, {failed} failed");

    drop(watching);
    let seen = objects(&seen);
    assert!(seen.len() >= PODS);
    for pod in &seen {
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        let is_ready = conditions
            .iter()
            .any(|found| found["type"] == "Ready" && found["status"] == "True");
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        assert!(is_ready && *restarts == 0, "{:#}", pod["status"]);
    }
    assert_eq!(processes_of(&uids), before);
}

/// So many servers with an HTTP and an exec probe each, and a Service over them.
fn workload(replicas: usize) -> Value {
    let mut container = server();
    container["livenessProbe"] = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
    let labels = json!({ "app": "web" });
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
          "spec": { "selector": labels, "ports": [{ "port": 80, "targetPort": 8080 }] } },
        { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
          "spec": {
              "replicas": replicas, "selector": { "matchLabels": labels },
              "template": {
                  "metadata": { "labels": labels },
                  "spec": { "terminationGracePeriodSeconds": 2, "containers": [container] },
              },
          } },
    ] })
}

/// A child that is ended with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The whole objects in a file that is still being written.
fn objects(path: &Path) -> Vec<Value> {
    let text = std::fs::read(path).unwrap_or_default();
    let objects = serde_json::Deserializer::from_slice(&text).into_iter();
    objects.map_while(Result::ok).collect()
}

/// The web servers that run in the cgroups of these pods.
fn processes_of(uids: &str) -> BTreeSet<i32> {
    processes(|pid, line| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        line.ends_with("serve-http ") && uids.split(' ').any(|uid| groups.contains(&format!("pod{uid}/")))
    })
}

/// The agents of a cluster.
pub fn agents(cluster: &Cluster) -> BTreeSet<i32> {
    let data = cluster.data_dir().canonicalize().unwrap();
    let data = data.display().to_string();
    processes(|_, line| line.contains(" node --") && line.contains(&data))
}

pub fn processes(is_wanted: impl Fn(i32, &str) -> bool) -> BTreeSet<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let wanted = pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_wanted(*pid, &String::from_utf8_lossy(&line).replace('\0', " "))
    });
    wanted.collect()
}
