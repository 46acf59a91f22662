//! What does the kernel already hold under names we know?
//!
//! Read from `iptables-save`, which is slow on a large node, so only before a full sync and in checks:
//! it tells which of our chains are leftovers, which are right already, and which rules are missing from
//! chains shared with others.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use pointsman_model::Address;

use crate::name::{ChainName, Table, Top};
use crate::render;
use crate::rule::Rule;

/// The chains of ours that exist, what they do, and the rules of chains we share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    tables: BTreeMap<Table, TableInventory>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TableInventory {
    chains: BTreeMap<ChainName, Content>,
    /// The rules of built-in and shared chains, as printed.
    shared: BTreeMap<ChainName, Vec<String>>,
    /// The buckets that `KUBE-SERVICES` leads to.
    in_use: BTreeSet<ChainName>,
    /// Whether `KUBE-SERVICES` knows Services itself, as kube-proxy's does.
    flat: bool,
}

/// Why a listing says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A line is nothing that `iptables-save` prints.
    #[error("it listed {0:?}, which is no rule")]
    Strange(String),
    /// A table has no end.
    #[error("its list of rules has no end")]
    CutOff,
}

/// What a chain does, condensed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Content {
    rules: u32,
    digest: u64,
}

impl Content {
    fn add(&mut self, chain: ChainName, line: &str) {
        let mut hasher = DefaultHasher::new();
        (!chain.is_dispatch()).then_some(self.rules).hash(&mut hasher);
        if chain.is_dispatch() {
            // Rules of such chains are deleted one by one, and then the comment has to be right too.
            interpret(line, Comments::Kept).hash(&mut hasher);
        } else {
            meaning(line).hash(&mut hasher);
        }
        self.digest = self.digest.wrapping_add(hasher.finish());
        self.rules += 1;
    }
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
            .is_some_and(|entry| entry.chains.contains_key(&chain))
    }

    /// Whether a chain exists and does what these rules do.
    pub fn holds<A: Address>(&self, table: Table, chain: ChainName, rules: &[Rule<A>]) -> bool {
        let Some(held) = self.tables.get(&table).and_then(|entry| entry.chains.get(&chain)) else {
            return false;
        };
        if held.rules as usize != rules.len() {
            return false;
        }
        let mut wanted = Content::default();
        for rule in rules {
            wanted.add(chain, &render::append_line(chain, rule));
        }
        *held == wanted
    }

    /// The chains that come and go with Services.
    pub fn transient(&self, table: Table) -> impl Iterator<Item = ChainName> + '_ {
        let chains = self
            .tables
            .get(&table)
            .into_iter()
            .flat_map(|entry| entry.chains.keys());
        chains.copied().filter(|chain| chain.is_transient())
    }

    /// The buckets that `KUBE-SERVICES` does not lead to, and whether it leads to any.
    pub fn idle_buckets(&self, table: Table) -> (Vec<ChainName>, bool) {
        let Some(entry) = self.tables.get(&table) else {
            return (Vec::new(), false);
        };
        let buckets = entry.chains.keys().copied();
        let idle = buckets
            .filter(|chain| matches!(chain, ChainName::Bucket(_)) && !entry.in_use.contains(chain))
            .collect();
        (idle, !entry.in_use.is_empty())
    }

    /// Whether `KUBE-SERVICES` of a table knows Services itself, instead of leading to buckets.
    pub fn is_flat(&self, table: Table) -> bool {
        self.tables.get(&table).is_some_and(|entry| entry.flat)
    }

    /// How often exactly this rule, with its comment, stands in a shared chain.
    pub fn occurrences<A: Address>(&self, table: Table, chain: ChainName, rule: &Rule<A>) -> usize {
        let wanted = interpret(&render::append_line(chain, rule), Comments::Kept);
        let present = self.tables.get(&table).and_then(|entry| entry.shared.get(&chain));
        let lines = present.into_iter().flatten();
        lines
            .filter(|line| interpret(line, Comments::Kept) == wanted)
            .count()
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
    /// Inside a table, of ours or not.
    open: bool,
    strange: Option<String>,
}

