//! How many watches do all loops together hold, by the API server's own count?

use pointsman_harness::cluster::Cluster;
use pointsman_harness::eventually;
use serde_json::json;
use std::collections::BTreeMap;

/// Open watches by resource.
async fn watches(cluster: &Cluster) -> BTreeMap<String, u32> {
    let text = cluster.metrics().await;
    let lines = text
        .lines()
        .filter(|line| line.starts_with("apiserver_longrunning_requests{"));
    let counts = lines.filter_map(|line| {
        let resource = line.split_once("resource=\"")?.1.split('"').next()?;
        Some((resource.to_owned(), line.rsplit(' ').next()?.parse().ok()?))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_loops_together_watch_each_kind_once() {
    let cluster = Cluster::start().await;
    assert_eq!(
        watches(&cluster).await,
        BTreeMap::new(),
        "the server itself needs none"
    );
    let _loops = cluster.lone_controllers(&["--allocate-node-cidrs", "--cluster-cidr=10.244.0.0/16"]);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    cluster.pod("a", "10.1.0.1", true).await;
    cluster.expect("web", &["a yes/yes/no"]).await;
    let kinds = [
        "pods",
        "nodes",
        "services",
        "endpointslices",
        "replicasets",
        "deployments",
        "daemonsets",
        "statefulsets",
        "jobs",
        "poddisruptionbudgets",
        "endpoints",
        "leases",
    ];
    let open = eventually("all loops watch", async || {
        let open = watches(&cluster).await;
        kinds.iter().all(|kind| open.contains_key(*kind)).then_some(open)
    });
    let open = open.await;
    for kind in kinds {
        assert_eq!(open[kind], 1, "{kind} of {open:?}");
    }
}
