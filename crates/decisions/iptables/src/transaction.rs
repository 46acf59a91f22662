//! Which edits reach the kernel together?

use std::collections::{BTreeMap, BTreeSet};

use pointsman_model::Address;

use crate::name::{ChainName, Table};
use crate::rule::Rule;

/// One `iptables-restore` input as a value. Each table changes whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction<A> {
    /// The edits by table, in the order they take effect.
    pub tables: BTreeMap<Table, Edit<A>>,
}

/// What changes in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit<A> {
    /// Chains to create or empty, and then to fill.
    pub writes: BTreeMap<ChainName, Vec<Rule<A>>>,
    /// Rules to take out of chains that are otherwise left alone.
    pub deletes: Vec<(ChainName, Rule<A>)>,
    /// Chains of known content that lose rules and are otherwise left alone.
    pub thinned: BTreeMap<ChainName, Thinned<A>>,
    /// Rules to add at the end of chains that are otherwise left alone.
    pub appends: Vec<(ChainName, Rule<A>)>,
    /// Rules to add at the beginning of chains that are otherwise left alone, each before the last.
    pub inserts: Vec<(ChainName, Rule<A>)>,
    /// Chains to empty and remove.
    pub removals: BTreeSet<ChainName>,
    /// Chains that were found to be right: nothing is written, but they are ours from now on.
    pub kept: BTreeMap<ChainName, Vec<Rule<A>>>,
}

/// What a chain loses. Its rules are named by position, as it is not known whether they carry comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinned<A> {
    /// Positions of the rules that go, from zero, rising.
    pub gone: Vec<usize>,
    pub left: Vec<Rule<A>>,
}

impl<A> Default for Edit<A> {
    fn default() -> Self {
        Self {
            writes: BTreeMap::new(),
            deletes: Vec::new(),
            thinned: BTreeMap::new(),
            appends: Vec::new(),
            inserts: Vec::new(),
            removals: BTreeSet::new(),
            kept: BTreeMap::new(),
        }
    }
}

impl<A> Edit<A> {
    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.deletes.is_empty()
            && self.thinned.is_empty()
            && self.appends.is_empty()
            && self.inserts.is_empty()
            && self.removals.is_empty()
    }
}

impl<A> Default for Transaction<A> {
    fn default() -> Self {
        Self {
            tables: BTreeMap::new(),
        }
    }
}

impl<A: Address> Transaction<A> {
    /// The edit of one table, to be added to.
    pub fn table(&mut self, table: Table) -> &mut Edit<A> {
        self.tables.entry(table).or_default()
    }

    /// Whether there is nothing to write and nothing to note.
    pub fn is_empty(&self) -> bool {
        self.tables
            .values()
            .all(|edit| edit.is_empty() && edit.kept.is_empty())
    }

    /// Every chain that is not afterwards as it was before.
    pub fn touched(&self) -> impl Iterator<Item = (Table, ChainName)> + '_ {
        self.tables.iter().flat_map(|(table, edit)| {
            let single = edit.deletes.iter().chain(&edit.appends).chain(&edit.inserts);
            let whole = edit
                .writes
                .keys()
                .chain(edit.thinned.keys())
                .chain(&edit.removals);
            whole
                .chain(single.map(|(chain, _)| chain))
                .map(|chain| (*table, *chain))
        })
    }

    /// The number of chains that are written, thinned or removed.
    pub fn chains(&self) -> usize {
        self.tables
            .values()
            .map(|edit| edit.writes.len() + edit.thinned.len() + edit.removals.len())
            .sum()
    }

    /// The number of rules that are written, added or deleted in a table.
    pub fn rules(&self, table: Table) -> usize {
        self.tables.get(&table).map_or(0, |edit| {
            let written: usize = edit.writes.values().map(Vec::len).sum();
            let thinned: usize = edit.thinned.values().map(|thinned| thinned.gone.len()).sum();
            written + thinned + edit.deletes.len() + edit.appends.len() + edit.inserts.len()
        })
    }
}
