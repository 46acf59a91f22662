//! Which environment does a container see, and what do `$(NAME)` references stand for?

use serde::Deserialize;
use std::collections::BTreeMap;
use thiserror::Error;

/// One entry of a container's `env`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// A literal value, in which earlier variables may be referred to.
    pub value: Option<String>,
    /// Where the value comes from instead.
    pub value_from: Option<Origin>,
}

/// Where a value comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Origin {
    /// A field of the pod.
    pub field_ref: Option<FieldRef>,
    /// A resource of the container.
    pub resource_field_ref: Option<ResourceRef>,
    /// A key of a ConfigMap.
    pub config_map_key_ref: Option<KeyRef>,
    /// A key of a Secret.
    pub secret_key_ref: Option<KeyRef>,
}

/// A field of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldRef {
    /// Such as `status.podIP` or `metadata.labels['app']`.
    pub field_path: String,
}

/// A resource of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRef {
    /// Another container, in volumes.
    pub container_name: Option<String>,
    /// Such as `limits.memory`.
    pub resource: String,
}

/// A key of a ConfigMap or Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeyRef {
    /// The object.
    pub name: String,
    /// The key.
    pub key: String,
    /// Whether it may be missing.
    pub optional: Option<bool>,
}

/// A whole ConfigMap or Secret as variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvFrom {
    /// What all names start with.
    pub prefix: Option<String>,
    /// A ConfigMap.
    pub config_map_ref: Option<ObjectRef>,
    /// A Secret.
    pub secret_ref: Option<ObjectRef>,
}

/// A ConfigMap or Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Its name.
    pub name: String,
    /// Whether it may be missing.
    pub optional: Option<bool>,
}

/// Which kind of object holds values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl Holder {
    fn word(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }
}

/// Why a container's environment cannot be made; the same spec may do once the object is there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvError {
    /// The object is missing.
    #[error("{word} \"{name}\" not found", word = holder.word())]
    NoObject {
        /// Its kind.
        holder: Holder,
        /// Its name.
        name: String,
    },
    /// The object has no such key.
    #[error("couldn't find key {key} in {word} {name}", word = holder.word())]
    NoKey {
        /// Kind of the object.
        holder: Holder,
        /// Name of the object.
        name: String,
        /// The key.
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
pub fn needs(from: &[EnvFrom], variables: &[Variable]) -> Vec<(Holder, String)> {
    let mut needed = Vec::new();
    for source in from {
        let maps = source.config_map_ref.iter().map(|of| (Holder::ConfigMap, of));
        let secrets = source.secret_ref.iter().map(|of| (Holder::Secret, of));
        needed.extend(maps.chain(secrets).map(|(holder, of)| (holder, of.name.clone())));
    }
    for origin in variables
        .iter()
        .filter_map(|variable| variable.value_from.as_ref())
    {
        let maps = origin.config_map_key_ref.iter().map(|of| (Holder::ConfigMap, of));
        let secrets = origin.secret_key_ref.iter().map(|of| (Holder::Secret, of));
        needed.extend(maps.chain(secrets).map(|(holder, of)| (holder, of.name.clone())));
    }
    needed.sort();
    needed.dedup();
    needed
}

/// The environment in the order of the spec: whole objects first, then single variables, the last of a
/// name wins.
pub fn environment(
    from: &[EnvFrom],
    variables: &[Variable],
    sources: &Sources<'_>,
) -> Result<BTreeMap<String, String>, EnvError> {
    let mut env = BTreeMap::new();
    for source in from {
        let prefix = source.prefix.as_deref().unwrap_or("");
        let maps = source.config_map_ref.iter().map(|of| (Holder::ConfigMap, of));
        let secrets = source.secret_ref.iter().map(|of| (Holder::Secret, of));
        for (holder, of) in maps.chain(secrets) {
            match sources.objects.get(&(holder, of.name.clone())) {
                Some(object) => {
                    let pairs = object
                        .iter()
                        .map(|(key, value)| (format!("{prefix}{key}"), value));
                    let named = pairs.filter(|(key, _)| is_name(key));
                    env.extend(named.map(|(key, value)| (key, value.clone())));
                }
                None if of.optional == Some(true) => {}
                None => {
                    return Err(EnvError::NoObject {
                        holder,
                        name: of.name.clone(),
                    });
                }
            }
        }
    }
    for variable in variables {
        let value = match &variable.value_from {
            None => Some(expand(variable.value.as_deref().unwrap_or(""), |name| {
                env.get(name).map(String::as_str)
            })),
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
    let map = origin.config_map_key_ref.iter().map(|of| (Holder::ConfigMap, of));
    let secret = origin.secret_key_ref.iter().map(|of| (Holder::Secret, of));
    let Some((holder, of)) = map.chain(secret).next() else {
        return Ok(Some(String::new()));
    };
    let object = sources.objects.get(&(holder, of.name.clone()));
    match object.map(|object| object.get(&of.key)) {
        Some(Some(value)) => Ok(Some(value.clone())),
        _ if of.optional == Some(true) => Ok(None),
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

/// Replaces `$(NAME)` by the variable's value; an unknown one stays as it is, and `$$` stands for `$`.
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            out.push('$');
            rest = escaped;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|open| open.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> String {
        expand(text, |name| match name {
            "A" => Some("1"),
            "EMPTY" => Some(""),
            _ => None,
        })
    }

    #[test]
    fn references_expand_and_the_unknown_stays() {
        for (text, expected) in [
            ("$(A) $(B)", "1 $(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("a$(EMPTY)b", "ab"),
            ("$(A", "$(A"),
            ("$A $", "$A $"),
            ("$()", "$()"),
            ("$($(A))", "$($(A))"),
        ] {
            assert_eq!(expanded(text), expected, "{text}");
        }
    }

    fn variables(json: serde_json::Value) -> Vec<Variable> {
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
        let from: Vec<EnvFrom> = serde_json::from_value(serde_json::json!([
            {"prefix": "P_", "configMapRef": {"name": "c"}},
            {"secretRef": {"name": "none", "optional": true}},
        ]))
        .unwrap();
        let list = variables(serde_json::json!([
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)$(C)$(P_A)"},
            {"name": "A", "value": "2"},
            {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "K"}}},
            {"name": "O", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "no", "optional": true}}},
            {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]));
        let env = environment(&from, &list, &sources).unwrap();
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
            needs(&from, &list),
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
        let error = |json| {
            environment(&[], &variables(json), &sources)
                .unwrap_err()
                .to_string()
        };
        let of = |kind: &str, name: &str| serde_json::json!([{"name": "X", "valueFrom": {kind: {"name": name, "key": "k"}}}]);
        assert_eq!(error(of("configMapKeyRef", "c")), "configmap \"c\" not found");
        assert_eq!(error(of("secretKeyRef", "s")), "couldn't find key k in secret s");
    }
}
