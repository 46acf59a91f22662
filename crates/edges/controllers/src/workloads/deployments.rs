//! How do Deployments roll their ReplicaSets?

use super::store::{Change, Store, key_of};
use super::work::{Done, Work};
use super::write::{Answer, Family};
use super::{Edge, Now};
use pointsman_api_client::events::Severity;
use pointsman_api_client::{ApiError, DeleteOptions, Patch, Resource};
use pointsman_objects::template::NewReplicaSet;
use pointsman_objects::{Deployment, Pod, ReplicaSet};
use pointsman_slices::queue::Outcome;
use pointsman_workloads::deployment::{DeploymentPlan, REVISION_ANNOTATION, plan};
use serde::de::IgnoredAny;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;

/// The Deployment loop's state.
pub(super) struct Deployments(pub Work);

impl Deployments {
    /// Finds out whose work an event is.
    pub fn observe(&mut self, store: &Store, change: &Change, now: Now) {
        if !self.0.on {
            return;
        }
        match change {
            Change::Deployment(moved) => self.0.queue.add(&moved.key, now.tick),
            Change::Set(moved) => {
                for set in moved.old.iter().chain(&moved.new) {
                    self.add_owner(store, set, now);
                }
            }
            // A Deployment that recreates waits for the last old pod to be gone.
            Change::Pod {
                old: Some(pod), new, ..
            } if new.as_ref().is_none_or(|new| new.is_finished()) => {
                let set = pod.controller_uid().and_then(|uid| store.sets.with_uid(uid));
                if let Some(set) = set.cloned() {
                    self.add_owner(store, &set, now);
                }
            }
            _ => {}
        }
    }

    fn add_owner(&mut self, store: &Store, set: &ReplicaSet, now: Now) {
        match set.metadata.controller() {
            Some(owner) => {
                if let Some(key) = store.deployments.key_of_uid(&owner.uid) {
                    self.0.queue.add(key, now.tick);
                }
            }
            None => {
                for (key, deployment) in store.deployments.of_namespace(&set.metadata.namespace) {
                    if deployment.spec.selector.matches(&set.metadata.labels) {
                        self.0.queue.add(key, now.tick);
                    }
                }
            }
        }
    }

    /// Starts as many steps as there is room for.
    pub fn start(&mut self, store: &Store, now: Now) {
        while self.0.writers.has_room()
            && let Some(key) = self.0.queue.next(now.tick)
        {
            let Some(deployment) = store.deployments.get(&key) else {
                self.0.queue.finish(&key, Outcome::Done, now.tick);
                continue;
            };
            let plan = plan_for(store, deployment, now);
            if plan.is_empty() {
                self.0.queue.finish(&key, Outcome::Done, now.tick);
            } else {
                let step = carry_out(self.0.edge.clone(), deployment.clone(), plan.clone());
                self.0.writers.start(async move {
                    Done {
                        key,
                        failure: step.await.err(),
                    }
                });
            }
            if let Some(at) = plan.look_again {
                self.0
                    .queue
                    .add_at(&key_of(&deployment.metadata), now.tick_at(at), now.tick);
            }
        }
    }
}

fn plan_for(store: &Store, deployment: &Deployment, now: Now) -> DeploymentPlan {
    let uid = &deployment.metadata.uid;
    // Sets of other controllers are none of our business, whatever their labels.
    let ours = |set: &&ReplicaSet| set.metadata.controller().is_none_or(|owner| owner.uid == *uid);
    let sets = store
        .sets
        .of_namespace(&deployment.metadata.namespace)
        .map(|(_, set)| &**set);
    let sets: Vec<&ReplicaSet> = sets.filter(ours).collect();
    let alive = |set: &&ReplicaSet| {
        let pods = store
            .pods_of(&set.metadata.uid)
            .filter(|pod: &&Pod| !pod.is_finished());
        (set.metadata.uid.to_string(), pods.count())
    };
    let pods: HashMap<String, usize> = sets.iter().map(alive).collect();
    plan(deployment, &sets, &pods, now.wall)
}

async fn carry_out(edge: Edge, deployment: Arc<Deployment>, plan: DeploymentPlan) -> Result<(), ApiError> {
    let metadata = &deployment.metadata;
    let namespace = &*metadata.namespace;
    let family = Family {
        resource: Resource::DEPLOYMENTS,
        kind: "Deployment",
        metadata,
        children: Resource::REPLICA_SETS,
    };
    let about = family.subject();
    edge.claim(&family, &plan.adopt, &plan.release).await?;
    if let Some(set) = &plan.create {
        create(&edge, &family, &deployment, set)
            .await
            .inspect_err(|error| {
                if !matches!(
                    error,
                    ApiError::NamespaceTerminating(_) | ApiError::AlreadyExists(_)
                ) {
                    let message = format!("Failed to create new replica set: {error}");
                    edge.tell(&about, Severity::Warning, "ReplicaSetCreateError", message);
                }
            })?;
    }
    let sets = edge.client.api(Resource::REPLICA_SETS, Some(namespace));
    for patch in &plan.patch {
        let body = Patch::Merge(patch.body().to_string().into_bytes());
        sets.patch::<IgnoredAny>(&patch.name, body).await?;
    }
    for message in &plan.scaling_events {
        edge.tell(&about, Severity::Normal, "ScalingReplicaSet", message.clone());
    }
    for (name, uid) in &plan.delete {
        let options = DeleteOptions::of(uid);
        edge.delete(Resource::REPLICA_SETS, namespace, name, &options)
            .await?;
    }
    edge.write_status(&family, &deployment.status, plan.status.as_ref())
        .await?;
    if let Some(revision) = &plan.revision {
        let patch = json!({ "metadata": { "uid": &*metadata.uid, "annotations": { REVISION_ANNOTATION: revision } } });
        let api = edge.client.api(Resource::DEPLOYMENTS, Some(namespace));
        let patch = Patch::Merge(patch.to_string().into_bytes());
        api.patch::<IgnoredAny>(&metadata.name, patch).await?;
    }
    Ok(())
}

/// Creates a ReplicaSet. Its name comes from the template, so one of that name is either ours already,
/// made a moment ago, or a stranger's: then the next attempt uses another name.
async fn create(
    edge: &Edge,
    family: &Family<'_>,
    deployment: &Deployment,
    new: &NewReplicaSet,
) -> Result<(), ApiError> {
    let metadata = &deployment.metadata;
    let api = edge.client.api(Resource::REPLICA_SETS, Some(&metadata.namespace));
    let body = deployment.new_replica_set(new).to_string().into_bytes();
    let taken = match api.create::<Answer>(body).await {
        Ok(_) => return Ok(()),
        Err(ApiError::AlreadyExists(status)) => status,
        Err(error) => return Err(error),
    };
    let found: ReplicaSet = api.get(&new.name).await?;
    let ours = found
        .metadata
        .controller()
        .is_some_and(|owner| owner.uid == metadata.uid);
    if ours && found.spec.template.same(&deployment.spec.template) {
        return Ok(());
    }
    edge.write_status(family, &deployment.status, Some(&deployment.collided()))
        .await?;
    Err(ApiError::AlreadyExists(taken))
}
