//! What is a table?

use super::data_wire::decode_name;
use super::name::{Family, Name};
use super::userdata::UserData;
use super::wire;
use crate::netlink::{Malformed, Message, Writer};

/// A table: a namespace of chains and sets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Which packets it sees.
    pub family: Family,
    pub name: Name,
    pub userdata: UserData,
}

impl Table {
    /// A table without a comment.
    pub fn new(family: Family, name: Name) -> Self {
        Self {
            family,
            name,
            userdata: UserData::default(),
        }
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.text(wire::table::NAME, self.name.as_str());
        w.u32_be(wire::table::FLAGS, 0);
        if !self.userdata.is_empty() {
            w.bytes_attribute(wire::table::USERDATA, &self.userdata.0);
        }
    }

    /// Reads a message of a dump; `None` for families that are not ours.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        let Some(family) = Family::from_number(message.family()?) else {
            return Ok(None);
        };
        let mut name = None;
        let mut userdata = UserData::default();
        for attribute in message.attributes()? {
            let attribute = attribute?;
            match attribute.kind {
                wire::table::NAME => name = Some(decode_name(&attribute)?),
                wire::table::USERDATA => userdata = UserData(attribute.value.into()),
                _ => {}
            }
        }
        let name = name.ok_or(Malformed("a table without a name"))?;
        Ok(Some(Self {
            family,
            name,
            userdata,
        }))
    }
}
