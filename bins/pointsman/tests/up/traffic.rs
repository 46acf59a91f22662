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

/// Answered and failed requests in the lines of a load.
fn count(lines: &[u8]) -> (u64, u64) {
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
