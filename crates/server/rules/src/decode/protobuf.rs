//! What does a protobuf body hold, said in JSON?
//!
//! Go's typed clients send protobuf and do not fall back to JSON. A body is four magic bytes and an
//! envelope that names the kind and carries the object; the schema knows the field numbers. The
//! outcome is the object that the same client would have sent as JSON, so nothing after this point
//! has to know how it came. Lists and maps are the exception: protobuf cannot tell an empty one from
//! none.
//!
//! Lengths are checked against the bytes that are there before anything is allocated, and depth and
//! weight of values are bounded, because a few bytes of protobuf can stand for many of memory.

mod leaf;
mod reader;

use super::path::{Path, Step};
use super::text::Notes;
use super::{Decoded, MAX_DEPTH, MAX_STRICT_ERRORS, StrictError, invalid};
use crate::schema::{Field, Member, ObjectType, ProtobufField, Scalar, Shape, embedded_at};
use crate::status::ApiError;
use reader::{Entry, Malformed, Payload, Reader};
use serde_json::{Map, Value};

/// The first bytes of every body.
const MAGIC: &[u8] = b"k8s\0";

/// The media type, where the envelope names one.
const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Reads a body that should hold a `shape`.
///
/// Field types follow the schema; ranges and spellings are left to the check of the object.
pub(super) fn read(body: &[u8], shape: &ObjectType) -> Result<Decoded, ApiError> {
    let malformed = |error: Malformed| invalid("protobuf", &error);
    let envelope = Envelope::read(body).map_err(malformed)?;
    envelope.expect(shape)?;
    let mut decoder = Decoder::default();
    let mut object = Map::new();
    decoder
        .message(envelope.raw, shape, None, &Path::ROOT, &mut object)
        .map_err(|error| decoder.notes.memory.refusal("protobuf", &error))?;
    for (name, value) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
        if !value.is_empty() {
            object.insert(name.to_owned(), Value::from(value));
        }
    }
    Ok(Decoded {
        object: Value::Object(object),
        strict: decoder.strict,
    })
}

/// Upstream's `runtime.Unknown`.
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    raw: Reader<'a>,
}

