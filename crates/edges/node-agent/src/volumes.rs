//! Where do the files of a pod's volumes come from?

use crate::objects::Objects;
use crate::translate::{Place, Refused, config_error};
use pointsman_model::Quantity;
use pointsman_objects::pod_manifest::{Files, PodFieldsItem, PodManifest, Projection, Volume, VolumeKind};
use pointsman_pod_lifecycle::env::Holder;
use pointsman_runtime::{FileContent, FileSet, Medium, VolumeName, VolumeSource};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The mode of given files if nobody says (the API's default).
const FILE_MODE: i64 = 0o644;

/// The objects that a pod's volumes need.
pub fn volume_objects(pod: &PodManifest) -> Vec<(Holder, String)> {
    let sources = pod.spec.volumes.iter().flat_map(|volume| match &volume.kind {
        VolumeKind::Files { source, .. } => std::slice::from_ref(source),
        VolumeKind::Projected { sources, .. } => sources,
        VolumeKind::EmptyDir(_) | VolumeKind::HostPath(_) | VolumeKind::Other(_) => &[],
    });
    let needed: BTreeSet<_> = sources
        .flat_map(objects_of)
        .map(|(holder, files)| (holder, files.name.clone()))
        .collect();
    needed.into_iter().collect()
}

fn objects_of(source: &Projection) -> impl Iterator<Item = (Holder, &Files)> {
    let maps = source.config_map.iter().map(|files| (Holder::ConfigMap, files));
    let secrets = source.secret.iter().map(|files| (Holder::Secret, files));
    maps.chain(secrets).filter(|(_, files)| !files.name.is_empty())
}

/// A volume's name as the runtime takes it.
pub(crate) fn volume_name(name: &str) -> Result<VolumeName, Refused> {
    VolumeName::try_new(name).map_err(|error| config_error(error.to_string()))
}

/// What a volume of the pod is made of.
pub(crate) fn volume_source(
    volume: &Volume,
    place: &Place<'_>,
    objects: &Objects,
) -> Result<VolumeSource, Refused> {
    let (sources, mode) = match &volume.kind {
        VolumeKind::EmptyDir(scratch) => {
            if scratch.size_limit.is_some() && scratch.medium != "Memory" {
                let name = &volume.name;
                return Err(config_error(format!(
                    "sizeLimit of volume {name:?} cannot be enforced on a disk; medium: Memory can"
                )));
            }
            return Ok(VolumeSource::Scratch {
                medium: match scratch.medium.as_str() {
                    "Memory" => Medium::Memory,
                    _ => Medium::Disk,
                },
                size_limit: scratch.size_limit.and_then(Quantity::to_units),
            });
        }
        VolumeKind::HostPath(path) => return Ok(VolumeSource::Host(PathBuf::from(path))),
        VolumeKind::Projected {
            sources,
            default_mode,
        } => (sources.as_slice(), default_mode),
        VolumeKind::Files { source, default_mode } => (std::slice::from_ref(source), default_mode),
        VolumeKind::Other(kind) => {
            let name = &volume.name;
            return Err(config_error(format!(
                "volume {name:?} is of type {kind}, which this node cannot mount"
            )));
        }
    };
    let is_secret = |source: &Projection| source.secret.is_some() || source.service_account_token.is_some();
    let mut given = Given {
        files: FileSet {
            in_memory: sources.iter().any(is_secret),
            ..FileSet::default()
        },
        mode: mode.unwrap_or(FILE_MODE),
    };
    for source in sources {
        for (holder, files) in objects_of(source) {
            given.add_object(holder, files, objects)?;
        }
        if let Some(asked) = &source.service_account_token {
            let token = objects.tokens.get(asked);
            let missing = || config_error(format!("there is no token for volume {:?}", volume.name));
            given.add(&asked.path, token.ok_or_else(missing)?.clone().into_bytes(), None);
        }
        for item in source.downward_api.iter().flat_map(|fields| &fields.items) {
            let value = field_value(item, place)?;
            given.add(&item.path, value.into_bytes(), item.mode);
        }
    }
    Ok(VolumeSource::Files(given.files))
}

/// The files of a volume so far.
struct Given {
    files: FileSet,
    mode: i64,
}

impl Given {
    fn add(&mut self, path: &str, bytes: Vec<u8>, own: Option<i64>) {
        let mode = u32::try_from(own.unwrap_or(self.mode)).unwrap_or(0o644);
        let content = FileContent { bytes, mode };
        self.files.files.insert(path.to_owned(), content);
    }

    /// Adds the keys of a ConfigMap or Secret.
    fn add_object(&mut self, holder: Holder, wanted: &Files, objects: &Objects) -> Result<(), Refused> {
        let (field, name) = (holder.field(), &wanted.name);
        let Some(data) = objects.bytes(holder, name) else {
            if wanted.optional {
                return Ok(());
            }
            return Err(config_error(format!("{field} {name:?} not found")));
        };
        if wanted.items.is_empty() {
            data.into_iter()
                .for_each(|(key, bytes)| self.add(&key, bytes, None));
            return Ok(());
        }
        for item in &wanted.items {
            match data.get(&item.key) {
                Some(bytes) => self.add(&item.path, bytes.clone(), item.mode),
                None if wanted.optional => {}
                None => {
                    let key = &item.key;
                    let message = format!("{field} {name:?} has no key {key:?}, which a volume needs");
                    return Err(config_error(message));
                }
            }
        }
        Ok(())
    }
}

/// A field of the pod, or a resource of one of its containers.
fn field_value(item: &PodFieldsItem, place: &Place<'_>) -> Result<String, Refused> {
    let path = item.field_ref.as_ref().map_or("", |field| &field.field_path);
    let value = match &item.resource_field_ref {
        Some(of) if path.is_empty() => {
            let mut containers = place.pod.spec.containers.iter();
            let container = containers.find(|container| container.name == of.container_name);
            let units = container.and_then(|container| container.resource(&of.resource));
            units.map(|units| units.to_string())
        }
        _ => place.field(path),
    };
    value.ok_or_else(|| config_error(format!("unsupported field path {path:?}")))
}
