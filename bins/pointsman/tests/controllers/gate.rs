//! The walk-through of KEP-1672: the gate is on, is turned off, and is turned on again.

use pointsman_harness::cluster::Cluster;
use serde_json::json;

const OFF: &str = "--feature-gates=EndpointSliceTerminatingCondition=false";

/// What a person sees: conditions of each endpoint, in kubectl's words.
async fn shown(cluster: &Cluster) -> String {
    let columns = r#"jsonpath={range .items[*].endpoints[*]}{.targetRef.name}{" "}{.conditions}{"\n"}{end}"#;
    let text = cluster
        .kubectl(&[
            "get",
            "endpointslices",
            "-l",
            "kubernetes.io/service-name=web",
            "-o",
            columns,
        ])
        .await;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminating_endpoints_survive_upgrade_downgrade_and_upgrade() {
    let slices_only = "--controllers=endpointslice";
    let mut cluster = Cluster::start().await;
    let loops = cluster.lone_controllers(&[slices_only]);
    cluster.node("n1", "a").await;
    cluster.service(json!({})).await;
    cluster.pod("stays", "10.1.0.1", true).await;
    cluster.pod("leaves", "10.1.0.2", true).await;
    cluster.delete_pod("leaves").await;
    cluster
        .expect("web", &["leaves no/yes/yes", "stays yes/yes/no"])
        .await;
    let on = "leaves {\"ready\":false,\"serving\":true,\"terminating\":true}\n\
              stays {\"ready\":true,\"serving\":true,\"terminating\":false}";
    assert_eq!(shown(&cluster).await, on);

    // Downgrade: what is stored stays until the slice is written for another reason.
    loops.stop().await;
    cluster.kill_server().await;
    cluster.start_server(&[OFF]).await;
    assert_eq!(
        shown(&cluster).await,
        on,
        "nothing is lost by the API server's downgrade alone"
    );
    let loops = cluster.lone_controllers(&[slices_only, OFF]);
    loops.says("first lists are complete").await;
    cluster.set_ready("stays", false).await;
    cluster.expect("web", &["stays no/-/-"]).await;
    assert_eq!(shown(&cluster).await, "stays {\"ready\":false}");
    cluster.set_ready("stays", true).await;
    cluster.expect("web", &["stays yes/-/-"]).await;

    // Upgrade again: conditions and the terminating endpoint come back.
    loops.stop().await;
    cluster.kill_server().await;
    cluster.start_server(&[]).await;
    let loops = cluster.lone_controllers(&[slices_only]);
    cluster
        .expect("web", &["leaves no/yes/yes", "stays yes/yes/no"])
        .await;
    assert_eq!(shown(&cluster).await, on);
    loops.stop().await;
}
