//! Too many probes for the node's budget.

use crate::lab::{Lab, Server, http_get};
use pointsman_probe_io::{Config, Limits, NoExec, Policy};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn beyond_the_budget_all_probes_slow_down_alike_and_a_metric_says_so() {
    let servers: Vec<Server> = (0..4).map(|_| Server::status(200)).collect();
    let config = Config {
        policy: Policy::Always,
        // Four probes at 20 ms ask for 200 checks per second.
        limits: Limits {
            checks_per_second: 20.0,
            cpu_share: 1.0,
        },
        ..Config::default()
    };
    let lab = Lab::with(config, Arc::new(NoExec));
    for (at, server) in servers.iter().enumerate() {
        lab.run(
            &format!("p{at}"),
            json!({"readinessProbe": http_get(server.port())}),
        );
    }
    lab.until("the budget bites", |lab| {
        lab.metric("pointsman_probe_budget_exceeded_total", "") >= 1.0
    })
    .await;
    assert_eq!(lab.metric("pointsman_probe_budget_stretch_ratio", ""), 10.0);
    tokio::time::sleep(Duration::from_millis(250)).await;
    let before: Vec<usize> = servers.iter().map(Server::accepted).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let made: Vec<usize> = servers
        .iter()
        .zip(before)
        .map(|(server, before)| server.accepted() - before)
        .collect();
    assert!(made.iter().all(|checks| (3..=7).contains(checks)), "{made:?}");
}
