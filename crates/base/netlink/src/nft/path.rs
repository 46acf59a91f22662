//! Which attribute does an offset in an error reply point at?

use super::wire::{SUBSYSTEM, msg};
use crate::netlink::{HEADER_LEN, NETFILTER_HEADER_LEN};

/// The way from a message down to one attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The attributes' names, outermost first.
    pub text: String,
    /// The position in a list of elements, if the way goes through one.
    pub element: Option<usize>,
}

impl Path {
    /// Finds the innermost attribute that starts at or contains `offset` in the message.
    pub fn locate(message: &[u8], offset: usize) -> Option<Self> {
        let kind = u16::from_ne_bytes([*message.get(4)?, *message.get(5)?]);
        if kind >> 8 != SUBSYSTEM {
            return None;
        }
        let mut level = Level::of_message(kind & 0xff);
        let mut names: Vec<String> = Vec::new();
        let mut element = None;
        let (mut start, mut end) = (HEADER_LEN + NETFILTER_HEADER_LEN, message.len());
        while let Some((position, at, length, number)) = find(message, start, end, offset) {
            if level == Level::Elements {
                element = Some(position);
            }
            names.push(level.name(number, position));
            if at == offset {
                break;
            }
            level = level.below(number);
            (start, end) = (at + 4, at + length);
        }
        (!names.is_empty()).then(|| Self {
            text: names.join("/"),
            element,
        })
    }
}

/// The attribute between `start` and `end` that covers `offset`: its position, start, length and number.
fn find(message: &[u8], start: usize, end: usize, offset: usize) -> Option<(usize, usize, usize, u16)> {
    let mut at = start;
    for position in 0.. {
        let head = message.get(at..at + 4).filter(|_| at < end)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let number = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        if length < 4 || at + length > end {
            return None;
        }
        if (at..at + length).contains(&offset) {
            return Some((position, at, length, number));
        }
        at += length.next_multiple_of(4);
    }
    None
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Table,
    Chain,
    Rule,
    Set,
    ElementList,
    Elements,
    Element,
    Expressions,
    Expression,
    Unknown,
}

impl Level {
    fn of_message(kind: u16) -> Self {
        match kind {
            msg::NEW_TABLE..=msg::DEL_TABLE => Self::Table,
            msg::NEW_CHAIN..=msg::DEL_CHAIN => Self::Chain,
            msg::NEW_RULE..=msg::DEL_RULE => Self::Rule,
            msg::NEW_SET..=msg::DEL_SET => Self::Set,
            msg::NEW_ELEMENTS..=msg::DEL_ELEMENTS => Self::ElementList,
            _ => Self::Unknown,
        }
    }

    fn below(self, number: u16) -> Self {
        match (self, number) {
            (Self::ElementList, 3) => Self::Elements,
            (Self::Elements, _) => Self::Element,
            (Self::Rule, 4) => Self::Expressions,
            (Self::Expressions, _) => Self::Expression,
            _ => Self::Unknown,
        }
    }

    fn name(self, number: u16, position: usize) -> String {
        let names: &[&str] = match self {
            Self::Table => &["", "NAME", "FLAGS", "USE", "HANDLE", "PAD", "USERDATA"],
            Self::Chain => &[
                "", "TABLE", "HANDLE", "NAME", "HOOK", "POLICY", "USE", "TYPE", "COUNTERS", "PAD", "FLAGS",
                "ID", "USERDATA",
            ],
            Self::Rule => &[
                "",
                "TABLE",
                "CHAIN",
                "HANDLE",
                "EXPRESSIONS",
                "COMPAT",
                "POSITION",
                "USERDATA",
            ],
            Self::Set => &[
                "",
                "TABLE",
                "NAME",
                "FLAGS",
                "KEY_TYPE",
                "KEY_LEN",
                "DATA_TYPE",
                "DATA_LEN",
                "POLICY",
                "DESC",
                "ID",
                "TIMEOUT",
                "GC_INTERVAL",
                "USERDATA",
            ],
            Self::ElementList => &["", "TABLE", "SET", "ELEMENTS", "SET_ID"],
            Self::Element => &[
                "",
                "KEY",
                "DATA",
                "FLAGS",
                "TIMEOUT",
                "EXPIRATION",
                "USERDATA",
                "EXPR",
                "PAD",
                "OBJREF",
                "KEY_END",
                "EXPRESSIONS",
            ],
            Self::Expression => &["", "NAME", "DATA"],
            Self::Elements | Self::Expressions => return format!("[{position}]"),
            Self::Unknown => &[],
        };
        match names.get(usize::from(number)) {
            Some(name) if !name.is_empty() => (*name).to_owned(),
            _ => format!("attribute {number}"),
        }
    }
}
