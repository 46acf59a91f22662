//! What is a rule?

use super::data_wire::decode_name;
use super::expr::Expr;
use super::name::Name;
use super::userdata::UserData;
use super::wire;
use crate::netlink::{Malformed, Message, Writer};

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// The chain it belongs to.
    pub chain: Name,
    pub exprs: Vec<Expr>,
    pub userdata: UserData,
}

impl Rule {
    /// A rule without a comment.
    pub fn new(chain: Name, exprs: Vec<Expr>) -> Self {
        Self {
            chain,
            exprs,
            userdata: UserData::default(),
        }
    }

    pub(super) fn encode(&self, table: &Name, w: &mut Writer) {
        w.text(wire::rule::TABLE, table.as_str());
        w.text(wire::rule::CHAIN, self.chain.as_str());
        w.nest(wire::rule::EXPRESSIONS, |list| {
            for expr in &self.exprs {
                expr.encode(list);
            }
        });
        if !self.userdata.is_empty() {
            w.bytes_attribute(wire::rule::USERDATA, &self.userdata.0);
        }
    }

    /// Reads a message of a dump: the table's name, the rule and its handle.
    pub fn decode(message: &Message<'_>) -> Result<(Name, Self, Option<u64>), Malformed> {
        let (mut table, mut chain, mut handle) = (None, None, None);
        let mut exprs = Vec::new();
        let mut userdata = UserData::default();
        for attribute in message.attributes()? {
            let attribute = attribute?;
            match attribute.kind {
                wire::rule::TABLE => table = Some(decode_name(&attribute)?),
                wire::rule::CHAIN => chain = Some(decode_name(&attribute)?),
                wire::rule::HANDLE => handle = Some(attribute.u64_be()?),
                wire::rule::EXPRESSIONS => {
                    exprs = attribute
                        .nested()
                        .map(|part| Expr::decode(&part?))
                        .collect::<Result<_, _>>()?;
                }
                wire::rule::USERDATA => userdata = UserData(attribute.value.into()),
                _ => {}
            }
        }
        let rule = Self {
            chain: chain.ok_or(Malformed("a rule without a chain"))?,
            exprs,
            userdata,
        };
        Ok((table.ok_or(Malformed("a rule without a table"))?, rule, handle))
    }
}
