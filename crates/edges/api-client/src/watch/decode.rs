//! What do the lines of a watch and the pages of a list look like?

use crate::error::ApiError;
use pointsman_model::Moment;
use pointsman_objects::WriteTimes;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// One line of a watch. The object stays text until somebody knows what it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub kind: Kind,
    pub object: &'a str,
}

/// A line in any order and with any other fields.
#[derive(Deserialize)]
struct AnyLine<'a> {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl<'a> Line<'a> {
    /// Servers write a line's two fields in the same order always, which spares walking over the object just to
    /// find its end. What is wrong with the object is found by whoever reads it.
    const USUAL: [(Kind, &'static str); 4] = [
        (Kind::Added, r#"{"type":"ADDED","object":{"#),
        (Kind::Modified, r#"{"type":"MODIFIED","object":{"#),
        (Kind::Deleted, r#"{"type":"DELETED","object":{"#),
        (Kind::Bookmark, r#"{"type":"BOOKMARK","object":{"#),
    ];

    /// Reads a line.
    pub fn read(line: &'a [u8]) -> Result<Self, ApiError> {
        let unreadable = |error: &dyn fmt::Display| ApiError::Unreadable(error.to_string());
        let text = std::str::from_utf8(line).map_err(|error| unreadable(&error))?;
        for (kind, beginning) in Self::USUAL {
            if text.starts_with(beginning) && text.ends_with("}}") {
                let object = &text[beginning.len() - 1..text.len() - 1];
                return Ok(Self { kind, object });
            }
        }
        let line: AnyLine<'a> = serde_json::from_str(text).map_err(|error| unreadable(&error))?;
        Ok(Self {
            kind: line.kind,
            object: line.object.get(),
        })
    }
}

/// What a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    /// Something newer than this program.
    #[serde(other)]
    Unknown,
}

/// The part of every object that a watcher itself needs.
pub(super) struct Head<'a> {
    pub metadata: Heading<'a>,
}

/// Which version of which object it is; bookmarks have one, too.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Heading<'a> {
    #[serde(borrow, default)]
    pub namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub resource_version: Cow<'a, str>,
    #[serde(borrow, default)]
    pub annotations: Annotations<'a>,
}

#[derive(Deserialize, Default)]
pub(super) struct Annotations<'a> {
    #[serde(borrow, default, rename = "k8s.io/initial-events-end")]
    pub initial_events_end: Option<Cow<'a, str>>,
}

impl<'a> Head<'a> {
    /// Reads an object's metadata and nothing behind them.
    pub fn read(text: &'a str) -> Result<Self, ApiError> {
        let mut found = None;
        let outcome = serde_json::Deserializer::from_str(text).deserialize_map(UntilMetadata(&mut found));
        match (found, outcome) {
            // Whether the rest is sound is for others to say.
            (Some(metadata), _) => Ok(Self { metadata }),
            (None, Err(error)) => Err(ApiError::Unreadable(error.to_string())),
            (None, Ok(())) => Err(ApiError::Unreadable("an object without metadata".into())),
        }
    }
}

/// Reads fields up to the metadata.
struct UntilMetadata<'s, 'a>(&'s mut Option<Heading<'a>>);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Field {
    Metadata,
    #[serde(other)]
    Other,
}

impl<'a> Visitor<'a> for UntilMetadata<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut fields: M) -> Result<(), M::Error> {
        while let Some(field) = fields.next_key()? {
            match field {
                Field::Metadata => {
                    *self.0 = Some(fields.next_value()?);
                    return Ok(());
                }
                Field::Other => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// When an object was removed, by its last state.
pub(super) fn removed_at(text: &str) -> Option<Moment> {
    #[derive(Deserialize)]
    struct Last {
        metadata: WriteTimes,
    }
    let last: Last = serde_json::from_str(text).ok()?;
    last.metadata.removed()
}

/// One page of a list.
#[derive(Deserialize)]
pub(crate) struct Page {
    pub metadata: PageMetadata,
    #[serde(default, deserialize_with = "nullable")]
    pub items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageMetadata {
    pub resource_version: String,
    #[serde(default)]
    pub r#continue: String,
}

fn nullable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Box<RawValue>>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_order_of_its_fields() {
        let object = r#"{"metadata":{"name":"a","resourceVersion":"7"},"value":{"x":1}}"#;
        for text in [
            format!(r#"{{"type":"ADDED","object":{object}}}"#),
            format!(r#"{{ "object": {object}, "type": "ADDED" }}"#),
            format!(r#"{{"type":"ADDED","object":{object},"extra":"}}}}"}}"#),
        ] {
            let line = Line::read(text.as_bytes()).unwrap();
            assert_eq!((line.kind, line.object), (Kind::Added, object), "{text}");
        }
        assert!(Line::read(br#"{"type":"ADDED","object":"#).is_err());
    }

    #[test]
    fn a_head_ends_with_the_metadata() {
        let head =
            Head::read(r#"{"kind":"X","metadata":{"name":"a","resourceVersion":"7"},"spec":"#).unwrap();
        assert_eq!(
            (
                head.metadata.name.as_ref(),
                head.metadata.resource_version.as_ref()
            ),
            ("a", "7")
        );
        assert!(Head::read(r#"{"kind":"X"}"#).is_err());
        assert!(Head::read(r#"{"metadata":{"name":"a"}}"#).is_err());
        assert!(Head::read("[]").is_err());
    }
}
