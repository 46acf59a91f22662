//! What is a set or a map?

use std::ops::BitOr;

use super::data_wire::decode_name;
use super::field::{Field, TypeId};
use super::name::Name;
use super::userdata::{UserData, push_comment, push_number, push_record};
use super::wire;
use crate::netlink::{Attribute, Malformed, Message, Writer};

/// Properties of a set, a bit mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetFlags(pub u32);

impl SetFlags {
    /// Keys are ranges.
    pub const INTERVAL: Self = Self(0x4);
    /// It maps keys to data.
    pub const MAP: Self = Self(0x8);
    /// Elements may expire.
    pub const TIMEOUT: Self = Self(0x10);
    /// Packets may add elements.
    pub const DYNAMIC: Self = Self(0x20);
    /// Keys are concatenations of ranges.
    pub const CONCAT: Self = Self(0x80);

    /// Whether all of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for SetFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a map's keys lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataSpec {
    /// Nothing: it is a set.
    None,
    Value {
        /// Its type number.
        kind: TypeId,
        /// Its length in bytes.
        len: u32,
    },
    /// A verdict. Every element added to such a map makes the kernel validate the whole table, which costs
    /// time proportional to its elements; do not use it for state that changes.
    Verdict,
}

/// A set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set {
    pub name: Name,
    pub flags: SetFlags,
    /// The key's type number.
    pub key_type: TypeId,
    /// The key's length in bytes.
    pub key_len: u32,
    /// The lengths of the key's components, for sets of concatenated ranges.
    pub key_fields: Box<[u32]>,
    /// What it maps to.
    pub data: DataSpec,
    /// The largest number of elements, if limited.
    pub size: Option<u32>,
    /// How long an element lives unless it says otherwise.
    pub timeout_ms: Option<u64>,
    /// The types as `nft` prints them, and the comment.
    pub userdata: UserData,
}

/// User data records of sets.
mod record {
    pub const KEY_BYTE_ORDER: u8 = 0;
    pub const DATA_BYTE_ORDER: u8 = 1;
    pub const KEY_TYPEOF: u8 = 3;
    pub const DATA_TYPEOF: u8 = 4;
    pub const COMMENT: u8 = 7;
}

impl Set {
    /// A set of keys of these components.
    pub fn new(name: Name, key: &[Field], comment: &str) -> Self {
        Self::build(name, key, &[], SetFlags::default(), comment)
    }

    /// A set of ranges. With several components each of them is a range.
    pub fn interval(name: Name, key: &[Field], comment: &str) -> Self {
        let mut set = Self::build(name, key, &[], SetFlags::INTERVAL, comment);
        if key.len() > 1 {
            set.flags = set.flags | SetFlags::CONCAT;
            set.key_fields = key.iter().map(|field| field.len() as u32).collect();
        }
        set
    }

    /// A map from keys to values.
    pub fn map(name: Name, key: &[Field], data: &[Field], comment: &str) -> Self {
        Self::build(name, key, data, SetFlags::MAP, comment)
    }

    /// A map that packets fill and time empties.
    pub fn dynamic_map(
        name: Name,
        key: &[Field],
        data: &[Field],
        size: u32,
        timeout_ms: u64,
        comment: &str,
    ) -> Self {
        let flags = SetFlags::MAP | SetFlags::TIMEOUT | SetFlags::DYNAMIC;
        let mut set = Self::build(name, key, data, flags, comment);
        set.size = Some(size);
        set.timeout_ms = Some(timeout_ms);
        set
    }

    fn build(name: Name, key: &[Field], data: &[Field], flags: SetFlags, comment: &str) -> Self {
        let mut blob = Vec::new();
        push_number(&mut blob, record::KEY_BYTE_ORDER, Field::byte_order(key));
        if !data.is_empty() {
            push_number(&mut blob, record::DATA_BYTE_ORDER, Field::byte_order(data));
        }
        push_record(&mut blob, record::KEY_TYPEOF, &Field::describe(key));
        if !data.is_empty() {
            push_record(&mut blob, record::DATA_TYPEOF, &Field::describe(data));
        }
        if !comment.is_empty() {
            push_comment(&mut blob, record::COMMENT, comment);
        }
        let data = if data.is_empty() {
            DataSpec::None
        } else {
            DataSpec::Value {
                kind: Field::concatenated(data),
                len: Field::concatenated_len(data),
            }
        };
        Self {
            name,
            flags,
            key_type: Field::concatenated(key),
            key_len: Field::concatenated_len(key),
            key_fields: Box::default(),
            data,
            size: None,
            timeout_ms: None,
            userdata: UserData(blob.into()),
        }
    }

