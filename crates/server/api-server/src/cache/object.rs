//! What does the server remember of one version of one object?

use super::fields;
use crate::stored::{self, Encoded, EventType};
use bytes::Bytes;
use pointsman_rules::{Kind, custom};
use pointsman_store::Revision;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// One version of one object, encoded once and shared by every reader.
#[derive(Debug)]
pub struct Object {
    /// The kind under which it is stored.
    pub kind: &'static Kind,
    /// `namespace/name`, or `name` for cluster-wide kinds.
    pub key: Arc<str>,
    /// The revision of the write that made this version.
    pub revision: Revision,
    /// Labels, kept parsed because most selectors need only them.
    pub labels: Labels,
    encoded: Encoded,
    parsed_fields: OnceLock<Fields>,
}

/// Labels of an object, sorted by key. A tree would take several times the memory of the text.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "BTreeMap<Box<str>, Box<str>>")]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// The value of a label, if the object has it.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }
}

impl From<BTreeMap<Box<str>, Box<str>>> for Labels {
    fn from(labels: BTreeMap<Box<str>, Box<str>>) -> Self {
        Self(labels.into_iter().collect())
    }
}

type Fields = Vec<(&'static str, Box<str>)>;

#[derive(Deserialize)]
struct MetaOnly {
    metadata: LabelsOnly,
}

#[derive(Deserialize)]
struct LabelsOnly {
    #[serde(default)]
    labels: Option<Labels>,
}

impl AsRef<Object> for Object {
    fn as_ref(&self) -> &Object {
        self
    }
}

impl Object {
    /// Reads stored bytes. The error says what is wrong with them.
    pub fn from_stored(
        kind: &'static Kind,
        key: Arc<str>,
        stored: &[u8],
        revision: Revision,
        event: EventType,
    ) -> Result<Self, String> {
        let filled = custom::filled_in(kind, stored).map(|value| stored::encode(kind, &value));
        let stored = filled.as_deref().unwrap_or(stored);
        let encoded = Encoded::new(kind, stored, revision, event).map_err(|error| error.to_string())?;
        let meta: MetaOnly = serde_json::from_slice(stored).map_err(|error| error.to_string())?;
        let labels = meta.metadata.labels.unwrap_or_default();
        Ok(Self {
            kind,
            key,
            revision,
            labels,
            encoded,
            parsed_fields: OnceLock::new(),
        })
    }

    /// The namespace; empty for cluster-wide kinds.
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or(&*self.key, |(_, name)| name)
    }

    /// The JSON as clients see it.
    pub fn json(&self) -> Bytes {
        self.encoded.object()
    }

    /// The JSON as clients see it, under the revision of a later change.
    pub fn json_at(&self, revision: Revision) -> Bytes {
        self.encoded.object_at(self.kind, revision)
    }

    /// The whole watch line of type `event`, if that is how this version was encoded.
    pub fn line(&self, event: EventType) -> Option<Bytes> {
        self.encoded.line(event)
    }

    /// Bytes held by the encoding.
    pub fn size(&self) -> usize {
        self.encoded.size()
    }

    /// The parsed object.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.encoded.object()).expect("checked when it was read from the store")
    }

    /// A part of the metadata, read without the rest of the object.
    pub fn metadata<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        let json = self.encoded.object();
        let metadata = &json[stored::head(self.kind).len() - 1..];
        T::deserialize(&mut serde_json::Deserializer::from_slice(metadata)).ok()
    }

    /// The identity that no later object of the name has.
    pub fn uid(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Identity {
            uid: String,
        }
        self.metadata::<Identity>().map(|metadata| metadata.uid)
    }

    /// Whether it is only there until its finalizers are gone.
    pub fn is_being_deleted(&self) -> bool {
        #[derive(Deserialize)]
        struct Deletion {
            #[serde(rename = "deletionTimestamp")]
            since: Option<IgnoredAny>,
        }
        self.metadata::<Deletion>()
            .is_some_and(|metadata| metadata.since.is_some())
    }

    /// The value of a field that a field selector names; unset fields are empty.
    pub fn field(&self, name: &str) -> Cow<'_, str> {
        match name {
            "metadata.name" => Cow::Borrowed(self.name()),
            "metadata.namespace" => Cow::Borrowed(self.namespace()),
            _ => {
                let fields = self.parsed_fields.get_or_init(|| self.parse_fields());
                let found = fields.iter().find(|(field, _)| *field == name);
                found.map_or(Cow::Borrowed(""), |(_, value)| Cow::Borrowed(value))
            }
        }
    }

    fn parse_fields(&self) -> Fields {
        let value = fields::selectable_part(&self.encoded.object());
        let value = value.expect("checked when it was read from the store");
        let strategy = self.kind.strategy;
        let fields = self.kind.selectable.iter();
        let known = fields.filter_map(|field| Some((*field, strategy.selectable(&value, field)?)));
        known
            .map(|(field, text)| (field, text.into_owned().into_boxed_str()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_are_found_by_key() {
        let kind = &pointsman_rules::kinds::POD;
        let with = |labels: Value| {
            let value = json!({"metadata": {"name": "a", "namespace": "n", "labels": labels}});
            let stored = stored::encode(kind, &value);
            Object::from_stored(kind, "n/a".into(), &stored, Revision(1), EventType::Added)
        };
        let object = with(json!({"zone": "z1", "app": "web", "tier": ""})).unwrap();
        let found = ["app", "tier", "zone", "other"].map(|key| object.labels.get(key));
        assert_eq!(found, [Some("web"), Some(""), Some("z1"), None]);
        assert_eq!(with(Value::Null).unwrap().labels.get("app"), None);
        assert!(with(json!({"app": 1})).is_err());
    }

    #[test]
    fn the_identity_is_read_from_the_metadata() {
        let kind = &pointsman_rules::kinds::POD;
        let with = |value: Value| {
            let stored = stored::encode(kind, &value);
            Object::from_stored(kind, "n/a".into(), &stored, Revision(1), EventType::Added).unwrap()
        };
        let pod = with(json!({"metadata": {"name": "a", "uid": "u1"}, "spec": {"uid": "other"}}));
        assert_eq!(pod.uid().as_deref(), Some("u1"));
        assert_eq!(with(json!({"spec": {"uid": "other"}})).uid(), None);
    }
}
