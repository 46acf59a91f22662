//! How does an object look in the form the client asked for?

use crate::cache::object::Object;
use crate::http::negotiate::Form;
use crate::stored::{self, EventType, LINE_END};
use crate::work::Work;
use bytes::{BufMut, Bytes, BytesMut};
use jiff::Timestamp;
use pointsman_rules::table::{self, IncludeObject};
use pointsman_rules::{Kind, views};
use pointsman_store::Revision;
use serde_json::{Value, json};

/// What it costs to put an object that is ready into a list, compared with reading bytes.
const PER_PIECE: usize = 16;

/// Turns objects into bytes for one request.
#[derive(Clone, Debug)]
pub struct Renderer {
    /// The kind that the client asked for, which may be a view of the stored one.
    pub kind: &'static Kind,
    /// The form of the answer.
    pub form: Form,
    /// How much of the object goes into a table row.
    pub include: IncludeObject,
}

/// What a watcher is shown of a change.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Whether the object enters, changes within or leaves the watched set.
    pub event: EventType,
    /// The version that is shown.
    pub object: &'a Object,
    /// The revision under which an older version is shown.
    pub at: Option<Revision>,
}

impl Renderer {
    /// The object as it is, or as the asked-for view of it.
    pub fn value(&self, object: &Object) -> Value {
        self.view(object.value())
    }

    /// A stored value as the asked-for view of it.
    pub fn view(&self, mut value: Value) -> Value {
        views::show(self.kind, &mut value);
        value
    }

    /// One object alone.
    pub fn object(&self, object: &Object) -> Bytes {
        match self.form {
            _ if self.plain() => object.json(),
            _ => self.formed(self.value(object), Timestamp::now()),
        }
    }

    /// One object alone, by turns where it is large.
    pub async fn object_by_turns(&self, work: &Work, object: &Object) -> Bytes {
        work.on(self.cost(&[object]), || self.object(object)).await
    }

    /// About how many bytes are read and written to show these objects.
    pub fn cost<T: AsRef<Object>>(&self, objects: &[T]) -> usize {
        if self.plain() {
            return objects.len() * PER_PIECE;
        }
        objects.iter().map(|object| object.as_ref().size()).sum()
    }

    /// A value that may not be stored (a dry run, a subresource), in the form asked for.
    pub fn formed(&self, value: Value, now: Timestamp) -> Bytes {
        let value = match self.form {
            Form::Table(version) => {
                let metadata = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                let rows = std::iter::once(&value);
                in_version(
                    version,
                    table::table(self.kind, rows, self.include, metadata, now),
                )
            }
            Form::PartialMetadata => table::partial_metadata(&value),
            Form::Json | Form::AggregatedDiscovery => value,
        };
        to_bytes(&value)
    }

    /// A list of objects.
    ///
    /// Each is written as bytes before the next one is read, so that no more than one is in memory as values.
    pub fn list<T: AsRef<Object>>(&self, objects: &[T], metadata: Value) -> Vec<Bytes> {
        let now = Timestamp::now();
        let metadata_text = metadata.to_string();
        match self.form {
            Form::Table(version) => {
                let rows = objects.iter().map(|object| {
                    let value = self.value(object.as_ref());
                    to_bytes(&table::table_row(self.kind, &value, self.include, now))
                });
                let empty = table::table(self.kind, std::iter::empty(), self.include, metadata, now);
                let empty = in_version(version, empty).to_string();
                let head = empty.strip_suffix("]}").expect("rows come last");
                enclosed(head.to_owned(), rows, WHOLE)
            }
            Form::PartialMetadata => {
                let items = objects
                    .iter()
                    .map(|object| nameless(table::partial_metadata(&self.value(object.as_ref()))));
                let head = head("PartialObjectMetadataList", "meta.k8s.io/v1", &metadata_text);
                enclosed(head, items, WHOLE)
            }
            Form::Json | Form::AggregatedDiscovery => {
                let head = head(
                    &format!("{}List", self.kind.kind),
                    &self.kind.api_version(),
                    &metadata_text,
                );
                // Items do not repeat what the list says; those of custom resources do, as upstream's.
                match (self.kind.custom, self.kind.stored_as) {
                    (true, None) => {
                        enclosed(head, objects.iter().map(|object| object.as_ref().json()), WHOLE)
                    }
                    (true, Some(_)) => {
                        let items = objects
                            .iter()
                            .map(|object| to_bytes(&self.value(object.as_ref())));
                        enclosed(head, items, WHOLE)
                    }
                    (false, None) => {
                        let start = stored::head(self.kind).len() - METADATA.len();
                        let items = objects.iter().map(|object| object.as_ref().json().slice(start..));
                        enclosed(head, items, WITHOUT_BRACE)
                    }
                    (false, Some(_)) => {
                        let items = objects.iter().map(|object| nameless(self.value(object.as_ref())));
                        enclosed(head, items, WHOLE)
                    }
                }
            }
        }
    }

