//! Which latency profile is asked for, and how far is it rolled out?

use serde::Deserialize;

use crate::metadata::Metadata;
use crate::read::nullable;

/// The only name under which the cluster's configuration of its nodes counts.
pub const NAME: &str = "cluster";

/// The cluster's configuration of its nodes (`nodes.config.openshift.io`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawConfigNode")]
pub struct ConfigNode {
    pub metadata: Metadata,
    /// Empty means the default profile.
    pub profile: Box<str>,
    /// What is said about the rollout.
    pub conditions: Vec<ProfileCondition>,
}

/// One statement about the rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProfileCondition {
    pub r#type: String,
    pub status: String,
    #[serde(deserialize_with = "nullable")]
    pub reason: String,
    #[serde(deserialize_with = "nullable")]
    pub message: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawConfigNode {
    metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    spec: RawSpec,
    #[serde(deserialize_with = "nullable")]
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    #[serde(deserialize_with = "nullable")]
    worker_latency_profile: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    #[serde(deserialize_with = "nullable")]
    worker_latency_profile_status: RawProfileStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawProfileStatus {
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<ProfileCondition>,
}

impl From<RawConfigNode> for ConfigNode {
    fn from(raw: RawConfigNode) -> Self {
        Self {
            metadata: raw.metadata,
            profile: raw.spec.worker_latency_profile,
            conditions: raw.status.worker_latency_profile_status.conditions,
        }
    }
}
