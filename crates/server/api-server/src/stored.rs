//! What bytes does the store hold, and how do they become what clients see?
//!
//! A stored object is plain JSON without `metadata.resourceVersion`, because its revision is known
//! only once it is committed. It always starts with the same head for its kind,
//! `{"kind":"Pod","apiVersion":"v1","metadata":{`, so the resource version is spliced in by a copy and
//! no object is ever parsed just to be sent.
//!
//! What is kept in memory is the whole watch line of the object, so that one encoding serves every
//! watcher, and `get` and `list` take slices of it.

use bytes::{BufMut, Bytes, BytesMut};
use pointsman_rules::Kind;
use pointsman_store::Revision;
use serde_json::{Map, Value};

/// The start of every stored object of `kind`.
pub fn head(kind: &Kind) -> String {
    format!(
        r#"{{"kind":"{}","apiVersion":"{}","metadata":{{"#,
        kind.kind,
        kind.api_version()
    )
}

/// The bytes to store for `object`. Its kind, apiVersion and resourceVersion are taken from `kind`
/// and from the commit, whatever the object says.
pub fn encode(kind: &Kind, object: &Value) -> Bytes {
    let empty = Map::new();
    let fields = object.as_object().unwrap_or(&empty);
    let metadata = fields
        .get("metadata")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(head(kind).as_bytes());
    put_fields(
        &mut out,
        metadata.iter().filter(|(name, _)| *name != "resourceVersion"),
    );
    out.push(b'}');
    let rest = fields
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "kind" | "apiVersion" | "metadata"));
    for (name, value) in rest {
        out.push(b',');
        put_fields(&mut out, std::iter::once((name, value)));
    }
    out.push(b'}');
    // The store keeps recent values in memory, and counts what they hold and not what they were given room for.
    Bytes::from(out.into_boxed_slice())
}

fn put_fields<'a>(out: &mut Vec<u8>, fields: impl Iterator<Item = (&'a String, &'a Value)>) {
    for (at, (name, value)) in fields.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        serde_json::to_writer(&mut *out, name).expect("writing a string to memory");
        out.push(b':');
        serde_json::to_writer(&mut *out, value).expect("writing JSON to memory");
    }
}

/// Why stored bytes cannot be shown.
#[derive(Debug, thiserror::Error)]
#[error("stored bytes do not start with {expected:?}")]
pub struct ForeignBytes {
    expected: String,
}

/// What follows the head of a custom resource that was stored when another version was the stored one: versions differ
/// in nothing else.
fn other_version<'a>(kind: &Kind, stored: &'a [u8]) -> Option<&'a [u8]> {
    kind.defined?;
    let start = format!(r#"{{"kind":"{}","apiVersion":"{}/"#, kind.kind, kind.group);
    let rest = stored.strip_prefix(start.as_bytes())?;
    let version = rest.iter().position(|byte| *byte == b'"')?;
    rest[version..].strip_prefix(br#"","metadata":{"#)
}

/// The kind of change that a watch line announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The object entered the watched set.
    Added,
    /// The object changed within the watched set.
    Modified,
    /// The object left the watched set.
    Deleted,
}

impl EventType {
    /// The spelling on the wire.
    pub fn name(self) -> &'static str {
        match self {
            EventType::Added => "ADDED",
            EventType::Modified => "MODIFIED",
            EventType::Deleted => "DELETED",
        }
    }

    /// What stands before the object in a watch line.
    pub fn line_start(self) -> &'static str {
        match self {
            EventType::Added => r#"{"type":"ADDED","object":"#,
            EventType::Modified => r#"{"type":"MODIFIED","object":"#,
            EventType::Deleted => r#"{"type":"DELETED","object":"#,
        }
    }
}

/// What stands after the object in a watch line.
pub const LINE_END: &str = "}\n";

/// An object ready to be sent, alone or as a watch line.
#[derive(Clone, Debug)]
pub struct Encoded {
    line: Bytes,
    event: EventType,
}

impl Encoded {
    /// Splices `revision` into stored bytes and wraps them into a watch line of type `event`.
    pub fn new(
        kind: &Kind,
        stored: &[u8],
        revision: Revision,
        event: EventType,
    ) -> Result<Self, ForeignBytes> {
        let head = head(kind);
        let rest = stored
            .strip_prefix(head.as_bytes())
            .or_else(|| other_version(kind, stored));
        let Some(rest) = rest else {
            return Err(ForeignBytes { expected: head });
        };
        let comma = if rest.starts_with(b"}") { "" } else { "," };
        let version = format!(r#""resourceVersion":"{revision}"{comma}"#);
        let start = event.line_start();
        // As large as it gets, and no larger: it is kept as long as the object.
        let line = [
            start.as_bytes(),
            head.as_bytes(),
            version.as_bytes(),
            rest,
            LINE_END.as_bytes(),
        ]
        .concat();
        Ok(Self {
            line: line.into(),
            event,
        })
    }

    /// The object's JSON, with its resource version.
    pub fn object(&self) -> Bytes {
        self.line
            .slice(self.event.line_start().len()..self.line.len() - LINE_END.len())
    }

    /// The object's JSON as if it had been written at `revision`: what a watcher is shown when an
    /// object leaves its selection.
    pub fn object_at(&self, kind: &Kind, revision: Revision) -> Bytes {
        let object = self.object();
        let start = head(kind).len() + r#""resourceVersion":""#.len();
        let digits = object[start..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let mut out = BytesMut::with_capacity(object.len() + 8);
        out.put_slice(&object[..start]);
        out.put_slice(revision.to_string().as_bytes());
        out.put_slice(&object[start + digits..]);
        out.freeze()
    }

    /// The whole watch line, if it is of type `event`.
    pub fn line(&self, event: EventType) -> Option<Bytes> {
        (event == self.event).then(|| self.line.clone())
    }

    pub fn size(&self) -> usize {
        self.line.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pods() -> &'static Kind {
        &pointsman_rules::kinds::POD
    }

    #[test]
    fn the_resource_version_is_spliced_into_the_stored_bytes() {
        let object =
            json!({"kind": "X", "metadata": {"name": "a", "resourceVersion": "9"}, "spec": {"n": 1}});
        let stored = encode(pods(), &object);
        let encoded = Encoded::new(pods(), &stored, Revision(42), EventType::Added).unwrap();
        let shown: Value = serde_json::from_slice(&encoded.object()).unwrap();
        assert_eq!(
            shown,
            json!({"kind": "Pod", "apiVersion": "v1", "spec": {"n": 1},
                   "metadata": {"name": "a", "resourceVersion": "42"}})
        );
        let line = encoded.line(EventType::Added).unwrap();
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["type"], "ADDED");
        assert_eq!(line["object"], shown);
        assert!(encoded.line(EventType::Modified).is_none());
        let later: Value = serde_json::from_slice(&encoded.object_at(pods(), Revision(1234))).unwrap();
        assert_eq!(later["metadata"]["resourceVersion"], "1234");
        assert_eq!(later["spec"], shown["spec"]);
    }

    #[test]
    fn empty_metadata_stays_valid_json_and_foreign_bytes_are_refused() {
        let stored = encode(pods(), &json!({}));
        let encoded = Encoded::new(pods(), &stored, Revision(1), EventType::Added).unwrap();
        assert!(serde_json::from_slice::<Value>(&encoded.object()).is_ok());
        assert!(Encoded::new(pods(), b"k8s\0protobuf", Revision(1), EventType::Added).is_err());
    }
}
