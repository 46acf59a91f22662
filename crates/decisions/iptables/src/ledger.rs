//! What do we believe the kernel holds?
//!
//! For every chain we own, the number of its rules and a digest of them. The ledger follows the edits we
//! send, not the state they were derived from. So comparing it with the digest of a full render checks
//! the planner itself: if they ever differ, partial and full sync have parted, and the difference names
//! the chains.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use pointsman_model::Address;

use crate::name::{ChainName, Table, Top};
use crate::rule::Rule;
use crate::transaction::Transaction;

/// The content of every chain we own, condensed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// One block of memory rather than many nodes: it grows while short-lived rules come and go, and nodes
    /// between them would keep their memory from being returned.
    chains: HashMap<(Table, ChainName), Content>,
    filter_rules: u64,
    nat_rules: u64,
}

/// The content of one chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Content {
    rules: u32,
    /// The sum of its rules' digests; the position of a rule counts only where order means something.
    digest: u64,
}

impl Ledger {
    /// Follows a transaction that the kernel has accepted.
    pub fn apply<A: Address>(&mut self, transaction: &Transaction<A>) {
        for (table, edit) in &transaction.tables {
            for (chain, rules) in edit
                .writes
                .iter()
                .chain(&edit.kept)
                .filter(|(chain, _)| is_ours(**chain))
            {
                self.replace(*table, *chain, Some(Content::of(*chain, rules)));
            }
            for (chain, thinned) in &edit.thinned {
                self.replace(*table, *chain, Some(Content::of(*chain, &thinned.left)));
            }
            for (chain, rule) in edit
                .appends
                .iter()
                .chain(&edit.inserts)
                .filter(|(chain, _)| is_ours(*chain))
            {
                let mut content = self.content(*table, *chain);
                content.rules += 1;
                content.digest = content.digest.wrapping_add(digest(None, rule));
                self.replace(*table, *chain, Some(content));
            }
            for (chain, rule) in edit.deletes.iter().filter(|(chain, _)| is_ours(*chain)) {
                let mut content = self.content(*table, *chain);
                content.rules = content.rules.saturating_sub(1);
                content.digest = content.digest.wrapping_sub(digest(None, rule));
                self.replace(*table, *chain, Some(content));
            }
            for chain in &edit.removals {
                self.replace(*table, *chain, None);
            }
        }
    }

    /// The number of rules in a chain; zero for one that does not exist.
    pub fn rules(&self, table: Table, chain: ChainName) -> u32 {
        self.content(table, chain).rules
    }

    /// Whether a chain holds just these rules, their comments apart.
    pub fn holds<A: Address>(&self, table: Table, chain: ChainName, rules: &[Rule<A>]) -> bool {
        self.chains.get(&(table, chain)) == Some(&Content::of(chain, rules))
    }

    /// Whether the chain exists.
    pub fn contains(&self, table: Table, chain: ChainName) -> bool {
        self.chains.contains_key(&(table, chain))
    }

    /// The number of rules in a table.
    pub fn total(&self, table: Table) -> u64 {
        match table {
            Table::Filter => self.filter_rules,
            Table::Nat => self.nat_rules,
            Table::Mangle => 0,
        }
    }

    /// The number of chains in all tables.
    pub fn chains(&self) -> usize {
        self.chains.len()
    }

    /// The chains whose content differs between two ledgers.
    pub fn differences(&self, other: &Self) -> Vec<(Table, ChainName)> {
        let missing = self.chains.keys().filter(|key| !other.chains.contains_key(key));
        let differing = other
            .chains
            .iter()
            .filter(|(key, content)| self.chains.get(key) != Some(content));
        let mut differences: Vec<_> = missing.chain(differing.map(|(key, _)| key)).copied().collect();
        differences.sort_unstable();
        differences
    }

    fn content(&self, table: Table, chain: ChainName) -> Content {
        self.chains.get(&(table, chain)).copied().unwrap_or_default()
    }

    fn replace(&mut self, table: Table, chain: ChainName, content: Option<Content>) {
        let after = content.map_or(0, |content| u64::from(content.rules));
        let before = match content {
            Some(content) => self.chains.insert((table, chain), content),
            None => self.chains.remove(&(table, chain)),
        };
        let before = before.map_or(0, |content| u64::from(content.rules));
        let total = match table {
            Table::Filter => &mut self.filter_rules,
            Table::Nat => &mut self.nat_rules,
            Table::Mangle => return,
        };
        *total = *total + after - before;
    }
}

impl Content {
    fn of<A: Address>(chain: ChainName, rules: &[Rule<A>]) -> Self {
        let position = |index: usize| (!chain.is_dispatch()).then_some(index);
        let digests = rules
            .iter()
            .enumerate()
            .map(|(index, rule)| digest(position(index), rule));
        Self {
            rules: u32::try_from(rules.len()).unwrap_or(u32::MAX),
            digest: digests.fold(0, u64::wrapping_add),
        }
    }
}

/// Comments are left out: whether endpoint rules have them depends on the size of the cluster at the
/// time they were written, and they mean nothing to packets.
fn digest<A: Address>(position: Option<usize>, rule: &Rule<A>) -> u64 {
    // Keyed with constants, so equal rules have equal digests within and across processes of a build.
    let mut hasher = DefaultHasher::new();
    position.hash(&mut hasher);
    rule.matches.hash(&mut hasher);
    rule.target.hash(&mut hasher);
    hasher.finish()
}

/// Built-in chains and the kubelet's hold rules of others.
fn is_ours(chain: ChainName) -> bool {
    !matches!(chain, ChainName::Builtin(_) | ChainName::Top(Top::Firewall))
}
