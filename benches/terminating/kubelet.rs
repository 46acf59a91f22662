//! Who reports about pods that nobody runs?

use pointsman_api_client::{ApiError, Client, DeleteOptions, Event, Patch, Resource, Scope, Watcher};
use pointsman_objects::Pod;
use serde::de::IgnoredAny;
use serde_json::json;
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::time::Duration;

/// How long a container takes to end.
const STOPPING: Duration = Duration::from_millis(200);
/// How long after that the pod is gone.
const REMOVAL: Duration = Duration::from_millis(50);

/// Does for all pods what kubelets do, until the task ends.
pub async fn run(client: Client) {
    let mut watcher = Watcher::<Pod>::new(client.clone(), Scope::all(Resource::PODS));
    let (mut started, mut stopped) = (HashSet::new(), HashSet::new());
    loop {
        let Event::Applied { object: pod, .. } = watcher.next().await else {
            continue;
        };
        let name = pod.metadata.name.to_string();
        if pod.is_terminating() {
            if stopped.insert(name.clone()) {
                tokio::spawn(stop(client.clone(), name));
            }
        } else if started.insert(name.clone()) {
            let address = Ipv4Addr::from_bits(0x0b00_0001 + started.len() as u32);
            tokio::spawn(report(client.clone(), name, Some(address)));
        }
    }
}

async fn stop(client: Client, name: String) {
    tokio::time::sleep(STOPPING).await;
    report(client.clone(), name.clone(), None).await;
    tokio::time::sleep(REMOVAL).await;
    let options = DeleteOptions::default().without_grace();
    let deleted = client
        .api(Resource::PODS, Some("default"))
        .delete(&name, &options)
        .await;
    assert!(
        matches!(deleted, Ok(()) | Err(ApiError::NotFound(_))),
        "{deleted:?}"
    );
}

/// Ready at an address, or no longer.
async fn report(client: Client, name: String, address: Option<Ipv4Addr>) {
    let now = jiff::Timestamp::now();
    let ready = if address.is_some() { "True" } else { "False" };
    let mut status = json!({
        "phase": "Running", "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": now.to_string() }],
    });
    if let Some(address) = address {
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{ "ip": address }]);
    }
    // As our agent does: conditions have whole seconds.
    let annotations = json!({ "pointsman.io/last-change-time": format!("{now:.6}") });
    let patch = json!({ "metadata": { "annotations": annotations }, "status": status });
    let patch = Patch::Strategic(patch.to_string().into_bytes());
    let api = client.api(Resource::PODS, Some("default"));
    let patched: Result<IgnoredAny, ApiError> = api.patch_status(&name, patch).await;
    assert!(
        matches!(patched, Ok(_) | Err(ApiError::NotFound(_))),
        "{patched:?}"
    );
}
