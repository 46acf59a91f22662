//! Does everybody reach everybody over IPv4 and IPv6 in a cluster of both?

use crate::cluster::{Cluster, eventually, program};
use pointsman_testkit::require_netns;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Output;

fn web(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "web", "image": "host", "command": [program(), "serve-http", "--listen=[::]:8080"],
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1 },
            }],
        },
    })
}

fn service(name: &str, families: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "type": "NodePort", "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    let spec = service["spec"].as_object_mut().unwrap();
    spec.extend(families.as_object().unwrap().clone());
    service
}

fn object(cluster: &Cluster, kind: &str, name: &str) -> Value {
    serde_json::from_str(&cluster.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
}

fn addresses(list: &Value, field: &str) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|entry| entry[field].as_str().unwrap_or_default().to_owned())
        .collect()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until everybody in the list has had answers of both pods from there.
fn reached_by_all(cluster: &Cluster, clients: &[&str], place: &str) {
    let both = BTreeSet::from(["web-1", "web-2"].map(String::from));
    let ask = format!("for i in 1 2 3 4 5 6 7 8; do curl -gsS -m 5 http://{place}/; echo; done");
    for client in clients {
        eventually(&format!("{client} has answers of both from {place}"), || {
            let shell = ["sh", "-c", &ask];
            let asked = match *client {
                "host" => cluster.command("sh").args(&shell[1..]).output().unwrap(),
                inside => cluster.pointsman("exec", &[&[inside, "--"], &shell[..]].concat()),
            };
            let lines = text(&asked);
            let answers = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
            let hosts: BTreeSet<String> = answers
                .filter_map(|answer: Value| Some(answer["host"].as_str()?.to_owned()))
                .collect();
            (hosts == both).then_some(())
        });
    }
}

fn both_families(mode: &str) {
    let mut cluster = Cluster::start(&["--nodes=2", "--ip-family=dual", "--proxy-mode", mode]);
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        web("web-1", "n1"), web("web-2", "n2"),
        service("web", json!({ "ipFamilyPolicy": "RequireDualStack" })),
        service("six", json!({ "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"] })),
        service("one", json!({})),
    ] });
    cluster.kubectl_with(&["create", "-f", "-"], &objects.to_string());
    cluster.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/web-1",
        "pod/web-2",
        "--timeout=60s",
    ]);

    let spec = |name: &str| object(&cluster, "service", name)["spec"].clone();
    assert_eq!(spec("six")["ipFamilies"], json!(["IPv6", "IPv4"]));
    assert_eq!(spec("one")["ipFamilies"], json!(["IPv4"]));
    let service = spec("web");
    assert_eq!(service["ipFamilies"], json!(["IPv4", "IPv6"]));
    let [four, six] = [0, 1].map(|at| service["clusterIPs"][at].as_str().unwrap().to_owned());
    let port = &service["ports"][0]["nodePort"];

    // Who is told of addresses is told of both.
    let pod = object(&cluster, "pod", "web-2")["status"].clone();
    let node = object(&cluster, "node", "n2");
    let of_node: Vec<String> = addresses(&node["status"]["addresses"], "address")
        .into_iter()
        .filter(|address| address != "n2")
        .collect();
    assert_eq!(addresses(&pod["hostIPs"], "ip"), of_node);
    let families = |list: &[String]| -> Vec<bool> { list.iter().map(|ip| ip.contains(':')).collect() };
    assert_eq!(families(&of_node), [false, true], "{of_node:?}");
    let of_pod = addresses(&pod["podIPs"], "ip");
    assert_eq!(families(&of_pod), [false, true], "{of_pod:?}");

    let everybody = ["host", "n1", "n2", "web-1", "web-2"];
    for place in [four.clone(), format!("[{six}]")] {
        reached_by_all(&cluster, &everybody, &place);
    }
    for place in [
        format!("{}:{port}", of_node[0]),
        format!("[{}]:{port}", of_node[1]),
    ] {
        reached_by_all(&cluster, &everybody, &place);
    }
    for (database, address) in [("ahostsv4", &four), ("ahostsv6", &six)] {
        eventually(&format!("the name is known to {database}"), || {
            let found = text(&cluster.pointsman("exec", &["web-1", "--", "getent", database, "web"]));
            found.starts_with(address.as_str()).then_some(())
        });
    }

    // The data remembers what it is of.
    cluster.terminate();
    let data = cluster.data_dir();
    let other = cluster
        .command(&program())
        .args(["up", "--ip-family=ipv4", "--name", &cluster.name, "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(
        !other.status.success() && said.contains("is of a cluster with --ip-family dual"),
        "{said}"
    );
    cluster.start_again(&["--nodes=2", "--proxy-mode", mode]);
    let range = |at: usize| object(&cluster, "node", "n1")["spec"]["podCIDRs"][at].clone();
    assert!(
        range(1).as_str().is_some_and(|range| range.contains(':')),
        "{}",
        range(1)
    );
    reached_by_all(&cluster, &["host", "n1"], &format!("[{six}]"));
}

#[test]
fn a_cluster_of_both_families_answers_over_both_in_nftables_mode() {
    require_netns!();
    both_families("nftables");
}

#[test]
fn a_cluster_of_both_families_answers_over_both_in_iptables_mode() {
    require_netns!();
    both_families("iptables");
}
