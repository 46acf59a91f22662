//! Where do others learn which nodes are withdrawn, proxies so that they may end connections that lead there, and the SLI's
//! page so that it can say who voted?
//!
//! In annotations of one Lease of its own: written when it changes, and again and again while there are such nodes, because
//! nobody may act on the word of a controller that is gone. A cluster that loses no node writes nothing.

use std::time::Duration;

use jiff::Timestamp;
use pointsman_api_client::{ApiError, Client, Resource};
use pointsman_objects::lease::MicroTime;
use pointsman_protocol::peers::{
    FRESH, LIST_ANNOTATION, LIST_LEASE, LIST_NAMESPACE, RENEW, VOTES_ANNOTATION,
};
use serde_json::{Value, json};
use tokio::sync::watch;

const AGAIN: Duration = Duration::from_millis(200);

/// What the annotations say.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    pub names: String,
    pub votes: String,
}

/// Keeps the Lease as the list says, once there is one. Ends with its sender.
pub(super) async fn publish(client: Client, mut lists: watch::Receiver<Option<List>>) {
    let mut known: Option<Value> = None;
    let mut again = AGAIN;
    loop {
        let list = lists.borrow_and_update().clone();
        let mut pause = RENEW;
        if let Some(list) = &list {
            match write(&client, known.take(), list).await {
                Ok(lease) => (known, again) = (lease, AGAIN),
                // It was said already, and comes to be by somebody's hand.
                Err(error) if error.is_missing_right() => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot write which nodes are withdrawn: connections to them are not ended");
                    pause = again.min(RENEW);
                    again = pause * 2;
                }
            }
        }
        let is_quiet = list.is_none_or(|list| list.names.is_empty()) && again == AGAIN;
        tokio::select! {
            () = tokio::time::sleep(pause), if !is_quiet => {}
            changed = lists.changed() => if changed.is_err() { return },
        }
    }
}

/// Writes over the Lease as last known, or as the API has it, or creates it. An empty list that is there already, or
/// that nobody ever missed, is not written.
async fn write(client: &Client, known: Option<Value>, list: &List) -> Result<Option<Value>, ApiError> {
    let api = client.api(Resource::LEASES, Some(LIST_NAMESPACE));
    let known = match known {
        Some(known) => Some(known),
        None => match api.get::<Value>(LIST_LEASE).await {
            Ok(lease) => Some(lease),
            Err(ApiError::NotFound(_)) => None,
            Err(error) => return Err(error),
        },
    };
    let says = |lease: &Value| lease["metadata"]["annotations"][LIST_ANNOTATION] == *list.names;
    if list.names.is_empty() && known.as_ref().is_none_or(says) {
        return Ok(known);
    }
    let create = known.is_none();
    let mut lease = known.unwrap_or_else(|| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {},
            "metadata": { "name": LIST_LEASE, "namespace": LIST_NAMESPACE },
        })
    });
    lease["metadata"]["annotations"][LIST_ANNOTATION] = (*list.names).into();
    lease["metadata"]["annotations"][VOTES_ANNOTATION] = (*list.votes).into();
    lease["spec"]["holderIdentity"] = "pointsman-controllers".into();
    lease["spec"]["leaseDurationSeconds"] = FRESH.as_secs().into();
    lease["spec"]["renewTime"] = json!(MicroTime(Timestamp::now()));
    let body = lease.to_string().into_bytes();
    let written = match create {
        true => api.create(body).await,
        false => api.replace(LIST_LEASE, body).await,
    };
    written.map(Some)
}
