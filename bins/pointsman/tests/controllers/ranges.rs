//! Every node gets pod addresses of its own, whoever dies in between.

use pointsman_api_client::{DeleteOptions, Resource};
use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::Value;
use std::collections::BTreeMap;

const FLAGS: [&str; 4] = [
    "--controllers=nodeipam",
    "--allocate-node-cidrs",
    "--cluster-cidr=10.244.0.0/22,fd00:10:244::/56",
    "--node-cidr-mask-size-ipv4=24",
];

/// The first range of every node that has ranges, by node.
async fn ranges(cluster: &Cluster) -> BTreeMap<String, String> {
    let list: Value = cluster.client.get_path("/api/v1/nodes").await.unwrap();
    let mut ranges = BTreeMap::new();
    for node in list["items"].as_array().into_iter().flatten() {
        let Some(first) = node["spec"]["podCIDR"].as_str() else {
            continue;
        };
        let all = node["spec"]["podCIDRs"].as_array().unwrap();
        assert_eq!((all.len(), all[0].as_str()), (2, Some(first)), "{node}");
        assert!(all[1].as_str().unwrap().ends_with("/64"), "{node}");
        let name = node["metadata"]["name"].as_str().unwrap().to_owned();
        ranges.insert(name, first.to_owned());
    }
    ranges
}

async fn all_have_ranges(cluster: &Cluster, count: usize) -> BTreeMap<String, String> {
    eventually("all nodes have ranges", async || {
        let ranges = ranges(cluster).await;
        (ranges.len() == count).then_some(ranges)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_are_given_out_once_and_again_when_their_node_is_gone() {
    let mut cluster = Cluster::start().await;
    cluster.node("early", "a").await;
    let loops = cluster.lone_controllers(&FLAGS);
    cluster.node("n1", "a").await;
    let before = all_have_ranges(&cluster, 2).await;

    // Writes are under way when the loops and then the server die.
    cluster.node("n2", "b").await;
    loops.kill().await;
    let loops = cluster.lone_controllers(&FLAGS);
    cluster.node("n3", "b").await;
    cluster.kill_server().await;
    cluster.start_server(&[]).await;
    let after = all_have_ranges(&cluster, 4).await;
    for (name, range) in &before {
        assert_eq!(after.get(name), Some(range), "a range is for ever");
    }
    let mut all: Vec<&String> = after.values().collect();
    all.sort();
    assert_eq!(
        all,
        ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"]
    );

    // Nothing is left, and the node is told; a node that goes makes room.
    cluster.node("late", "b").await;
    eventually("the node is told", async || {
        let events = cluster.kubectl(&["get", "events"]).await;
        events.contains("CIDRNotAvailable").then_some(())
    })
    .await;
    let api = cluster.client.api(Resource::NODES, None);
    api.delete("n1", &DeleteOptions::default()).await.unwrap();
    let last = all_have_ranges(&cluster, 4).await;
    assert_eq!(last["late"], after["n1"]);
    loops.stop().await;
}
