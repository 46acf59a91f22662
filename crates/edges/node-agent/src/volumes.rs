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
    let owner = only_user(place.pod);
    let is_narrow = owner.is_some() || place.pod.spec.security_context.fs_group.is_some();
    for source in sources {
        for (holder, files) in objects_of(source) {
            given.add_object(holder, files, objects)?;
        }
        if let Some(asked) = &source.service_account_token {
            let token = objects.tokens.get(asked);
            let missing = || config_error(format!("there is no token for volume {:?}", volume.name));
            let token = token.ok_or_else(missing)?.clone().into_bytes();
            // Whoever else is in the pod has no business with it; the group of its volumes may read it.
            given.add(&asked.path, token, is_narrow.then_some(0o600));
            if let Some(file) = given.files.files.get_mut(&asked.path) {
                file.owner = owner;
            }
        }
        for item in source.downward_api.iter().flat_map(|fields| &fields.items) {
            let value = field_value(item, place)?;
            given.add(&item.path, value.into_bytes(), item.mode);
        }
    }
    Ok(VolumeSource::Files(given.files))
}

/// The user that all containers of the pod run as, as far as the spec says: none if one may be another. Tokens are that
/// user's (the kubelet's rule).
fn only_user(pod: &PodManifest) -> Option<u32> {
    let spec = &pod.spec;
    let shared = spec.security_context.user.run_as_user;
    let users = spec.init_containers.iter().chain(&spec.containers);
    let mut users = users.map(|container| container.security_context.user.run_as_user.or(shared));
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())?
}

/// The files of a volume so far.
struct Given {
    files: FileSet,
    mode: i64,
}

impl Given {
    fn add(&mut self, path: &str, bytes: Vec<u8>, own: Option<i64>) {
        let mode = u32::try_from(own.unwrap_or(self.mode)).unwrap_or(0o644);
        let content = FileContent {
            bytes,
            mode,
            owner: None,
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_objects::pod_manifest::AccountToken;
    use pointsman_pod_lifecycle::resolver::ClusterDns;
    use serde_json::{Value, json};

    /// What a token in a pod with this security context is, and whose, with a second container of this user.
    fn token(context: &Value, second: Option<i64>) -> (u32, Option<u32>) {
        let other = second.map_or(json!({}), |user| json!({"runAsUser": user}));
        let source = json!({"serviceAccountToken": {"path": "token"}});
        let pod: PodManifest = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "d", "uid": "u"},
            "spec": {
                "securityContext": context,
                "volumes": [{"name": "t", "projected": {"defaultMode": 0o644, "sources": [source]}}],
                "initContainers": [{"name": "i"}],
                "containers": [{"name": "a"}, {"name": "b", "securityContext": other}],
            },
        }))
        .unwrap();
        let asked = AccountToken {
            path: "token".into(),
            ..AccountToken::default()
        };
        let mut objects = Objects::default();
        objects.tokens.insert(asked, "t".to_owned());
        let place = Place {
            pod: &pod,
            pod_ips: &[],
            host_ips: &[],
            dns: &ClusterDns::default(),
        };
        let source = volume_source(&pod.spec.volumes[0], &place, &objects).unwrap();
        let VolumeSource::Files(files) = source else {
            panic!("{source:?}")
        };
        (files.files["token"].mode, files.files["token"].owner)
    }

    #[test]
    fn a_token_is_for_the_pods_user_or_its_group_and_for_all_without() {
        let (user, group) = (json!({"runAsUser": 1000}), json!({"fsGroup": 7}));
        assert_eq!(token(&json!({}), None), (0o644, None));
        assert_eq!(token(&user, None), (0o600, Some(1000)));
        assert_eq!(token(&user, Some(1000)), (0o600, Some(1000)));
        // It would lock one of two users out.
        assert_eq!(token(&user, Some(1001)), (0o644, None));
        assert_eq!(token(&json!({}), Some(1000)), (0o644, None));
        // The runtime adds what the group needs.
        assert_eq!(token(&group, None), (0o600, None));
        let both = json!({"runAsUser": 1000, "fsGroup": 7});
        assert_eq!(token(&both, None), (0o600, Some(1000)));
    }
}
