//! Where do a container's variables come from?

use crate::read::nullable;
use serde::Deserialize;

/// One entry of a container's `env`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Variable {
    pub name: String,
    /// A literal value, in which earlier variables may be referred to.
    #[serde(deserialize_with = "nullable")]
    pub value: String,
    /// Where the value comes from instead.
    pub value_from: Option<Origin>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Origin {
    pub field_ref: Option<FieldRef>,
    pub resource_field_ref: Option<ResourceRef>,
    pub config_map_key_ref: Option<KeyRef>,
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
    /// Of which container; only in volumes.
    #[serde(deserialize_with = "nullable")]
    pub container_name: String,
    /// Such as `limits.memory`.
    pub resource: String,
}

/// A key of a ConfigMap or Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KeyRef {
    pub name: String,
    pub key: String,
    /// Whether it may be missing.
    #[serde(deserialize_with = "nullable")]
    pub optional: bool,
}

/// A whole ConfigMap or Secret as variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvFrom {
    /// What all names start with.
    #[serde(deserialize_with = "nullable")]
    pub prefix: String,
    pub config_map_ref: Option<ObjectRef>,
    pub secret_ref: Option<ObjectRef>,
}

/// A ConfigMap or Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    pub name: String,
    /// Whether it may be missing.
    #[serde(deserialize_with = "nullable")]
    pub optional: bool,
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
                None => out.extend(["$(", name, ")"]),
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
            let expanded = expand(text, |name| match name {
                "A" => Some("1"),
                "EMPTY" => Some(""),
                _ => None,
            });
            assert_eq!(expanded, expected, "{text}");
        }
    }
}
