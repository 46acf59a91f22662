//! How is a plan carried out?

use pointsman_api_client::{Api, ApiError, Client, DeleteOptions, Patch, Resource};
use pointsman_model::Moment;
use pointsman_objects::Metadata;
use pointsman_slices::controller::{Job, Written};
use pointsman_slices::write::{SliceDelete, SliceUpdate};
use serde::Deserialize;
use std::sync::Arc;

/// A job, and how far it got.
pub(super) struct Sent {
    pub job: Arc<Job>,
    /// Answers to the writes that went through.
    pub written: Vec<Written>,
    /// Why the rest did not.
    pub error: Option<ApiError>,
}

/// The part of an answer that the controller has to see in its cache later.
#[derive(Deserialize)]
pub(super) struct Answer {
    metadata: Metadata,
}

impl From<Answer> for Written {
    fn from(answer: Answer) -> Self {
        Self::Slice {
            uid: answer.metadata.uid,
            generation: answer.metadata.generation,
        }
    }
}

/// Sends creates, updates and deletes in this order, up to the first failure.
pub(super) async fn send(client: Client, job: Arc<Job>) -> Sent {
    let api = client.api(Resource::ENDPOINT_SLICES, Some(&job.key.namespace));
    let mut written = Vec::with_capacity(job.plan.writes());
    let error = send_all(&api, &job, &mut written).await.err();
    Sent { job, written, error }
}

async fn send_all(api: &Api, job: &Job, written: &mut Vec<Written>) -> Result<(), ApiError> {
    for (create, time) in job.plan.create.iter().zip(&job.create_times) {
        let answer: Answer = api.create(create.body(*time)).await?;
        written.push(answer.into());
    }
    for (update, time) in job.plan.update.iter().zip(&job.update_times) {
        written.push(send_update(api, update, *time).await?.into());
    }
    for delete in &job.plan.delete {
        written.push(delete_slice(api, delete).await?);
    }
    Ok(())
}

/// A patch of single endpoints where that says it all, else of what changed.
async fn send_update(api: &Api, update: &SliceUpdate, time: Option<Moment>) -> Result<Answer, ApiError> {
    let patch = update.patch(time);
    if let Some(patch) = patch.to_json_patch() {
        match api.patch(&update.name, Patch::Json(patch)).await {
            // A failed test of the version counts as an invalid patch; the other form gives a conflict.
            Err(ApiError::Refused(status)) if matches!(status.code, 400 | 422) => {}
            other => return other,
        }
    }
    api.patch(&update.name, Patch::Merge(patch.to_merge_patch()))
        .await
}

pub(super) async fn delete_slice(api: &Api, delete: &SliceDelete) -> Result<Written, ApiError> {
    match api.delete(&delete.name, &DeleteOptions::of(&delete.uid)).await {
        // Gone already, or another slice has the name by now: either way this one is no more.
        Ok(()) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(Written::Deleted {
            uid: delete.uid.clone(),
        }),
        Err(error) => Err(error),
    }
}
