//! Deletes the objects of definitions that are being deleted.

use super::{internal, with_body};
use crate::cache::object::Object;
use crate::http::query::ListOptions;
use crate::server::Server;
use crate::write::delete::{DeleteOptions, delete_object};
use crate::write::metadata::deleting;
use crate::write::update::{Through, update};
use http::Method;
use pointsman_rules::value::{list_at, set, str_at};
use pointsman_rules::{ApiError, Kind, custom, kinds};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How often objects that are held by their finalizers are looked at again.
const POLL: Duration = Duration::from_millis(200);

/// Works for ever.
pub async fn run(server: Arc<Server>) {
    let definitions = &kinds::CUSTOM_RESOURCE_DEFINITION;
    let mut changed = server.cache.of(definitions).subscribe();
    loop {
        let applied = server.cache.applied();
        let mut waiting = false;
        for definition in server.cache.of(definitions).list("", None, applied).objects {
            if !deleting(&definition.value()) {
                continue;
            }
            match empty(&server, &definition).await {
                Ok(done) => waiting |= !done,
                Err(error) => {
                    tracing::warn!(definition = definition.name(), %error, "cannot delete its objects yet");
                    waiting = true;
                }
            }
        }
        if waiting {
            tokio::time::sleep(POLL).await;
        } else if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Deletes what is left; returns whether nothing was.
async fn empty(server: &Server, definition: &Object) -> Result<bool, ApiError> {
    let value = definition.value();
    let finalizers = list_at(&value, &["metadata", "finalizers"]);
    if !finalizers.iter().any(|held| held == custom::CLEANUP) {
        return Ok(true);
    }
    let group = str_at(&value, &["spec", "group"]);
    let plural = str_at(&value, &["spec", "names", "plural"]);
    let mut left = 0;
    if let Some(kind) = Kind::by_store_key(group, plural).filter(|kind| kind.defined.is_some()) {
        let request = internal(Method::DELETE, kind, "", None);
        let options = ListOptions::parse(&request.query, false)?;
        for object in crate::read::snapshot(server, &request, &options).await?.objects {
            left += 1;
            if deleting(&object.value()) {
                continue;
            }
            let request = internal(Method::DELETE, kind, object.namespace(), None);
            match delete_object(server, &request, object, &DeleteOptions::default()).await {
                Ok(_) | Err(ApiError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let request = internal(Method::PATCH, definition.kind, "", Some(definition.name()));
    let request = with_body(request, &Value::Null);
    let next = |old: &Value| {
        let mut new = old.clone();
        if left == 0 {
            let kept = list_at(old, &["metadata", "finalizers"]).iter();
            let kept: Vec<Value> = kept.filter(|held| *held != custom::CLEANUP).cloned().collect();
            set(&mut new, &["metadata", "finalizers"], kept);
        } else if !list_at(old, &["status", "conditions"])
            .iter()
            .any(|known| known["type"] == "Terminating")
        {
            let mut conditions = list_at(old, &["status", "conditions"]).to_vec();
            conditions.push(
                json!({"type": "Terminating", "status": "True", "reason": "InstanceDeletionInProgress",
                "message": "CustomResource deletion is in progress",
                "lastTransitionTime": crate::write::metadata::time(request.now)}),
            );
            set(&mut new, &["status", "conditions"], conditions);
        }
        Ok((new, Vec::new()))
    };
    match update(server, &request, definition.name(), Through::Subresource, &next).await {
        Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict { .. }) => Ok(left == 0),
        Err(error) => Err(error),
    }
}
