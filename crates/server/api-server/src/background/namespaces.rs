//! Empties namespaces that are being deleted, then lets them go.

use super::{internal, through, with_body};
use crate::cache::object::Object;
use crate::http::query::ListOptions;
use crate::server::Server;
use crate::write::delete::{DeleteOptions, delete_object};
use crate::write::metadata::{deleting, time};
use crate::write::{subresource, update};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use pointsman_rules::kind::Subresource;
use pointsman_rules::value::{list_at, set, str_at};
use pointsman_rules::{ApiError, Kind, kinds};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often a namespace whose contents take their time is looked at.
const POLL: Duration = Duration::from_millis(300);
/// After how long its conditions say what is left.
const PATIENCE: SignedDuration = SignedDuration::from_secs(2);

/// How many objects are left, by resource.
type Left = BTreeMap<String, usize>;

/// Works for ever.
pub async fn run(server: Arc<Server>) {
    let namespaces = &kinds::NAMESPACE;
    let mut changed = server.cache.of(namespaces).subscribe();
    loop {
        let applied = server.cache.applied();
        let all = server.cache.of(namespaces).list("", None, applied).objects;
        let mut waiting = false;
        for namespace in all {
            if namespace.field("status.phase") != "Terminating" && !deleting(&namespace.value()) {
                continue;
            }
            match terminate(&server, &namespace).await {
                Ok(done) => waiting |= !done,
                Err(error) => {
                    tracing::warn!(namespace = namespace.name(), %error, "cannot empty the namespace yet");
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

/// Deletes what is left; returns whether nothing was. Pods go first, and while one is there everything else stays:
/// until they have ended, they need what protects them (network policies) and what they use.
async fn terminate(server: &Server, namespace: &Object) -> Result<bool, ApiError> {
    let is_pods = |kind: &Kind| kind.group.is_empty() && kind.plural == "pods";
    let mut left = empty(server, namespace, is_pods).await?;
    if left.is_empty() {
        left = empty(server, namespace, |kind| !is_pods(kind)).await?;
    }
    if left.is_empty() {
        finalize(server, namespace).await?;
    } else {
        say(server, namespace, &left, Timestamp::now()).await?;
    }
    Ok(left.is_empty())
}

/// Says in the namespace's conditions what it waits for, in upstream's words.
async fn say(server: &Server, namespace: &Object, left: &Left, now: Timestamp) -> Result<(), ApiError> {
    let mut object = namespace.value();
    let since: Option<Timestamp> = str_at(&object, &["metadata", "deletionTimestamp"]).parse().ok();
    if since.is_none_or(|since| now.duration_since(since) < PATIENCE) {
        return Ok(());
    }
    let counts: Vec<String> = left
        .iter()
        .map(|(resource, count)| format!("{resource} has {count} resource instances"))
        .collect();
    let remaining = format!("Some resources are remaining: {}", counts.join(", "));
    let deleted = "All content successfully deleted, may be waiting on finalization";
    let before = list_at(&object, &["status", "conditions"]);
    if before.iter().any(|condition| condition["message"] == remaining) {
        return Ok(());
    }
    let since = before
        .first()
        .map(|condition| condition["lastTransitionTime"].clone());
    let since = since.unwrap_or_else(|| time(now).into());
    let conditions = [
        ("NamespaceDeletionContentFailure", "False", "ContentDeleted", deleted),
        ("NamespaceContentRemaining", "True", "SomeResourcesRemain", remaining.as_str()),
    ]
    .map(|(kind, status, reason, message)| {
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
    });
    set(&mut object, &["status", "conditions"], conditions.to_vec());
    let request = internal(Method::PUT, namespace.kind, "", Some(namespace.name()));
    let request = through(with_body(request, &object), Subresource::Status);
    match update::put(server, &request, namespace.name()).await {
        Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes the objects of the kinds that are meant; returns which there were.
async fn empty(server: &Server, namespace: &Object, meant: impl Fn(&Kind) -> bool) -> Result<Left, ApiError> {
    let mut left = Left::new();
    for collection in server
        .cache
        .stored()
        .filter(|collection| collection.kind.namespaced() && meant(collection.kind))
    {
        let request = internal(Method::DELETE, collection.kind, namespace.name(), None);
        let options = ListOptions::parse(&request.query, false)?;
        let contents = crate::read::snapshot(server, &request, &options).await?.objects;
        for object in contents {
            *left.entry(collection.kind.qualified_plural()).or_default() += 1;
            if deleting(&object.value()) {
                continue;
            }
            match delete_object(server, &request, object, &DeleteOptions::default()).await {
                Ok(_) | Err(ApiError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(left)
}

async fn finalize(server: &Server, namespace: &Object) -> Result<(), ApiError> {
    let mut object = namespace.value();
    let kept = list_at(&object, &["spec", "finalizers"])
        .iter()
        .filter(|held| *held != "kubernetes");
    let kept: Vec<Value> = kept.cloned().collect();
    set(&mut object, &["spec", "finalizers"], kept);
    let request = internal(Method::PUT, namespace.kind, "", Some(namespace.name()));
    let request = through(with_body(request, &object), Subresource::Finalize);
    match subresource::write(server, &request, Subresource::Finalize).await {
        Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