    /// Writes the set; `id` tells sets of one batch apart.
    pub(super) fn encode(&self, table: &Name, id: u32, w: &mut Writer) {
        w.text(wire::set::TABLE, table.as_str());
        w.text(wire::set::NAME, self.name.as_str());
        w.u32_be(wire::set::FLAGS, self.flags.0);
        w.u32_be(wire::set::KEY_TYPE, self.key_type.0);
        w.u32_be(wire::set::KEY_LEN, self.key_len);
        match self.data {
            DataSpec::None => {}
            DataSpec::Value { kind, len } => {
                w.u32_be(wire::set::DATA_TYPE, kind.0);
                w.u32_be(wire::set::DATA_LEN, len);
            }
            DataSpec::Verdict => {
                w.u32_be(wire::set::DATA_TYPE, wire::set::VERDICT_TYPE);
                w.u32_be(wire::set::DATA_LEN, 0);
            }
        }
        w.u32_be(wire::set::ID, id);
        if self.size.is_some() || !self.key_fields.is_empty() {
            w.nest(wire::set::DESC, |desc| self.encode_description(desc));
        }
        if let Some(timeout) = self.timeout_ms {
            w.u64_be(wire::set::TIMEOUT, timeout);
        }
        if !self.userdata.is_empty() {
            w.bytes_attribute(wire::set::USERDATA, &self.userdata.0);
        }
    }

    fn encode_description(&self, desc: &mut Writer) {
        if let Some(size) = self.size {
            desc.u32_be(wire::set::DESC_SIZE, size);
        }
        if !self.key_fields.is_empty() {
            desc.nest(wire::set::DESC_CONCAT, |concat| {
                for len in &self.key_fields {
                    concat.nest(wire::LIST_ELEM, |field| field.u32_be(wire::set::FIELD_LEN, *len));
                }
            });
        }
    }

    /// Reads a message of a dump: the table's name and the set.
    pub fn decode(message: &Message<'_>) -> Result<(Name, Self), Malformed> {
        let (mut table, mut name, mut data_type, mut data_len) = (None, None, None, 0);
        let mut set = Self {
            name: Name::fixed("?"),
            flags: SetFlags::default(),
            key_type: TypeId(0),
            key_len: 0,
            key_fields: Box::default(),
            data: DataSpec::None,
            size: None,
            timeout_ms: None,
            userdata: UserData::default(),
        };
        for attribute in message.attributes()? {
            let attribute = attribute?;
            match attribute.kind {
                wire::set::TABLE => table = Some(decode_name(&attribute)?),
                wire::set::NAME => name = Some(decode_name(&attribute)?),
                wire::set::FLAGS => set.flags = SetFlags(attribute.u32_be()?),
                wire::set::KEY_TYPE => set.key_type = TypeId(attribute.u32_be()?),
                wire::set::KEY_LEN => set.key_len = attribute.u32_be()?,
                wire::set::DATA_TYPE => data_type = Some(attribute.u32_be()?),
                wire::set::DATA_LEN => data_len = attribute.u32_be()?,
                wire::set::DESC => set.decode_description(&attribute)?,
                wire::set::TIMEOUT => set.timeout_ms = Some(attribute.u64_be()?),
                wire::set::USERDATA => set.userdata = UserData(attribute.value.into()),
                _ => {}
            }
        }
        set.name = name.ok_or(Malformed("a set without a name"))?;
        set.data = match data_type {
            None => DataSpec::None,
            Some(wire::set::VERDICT_TYPE) => DataSpec::Verdict,
            Some(kind) => DataSpec::Value {
                kind: TypeId(kind),
                len: data_len,
            },
        };
        Ok((table.ok_or(Malformed("a set without a table"))?, set))
    }

    fn decode_description(&mut self, attribute: &Attribute<'_>) -> Result<(), Malformed> {
        for part in attribute.nested() {
            let part = part?;
            match part.kind {
                wire::set::DESC_SIZE => self.size = Some(part.u32_be()?),
                wire::set::DESC_CONCAT => {
                    let mut fields = Vec::new();
                    for field in part.nested() {
                        for len in field?.nested() {
                            fields.push(len?.u32_be()?);
                        }
                    }
                    self.key_fields = fields.into();
                }
                _ => {}
            }
        }
        Ok(())
    }
}
