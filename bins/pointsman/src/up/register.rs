//! How do nodes become known to the API?

use super::plan::Plan;
use pointsman_api_client::{ApiError, Client, Patch, Resource};
use serde_json::{Value, json};

/// Creates a ready Node for each node of the plan, and leaves those that are there alone.
pub async fn register(client: &Client, plan: &Plan) -> Result<(), ApiError> {
    let nodes = client.api(Resource::NODES, None);
    for node in plan.nodes() {
        let object = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}},
        });
        match nodes.create::<Value>(object.to_string()).await {
            Err(ApiError::AlreadyExists(_)) => {}
            other => drop(other?),
        }
        let status = json!({"status": {
            "addresses": [
                {"type": "InternalIP", "address": node.address},
                {"type": "Hostname", "address": node.name},
            ],
            "conditions": [{"type": "Ready", "status": "True", "reason": "NodeStarted"}],
        }});
        let patch = Patch::Strategic(status.to_string().into_bytes());
        nodes.patch_status::<Value>(&node.name, patch).await?;
    }
    Ok(())
}