impl<'a> Envelope<'a> {
    fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        if !body.starts_with(MAGIC) {
            return Err(reader.malformed("it does not start with the bytes of the envelope"));
        }
        reader.skip(MAGIC.len());
        let mut envelope = Envelope {
            api_version: "",
            kind: "",
            raw: reader.empty(),
        };
        while let Some(entry) = reader.next()? {
            match entry.number {
                1 => envelope.read_type(entry.message()?)?,
                2 => envelope.raw = entry.message()?,
                3 if !entry.text()?.is_empty() => return Err(entry.malformed("it is compressed")),
                4 if !matches!(entry.text()?, "" | MEDIA_TYPE) => {
                    return Err(entry.malformed("the envelope holds another format"));
                }
                _ => {}
            }
        }
        Ok(envelope)
    }

    fn read_type(&mut self, mut reader: Reader<'a>) -> Result<(), Malformed> {
        while let Some(entry) = reader.next()? {
            match entry.number {
                1 => self.api_version = entry.text()?,
                2 => self.kind = entry.text()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses an object of another kind, whose numbers would be read as the wrong fields.
    fn expect(&self, shape: &ObjectType) -> Result<(), ApiError> {
        let Some(served) = shape.served_as else {
            return Ok(());
        };
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", self.api_version));
        let same_version = (group, version) == (served.group, served.version);
        // Upstream has DeleteOptions in every group, and clients name the group of what they delete.
        let version_fits = self.api_version.is_empty() || same_version || served.kind == "DeleteOptions";
        let kind_fits = self.kind.is_empty() || self.kind == served.kind;
        if version_fits && kind_fits {
            return Ok(());
        }
        Err(ApiError::BadRequest(format!(
            "{} in version {:?} cannot be handled as a {} in version {:?}",
            self.kind, self.api_version, served.kind, served.version
        )))
    }
}

/// What is gathered while an object is read.
#[derive(Default)]
struct Decoder {
    strict: Vec<StrictError>,
    /// Keys that are twice in embedded JSON are the client's own business, as they are upstream: nobody reads them.
    notes: Notes,
    depth: usize,
}

impl Decoder {
    /// Adds the fields of a message to `object`; `within` is the field it is embedded at, if it is.
    fn message(
        &mut self,
        mut reader: Reader<'_>,
        shape: &ObjectType,
        within: Option<u32>,
        path: &Path<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), Malformed> {
        self.descend(&reader)?;
        while let Some(entry) = reader.next()? {
            match shape.member(within, entry.number) {
                Some(Member::Field(field, place)) => self.field(&entry, field, place, path, object)?,
                Some(Member::Embedded) => {
                    let at = Some(embedded_at(within, entry.number));
                    self.message(entry.message()?, shape, at, path, object)?;
                }
                None => self.unknown(&entry, path),
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn field(
        &mut self,
        entry: &Entry<'_>,
        field: &Field,
        place: ProtobufField,
        path: &Path<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), Malformed> {
        let here = path.then(Step::Field(field.name));
        if matches!(field.shape, Shape::List(_) | Shape::Map(_)) {
            let held = object.entry(field.name).or_insert(Value::Null);
            return self.add_to(held, entry, &field.shape, &here);
        }
        let value = self.value(entry, &field.shape, &here)?;
        let unset = value.is_null() || (!place.zero_counts && is_plain_zero(&value, &field.shape));
        let previous = if unset {
            object.remove(field.name)
        } else {
            object.insert(field.name.to_owned(), value)
        };
        if previous.is_some() {
            self.report(|| StrictError::Duplicate(here.to_string()));
        }
        Ok(())
    }

    /// Adds what an entry of a repeated field holds to a list or map.
    fn add_to(
        &mut self,
        held: &mut Value,
        entry: &Entry<'_>,
        shape: &Shape,
        path: &Path<'_>,
    ) -> Result<(), Malformed> {
        match shape {
            Shape::List(item) => {
                if held.is_null() {
                    *held = Value::Array(Vec::new());
                }
                let Value::Array(items) = held else {
                    return Err(entry.malformed("it is both a list and something else"));
                };
                if let Some(mut packed) = packed(entry, item) {
                    while let Some(number) = packed.next_packed()? {
                        items.push(self.value(&number, item, path)?);
                    }
                } else {
                    let value = self.value(entry, item, &path.then(Step::Index(items.len())))?;
                    items.push(value);
                }
            }
            Shape::Map(inner) => {
                if held.is_null() {
                    self.notes.memory.map().map_err(|why| entry.malformed(&why))?;
                    *held = Value::Object(Map::new());
                }
                let Value::Object(map) = held else {
                    return Err(entry.malformed("it is both a map and something else"));
                };
                let (key, value) = self.map_entry(entry, inner, path)?;
                map.insert(key, value);
            }
            Shape::Scalar(_) | Shape::Object(_) | Shape::Any => {
                *held = self.value(entry, shape, path)?;
            }
        }
        Ok(())
    }

    /// A map is a list of messages with the key in field 1 and the value in field 2.
    fn map_entry(
        &mut self,
        entry: &Entry<'_>,
        shape: &Shape,
        path: &Path<'_>,
    ) -> Result<(String, Value), Malformed> {
        let mut key = String::new();
        let mut value = None;
        let mut reader = entry.message()?;
        while let Some(part) = reader.next()? {
            match part.number {
                1 => part.text()?.clone_into(&mut key),
                2 => value = Some(self.value(&part, shape, &path.then(Step::Key(&key)))?),
                _ => self.unknown(&part, path),
            }
        }
        // A null becomes the empty value of its type when the object is checked.
        Ok((key, value.unwrap_or(Value::Null)))
    }

    /// One value; null for a time that is not set.
    fn value(&mut self, entry: &Entry<'_>, shape: &Shape, path: &Path<'_>) -> Result<Value, Malformed> {
        let memory = &self.notes.memory;
        let weighed = match shape {
            Shape::Object(_) => memory.value().and_then(|()| memory.map()),
            _ => memory.value(),
        };
        weighed.map_err(|why| entry.malformed(&why))?;
        match shape {
            Shape::Scalar(scalar) => leaf::scalar(entry, *scalar),
            Shape::Any => leaf::json(entry, MAX_DEPTH.saturating_sub(self.depth), &self.notes),
            Shape::Object(index) => {
                let mut object = Map::new();
                let shape = index.get();
                self.message(entry.message()?, shape, None, path, &mut object)?;
                if shape.union {
                    // The flag of "a schema or a flag" is always written, so what is called so counts first.
                    let schema = object.remove("schema");
                    let other = object.into_iter().next().map(|(_, value)| value);
                    return Ok(schema.or(other).unwrap_or(Value::Null));
                }
                Ok(Value::Object(object))
            }
            // A list or map that is itself an item is wrapped in a message that has it in field 1.
            Shape::List(_) | Shape::Map(_) => {
                let mut held = Value::Null;
                let mut reader = entry.message()?;
                self.descend(&reader)?;
                while let Some(part) = reader.next()? {
                    match part.number {
                        1 => self.add_to(&mut held, &part, shape, path)?,
                        _ => self.unknown(&part, path),
                    }
                }
                self.depth -= 1;
                Ok(held)
            }
        }
    }

    fn descend(&mut self, reader: &Reader<'_>) -> Result<(), Malformed> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(reader.malformed(&format!("it is nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(())
    }

    /// Older clients still write the zeros of fields that upstream has removed since: not worth a word.
    fn unknown(&mut self, entry: &Entry<'_>, path: &Path<'_>) {
        if !entry.is_zero() {
            self.report(|| StrictError::UnknownNumber(entry.number, path.to_string()));
        }
    }

    fn report(&mut self, error: impl FnOnce() -> StrictError) {
        if self.strict.len() < MAX_STRICT_ERRORS {
            self.strict.push(error());
        }
    }
}

/// Whether this is the zero of a type that Go writes as it is, not as a message.
fn is_plain_zero(value: &Value, shape: &Shape) -> bool {
    let Shape::Scalar(scalar) = shape else {
        return false;
    };
    match scalar {
        Scalar::String | Scalar::Bytes => value.as_str() == Some(""),
        Scalar::Int32 | Scalar::Int64 => value.as_i64() == Some(0),
        Scalar::Bool => value.as_bool() == Some(false),
        Scalar::Double => value.as_f64() == Some(0.0),
        Scalar::Time | Scalar::MicroTime | Scalar::Quantity | Scalar::IntOrString => false,
    }
}

/// The numbers of a list that came in one piece, which writers may do and Go's do not.
fn packed<'a>(entry: &Entry<'a>, item: &Shape) -> Option<Reader<'a>> {
    let numbers = matches!(item, Shape::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Bool));
    match entry.payload {
        Payload::Bytes(reader) if numbers => Some(reader),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
