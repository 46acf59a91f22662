//! What does a configuration file of a Kubernetes component say?
//!
//! Files are read as kubeadm and others write them: with every field, most of them null, empty or zero, which
//! all mean "not set". A field that is set and that nothing here reads is named in a warning.

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

/// A kind of configuration file.
pub trait Kind: Default + Serialize + DeserializeOwned {
    const API_VERSION: &str;
    const KIND: &str;
    /// Whether the number 0 is a setting; for some components it means "not set".
    const ZERO_IS_SET: bool;
}

/// Reads a file, if there is one; warns of fields that are set and have no effect.
pub fn read<T: Kind>(path: Option<&Path>) -> anyhow::Result<T> {
    let Some(path) = path else {
        return Ok(T::default());
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let (file, unread) = parse(&text).with_context(|| format!("reading {}", path.display()))?;
    if !unread.is_empty() {
        let fields = unread.join(", ");
        tracing::warn!(fields, "fields of --config that have no effect here");
    }
    Ok(file)
}

/// The file, and the fields that are set and have no effect.
pub fn parse<T: Kind>(text: &str) -> anyhow::Result<(T, Vec<String>)> {
    let mut value: Value = serde_saphyr::from_str(text)?;
    let word = |field: &str| value[field].as_str().unwrap_or("nothing").to_owned();
    let (version, kind) = (word("apiVersion"), word("kind"));
    if version != T::API_VERSION || kind != T::KIND {
        bail!("{version} {kind} is not {} {}", T::API_VERSION, T::KIND);
    }
    remove_unset(&mut value, T::ZERO_IS_SET);
    // Serialised, the type is the list of the fields that are read.
    let known = serde_json::to_value(T::default())?;
    let mut unread = Vec::new();
    find_unread(&value, &known, "", &mut unread);
    unread.retain(|field| !matches!(field.as_str(), "apiVersion" | "kind"));
    Ok((serde_json::from_value(value)?, unread))
}

/// Removes what means "not set". `false` stays: somebody may want it.
fn remove_unset(value: &mut Value, zero_is_set: bool) {
    let Value::Object(fields) = value else { return };
    for value in fields.values_mut() {
        remove_unset(value, zero_is_set);
    }
    fields.retain(|_, value| match value {
        Value::Null => false,
        Value::Bool(_) => true,
        Value::Number(number) => zero_is_set || number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "0s"),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    });
}

fn find_unread(value: &Value, known: &Value, path: &str, unread: &mut Vec<String>) {
    let Value::Object(fields) = value else { return };
    for (name, value) in fields {
        let path = match path {
            "" => name.clone(),
            _ => format!("{path}.{name}"),
        };
        let idle = value == &Value::Bool(false) || value == &Value::from(0);
        match known.get(name) {
            Some(known @ Value::Object(_)) => find_unread(value, known, &path, unread),
            Some(_) => {}
            None if idle => {}
            None if value.is_object() => find_unread(value, &Value::Null, &path, unread),
            None => unread.push(path),
        }
    }
}
