//! How do StatefulSets get their numbered pods, with the template of the right revision?
//!
//! Templates are kept as ControllerRevisions: pods below the partition are made of the one before. They are read when a pod of
//! them is made, which is rare, and not watched.

use super::parents::{Parent, Step};
use super::pods::Written;
use super::store::{Change, Moved, Store};
use super::write::Family;
use super::{Edge, Now};
use pointsman_api_client::events::Severity;
use pointsman_api_client::{ApiError, DeleteOptions, Patch, Resource, Scope};
use pointsman_objects::stateful_set::StatefulSetStatus;
use pointsman_objects::template::Template;
use pointsman_objects::workload::LabelSelector;
use pointsman_objects::{ControllerRevision, Pod, StatefulSet};
use pointsman_workloads::statefulset::{StatefulSetPlan, plan};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Parent for StatefulSet {
    type Plan = StatefulSetPlan;

    fn moved(change: &Change) -> Option<&Moved<Self>> {
        match change {
            Change::Stateful(moved) => Some(moved),
            _ => None,
        }
    }

    fn selector(&self) -> &LabelSelector {
        &self.spec.selector
    }

    fn plan(&self, _store: &Store, pods: &[&Pod], _failure: Option<&str>, now: Now) -> Step<StatefulSetPlan> {
        let plan = plan(self, pods, now.wall);
        Step {
            look_again: plan.look_again,
            plan: (!plan.is_empty()).then_some(plan),
        }
    }

    async fn carry_out(self: Arc<Self>, edge: Edge, plan: StatefulSetPlan) -> Written {
        let family = Family {
            resource: Resource::STATEFUL_SETS,
            kind: "StatefulSet",
            metadata: &self.metadata,
            children: Resource::PODS,
        };
        let create = match prepare(&edge, &family, &self, &plan).await {
            Ok(Some(create)) => create,
            // The status that says so brings the set back.
            Ok(None) => return Written::default(),
            Err(error) => return Written::failed(error),
        };
        let mut written = edge
            .write_pods(
                &family,
                (&plan.adopt, &plan.release),
                create.into_iter(),
                &plan.delete,
            )
            .await;
        written.status(
            edge.write_status(&family, &self.status, plan.status.as_ref())
                .await,
        );
        written
    }
}

/// Writes what pods need before they are there; returns the pods, or nothing if the revision needs another name first.
async fn prepare(
    edge: &Edge,
    family: &Family<'_>,
    set: &StatefulSet,
    plan: &StatefulSetPlan,
) -> Result<Option<Vec<Value>>, ApiError> {
    if let Some(name) = &plan.keep_revision
        && !keep(edge, family, set, name).await?
    {
        return Ok(None);
    }
    let mut templates = BTreeMap::from([(set.revision(), set.spec.template.clone())]);
    let mut pods = Vec::new();
    for (ordinal, revision) in &plan.create {
        if !templates.contains_key(revision) {
            templates.insert(revision.clone(), template_of(edge, set, revision).await?);
        }
        create_claims(edge, family, set, *ordinal).await?;
        pods.push(set.new_pod(*ordinal, &templates[revision], revision));
    }
    Ok(Some(pods))
}

/// The template of a revision. Should somebody have removed it, the present one takes its place.
async fn template_of(edge: &Edge, set: &StatefulSet, revision: &str) -> Result<Template, ApiError> {
    let api = edge
        .client
        .api(Resource::CONTROLLER_REVISIONS, Some(&set.metadata.namespace));
    match api.get::<ControllerRevision>(revision).await {
        Ok(found) => Ok(found.template()),
        Err(ApiError::NotFound(_)) => Ok(set.spec.template.clone()),
        Err(error) => Err(error),
    }
}

/// Keeps the present template under a name, as the newest revision, and forgets the oldest ones. False if another template
/// has the name: then the status says that the next attempt uses another one.
async fn keep(edge: &Edge, family: &Family<'_>, set: &StatefulSet, name: &str) -> Result<bool, ApiError> {
    let metadata = &set.metadata;
    let api = edge
        .client
        .api(Resource::CONTROLLER_REVISIONS, Some(&metadata.namespace));
    let scope = Scope {
        namespace: Some(metadata.namespace.to_string()),
        ..Scope::all(Resource::CONTROLLER_REVISIONS)
    };
    let mut known: Vec<ControllerRevision> = edge.client.list(&scope).await?;
    let of_set = |revision: &ControllerRevision| {
        let owner = revision.metadata.controller();
        owner.is_some_and(|owner| owner.uid == metadata.uid)
    };
    let taken = known
        .iter()
        .find(|revision| *revision.metadata.name == *name)
        .cloned();
    known.retain(of_set);
    known.sort_by_key(|revision| revision.revision);
    let next = known.last().map_or(1, |newest| newest.revision.saturating_add(1));
    match taken {
        None => {
            let body = set.new_revision(name, next).to_string().into_bytes();
            api.create::<IgnoredAny>(body).await?;
        }
        Some(found) if of_set(&found) && found.template().same(&set.spec.template) => {
            if found.revision + 1 < next {
                // An older template is back.
                let patch = json!({ "metadata": { "uid": &*found.metadata.uid }, "revision": next });
                let patch = Patch::Merge(patch.to_string().into_bytes());
                api.patch::<IgnoredAny>(name, patch).await?;
            }
        }
        Some(_) => {
            let status = StatefulSetStatus {
                collision_count: Some(set.status.collision_count.unwrap_or(0) + 1),
                ..set.status.clone()
            };
            edge.write_status(family, &set.status, Some(&status)).await?;
            return Ok(false);
        }
    }
    let live = [name, &set.status.current_revision, &set.status.update_revision];
    known.retain(|revision| !live.contains(&&*revision.metadata.name));
    let surplus = known.len().saturating_sub(set.spec.revision_history_limit);
    for revision in &known[..surplus] {
        let options = DeleteOptions::of(&revision.metadata.uid);
        let (namespace, name) = (&metadata.namespace, &revision.metadata.name);
        edge.delete(Resource::CONTROLLER_REVISIONS, namespace, name, &options)
            .await?;
    }
    Ok(true)
}

/// Writes the claims of one pod; those that are there stay as they are.
async fn create_claims(
    edge: &Edge,
    family: &Family<'_>,
    set: &StatefulSet,
    ordinal: i32,
) -> Result<(), ApiError> {
    let api = edge
        .client
        .api(Resource::PERSISTENT_VOLUME_CLAIMS, Some(&set.metadata.namespace));
    for (_, claim) in set.claims(ordinal) {
        let name = claim["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let (severity, reason, message) = match api.create::<IgnoredAny>(claim.to_string().into_bytes()).await
        {
            Err(ApiError::AlreadyExists(_)) => continue,
            Ok(_) => (
                Severity::Normal,
                "SuccessfulCreate",
                format!("Created claim: {name}"),
            ),
            Err(error) => {
                let message = format!("Error creating claim {name}: {error}");
                edge.tell(&family.subject(), Severity::Warning, "FailedCreate", message);
                return Err(error);
            }
        };
        edge.tell(&family.subject(), severity, reason, message);
    }
    Ok(())
}