impl InventoryReader {
    /// Takes in one line of `iptables-save` output.
    pub fn line(&mut self, line: &str) {
        let line = line.trim();
        self.judge(line);
        if let Some(name) = line.strip_prefix('*') {
            self.table = Table::parse(name);
        }
        let Some(table) = self.table else { return };
        let entry = self.inventory.tables.entry(table).or_default();
        if let Some(rest) = line.strip_prefix(':') {
            let name = rest.split_whitespace().next().unwrap_or_default();
            if let Some(chain) = ChainName::parse(name) {
                entry.chains.entry(chain).or_default();
            }
        } else if let Some(name) = line.strip_prefix("-A ").and_then(|rest| rest.split(' ').next()) {
            match ChainName::parse(name) {
                Some(chain) if is_shared(chain) => {
                    entry.shared.entry(chain).or_default().push(line.to_owned());
                }
                Some(chain) => {
                    if chain == ChainName::Top(Top::Services) {
                        match line
                            .rsplit_once(" -j ")
                            .map(|(_, target)| ChainName::parse(target))
                        {
                            Some(Some(bucket @ ChainName::Bucket(_))) => drop(entry.in_use.insert(bucket)),
                            Some(Some(ChainName::Top(Top::NodePorts))) => {}
                            _ => entry.flat = true,
                        }
                    }
                    entry.chains.entry(chain).or_default().add(chain, line);
                }
                None => {}
            }
        }
    }

    /// What was read, whatever it was.
    pub fn finish(self) -> Inventory {
        self.inventory
    }

    /// What was read, if it was whole tables and nothing else. An inventory that lacks something would make
    /// us write it a second time.
    pub fn try_finish(self) -> Result<Inventory, Unreadable> {
        match self.strange {
            Some(line) => Err(Unreadable::Strange(line)),
            None if self.open => Err(Unreadable::CutOff),
            None => Ok(self.inventory),
        }
    }

    fn judge(&mut self, line: &str) {
        let known = match line.bytes().next() {
            None | Some(b'#') => true,
            Some(b'*') => !std::mem::replace(&mut self.open, true),
            Some(b'C') => line == "COMMIT" && std::mem::take(&mut self.open),
            Some(b':' | b'-' | b'[') => self.open,
            Some(_) => false,
        };
        if !known && self.strange.is_none() {
            self.strange = Some(line.chars().take(60).collect());
        }
    }
}

const fn is_shared(chain: ChainName) -> bool {
    matches!(chain, ChainName::Builtin(_) | ChainName::Top(Top::Firewall))
}

/// What a saved rule says, in the words we would use: comments go, and so do defaults that only the
/// kernel spells out. Two rules with equal words do the same.
pub fn meaning(line: &str) -> Vec<String> {
    interpret(line, Comments::Dropped)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comments {
    Kept,
    Dropped,
}

fn interpret(line: &str, comments: Comments) -> Vec<String> {
    let mut meaning = Vec::new();
    let mut words = words(line).into_iter().peekable();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--comment" if comments == Comments::Kept => {
                meaning.push(word);
                meaning.extend(words.next());
            }
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

    fn read(text: &str) -> Result<Inventory, Unreadable> {
        let mut reader = InventoryReader::default();
        text.lines().for_each(|line| reader.line(line));
        reader.try_finish()
    }

    #[test]
    fn whole_listings_are_told_from_garbage_and_from_torn_ones() {
        assert_eq!(read(SAVED), Ok(Inventory::parse(SAVED)));
        assert_eq!(read(""), Ok(Inventory::default()), "a table may not exist");
        for cut in ["COMMIT\n*raw", "COMMIT"] {
            let torn = SAVED.split(cut).next().unwrap();
            assert_eq!(read(torn), Err(Unreadable::CutOff));
        }
        for garbage in [
            "Segmentation fault",
            ":KUBE-SERVICES - [0:0]",
            "COMMIT",
            "*nat\n*nat",
        ] {
            assert!(
                matches!(read(garbage), Err(Unreadable::Strange(_))),
                "{garbage:?}"
            );
        }
    }

    #[test]
    fn buckets_are_idle_once_nothing_leads_to_them() {
        let bucket = ChainName::parse("KUBE-SERVICES-07").unwrap();
        assert_eq!(Inventory::parse(SAVED).idle_buckets(Table::Nat), (vec![], true));
        let without = SAVED.replace("-A KUBE-SERVICES -d", "-A KUBE-NODEPORTS -d");
        assert_eq!(
            Inventory::parse(&without).idle_buckets(Table::Nat),
            (vec![bucket], false)
        );
    }
}
