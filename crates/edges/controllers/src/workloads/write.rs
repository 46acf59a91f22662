//! How are the writes that several loops share sent?

use super::Edge;
use pointsman_api_client::events::{News, Severity, Subject};
use pointsman_api_client::{ApiError, DeleteOptions, ObjectKey, Patch, Resource};
use pointsman_objects::OwnerReference;
use pointsman_objects::metadata::{All, Metadata};
use pointsman_slices::queue::Outcome;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
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

impl Family<'_> {
    /// What an event about the controller refers to.
    pub fn subject(&self) -> Subject {
        subject(&self.api_version(), self.kind, self.metadata)
    }

    fn api_version(&self) -> String {
        let Resource { group, version, .. } = self.resource;
        format!("{group}/{version}")
    }
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
        let owner = metadata.as_owner(&family.api_version(), family.kind);
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

    /// Writes a status, if there is one, over the version it was decided from.
    pub async fn write_status<S: Serialize>(
        &self,
        family: &Family<'_>,
        old: &S,
        status: Option<&S>,
    ) -> Result<(), ApiError> {
        let Some(status) = status else { return Ok(()) };
        let [old, mut status] =
            [old, status].map(|status| serde_json::to_value(status).expect("a status always serializes"));
        name_what_went(&old, &mut status);
        let metadata = family.metadata;
        let patch =
            json!({ "metadata": { "resourceVersion": &*metadata.resource_version }, "status": status });
        let api = self.client.api(family.resource, Some(&metadata.namespace));
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

/// A merge patch keeps what it does not name, so what went has to be named.
fn name_what_went(old: &Value, new: &mut Value) {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return;
    };
    for (field, before) in old {
        name_what_went(before, new.entry(field).or_insert(Value::Null));
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
