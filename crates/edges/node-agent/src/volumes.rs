//! Where do the files of a pod's volumes come from?

use crate::objects::Objects;
use crate::translate::{Place, Refused, config_error, resource};
use pointsman_model::Quantity;
use pointsman_objects::value::{at, bool_at, int_at, list_at, quantity, str_at};
use pointsman_pod_lifecycle::env::Holder;
use pointsman_runtime::{FileContent, FileSet, Medium, VolumeName, VolumeSource};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The mode of given files if nobody says (the API's default).
const FILE_MODE: i64 = 0o644;

/// The objects that a pod's volumes need.
pub fn volume_objects(pod: &Value) -> Vec<(Holder, String)> {
    let mut needed = BTreeSet::new();
    for volume in list_at(pod, &["spec", "volumes"]) {
        let projected = list_at(volume, &["projected", "sources"]);
        for source in std::iter::once(volume).chain(projected) {
            for (holder, field, name) in [
                (Holder::ConfigMap, "configMap", "name"),
                (Holder::Secret, "secret", "secretName"),
                (Holder::Secret, "secret", "name"),
            ] {
                match str_at(source, &[field, name]) {
                    "" => {}
                    name => drop(needed.insert((holder, name.to_owned()))),
                }
            }
        }
    }
    needed.into_iter().collect()
}

/// A volume's name as the runtime takes it.
pub(crate) fn volume_name(name: &str) -> Result<VolumeName, Refused> {
    VolumeName::try_new(name).map_err(|error| config_error(error.to_string()))
}

/// What a volume of the pod is made of.
pub(crate) fn volume_source(
    volume: &Value,
    place: &Place<'_>,
    objects: &Objects,
) -> Result<VolumeSource, Refused> {
    if let Some(scratch) = at(volume, &["emptyDir"]) {
        let limit = at(scratch, &["sizeLimit"]).and_then(quantity);
        return Ok(VolumeSource::Scratch {
            medium: match str_at(scratch, &["medium"]) {
                "Memory" => Medium::Memory,
                _ => Medium::Disk,
            },
            size_limit: limit.and_then(Quantity::to_units),
        });
    }
    if let Some(path) = at(volume, &["hostPath", "path"]).and_then(Value::as_str) {
        return Ok(VolumeSource::Host(PathBuf::from(path)));
    }
    let mut files = FileSet::default();
    if let Some(projected) = at(volume, &["projected"]) {
        let mode = int_at(projected, &["defaultMode"]).unwrap_or(FILE_MODE);
        for source in list_at(projected, &["sources"]) {
            add_files(&mut files, source, mode, place, objects)?;
        }
        return Ok(VolumeSource::Files(files));
    }
    for field in ["configMap", "secret", "downwardAPI"] {
        if let Some(source) = at(volume, &[field]) {
            let mode = int_at(source, &["defaultMode"]).unwrap_or(FILE_MODE);
            add_files(&mut files, volume, mode, place, objects)?;
            return Ok(VolumeSource::Files(files));
        }
    }
    let fields = volume.as_object().into_iter().flatten();
    let kind = fields
        .map(|(field, _)| field.as_str())
        .find(|field| *field != "name");
    Err(config_error(format!(
        "volume {:?} is of type {}, which this node cannot mount",
        str_at(volume, &["name"]),
        kind.unwrap_or("none")
    )))
}

/// Adds the files of one `configMap`, `secret` or `downwardAPI` source.
fn add_files(
    files: &mut FileSet,
    source: &Value,
    mode: i64,
    place: &Place<'_>,
    objects: &Objects,
) -> Result<(), Refused> {
    let mut add = |path: &str, bytes: Vec<u8>, own: Option<i64>| {
        let mode = u32::try_from(own.unwrap_or(mode)).unwrap_or(0o644);
        files.files.insert(path.to_owned(), FileContent { bytes, mode });
    };
    for (holder, field, name) in [
        (Holder::ConfigMap, "configMap", "name"),
        (Holder::Secret, "secret", "secretName"),
        (Holder::Secret, "secret", "name"),
    ] {
        let name = str_at(source, &[field, name]);
        if name.is_empty() {
            continue;
        }
        let optional = bool_at(source, &[field, "optional"]).unwrap_or(false);
        let Some(data) = objects.bytes(holder, name) else {
            if optional {
                continue;
            }
            return Err(config_error(format!("{field} {name:?} not found")));
        };
        let items = list_at(source, &[field, "items"]);
        if items.is_empty() {
            data.into_iter().for_each(|(key, bytes)| add(&key, bytes, None));
            continue;
        }
        for item in items {
            let key = str_at(item, &["key"]);
            match data.get(key) {
                Some(bytes) => add(str_at(item, &["path"]), bytes.clone(), int_at(item, &["mode"])),
                None if optional => {}
                None => {
                    let message = format!("{field} {name:?} has no key {key:?}, which a volume needs");
                    return Err(config_error(message));
                }
            }
        }
    }
    for item in list_at(source, &["downwardAPI", "items"]) {
        let path = str_at(item, &["fieldRef", "fieldPath"]);
        let named = str_at(item, &["resourceFieldRef", "containerName"]);
        let value = if path.is_empty() {
            let all = list_at(place.pod, &["spec", "containers"]).iter();
            let container = all
                .clone()
                .find(|container| str_at(container, &["name"]) == named);
            container.and_then(|of| resource(of, str_at(item, &["resourceFieldRef", "resource"])))
        } else {
            place.field(path)
        };
        let value = value.ok_or_else(|| config_error(format!("unsupported field path {path:?}")))?;
        add(
            str_at(item, &["path"]),
            value.into_bytes(),
            int_at(item, &["mode"]),
        );
    }
    Ok(())
}