    /// A watch line. `first` is whether no line was sent before (tables name their columns once).
    pub fn line(&self, shown: &Shown<'_>, first: bool, out: &mut BytesMut) {
        let json = match shown.at {
            None => shown.object.json(),
            Some(revision) => shown.object.json_at(revision),
        };
        out.put_slice(shown.event.line_start().as_bytes());
        if self.plain() {
            out.put(json);
        } else {
            let value = self.view(serde_json::from_slice(&json).expect("checked when it was read"));
            let value = match self.form {
                Form::Table(version) => {
                    let now = Timestamp::now();
                    let table = table::table_event_object(self.kind, &value, self.include, first, now);
                    in_version(version, table)
                }
                Form::PartialMetadata => table::partial_metadata(&value),
                Form::Json | Form::AggregatedDiscovery => value,
            };
            out.put(to_bytes(&value));
        }
        out.put_slice(LINE_END.as_bytes());
    }

    /// The ready-made line of a change, where nothing has to be rendered.
    pub fn ready_line(&self, shown: &Shown<'_>) -> Option<Bytes> {
        if self.plain() && shown.at.is_none() {
            shown.object.line(shown.event)
        } else {
            None
        }
    }

    /// Whether objects are shown as they are kept.
    pub fn plain(&self) -> bool {
        self.form == Form::Json && self.kind.stored_as.is_none()
    }

    /// A bookmark line: nothing but a resource version.
    pub fn bookmark(&self, revision: Revision, initial_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.form {
            // The row's object carries the annotation.
            Form::Table(version) => {
                let object = json!({"metadata": metadata});
                let now = Timestamp::now();
                in_version(
                    version,
                    table::table_event_object(self.kind, &object, self.include, false, now),
                )
            }
            Form::PartialMetadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            _ => json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata}),
        };
        Bytes::from(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n"))
    }
}

fn in_version(version: &str, mut table: Value) -> Value {
    table["apiVersion"] = version.into();
    table
}

/// The start of a list, up to its items.
fn head(kind: &str, api_version: &str, metadata: &str) -> String {
    format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#)
}

/// An item that leaves what it is to its list.
fn nameless(mut item: Value) -> Bytes {
    if let Some(fields) = item.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    to_bytes(&item)
}

/// Where an object's own fields begin, after the head that names it.
const METADATA: &str = r#""metadata":{"#;

/// What stands before the first item of a list, and before the others.
type Separators = [&'static str; 2];
const WHOLE: Separators = ["", ","];
const WITHOUT_BRACE: Separators = ["{", ",{"];

/// The items of a list between its head and its end.
fn enclosed(
    mut head: String,
    items: impl ExactSizeIterator<Item = Bytes>,
    [first, others]: Separators,
) -> Vec<Bytes> {
    let mut pieces = Vec::with_capacity(items.len() * 2 + 2);
    if items.len() > 0 {
        head.push_str(first);
    }
    pieces.push(Bytes::from(head));
    for (at, item) in items.enumerate() {
        if at > 0 {
            pieces.push(Bytes::from_static(others.as_bytes()));
        }
        pieces.push(item);
    }
    pieces.push(Bytes::from_static(b"]}\n"));
    pieces
}

fn to_bytes(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("JSON values serialize"))
}
