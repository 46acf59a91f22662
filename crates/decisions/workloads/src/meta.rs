//! What do all objects have in common?

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

/// Metadata, as far as workloads read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Unique id.
    pub uid: String,
    /// Resource version.
    pub resource_version: String,
    /// Generation of the spec.
    pub generation: i64,
    /// When it was created.
    pub creation_timestamp: Option<Timestamp>,
    /// Set while it is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    /// Labels.
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
    /// Owners.
    #[serde(deserialize_with = "nullable")]
    pub owner_references: Vec<OwnerReference>,
}

/// One owner of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Unique id.
    pub uid: String,
    /// Whether this owner controls the object; at most one does.
    pub controller: bool,
    /// Whether the owner's foreground deletion waits for the object.
    pub block_owner_deletion: bool,
}

/// A condition of a ReplicaSet or Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Type.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When it was last confirmed or changed; Deployments only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Timestamp>,
    /// When the status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    /// One word why.
    pub reason: String,
    /// A sentence why.
    pub message: String,
}

impl Metadata {
    /// The owner that controls the object.
    pub fn controller(&self) -> Option<&OwnerReference> {
        controller(&self.owner_references)
    }

    /// The reference with which an object of group `apps` controls another.
    pub fn as_owner(&self, kind: &str) -> OwnerReference {
        OwnerReference {
            api_version: "apps/v1".into(),
            kind: kind.into(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: true,
            block_owner_deletion: true,
        }
    }

    /// Whether the object is being deleted.
    pub fn deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// The controlling owner among `owners`.
pub fn controller(owners: &[OwnerReference]) -> Option<&OwnerReference> {
    owners.iter().find(|owner| owner.controller)
}

/// Cuts the fraction of a second, as the API server would.
pub fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Reads `null` as the default value: the API writes empty lists as `null`.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
