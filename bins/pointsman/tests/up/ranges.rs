//! Whose packets does a node get that claims more than its own range?

use crate::cluster::{Cluster, eventually};
use jiff::Timestamp;
use pointsman_testkit::require_netns;
use serde_json::json;

/// A Node that nobody runs, as somebody with the right to make Nodes could write it.
fn claim(cluster: &Cluster, name: &str, range: &str, address: &str) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "spec": { "podCIDR": range, "podCIDRs": [range] },
        "status": { "addresses": [{ "type": "InternalIP", "address": address }] },
    });
    cluster.kubectl_with(&["create", "-f", "-"], &node.to_string());
}

#[test]
fn no_node_gets_the_default_route_or_the_range_of_another() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=2"]);
    let address = cluster.facts["nodes"][0]["address"].as_str().unwrap().to_owned();
    let second: u8 = address.split('.').nth(1).unwrap().parse().unwrap();
    let routes = |what: &str| {
        let shown = cluster.pointsman("exec", &["n1", "--", "ip", "route", "show", what]);
        String::from_utf8_lossy(&shown.stdout).trim().to_owned()
    };
    let other = cluster.kubectl(&["get", "node", "n2", "-o", "jsonpath={.spec.podCIDR}"]);
    let before = (
        routes("default"),
        eventually("n2 has a route", || {
            Some(routes(&other)).filter(|route| !route.is_empty())
        }),
    );

    // Who came first is known to the second.
    let made = cluster.kubectl(&[
        "get",
        "node",
        "n2",
        "-o",
        "jsonpath={.metadata.creationTimestamp}",
    ]);
    let made: Timestamp = made.trim().parse().unwrap();
    eventually("another second has begun", || {
        (Timestamp::now().as_second() > made.as_second()).then_some(())
    });
    let greedy = format!("10.{second}.0.66");
    claim(&cluster, "a-greedy", "0.0.0.0/0", &greedy);
    claim(&cluster, "a-thief", &other, &greedy);
    claim(&cluster, "a-stranger", "198.51.100.0/24", &greedy);
    // Nodes are seen in their order: when the last one has its route, the others were judged.
    let range = format!("10.{}.250.0/24", second + 2);
    claim(&cluster, "honest", &range, &greedy);
    eventually("the last one has a route", || {
        (routes(&range).contains(&greedy)).then_some(())
    });
    assert_eq!((routes("default"), routes(&other)), before);
    assert_eq!(routes("198.51.100.0/24"), "");
    let log = std::fs::read_to_string(cluster.data_dir().join("logs/n1-node.log")).unwrap();
    for name in ["a-greedy", "a-thief", "a-stranger"] {
        assert!(log.contains(&format!("node=\"{name}\"")), "{name}: {log}");
        eventually("an event says so", || {
            let described = cluster.kubectl(&["describe", "node", name]);
            let said = |line: &str| line.contains("PodRangeNotRouted") && line.contains("n1 has no route");
            described.lines().any(said).then_some(())
        });
    }
}
