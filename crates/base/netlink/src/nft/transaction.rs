//! What is to change, all at once or not at all?

use std::fmt;

use super::chain::Chain;
use super::element::Element;
use super::name::{Family, Name};
use super::rule::Rule;
use super::set::Set;
use super::table::Table;

/// One change to a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Adds the table; an existing one stays.
    AddTable(Table),
    /// Deletes the table and all in it.
    DeleteTable,
    /// Adds a chain; an existing one stays, and must have the same hook.
    AddChain(Chain),
    /// Deletes an empty chain that nothing jumps to.
    DeleteChain(Name),
    /// Deletes all rules of a chain.
    FlushChain(Name),
    /// Adds a rule at the end of its chain.
    AddRule(Rule),
    DeleteRule {
        chain: Name,
        /// The number a dump gave.
        handle: u64,
    },
    /// Adds a set; an existing one stays, and must have the same types.
    AddSet(Set),
    /// Deletes a set that no rule uses.
    DeleteSet(Name),
    /// Deletes all elements of a set.
    FlushSet(Name),
    /// Adds elements. An element that exists with the same data is fine, with other data it is an error.
    AddElements { set: Name, elements: Vec<Element> },
    /// Deletes elements, which must exist.
    DeleteElements { set: Name, elements: Vec<Element> },
}

/// Changes to one table, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The table's family.
    pub family: Family,
    pub table: Name,
    pub ops: Vec<Op>,
}

impl Transaction {
    pub fn new(family: Family, table: Name) -> Self {
        Self {
            family,
            table,
            ops: Vec::new(),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The number of elements that are added or deleted.
    pub fn element_count(&self) -> usize {
        self.ops
            .iter()
            .map(|op| match op {
                Op::AddElements { elements, .. } | Op::DeleteElements { elements, .. } => elements.len(),
                _ => 0,
            })
            .sum()
    }
}

impl fmt::Display for Transaction {
    /// One change a line, in words close to those of `nft`; keys and data are registers in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = format!("{} {}", self.family, self.table);
        for op in &self.ops {
            match op {
                Op::AddTable(_) => writeln!(f, "add table {table}")?,
                Op::DeleteTable => writeln!(f, "delete table {table}")?,
                Op::AddChain(chain) => writeln!(f, "add chain {table} {}", chain.name)?,
                Op::DeleteChain(chain) => writeln!(f, "delete chain {table} {chain}")?,
                Op::FlushChain(chain) => writeln!(f, "flush chain {table} {chain}")?,
                Op::AddRule(rule) => writeln!(f, "add rule {table} {} {:?}", rule.chain, rule.exprs)?,
                Op::DeleteRule { chain, handle } => {
                    writeln!(f, "delete rule {table} {chain} handle {handle}")?;
                }
                Op::AddSet(set) => writeln!(f, "add set {table} {}", set.name)?,
                Op::DeleteSet(set) => writeln!(f, "delete set {table} {set}")?,
                Op::FlushSet(set) => writeln!(f, "flush set {table} {set}")?,
                Op::AddElements { set, elements } => {
                    for element in elements {
                        writeln!(f, "add element {table} {set} {{ {element} }}")?;
                    }
                }
                Op::DeleteElements { set, elements } => {
                    for element in elements {
                        writeln!(f, "delete element {table} {set} {{ {element} }}")?;
                    }
                }
            }
        }
        Ok(())
    }
}
