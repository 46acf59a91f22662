//! What is a volume of a pod made of?

use super::{FieldRef, ResourceRef, optional_amount};
use crate::read::nullable;
use pointsman_model::Quantity;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub kind: VolumeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    EmptyDir(EmptyDir),
    /// A path of the node.
    HostPath(String),
    /// Files of several objects.
    Projected {
        sources: Vec<Projection>,
        default_mode: Option<i64>,
    },
    /// Files of one object.
    Files {
        source: Projection,
        default_mode: Option<i64>,
    },
    /// A kind that this node cannot mount, by the name of its field.
    Other(String),
}

impl Default for VolumeKind {
    fn default() -> Self {
        Self::Other("none".to_owned())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EmptyDir {
    #[serde(deserialize_with = "nullable")]
    pub medium: String,
    #[serde(deserialize_with = "optional_amount")]
    pub size_limit: Option<Quantity>,
}

/// One source of files; others than these are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Projection {
    pub config_map: Option<Files>,
    pub secret: Option<Files>,
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<PodFields>,
    pub service_account_token: Option<AccountToken>,
}

/// A token of the pod's service account as a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccountToken {
    /// Who the token is for; the API server if empty.
    #[serde(deserialize_with = "nullable")]
    pub audience: String,
    /// How long it is good for; an hour if unset.
    pub expiration_seconds: Option<i64>,
    pub path: String,
}

/// The keys of a ConfigMap or Secret as files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Files {
    #[serde(alias = "secretName", deserialize_with = "nullable")]
    pub name: String,
    /// All keys under their own names if empty.
    #[serde(deserialize_with = "nullable")]
    pub items: Vec<FilesItem>,
    /// Whether the object and its keys may be missing.
    #[serde(deserialize_with = "nullable")]
    pub optional: bool,
    default_mode: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct FilesItem {
    pub key: String,
    pub path: String,
    pub mode: Option<i64>,
}

/// Fields of the pod as files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodFields {
    #[serde(deserialize_with = "nullable")]
    pub items: Vec<PodFieldsItem>,
    default_mode: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodFieldsItem {
    pub path: String,
    pub field_ref: Option<FieldRef>,
    pub resource_field_ref: Option<ResourceRef>,
    pub mode: Option<i64>,
}

/// A volume as the API carries it: a name, and one field for the kind.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawVolume {
    name: String,
    empty_dir: Option<EmptyDir>,
    host_path: Option<HostPath>,
    projected: Option<Projected>,
    config_map: Option<Files>,
    secret: Option<Files>,
    #[serde(rename = "downwardAPI")]
    downward_api: Option<PodFields>,
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HostPath {
    path: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Projected {
    #[serde(deserialize_with = "nullable")]
    sources: Vec<Projection>,
    default_mode: Option<i64>,
}

impl<'de> Deserialize<'de> for Volume {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawVolume::deserialize(deserializer)?;
        let kind = if let Some(scratch) = raw.empty_dir {
            VolumeKind::EmptyDir(scratch)
        } else if let Some(host) = raw.host_path {
            VolumeKind::HostPath(host.path)
        } else if let Some(Projected {
            sources,
            default_mode,
        }) = raw.projected
        {
            VolumeKind::Projected {
                sources,
                default_mode,
            }
        } else {
            let source = Projection {
                config_map: raw.config_map,
                secret: raw.secret,
                downward_api: raw.downward_api,
                service_account_token: None,
            };
            match source.default_mode() {
                Some(default_mode) => VolumeKind::Files { source, default_mode },
                None => raw
                    .others
                    .into_keys()
                    .next()
                    .map_or_else(VolumeKind::default, VolumeKind::Other),
            }
        };
        Ok(Self { name: raw.name, kind })
    }
}

impl Projection {
    /// The mode that its one source gives files, if there is a source at all.
    fn default_mode(&self) -> Option<Option<i64>> {
        let object = self.config_map.as_ref().or(self.secret.as_ref());
        let fields = self.downward_api.as_ref();
        object
            .map(|files| files.default_mode)
            .or(fields.map(|fields| fields.default_mode))
    }
}
