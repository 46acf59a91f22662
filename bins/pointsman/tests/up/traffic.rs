//! Connections through the rules of every node.

use crate::cluster::{Cluster, eventually};
use pointsman_testkit::require_netns;
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // A failing test may have ended it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_service_is_reached_from_every_node_and_from_the_host_in_nftables_mode() {
    require_netns!();
    reach_a_service("nftables");
}

#[test]
fn a_service_is_reached_from_every_node_and_from_the_host_in_iptables_mode() {
    require_netns!();
    reach_a_service("iptables");
}

/// The endpoint is a server on the network of node 1.
fn reach_a_service(mode: &str) {
    let cluster = Cluster::start(&["--nodes=3", "--proxy-mode", mode]);
    let program = env!("CARGO_BIN_EXE_pointsman");
    let server = Command::new(program)
        .args(["exec", "--name", &cluster.name, "n1", "--", program, "serve-http"])
        .stderr(Stdio::null())
        .spawn();
    let _server = Server(server.unwrap());
    let endpoint = cluster.facts["nodes"][0]["address"].as_str().unwrap().to_owned();
    cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &objects(&endpoint));
    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let target = format!("{address}:80");

    let load = |target: &str, duration: &str| {
        let target = format!("--target={target}");
        let duration = format!("--duration={duration}");
        vec![
            program.to_owned(),
            "load".into(),
            target,
            duration,
            "--rate=50".into(),
        ]
    };
    for node in ["n1", "n2", "n3"] {
        let ask = |duration: &str| {
            let command = load(&target, duration);
            let mut arguments = vec![node, "--"];
            arguments.extend(command.iter().map(String::as_str));
            count(&cluster.pointsman("exec", &arguments).stdout)
        };
        eventually("the first answer", || (ask("100ms").0 > 0).then_some(()));
        let (ok, failed) = ask("1s");
        assert!(ok > 10 && failed == 0, "{node}: {ok} answered, {failed} failed");
    }
    let from_host = Command::new(program)
        .args(&load(&target, "1s")[1..])
        .output()
        .unwrap();
    let (ok, failed) = count(&from_host.stdout);
    assert!(ok > 10 && failed == 0, "host: {ok} answered, {failed} failed");
}

#[test]
fn pods_of_a_deployment_answer_and_a_rolling_update_loses_nothing() {
    require_netns!();
    let mut cluster = Cluster::start(&["--nodes=2"]);
    let program = env!("CARGO_BIN_EXE_pointsman");
    cluster.kubectl_with(&["create", "--validate=false", "-f", "-"], &deployment(program));
    cluster.kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
    eventually("two pods are available", || available(&cluster, "2"));
    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let target = format!("--target={address}:80");
    eventually("the Service answers on both nodes", || {
        let asked = ["n1", "n2"].map(|node| {
            let command = [
                node,
                "--",
                program,
                "load",
                &target,
                "--duration=100ms",
                "--rate=50",
            ];
            count(&cluster.pointsman("exec", &command).stdout)
        });
        asked
            .iter()
            .all(|(ok, failed)| *ok > 0 && *failed == 0)
            .then_some(())
    });

    let loads: Vec<Child> = ["n1", "n2"]
        .map(|node| {
            let mut load = Command::new(program);
            load.args([
                "exec",
                "--name",
                &cluster.name,
                node,
                "--",
                program,
                "load",
                &target,
                "--rate=20",
            ]);
            load.args(["--duration=8s"])
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            load.spawn().unwrap()
        })
        .into();
    let before = cluster.kubectl(&["get", "pods", "-o", "name"]);
    let patch = r#"{"spec":{"template":{"metadata":{"annotations":{"changed":"yes"}}}}}"#;
    cluster.kubectl(&["patch", "deployment", "web", "-p", patch]);
    eventually("all pods are replaced", || {
        let after = cluster.kubectl(&["get", "pods", "-o", "name"]);
        let is_new = after.lines().count() == 2 && after.lines().all(|pod| !before.contains(pod));
        is_new.then(|| available(&cluster, "2")).flatten()
    });
    for load in loads {
        let (ok, failed) = count(&load.wait_with_output().unwrap().stdout);
        assert!(ok > 50 && failed == 0, "{ok} answered, {failed} failed");
    }

    // Pods outlive a crash of everything around them, and go with the cluster.
    cluster.kill();
    assert!(cluster.containers_running() >= 2);
    cluster.start_again(&["--nodes=2"]);
    eventually("the pods are back", || available(&cluster, "2"));
    cluster.terminate();
    assert_eq!(cluster.traces(), Vec::<String>::new());
    assert_eq!(cluster.containers_running(), 0);
}

/// Answered and failed requests in the lines of a load.
pub fn count(lines: &[u8]) -> (u64, u64) {
    let text = String::from_utf8_lossy(lines);
    let tallies = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    tallies.fold((0, 0), |(ok, failed), tally| {
        let lost = tally["failed"].as_object().unwrap().values();
        let lost: u64 = lost.map(|count| count.as_u64().unwrap()).sum();
        (ok + tally["ok"].as_u64().unwrap(), failed + lost)
    })
}

/// Whether the Deployment has exactly so many pods, all new and available.
fn available(cluster: &Cluster, count: &str) -> Option<()> {
    let path = "jsonpath={.status.updatedReplicas} {.status.availableReplicas} {.status.replicas}";
    let said = cluster.kubectl(&["get", "deployment", "web", "-o", path]);
    (said == format!("{count} {count} {count}")).then_some(())
}

fn deployment(program: &str) -> String {
    format!(
        r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"web"}},"spec":{{
            "replicas":2,"selector":{{"matchLabels":{{"app":"web"}}}},
            "strategy":{{"rollingUpdate":{{"maxSurge":1,"maxUnavailable":0}}}},
            "template":{{"metadata":{{"labels":{{"app":"web"}}}},"spec":{{"containers":[{{
                "name":"web","image":"host","command":["{program}","serve-http"],
                "readinessProbe":{{"httpGet":{{"path":"/ready","port":8080}},
                    "periodSeconds":1,"periodMilliseconds":-800,"failureThreshold":1}}}}]}}}}}}}}"#
    )
}

fn objects(endpoint: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"List","items":[
            {{"apiVersion":"v1","kind":"Service","metadata":{{"name":"web"}},
              "spec":{{"ports":[{{"port":80,"targetPort":8080}}]}}}},
            {{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","addressType":"IPv4",
              "metadata":{{"name":"web-1","labels":{{"kubernetes.io/service-name":"web"}}}},
              "ports":[{{"port":8080,"protocol":"TCP"}}],
              "endpoints":[{{"addresses":["{endpoint}"],"nodeName":"n1"}}]}}]}}"#
    )
}
