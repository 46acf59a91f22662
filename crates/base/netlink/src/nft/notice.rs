//! What does the kernel say to everybody when somebody commits?

use super::data_wire::decode_name;
use super::element::ElementList;
use super::name::{Family, Name};
use super::value::Value;
use super::wire::{self, msg};
use crate::netlink::{Malformed, Message};

/// A part of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub family: Family,
    pub table: Name,
    pub touched: Touched,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// A chain, or one of its rules.
    Chain(Name),
    /// Elements of a set or map.
    Elements { set: Name, keys: Vec<Value> },
    /// The whole table, or a part of it that cannot be named.
    Table,
    /// A set without regard to its elements.
    Set,
}

impl Notice {
    /// Reads a message; `None` for what concerns no table of a family that we know, such as the end of a commit.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        let Some(family) = Family::from_number(message.family()?) else {
            return Ok(None);
        };
        if message.kind >> 8 != wire::SUBSYSTEM {
            return Ok(None);
        }
        // The first attribute of each names the table, and the next but one, or the next, what is in it.
        let of = |kind| name(message, kind);
        let (table, touched) = match message.kind & 0xff {
            msg::NEW_TABLE | msg::DEL_TABLE => (of(wire::table::NAME)?, Touched::Table),
            msg::NEW_CHAIN | msg::DEL_CHAIN => (of(wire::chain::TABLE)?, chain(of(wire::chain::NAME)?)),
            msg::NEW_RULE | msg::DEL_RULE => (of(wire::rule::TABLE)?, chain(of(wire::rule::CHAIN)?)),
            msg::NEW_SET | msg::DEL_SET => (of(wire::set::TABLE)?, Touched::Set),
            msg::NEW_ELEMENTS | msg::DEL_ELEMENTS => (of(wire::element::LIST_TABLE)?, elements(message)),
            _ => return Ok(None),
        };
        let table = table.ok_or(Malformed("a notice without a table"))?;
        Ok(Some(Self {
            family,
            table,
            touched,
        }))
    }
}

fn name(message: &Message<'_>, kind: u16) -> Result<Option<Name>, Malformed> {
    for attribute in message.attributes()? {
        let attribute = attribute?;
        if attribute.kind == kind {
            return decode_name(&attribute).map(Some);
        }
    }
    Ok(None)
}

fn chain(name: Option<Name>) -> Touched {
    name.map_or(Touched::Table, Touched::Chain)
}

/// Elements that we have no types for may be any.
fn elements(message: &Message<'_>) -> Touched {
    match ElementList::decode(message) {
        Ok(list) => Touched::Elements {
            set: list.set,
            keys: list.elements.into_iter().map(|element| element.key).collect(),
        },
        Err(_) => Touched::Table,
    }
}
