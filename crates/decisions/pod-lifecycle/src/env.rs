//! Which environment does a container see?

use pointsman_objects::pod_manifest::{Container, EnvFrom, KeyRef, ObjectRef, Origin, expand};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Which kind of object holds values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    ConfigMap,
    Secret,
}

impl Holder {
    fn word(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    /// The field of volumes that names such an object.
    pub fn field(self) -> &'static str {
        match self {
            Self::ConfigMap => "configMap",
            Self::Secret => "secret",
        }
    }
}

/// Why a container's environment cannot be made; the same spec may do once the object is there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvError {
    /// The object is missing.
    #[error("{word} \"{name}\" not found", word = holder.word())]
    NoObject { holder: Holder, name: String },
    /// The object has no such key.
    #[error("couldn't find key {key} in {word} {name}", word = holder.word())]
    NoKey {
        /// Kind of the object.
        holder: Holder,
        /// Name of the object.
        name: String,
        key: String,
    },
    /// The pod has no such field.
    #[error("unsupported field path {0:?}")]
    NoField(String),
}

/// What values can come from.
pub struct Sources<'a> {
    /// Objects by kind and name; one that is not there is missing.
    pub objects: &'a BTreeMap<(Holder, String), BTreeMap<String, String>>,
    /// The value of a field of the pod.
    pub field: &'a dyn Fn(&str) -> Option<String>,
    /// The value of a resource of the container.
    pub resource: &'a dyn Fn(&str) -> Option<String>,
}

/// The objects that a container's environment needs.
pub fn needs(container: &Container) -> Vec<(Holder, String)> {
    let whole = container.env_from.iter().flat_map(whole_objects);
    let whole = whole.map(|(holder, of)| (holder, of.name.clone()));
    let origins = container
        .env
        .iter()
        .filter_map(|variable| variable.value_from.as_ref());
    let keys = origins
        .filter_map(key_of)
        .map(|(holder, of)| (holder, of.name.clone()));
    let needed: BTreeSet<_> = whole.chain(keys).collect();
    needed.into_iter().collect()
}

fn whole_objects(source: &EnvFrom) -> impl Iterator<Item = (Holder, &ObjectRef)> {
    let maps = source.config_map_ref.iter().map(|of| (Holder::ConfigMap, of));
    maps.chain(source.secret_ref.iter().map(|of| (Holder::Secret, of)))
}

fn key_of(origin: &Origin) -> Option<(Holder, &KeyRef)> {
    let map = origin
        .config_map_key_ref
        .as_ref()
        .map(|of| (Holder::ConfigMap, of));
    map.or(origin.secret_key_ref.as_ref().map(|of| (Holder::Secret, of)))
}

/// The environment in the order of the spec: whole objects first, then single variables, the last of a
/// name wins.
pub fn environment(
    container: &Container,
    sources: &Sources<'_>,
) -> Result<BTreeMap<String, String>, EnvError> {
    let mut env = BTreeMap::new();
    for source in &container.env_from {
        for (holder, of) in whole_objects(source) {
            match sources.objects.get(&(holder, of.name.clone())) {
                Some(object) => {
                    let pairs = object
                        .iter()
                        .map(|(key, value)| (format!("{}{key}", source.prefix), value));
                    let named = pairs.filter(|(key, _)| is_name(key));
                    env.extend(named.map(|(key, value)| (key, value.clone())));
                }
                None if of.optional => {}
                None => {
                    return Err(EnvError::NoObject {
                        holder,
                        name: of.name.clone(),
                    });
                }
            }
        }
    }
    for variable in &container.env {
        let value = match &variable.value_from {
            None => Some(expand(&variable.value, |name| env.get(name).map(String::as_str))),
            Some(origin) => origin_value(origin, sources)?,
        };
        if let Some(value) = value {
            env.insert(variable.name.clone(), value);
        }
    }
    Ok(env)
}

fn origin_value(origin: &Origin, sources: &Sources<'_>) -> Result<Option<String>, EnvError> {
    if let Some(field) = &origin.field_ref {
        let missing = || EnvError::NoField(field.field_path.clone());
        return (sources.field)(&field.field_path).ok_or_else(missing).map(Some);
    }
    if let Some(resource) = &origin.resource_field_ref {
        let missing = || EnvError::NoField(resource.resource.clone());
        return (sources.resource)(&resource.resource)
            .ok_or_else(missing)
            .map(Some);
    }
    let Some((holder, of)) = key_of(origin) else {
        return Ok(Some(String::new()));
    };
    let object = sources.objects.get(&(holder, of.name.clone()));
    match object.map(|object| object.get(&of.key)) {
        Some(Some(value)) => Ok(Some(value.clone())),
        _ if of.optional => Ok(None),
        Some(None) => Err(EnvError::NoKey {
            holder,
            name: of.name.clone(),
            key: of.key.clone(),
        }),
        None => Err(EnvError::NoObject {
            holder,
            name: of.name.clone(),
        }),
    }
}

/// Whether a key can be the name of a variable at all.
fn is_name(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(json: serde_json::Value) -> Container {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn later_variables_win_and_may_use_earlier_ones() {
        let mut objects = BTreeMap::new();
        let data = [("A", "map"), ("bad=name", "x"), ("K", "key")].map(|(k, v)| (k.into(), v.into()));
        objects.insert((Holder::ConfigMap, "c".to_owned()), BTreeMap::from(data));
        let sources = Sources {
            objects: &objects,
            field: &|path| (path == "metadata.name").then(|| "web".into()),
            resource: &|_| None,
        };
        let container = container(serde_json::json!({"envFrom": [
            {"prefix": "P_", "configMapRef": {"name": "c"}},
            {"secretRef": {"name": "none", "optional": true}},
        ], "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)$(C)$(P_A)"},
            {"name": "A", "value": "2"},
            {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "K"}}},
            {"name": "O", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "no", "optional": true}}},
            {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]}));
        let env = environment(&container, &sources).unwrap();
        let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let expected = [
            ("A", "2"),
            ("B", "1$(C)map"),
            ("K", "key"),
            ("N", "web"),
            ("P_A", "map"),
            ("P_K", "key"),
        ];
        assert_eq!(env, expected);
        assert_eq!(
            needs(&container),
            [(Holder::ConfigMap, "c".into()), (Holder::Secret, "none".into())]
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let sources = Sources {
            objects: &BTreeMap::from([((Holder::Secret, "s".to_owned()), BTreeMap::new())]),
            field: &|_| None,
            resource: &|_| None,
        };
        let error = |json| environment(&container(json), &sources).unwrap_err().to_string();
        let of = |kind: &str, name: &str| serde_json::json!({"env": [{"name": "X", "valueFrom": {kind: {"name": name, "key": "k"}}}]});
        assert_eq!(error(of("configMapKeyRef", "c")), "configmap \"c\" not found");
        assert_eq!(error(of("secretKeyRef", "s")), "couldn't find key k in secret s");
    }
}
