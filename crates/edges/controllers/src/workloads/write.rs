//! How are the writes that several loops share sent?

use super::Edge;
use pointsman_api_client::events::{News, Severity, Subject};
use pointsman_api_client::{ApiError, DeleteOptions, ObjectKey, Patch, Resource};
use pointsman_objects::OwnerReference;
use pointsman_objects::metadata::{All, Metadata};
use pointsman_slices::queue::Outcome;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// The part of an answer that names what was written.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub metadata: AnswerMetadata,
}

#[derive(Debug, Deserialize)]
pub(super) struct AnswerMetadata {
    pub name: String,
    pub uid: String,
}

/// A controller and what it controls.
pub(super) struct Family<'a> {
    pub resource: Resource,
    pub kind: &'static str,
    pub metadata: &'a Metadata<All>,
    pub children: Resource,
}

/// A controller as it is now.
#[derive(Deserialize)]
struct Fresh {
    metadata: Metadata,
}

impl Edge {
    /// Adopts and releases objects, given by name and uid.
    pub async fn claim(
        &self,
        family: &Family<'_>,
        adopt: &[(String, String)],
        release: &[(String, String)],
    ) -> Result<(), ApiError> {
        let Family {
            metadata, children, ..
        } = family;
        let namespace = &*metadata.namespace;
        if !adopt.is_empty() {
            // The cache may not know yet that the controller is being deleted or another by now.
            let api = self.client.api(family.resource, Some(namespace));
            let fresh = api.get::<Fresh>(&metadata.name).await?.metadata;
            if fresh.uid != metadata.uid || fresh.is_terminating() {
                return Ok(());
            }
        }
        let owner = metadata.as_owner(family.kind);
        for object in adopt {
            self.adopt(*children, namespace, object, &owner).await?;
        }
        for object in release {
            self.release(*children, namespace, object, &metadata.uid).await?;
        }
        Ok(())
    }

    /// Makes `owner` the controller of an object. The object's uid guards against a namesake.
    async fn adopt(
        &self,
        resource: Resource,
        namespace: &str,
        (name, uid): &(String, String),
        owner: &OwnerReference,
    ) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "uid": uid, "ownerReferences": [owner] } });
        self.patch_owners(resource, namespace, name, &patch).await
    }

    /// Lets an object go. One that is gone is no failure.
    async fn release(
        &self,
        resource: Resource,
        namespace: &str,
        (name, uid): &(String, String),
        owner_uid: &str,
    ) -> Result<(), ApiError> {
        let owners = json!([{ "$patch": "delete", "uid": owner_uid }]);
        let patch = json!({ "metadata": { "uid": uid, "ownerReferences": owners } });
        match self.patch_owners(resource, namespace, name, &patch).await {
            Err(ApiError::NotFound(_)) => Ok(()),
            other => other,
        }
    }

    async fn patch_owners(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), ApiError> {
        let api = self.client.api(resource, Some(namespace));
        let patch = Patch::Strategic(patch.to_string().into_bytes());
        api.patch::<IgnoredAny>(name, patch).await.map(drop)
    }

    /// Deletes one object by its uid. One that is gone, or another by now, is no failure.
    pub async fn delete(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        match self
            .client
            .api(resource, Some(namespace))
            .delete(name, options)
            .await
        {
            Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(()),
            other => other,
        }
    }

    /// Writes a status over the version it was decided from.
    pub async fn write_status(
        &self,
        resource: Resource,
        metadata: &Metadata<All>,
        mut status: Value,
    ) -> Result<(), ApiError> {
        // A merge patch keeps what it does not name, so a list that became empty has to be named.
        if status.get("conditions").is_none() {
            status["conditions"] = Value::Null;
        }
        let patch =
            json!({ "metadata": { "resourceVersion": &*metadata.resource_version }, "status": status });
        let api = self.client.api(resource, Some(&metadata.namespace));
        let patch = Patch::Merge(patch.to_string().into_bytes());
        api.patch_status::<IgnoredAny>(&metadata.name, patch)
            .await
            .map(drop)
    }

    /// Tells people about an object.
    pub fn tell(&self, subject: &Subject, severity: Severity, reason: &str, message: String) {
        self.recorder.record(News {
            subject: subject.clone(),
            severity,
            reason: reason.into(),
            message,
        });
    }
}

/// What becomes of a piece of work that ended like this.
pub(super) fn outcome(key: &ObjectKey, failure: Option<&ApiError>) -> Outcome {
    match failure {
        None | Some(ApiError::NamespaceTerminating(_)) => Outcome::Done,
        Some(error) => {
            tracing::debug!(object = %key, %error, "tried again");
            Outcome::Retry
        }
    }
}

/// What an event about this object refers to.
pub(super) fn subject(api_version: &str, kind: &str, metadata: &Metadata<All>) -> Subject {
    Subject {
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: metadata.namespace.to_string(),
        name: metadata.name.to_string(),
        uid: metadata.uid.to_string(),
    }
}
