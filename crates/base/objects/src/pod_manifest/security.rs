//! Who the processes of a pod are, and what they are kept from.

use crate::read::nullable;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What holds for all containers, unless one says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSecurity {
    #[serde(flatten)]
    pub user: UserIds,
    #[serde(flatten)]
    pub profiles: Profiles,
    /// The group of the files in volumes.
    pub fs_group: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    pub supplemental_groups: Vec<i64>,
    /// `Merge` adds the groups that the image's files give the user, `Strict` does not.
    #[serde(deserialize_with = "nullable")]
    pub supplemental_groups_policy: String,
    #[serde(deserialize_with = "nullable")]
    pub sysctls: Vec<Sysctl>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerSecurity {
    #[serde(flatten)]
    pub user: UserIds,
    #[serde(flatten)]
    pub profiles: Profiles,
    pub allow_privilege_escalation: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    pub privileged: bool,
    #[serde(deserialize_with = "nullable")]
    pub read_only_root_filesystem: bool,
    #[serde(deserialize_with = "nullable")]
    pub capabilities: CapabilityNames,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserIds {
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub run_as_non_root: Option<bool>,
}

/// What the kernel's security modules are asked for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Profiles {
    pub seccomp_profile: Option<Profile>,
    pub app_armor_profile: Option<Profile>,
    #[serde(deserialize_with = "nullable")]
    pub se_linux_options: BTreeMap<String, Value>,
    #[serde(deserialize_with = "nullable")]
    pub windows_options: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Profile {
    /// `Unconfined`, `RuntimeDefault` or `Localhost`.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
}

/// Capabilities by name, with or without `CAP_`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CapabilityNames {
    #[serde(deserialize_with = "nullable")]
    pub add: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub drop: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Sysctl {
    pub name: String,
}
