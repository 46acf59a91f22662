//! Can a node still be asked while somebody holds connections to its agent?

use crate::lab::on_a_node;
use pointsman_harness::eventually;
use pointsman_harness::flood::Flood;
use serde_json::json;
use std::net::Ipv4Addr;

/// More than the agent has slots for.
const ATTACKERS: usize = 1_200;

#[test]
fn silent_connections_to_an_agent_do_not_keep_logs_from_being_read() {
    on_a_node(async |lab| {
        lab.pod(
            "talk",
            json!({ "command": ["sh", "-c", "echo hello; sleep 3600"] }),
        )
        .await;
        lab.ready("talk").await;
        let agent = "10.77.0.1:10250".parse().unwrap();
        let flood = Flood::start(agent, Ipv4Addr::new(127, 0, 0, 2), ATTACKERS);
        eventually("the attack is at its height", async || {
            (flood.open() + flood.closed() >= ATTACKERS).then_some(())
        })
        .await;
        assert_eq!(lab.kubectl(&["logs", "talk"]).await, "hello\n");
    });
}
