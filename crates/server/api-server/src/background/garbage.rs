//! Carries out what the owner graph decides.

use super::graph::{Graph, Meta, Place, Step};
use super::{internal, with_body};
use crate::cache::object::Object;
use crate::cache::{Fate, Observer};
use crate::server::Server;
use crate::write::delete::delete;
use crate::write::update::{Through, update};
use http::Method;
use parking_lot::Mutex;
use pointsman_model::Text;
use pointsman_rules::ApiError;
use pointsman_rules::value::{entry, list_at};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long a failed step waits before it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Removes objects whose owners are gone.
#[derive(Debug, Default)]
pub struct Collector {
    graph: Mutex<Graph>,
    work: Notify,
}

#[derive(Deserialize)]
struct MetaOnly {
    metadata: Meta,
}

impl Observer for Collector {
    fn observe(&self, object: &Object, fate: Fate) {
        let place = Place {
            kind: object.kind,
            key: object.key.clone(),
        };
        let meta = if fate == Fate::Removed {
            None
        } else {
            match serde_json::from_slice::<MetaOnly>(&object.json()) {
                Ok(only) => Some(only.metadata),
                Err(error) => {
                    tracing::error!(key = %object.key, %error, "metadata cannot be read, the object is not collected");
                    return;
                }
            }
        };
        self.graph.lock().observe(place, meta);
        self.work.notify_one();
    }
}

impl Collector {
    /// Works for ever.
    pub async fn run(self: Arc<Self>, server: Arc<Server>) {
        loop {
            let next = self.graph.lock().pop();
            let Some(place) = next else {
                self.work.notified().await;
                continue;
            };
            let step = self.graph.lock().step(&place);
            if let Err(error) = carry_out(&server, &place, &step).await {
                tracing::warn!(kind = place.kind.kind, key = %place.key, %error, "cannot collect, retrying");
                let collector = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(RETRY).await;
                    collector.graph.lock().push(place);
                    collector.work.notify_one();
                });
            }
        }
    }
}

async fn carry_out(server: &Server, place: &Place, step: &Step) -> Result<(), ApiError> {
    let outcome = match step {
        Step::Nothing => Ok(()),
        Step::Delete { uid, foreground } => {
            let policy = if *foreground { "Foreground" } else { "Background" };
            let body = json!({"kind": "DeleteOptions", "apiVersion": "v1",
                              "propagationPolicy": policy, "preconditions": {"uid": uid}});
            let (namespace, name) = split(place);
            let request = with_body(internal(Method::DELETE, place.kind, namespace, Some(name)), &body);
            delete(server, &request, name).await.map(drop)
        }
        Step::Release { owners } => release(server, place, owners).await,
        Step::Orphan { dependents } => {
            let uid = server.find(place.kind, split(place).0, split(place).1)?.value();
            let uid: Text = uid["metadata"]["uid"].as_str().unwrap_or_default().into();
            for dependent in dependents {
                gone_is_done(release(server, dependent, std::slice::from_ref(&uid)).await)?;
            }
            Ok(())
        }
        Step::Unblock { finalizer } => {
            change(server, place, &|object| {
                let kept = list_at(object, &["metadata", "finalizers"])
                    .iter()
                    .filter(|held| *held != finalizer);
                let kept: Vec<Value> = kept.cloned().collect();
                entry(object, &["metadata"]).insert("finalizers".into(), kept.into());
            })
            .await
        }
    };
    gone_is_done(outcome)
}

/// Removes references to `owners`.
async fn release(server: &Server, place: &Place, owners: &[Text]) -> Result<(), ApiError> {
    change(server, place, &|object| {
        let references = list_at(object, &["metadata", "ownerReferences"]).iter();
        let kept = references.filter(|reference| !owners.iter().any(|owner| reference["uid"] == **owner));
        let kept: Vec<Value> = kept.cloned().collect();
        if kept.is_empty() {
            entry(object, &["metadata"]).remove("ownerReferences");
        } else {
            entry(object, &["metadata"]).insert("ownerReferences".into(), kept.into());
        }
    })
    .await
}

async fn change(
    server: &Server,
    place: &Place,
    edit: &(dyn Fn(&mut Value) + Send + Sync),
) -> Result<(), ApiError> {
    let (namespace, name) = split(place);
    let request = internal(Method::PATCH, place.kind, namespace, Some(name));
    let next = |old: &Value| {
        let mut new = old.clone();
        edit(&mut new);
        Ok((new, Vec::new()))
    };
    update(server, &request, name, Through::Subresource, &next)
        .await
        .map(drop)
}

fn split(place: &Place) -> (&str, &str) {
    place.key.split_once('/').unwrap_or(("", &place.key))
}

fn gone_is_done(outcome: Result<(), ApiError>) -> Result<(), ApiError> {
    match outcome {
        // The object vanished or was replaced; the graph hears of it and decides anew.
        Err(ApiError::NotFound(_) | ApiError::Conflict { .. }) => Ok(()),
        other => other,
    }
}
