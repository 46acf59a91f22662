//! How do pods go away that nobody else removes?

use super::store::Store;
use super::{Edge, Now};
use crate::writer::Writers;
use pointsman_api_client::{ApiError, DeleteOptions, Patch, Resource};
use pointsman_objects::Pod;
use pointsman_workloads::gc::{Leftover, Quarantine, leftovers};
use serde::de::IgnoredAny;
use serde_json::json;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;
use tokio::time::Instant;

/// Time between two looks (upstream's).
const PERIOD: Duration = Duration::from_secs(20);

/// The pod collector's state.
pub(super) struct Cleaning {
    edge: Edge,
    on: bool,
    threshold: usize,
    quarantine: Quarantine,
    next: Duration,
    pub writers: Writers<()>,
}

impl Cleaning {
    pub fn new(edge: Edge, on: bool, threshold: usize, start: Instant) -> Self {
        Self {
            edge,
            on,
            threshold,
            quarantine: Quarantine::default(),
            next: start.elapsed(),
            writers: Writers::new(1),
        }
    }

    pub fn wake_at(&self) -> Option<Duration> {
        (self.on && self.writers.has_room()).then_some(self.next)
    }

    /// Looks for leftovers when it is time.
    pub fn start(&mut self, store: &Store, now: Now) {
        if !self.on || !self.writers.has_room() || now.tick < self.next {
            return;
        }
        self.next = now.tick + PERIOD;
        let nodes: HashSet<&str> = store.nodes().map(|node| &*node.metadata.name).collect();
        let pods = || store.pods().map(|pod| &**pod);
        let missing = self.quarantine.observe(pods(), &nodes, now.wall);
        let pods: Vec<&Pod> = pods().collect();
        let leftovers = leftovers(&pods, &missing, self.threshold);
        if !leftovers.is_empty() {
            self.writers.start(clean(self.edge.clone(), missing, leftovers));
        }
    }

    /// Takes back a pass.
    pub fn finish(&mut self, (): ()) {}
}

async fn clean(edge: Edge, missing: BTreeSet<String>, leftovers: Vec<Leftover>) {
    // The cache may lag: only what the server does not know either is gone.
    let mut gone = BTreeSet::new();
    for node in missing {
        if let Err(ApiError::NotFound(_)) = edge
            .client
            .api(Resource::NODES, None)
            .get::<IgnoredAny>(&node)
            .await
        {
            gone.insert(node);
        }
    }
    for leftover in leftovers {
        if let Err(error) = remove(&edge, &leftover, &gone).await {
            tracing::warn!(namespace = %leftover.namespace, pod = %leftover.name, %error, "a leftover pod stays for now");
        }
    }
}

async fn remove(edge: &Edge, leftover: &Leftover, gone: &BTreeSet<String>) -> Result<(), ApiError> {
    let api = edge.client.api(Resource::PODS, Some(&leftover.namespace));
    let pod: Pod = match api.get(&leftover.name).await {
        Err(ApiError::NotFound(_)) => return Ok(()),
        other => other?,
    };
    let orphaned = leftover.reason == pointsman_workloads::gc::Reason::Orphaned;
    if *pod.metadata.uid != *leftover.uid
        || (orphaned && !pod.node_name.as_deref().is_some_and(|node| gone.contains(node)))
    {
        return Ok(());
    }
    if leftover.mark_failed {
        let patch = json!({ "metadata": { "uid": leftover.uid }, "status": { "phase": "Failed" } });
        let patch = Patch::Merge(patch.to_string().into_bytes());
        api.patch_status::<IgnoredAny>(&leftover.name, patch).await?;
    }
    let options = DeleteOptions::of(&leftover.uid).without_grace();
    edge.delete(Resource::PODS, &leftover.namespace, &leftover.name, &options)
        .await?;
    tracing::info!(namespace = %leftover.namespace, pod = %leftover.name, reason = leftover.reason.label(), "removed a leftover pod");
    Ok(())
}
