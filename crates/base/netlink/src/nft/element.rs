//! What is in a set?

use std::fmt;

use super::data_wire::{decode_name, decode_value, decode_verdict, encode_value, encode_verdict};
use super::expr::Verdict;
use super::name::Name;
use super::userdata::UserData;
use super::value::Value;
use super::wire;
use crate::netlink::{Attribute, Malformed, Message, Writer};

/// What an element's key leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Data {
    /// Nothing: the element of a set.
    #[default]
    None,
    Value(Value),
    Verdict(Verdict),
}

/// One element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    /// Its key, or the first key of its range.
    pub key: Value,
    /// The last key of its range, in sets of concatenated ranges.
    pub key_end: Option<Box<Value>>,
    /// What it leads to.
    pub data: Data,
    /// The key is the first one *after* a range, in sets of plain ranges.
    pub interval_end: bool,
    /// How long it lives, if not as long as its set says.
    pub timeout_ms: Option<u64>,
    /// How long it has still to live (only read).
    pub expires_ms: Option<u64>,
    pub userdata: UserData,
}

impl Element {
    /// The element of a set.
    pub fn new(key: Value) -> Self {
        Self {
            key,
            key_end: None,
            data: Data::None,
            interval_end: false,
            timeout_ms: None,
            expires_ms: None,
            userdata: UserData::default(),
        }
    }

    /// The element of a map.
    pub fn mapping(key: Value, data: Value) -> Self {
        Self {
            data: Data::Value(data),
            ..Self::new(key)
        }
    }

    /// The most bytes this element takes in a message.
    pub(super) fn encoded_len(&self) -> usize {
        let value = |value: &Value| value.len().next_multiple_of(4) + 8;
        let data = match &self.data {
            Data::None => 0,
            Data::Value(data) => value(data),
            Data::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => chain.as_str().len() + 24,
            Data::Verdict(_) => 16,
        };
        let end = self.key_end.as_deref().map_or(0, value);
        // Headers of the element, flags and timeout.
        4 + value(&self.key) + end + data + 8 + 12 + self.userdata.0.len() + 8
    }

    /// Writes the element as one of a list.
    pub fn encode(&self, list: &mut Writer) {
        list.nest(wire::LIST_ELEM, |elem| {
            if self.interval_end {
                elem.u32_be(wire::element::FLAGS, wire::element::FLAG_INTERVAL_END);
            }
            if let Some(timeout) = self.timeout_ms {
                elem.u64_be(wire::element::TIMEOUT, timeout);
            }
            encode_value(elem, wire::element::KEY, &self.key);
            if let Some(end) = &self.key_end {
                encode_value(elem, wire::element::KEY_END, end);
            }
            match &self.data {
                Data::None => {}
                Data::Value(value) => encode_value(elem, wire::element::DATA, value),
                Data::Verdict(verdict) => encode_verdict(elem, wire::element::DATA, verdict),
            }
            if !self.userdata.is_empty() {
                elem.bytes_attribute(wire::element::USERDATA, &self.userdata.0);
            }
        });
    }

    fn decode(attribute: &Attribute<'_>) -> Result<Self, Malformed> {
        let mut element = Self::new(Value::EMPTY);
        for part in attribute.nested() {
            let part = part?;
            match part.kind {
                wire::element::KEY => element.key = decode_value(&part)?,
                wire::element::KEY_END => element.key_end = Some(Box::new(decode_value(&part)?)),
                wire::element::DATA => element.data = decode_data(&part)?,
                wire::element::FLAGS => {
                    element.interval_end = part.u32_be()? & wire::element::FLAG_INTERVAL_END != 0;
                }
                wire::element::TIMEOUT => element.timeout_ms = Some(part.u64_be()?),
                wire::element::EXPIRATION => element.expires_ms = Some(part.u64_be()?),
                wire::element::USERDATA => element.userdata = UserData(part.value.into()),
                _ => {}
            }
        }
        Ok(element)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        if let Some(end) = &self.key_end {
            write!(f, "-{end}")?;
        }
        if self.interval_end {
            f.write_str(" (end)")?;
        }
        match &self.data {
            Data::None => Ok(()),
            Data::Value(value) => write!(f, " : {value}"),
            Data::Verdict(verdict) => write!(f, " : {verdict}"),
        }
    }
}

fn decode_data(attribute: &Attribute<'_>) -> Result<Data, Malformed> {
    let is_verdict = attribute
        .nested()
        .any(|part| part.is_ok_and(|part| part.kind == wire::data::VERDICT));
    if is_verdict {
        // A verdict that is none of ours must not pass for one that is.
        decode_verdict(attribute)?
            .map(Data::Verdict)
            .ok_or(Malformed("an element has an unknown verdict"))
    } else {
        decode_value(attribute).map(Data::Value)
    }
}

/// The elements of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementList {
    pub table: Name,
    pub set: Name,
    /// Some of its elements.
    pub elements: Vec<Element>,
}

impl ElementList {
    /// Reads a message of a dump.
    pub fn decode(message: &Message<'_>) -> Result<Self, Malformed> {
        let (mut table, mut set, mut elements) = (None, None, Vec::new());
        for attribute in message.attributes()? {
            let attribute = attribute?;
            match attribute.kind {
                wire::element::LIST_TABLE => table = Some(decode_name(&attribute)?),
                wire::element::LIST_SET => set = Some(decode_name(&attribute)?),
                wire::element::LIST_ELEMENTS => {
                    for element in attribute.nested() {
                        elements.push(Element::decode(&element?)?);
                    }
                }
                _ => {}
            }
        }
        Ok(Self {
            table: table.ok_or(Malformed("elements without a table"))?,
            set: set.ok_or(Malformed("elements without a set"))?,
            elements,
        })
    }
}
