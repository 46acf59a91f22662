//! Does `pointsman doctor` find what is wrong with a node, and nothing where nothing is?

use serde_json::Value;

use crate::eventually;
use crate::node::{Cluster, Network};

/// The exit code, and the findings by what they are about.
fn ask(cluster: &Cluster) -> (Option<i32>, Vec<Value>) {
    let kubeconfig = cluster.kubeconfig.display().to_string();
    let output = cluster.run(&["doctor", "--kubeconfig", &kubeconfig, "--output=json"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let findings = lines.lines().map(|line| serde_json::from_str(line).unwrap());
    (output.status.code(), findings.collect())
}

fn failing(findings: &[Value]) -> Vec<&str> {
    let failing = findings.iter().filter(|finding| finding["verdict"] == "fail");
    failing
        .map(|finding| finding["about"].as_str().unwrap())
        .collect()
}

#[test]
fn troubles_of_a_node_are_found_and_a_healthy_one_has_none() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    cluster.start_proxy(&["--proxy-mode=iptables"]);
    eventually("the rules stand", || network.has_rules());
    let (code, findings) = ask(&cluster);
    assert_eq!((code, failing(&findings)), (Some(0), Vec::new()), "{findings:?}");
    let writers = findings
        .iter()
        .find(|finding| finding["about"] == "writers")
        .unwrap();
    assert!(
        writers["found"].as_str().unwrap().contains("pointsman"),
        "{writers}"
    );

    network.node.sh("iptables -w -P FORWARD DROP");
    let (code, findings) = ask(&cluster);
    let said = findings
        .iter()
        .any(|finding| finding["found"].to_string().contains("FORWARD is DROP"));
    assert!(code == Some(0) && said, "{findings:?}");

    network.node.sysctl("ipv4/ip_forward", "0");
    network.node.sh("iptables-legacy -w -t nat -N KUBE-SERVICES");
    let (code, findings) = ask(&cluster);
    assert_eq!(code, Some(1));
    assert_eq!(failing(&findings), ["iptables", "forwarding"], "{findings:?}");

    cluster.kill("apiserver");
    let (code, findings) = ask(&cluster);
    assert_eq!(
        (code, failing(&findings).last()),
        (Some(1), Some(&"api")),
        "{findings:?}"
    );
}
