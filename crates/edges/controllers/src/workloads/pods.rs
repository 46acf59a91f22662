//! How are the pods of a controller made and removed, and when does the cache show it?

use super::store::Store;
use super::write::{Answer, Family};
use super::{Edge, Now};
use pointsman_api_client::events::{Severity, Subject};
use pointsman_api_client::{ApiError, DeleteOptions, Resource};
use pointsman_objects::Pod;
use pointsman_workloads::expectations::{Expectations, Seen};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long missing events are waited for before the cache is believed again.
pub(super) const PATIENCE: Duration = Duration::from_secs(301);

/// Pods that were made and removed, by uid.
#[derive(Debug, Default)]
pub(super) struct Written {
    created: Vec<String>,
    deleted: Vec<String>,
    /// Why the rest was not written.
    pub failure: Option<ApiError>,
    /// Why pods could not be made or removed.
    pub of_pods: Option<String>,
}

impl Written {
    /// Nothing, for this reason.
    pub fn failed(error: ApiError) -> Self {
        Self {
            failure: Some(error),
            ..Self::default()
        }
    }

    /// What became of another write of the same pass.
    pub fn status(&mut self, outcome: Result<(), ApiError>) {
        self.failure = self.failure.take().or(outcome.err());
    }
}

/// Names and uids.
type Identities = [(String, String)];

/// Which pods of which controller the cache has still to show.
#[derive(Default)]
pub(super) struct Awaited {
    expectations: Expectations,
    /// Pods that left the cache while their controller was being written, by its uid.
    left: HashMap<String, HashSet<String>>,
}

impl Awaited {
    /// Whether the cache shows everything that was written for a controller.
    pub fn is_over(&mut self, store: &Store, uid: &str, now: Now) -> bool {
        let mine: HashMap<&str, Seen> = store
            .pods_of(uid)
            .map(|pod| (&*pod.metadata.uid, seen(pod)))
            .collect();
        let seen = |uid: &str| mine.get(uid).copied().unwrap_or(Seen::Absent);
        self.expectations.satisfied(uid, now.wall, seen)
    }

    /// Pods of a controller are about to be written.
    pub fn begin(&mut self, uid: &str) {
        self.left.insert(uid.to_owned(), HashSet::new());
    }

    pub fn end(&mut self, uid: &str, written: &Written, now: Now) {
        let left = self.left.remove(uid).unwrap_or_default();
        for pod in written.created.iter().filter(|pod| !left.contains(*pod)) {
            self.expectations.created(uid, pod, now.wall);
        }
        for pod in written.deleted.iter().filter(|pod| !left.contains(*pod)) {
            self.expectations.deleted(uid, pod, now.wall);
        }
    }

    /// A pod of a controller left the cache.
    pub fn pod_gone(&mut self, uid: &str, pod: &Pod) {
        self.expectations.observed(uid, &pod.metadata.uid);
        if let Some(left) = self.left.get_mut(uid) {
            left.insert(pod.metadata.uid.to_string());
        }
    }

    /// The controller is gone.
    pub fn forget(&mut self, uid: &str) {
        self.expectations.forget(uid);
    }
}

fn seen(pod: &Pod) -> Seen {
    if pod.is_terminating() {
        Seen::Leaving
    } else {
        Seen::Present
    }
}

impl Edge {
    /// Adopts and releases, then makes and removes pods of a controller.
    pub async fn write_pods(
        &self,
        family: &Family<'_>,
        (adopt, release): (&Identities, &Identities),
        create: impl Iterator<Item = Value>,
        delete: &Identities,
    ) -> Written {
        let mut written = Written::default();
        let bodies = create.map(|pod| pod.to_string().into_bytes()).collect();
        if let Err(error) = self.claim(family, adopt, release).await {
            return Written::failed(error);
        }
        let about = family.subject();
        self.create_pods(&about, bodies, &mut written).await;
        self.delete_pods(&about, delete, &mut written).await;
        written.of_pods = written.failure.as_ref().map(ApiError::to_string);
        written
    }

    /// Creates pods in batches that double: a template that is refused costs one request, not hundreds.
    async fn create_pods(&self, about: &Subject, mut bodies: Vec<Vec<u8>>, written: &mut Written) {
        let mut batch = 1;
        while !bodies.is_empty() && written.failure.is_none() {
            let mut requests = JoinSet::new();
            for body in bodies.drain(..bodies.len().min(batch)) {
                let api = self.client.api(Resource::PODS, Some(&about.namespace));
                requests.spawn(async move { api.create::<Answer>(body).await });
            }
            batch *= 2;
            for answer in requests.join_all().await {
                match answer {
                    Ok(pod) => {
                        let message = format!("Created pod: {}", pod.metadata.name);
                        self.tell(about, Severity::Normal, "SuccessfulCreate", message);
                        written.created.push(pod.metadata.uid);
                    }
                    Err(error) => written.failure = Some(error),
                }
            }
        }
        match &written.failure {
            None | Some(ApiError::NamespaceTerminating(_)) => {}
            Some(error) => {
                let message = format!("Error creating: {error}");
                self.tell(about, Severity::Warning, "FailedCreate", message);
            }
        }
    }

    /// Deletes pods, given by name and uid.
    async fn delete_pods(&self, about: &Subject, pods: &Identities, written: &mut Written) {
        for batch in pods.chunks(16) {
            let mut requests = JoinSet::new();
            for (name, uid) in batch.iter().cloned() {
                let (edge, namespace) = (self.clone(), about.namespace.clone());
                requests.spawn(async move {
                    let options = DeleteOptions::of(&uid);
                    let outcome = edge.delete(Resource::PODS, &namespace, &name, &options).await;
                    (name, uid, outcome)
                });
            }
            for (name, uid, outcome) in requests.join_all().await {
                match outcome {
                    Ok(()) => {
                        let message = format!("Deleted pod: {name}");
                        self.tell(about, Severity::Normal, "SuccessfulDelete", message);
                        written.deleted.push(uid);
                    }
                    Err(error) => {
                        let message = format!("Error deleting {name}: {error}");
                        self.tell(about, Severity::Warning, "FailedDelete", message);
                        written.failure = Some(error);
                    }
                }
            }
        }
    }
}
