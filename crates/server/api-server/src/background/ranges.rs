//! Lets a ServiceCIDR that is being deleted go when no Service has an address of it any more.

use super::{internal, through, with_body};
use crate::cache::object::Object;
use crate::server::Server;
use crate::write::metadata::{deleting, time};
use crate::write::update;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use pointsman_rules::ApiError;
use pointsman_rules::allocation::objects;
use pointsman_rules::kind::Subresource;
use pointsman_rules::kinds::declared::{IP_ADDRESS, SERVICE_CIDR};
use pointsman_rules::value::{list_at, set, str_at};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const POLL: Duration = Duration::from_secs(1);
/// For allocations that were begun before every server knew of the deletion. Upstream's.
const GRACE: SignedDuration = SignedDuration::from_secs(5);

/// Works for ever.
pub async fn run(server: Arc<Server>) {
    let ranges = server.cache.of(&SERVICE_CIDR);
    let mut changed = ranges.subscribe();
    loop {
        let mut waiting = false;
        for range in ranges.list("", None, server.cache.applied()).objects {
            let held = |value: &Value| {
                list_at(value, &["metadata", "finalizers"])
                    .iter()
                    .any(|held| held == objects::FINALIZER)
            };
            let value = range.value();
            if !deleting(&value) || !held(&value) {
                continue;
            }
            waiting = true;
            if let Err(error) = release(&server, &range, value, Timestamp::now()).await {
                tracing::warn!(range = range.name(), %error, "cannot let the ServiceCIDR go yet");
            }
        }
        if waiting {
            tokio::time::sleep(POLL).await;
        } else if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Lets the range go, or says why not yet.
pub async fn release(
    server: &Server,
    range: &Object,
    mut value: Value,
    now: Timestamp,
) -> Result<(), ApiError> {
    let since: Option<Timestamp> = str_at(&value, &["metadata", "deletionTimestamp"]).parse().ok();
    if since.is_some_and(|since| now.duration_since(since) < GRACE) {
        return Ok(());
    }
    let addresses = server.cache.of(&IP_ADDRESS);
    let addresses = addresses.list("", None, server.cache.applied()).objects;
    let addresses = addresses.iter().filter_map(|address| address.name().parse().ok());
    let mut request = internal(Method::PUT, &SERVICE_CIDR, "", Some(range.name()));
    if objects::needed(&value, &server.open_ranges(range.name()), addresses) {
        let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        if list_at(&value, &["status", "conditions"])
            .iter()
            .any(|condition| condition["message"] == message)
        {
            return Ok(());
        }
        set(
            &mut value,
            &["status"],
            objects::ready("False", "Terminating", message, Some(time(now).into())),
        );
        request = through(request, Subresource::Status);
    } else {
        let finalizers = list_at(&value, &["metadata", "finalizers"]).iter();
        let kept: Vec<Value> = finalizers
            .filter(|held| *held != objects::FINALIZER)
            .cloned()
            .collect();
        set(&mut value, &["metadata", "finalizers"], kept);
    }
    match update::put(server, &with_body(request, &value), range.name()).await {
        Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
