//! What does the kernel already hold under names we know?
//!
//! Read from `iptables-save`, which is slow on a large node, so only before a full sync and in checks:
//! it tells which of our chains are leftovers, and which rules in chains shared with others are missing.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_model::Address;

use crate::name::{ChainName, Table, Top};
use crate::render;
use crate::rule::Rule;

/// The chains of ours that exist and the rules of chains we share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    tables: BTreeMap<Table, TableInventory>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TableInventory {
    chains: BTreeSet<ChainName>,
    /// The rules of built-in and shared chains, as printed.
    shared: BTreeMap<ChainName, Vec<String>>,
}

impl Inventory {
    /// Reads the output of `iptables-save` for one or all tables. Chains and rules of others are skipped.
    pub fn parse(saved: &str) -> Self {
        let mut reader = InventoryReader::default();
        for line in saved.lines() {
            reader.line(line);
        }
        reader.finish()
    }

    /// Whether a chain exists.
    pub fn contains(&self, table: Table, chain: ChainName) -> bool {
        self.tables
            .get(&table)
            .is_some_and(|entry| entry.chains.contains(&chain))
    }

    /// The chains that come and go with Services.
    pub fn transient(&self, table: Table) -> impl Iterator<Item = ChainName> + '_ {
        let chains = self
            .tables
            .get(&table)
            .into_iter()
            .flat_map(|entry| &entry.chains);
        chains.copied().filter(|chain| chain.is_transient())
    }

    /// The positions of the given rules in a shared chain, `None` for those that are missing.
    pub fn positions<A: Address>(
        &self,
        table: Table,
        chain: ChainName,
        rules: &[&Rule<A>],
    ) -> Vec<Option<usize>> {
        let present = self.tables.get(&table).and_then(|entry| entry.shared.get(&chain));
        let position = |rule: &&Rule<A>| {
            let wanted = meaning(&render::append_line(chain, rule));
            present.and_then(|lines| lines.iter().position(|line| meaning(line) == wanted))
        };
        rules.iter().map(position).collect()
    }
}

/// Reads an inventory line by line, because what is printed can be much larger than what is kept.
#[derive(Debug, Default)]
pub struct InventoryReader {
    inventory: Inventory,
    table: Option<Table>,
}

impl InventoryReader {
    /// Takes in one line of `iptables-save` output.
    pub fn line(&mut self, line: &str) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('*') {
            self.table = Table::parse(name);
        }
        let Some(table) = self.table else { return };
        let entry = self.inventory.tables.entry(table).or_default();
        if let Some(rest) = line.strip_prefix(':') {
            let name = rest.split_whitespace().next().unwrap_or_default();
            entry.chains.extend(ChainName::parse(name));
        } else if let Some(name) = line.strip_prefix("-A ").and_then(|rest| rest.split(' ').next()) {
            let chain = ChainName::parse(name).filter(|chain| is_shared(*chain));
            if let Some(chain) = chain {
                entry.shared.entry(chain).or_default().push(line.to_owned());
            }
        }
    }

    /// What was read.
    pub fn finish(self) -> Inventory {
        self.inventory
    }
}

const fn is_shared(chain: ChainName) -> bool {
    matches!(chain, ChainName::Builtin(_) | ChainName::Top(Top::Firewall))
}

/// What a saved rule says, in the words we would use: comments go, and so do defaults that only the
/// kernel spells out. Two rules with equal words do the same.
pub fn meaning(line: &str) -> Vec<String> {
    let mut meaning = Vec::new();
    let mut words = words(line).into_iter().peekable();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-m" if words.peek().is_some_and(|next| next == "comment") => drop(words.next()),
            "--comment" | "--mask" | "--reject-with" => drop(words.next()),
            "--rsource" => {}
            // The kernel keeps 31 bits of it.
            "--probability" => {
                let value: f64 = words.next().and_then(|text| text.parse().ok()).unwrap_or(-1.0);
                meaning.extend([word, format!("{value:.6}")]);
            }
            _ => meaning.push(word),
        }
    }
    meaning
}

/// The words of a rule; quotes may or may not be there around a single one.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        words.push(word.to_owned());
        rest = after.trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::name::Builtin;
    use crate::top;

    const SAVED: &str = "# Generated by iptables-nft-save v1.8.9
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SERVICES-07 - [0:0]
:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]
:CNI-HOSTPORT - [0:0]
-A PREROUTING -j CNI-HOSTPORT
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -d 0.0.0.7/0.0.0.255 -j KUBE-SERVICES-07
COMMIT
*raw
:KUBE-SERVICES - [0:0]
COMMIT
";

    #[test]
    fn our_chains_are_found_and_those_of_others_are_not() {
        let inventory = Inventory::parse(SAVED);
        let found: Vec<String> = inventory
            .transient(Table::Nat)
            .map(|chain| chain.to_string())
            .collect();
        assert_eq!(found, ["KUBE-SERVICES-07", "KUBE-SVC-XPGD46QRK7WJZT7O"]);
        assert!(inventory.contains(Table::Nat, ChainName::Top(Top::Services)));
        assert!(!inventory.contains(Table::Filter, ChainName::Top(Top::Services)));
    }

    #[test]
    fn jumps_in_built_in_chains_are_recognised() {
        let inventory = Inventory::parse(SAVED);
        let jumps = top::jumps::<Ipv4Addr>();
        let (table, from, rule) = jumps
            .iter()
            .find(|(_, from, _)| *from == Builtin::Prerouting)
            .unwrap();
        assert_eq!(
            inventory.positions(*table, ChainName::Builtin(*from), &[rule]),
            [Some(1)]
        );
        let (table, from, rule) = jumps
            .iter()
            .find(|(_, from, _)| *from == Builtin::Postrouting)
            .unwrap();
        assert_eq!(
            inventory.positions(*table, ChainName::Builtin(*from), &[rule]),
            [None]
        );
    }

    #[test]
    fn garbage_is_an_empty_inventory() {
        assert_eq!(Inventory::parse("\u{0}\n:x\n-A\n*"), Inventory::default());
    }
}
