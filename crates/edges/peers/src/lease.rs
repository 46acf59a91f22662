//! Where do the opinions of a process go that keeps no node's Lease?
//!
//! Beside a kubelet the node's Lease is the kubelet's, so the proxy keeps one of its own with the node's name, in
//! a namespace that has no other Leases: whoever may write there can fake no heartbeat and no leader.

use jiff::Timestamp;
use pointsman_api_client::{ApiError, Client, Resource};
use pointsman_objects::Node;
use pointsman_objects::lease::MicroTime;
use pointsman_protocol::peers::ANNOTATION;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;

/// As node heartbeats: the Lease is good for 40 s and renewed every 10 s.
const DURATION: Duration = Duration::from_secs(40);
const AGAIN: Duration = Duration::from_millis(200);
/// As kubelets do, so that thousands of proxies that start together do not write together.
const JITTER: f64 = 0.04;

/// Keeps the Lease `namespace/node`, with every opinion as soon as it changes. Ends with the sender of opinions.
pub(crate) async fn keep(
    client: Client,
    namespace: String,
    node: String,
    mut opinions: watch::Receiver<Option<String>>,
) {
    let mut known: Option<Value> = None;
    let mut again = AGAIN;
    loop {
        let opinion = opinions.borrow_and_update().clone();
        let mut pause = (DURATION / 4).mul_f64(1.0 + JITTER * fastrand::f64());
        if let Some(opinion) = opinion {
            match write(&client, &namespace, &node, known.take(), &opinion).await {
                Ok(lease) => (known, again) = (Some(lease), AGAIN),
                // It was said already, and comes to be by somebody's hand.
                Err(error) if error.is_missing_right() => {}
                Err(error) => {
                    tracing::warn!(%error, namespace, "cannot write whom this node reaches into its Lease");
                    // A namespace that is not there stays away for longer than a conflict.
                    pause = pause.min(again);
                    again = pause * 2;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = opinions.changed() => if changed.is_err() { return },
        }
    }
}

/// Writes over the Lease as last known, or as the API has it, or creates it.
async fn write(
    client: &Client,
    namespace: &str,
    node: &str,
    known: Option<Value>,
    opinion: &str,
) -> Result<Value, ApiError> {
    let api = client.api(Resource::LEASES, Some(namespace));
    let known = match known {
        Some(known) => Some(known),
        None => match api.get::<Value>(node).await {
            Ok(lease) => Some(lease),
            Err(ApiError::NotFound(_)) => None,
            Err(error) => return Err(error),
        },
    };
    let create = known.is_none();
    let mut lease = match known {
        Some(lease) => lease,
        None => {
            let nodes = client.api(Resource::NODES, None);
            let uid = nodes.get::<Node>(node).await?.metadata.uid;
            let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": &*uid });
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {},
                "metadata": { "name": node, "namespace": namespace, "ownerReferences": [owner] },
            })
        }
    };
    lease["metadata"]["annotations"][ANNOTATION] = opinion.into();
    lease["spec"]["holderIdentity"] = node.into();
    lease["spec"]["leaseDurationSeconds"] = DURATION.as_secs().into();
    lease["spec"]["renewTime"] = json!(MicroTime(Timestamp::now()));
    let body = lease.to_string().into_bytes();
    if create {
        api.create(body).await
    } else {
        api.replace(node, body).await
    }
}
