//! What is a chain?

use std::fmt;

use super::data_wire::decode_name;
use super::name::Name;
use super::userdata::UserData;
use super::wire;
use crate::netlink::{Malformed, Message, Writer};

/// A place on a packet's way through the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    Prerouting,
    /// On the way to a local process.
    Input,
    /// On the way through this machine.
    Forward,
    /// Coming from a local process.
    Output,
    /// After routing, before it leaves.
    Postrouting,
}

impl Hook {
    const ALL: [Self; 5] = [
        Self::Prerouting,
        Self::Input,
        Self::Forward,
        Self::Output,
        Self::Postrouting,
    ];

    fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        })
    }
}

/// How often a base chain runs: for every packet, or for the first one of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainKind {
    /// For every packet.
    Filter,
    /// For the first packet of a connection, which may be translated.
    Nat,
    /// For every packet, with rerouting if headers changed.
    Route,
}

impl ChainKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        [Self::Filter, Self::Nat, Self::Route]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

/// What happens at the end of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// The packet goes on.
    Accept,
    /// The packet is dropped.
    Drop,
}

/// What makes a chain a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseChain {
    /// How often it runs.
    pub kind: ChainKind,
    /// Where it runs.
    pub hook: Hook,
    /// When it runs among the chains of its hook; lower is earlier.
    pub priority: i32,
    /// What happens at its end.
    pub policy: Policy,
}

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain {
    pub name: Name,
    /// Set if packets enter here; other chains are only jumped to.
    pub base: Option<BaseChain>,
    pub userdata: UserData,
}

impl Chain {
    /// A chain that others jump to.
    pub fn regular(name: Name) -> Self {
        Self {
            name,
            base: None,
            userdata: UserData::default(),
        }
    }

    pub(super) fn encode(&self, table: &Name, w: &mut Writer) {
        w.text(wire::chain::TABLE, table.as_str());
        w.text(wire::chain::NAME, self.name.as_str());
        if let Some(base) = &self.base {
            w.nest(wire::chain::HOOK, |hook| {
                hook.u32_be(wire::chain::HOOK_NUM, base.hook.number());
                hook.u32_be(wire::chain::HOOK_PRIORITY, base.priority as u32);
            });
            w.u32_be(wire::chain::POLICY, u32::from(base.policy == Policy::Accept));
            w.text(wire::chain::TYPE, base.kind.as_str());
        }
        if !self.userdata.is_empty() {
            w.bytes_attribute(wire::chain::USERDATA, &self.userdata.0);
        }
    }

    /// Reads a message of a dump: the table's name and the chain.
    pub fn decode(message: &Message<'_>) -> Result<(Name, Self), Malformed> {
        let (mut table, mut name, mut hook, mut policy, mut kind) = (None, None, None, None, None);
        let mut userdata = UserData::default();
        for attribute in message.attributes()? {
            let attribute = attribute?;
            match attribute.kind {
                wire::chain::TABLE => table = Some(decode_name(&attribute)?),
                wire::chain::NAME => name = Some(decode_name(&attribute)?),
                wire::chain::HOOK => hook = decode_hook(&attribute)?,
                wire::chain::POLICY => {
                    policy = Some(if attribute.u32_be()? == 1 {
                        Policy::Accept
                    } else {
                        Policy::Drop
                    });
                }
                wire::chain::TYPE => kind = ChainKind::from_text(attribute.text()?),
                wire::chain::USERDATA => userdata = UserData(attribute.value.into()),
                _ => {}
            }
        }
        let base = match (hook, policy, kind) {
            (Some((hook, priority)), Some(policy), Some(kind)) => Some(BaseChain {
                kind,
                hook,
                priority,
                policy,
            }),
            _ => None,
        };
        let chain = Self {
            name: name.ok_or(Malformed("a chain without a name"))?,
            base,
            userdata,
        };
        Ok((table.ok_or(Malformed("a chain without a table"))?, chain))
    }
}

fn decode_hook(attribute: &crate::netlink::Attribute<'_>) -> Result<Option<(Hook, i32)>, Malformed> {
    let (mut number, mut priority) = (None, None);
    for part in attribute.nested() {
        let part = part?;
        match part.kind {
            wire::chain::HOOK_NUM => number = Some(part.u32_be()?),
            wire::chain::HOOK_PRIORITY => priority = Some(part.u32_be()? as i32),
            _ => {}
        }
    }
    let hook = number.and_then(|number| Hook::ALL.into_iter().find(|hook| hook.number() == number));
    Ok(hook.zip(priority))
}
