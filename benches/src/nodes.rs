//! Are all nodes there, and may pods be placed on them?

use pointsman_api_client::Client;
use serde_json::Value;

/// Whether there are so many nodes, and the loops have taken from all of them the taint that new ones come with, which is work of
/// their start.
pub async fn are_settled(client: &Client, count: usize) -> bool {
    let nodes: Value = client.get_path("/api/v1/nodes").await.expect("a list");
    let nodes = nodes["items"].as_array().expect("items");
    let is_tainted = |node: &Value| {
        let taints = node["spec"]["taints"].as_array();
        taints.is_some_and(|taints| !taints.is_empty())
    };
    nodes.len() >= count && !nodes.iter().any(is_tainted)
}
