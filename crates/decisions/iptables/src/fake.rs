//! What would the kernel do with our edits?
//!
//! A kernel in memory that behaves: it refuses jumps to chains that do not exist, deletions of rules and
//! chains that are not there, and the removal of chains still in use; each table changes whole or not at
//! all; and a transaction that fails in its second table leaves the first one changed, as the real one
//! does.

use std::collections::BTreeMap;

use pointsman_dataplane::ProgramError;
use pointsman_model::Address;

use crate::name::{Builtin, ChainName, Table};
use crate::render;
use crate::rule::Rule;
use crate::saved::Inventory;
use crate::transaction::{Edit, Transaction};

/// The chains of one table.
pub type Chains<A> = BTreeMap<ChainName, Vec<Rule<A>>>;

/// A packet filter in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeKernel<A> {
    tables: BTreeMap<Table, Chains<A>>,
    /// The number of tables that will still be accepted; `None` means all.
    fail_after_tables: Option<usize>,
}

impl<A: Address> Default for FakeKernel<A> {
    fn default() -> Self {
        let builtins = |chains: &[Builtin]| -> Chains<A> {
            chains
                .iter()
                .map(|chain| (ChainName::Builtin(*chain), Vec::new()))
                .collect()
        };
        use Builtin::{Forward, Input, Output, Postrouting, Prerouting};
        let all = [Prerouting, Input, Forward, Output, Postrouting];
        Self {
            tables: BTreeMap::from([
                (Table::Filter, builtins(&[Input, Forward, Output])),
                (Table::Nat, builtins(&[Prerouting, Input, Output, Postrouting])),
                (Table::Mangle, builtins(&all)),
            ]),
            fail_after_tables: None,
        }
    }
}

impl<A: Address> FakeKernel<A> {
    /// The rules of a chain.
    pub fn chain(&self, table: Table, chain: ChainName) -> Option<&[Rule<A>]> {
        self.tables.get(&table)?.get(&chain).map(Vec::as_slice)
    }

    /// The chains of a table.
    pub fn chains(&self, table: Table) -> &Chains<A> {
        &self.tables[&table]
    }

    /// Lets this many tables through and then refuses one.
    pub fn fail_after(&mut self, tables: usize) {
        self.fail_after_tables = Some(tables);
    }

    /// Forgets everything, as `iptables -F; iptables -X` would.
    pub fn flush(&mut self) {
        *self = Self::default();
    }

    /// Makes a chain that we did not make.
    pub fn foreign_chain(&mut self, table: Table, chain: ChainName) {
        self.tables.entry(table).or_default().entry(chain).or_default();
    }

    /// Puts a rule of somebody else's at the end of a chain.
    pub fn foreign_rule(&mut self, table: Table, chain: ChainName, rule: Rule<A>) {
        self.tables
            .entry(table)
            .or_default()
            .entry(chain)
            .or_default()
            .push(rule);
    }

    /// The same rules, told apart from others only by what they do: comments are dropped and rules of
    /// chains without order are sorted.
    pub fn normalised(&self) -> BTreeMap<(Table, ChainName), Vec<String>> {
        let mut normalised = BTreeMap::new();
        for (table, chains) in &self.tables {
            for (chain, rules) in chains {
                normalised.insert((*table, *chain), content(*chain, rules));
            }
        }
        normalised
    }

    /// What `iptables-save` would print.
    pub fn save(&self) -> String {
        let mut out = String::new();
        for (table, chains) in &self.tables {
            out.push_str(&format!("*{}\n", table.as_str()));
            for chain in chains.keys() {
                out.push_str(&format!(":{chain} - [0:0]\n"));
            }
            for (chain, rules) in chains {
                for rule in rules {
                    out.push_str(&render::append_line(*chain, rule));
                    out.push('\n');
                }
            }
            out.push_str("COMMIT\n");
        }
        out
    }

    /// Applies a transaction table by table, each whole or not at all.
    pub fn apply(&mut self, transaction: &Transaction<A>) -> Result<(), ProgramError> {
        let refused = |message: String| ProgramError::Refused {
            program: "the fake kernel".to_owned(),
            rule: None,
            message,
        };
        for (table, edit) in &transaction.tables {
            match &mut self.fail_after_tables {
                Some(0) => {
                    self.fail_after_tables = None;
                    return Err(refused("asked to fail".to_owned()));
                }
                Some(left) => *left -= 1,
                None => {}
            }
            let mut chains = self.tables.get(table).cloned().unwrap_or_default();
            Self::apply_table(&mut chains, edit).map_err(refused)?;
            self.tables.insert(*table, chains);
        }
        Ok(())
    }

    /// What is there under names of ours.
    pub fn inventory(&self) -> Inventory {
        Inventory::parse(&self.save())
    }

    fn apply_table(chains: &mut Chains<A>, edit: &Edit<A>) -> Result<(), String> {
        for (chain, rules) in &edit.kept {
            let held = chains
                .get(chain)
                .ok_or_else(|| format!("no chain {chain} to keep"))?;
            let by_text = chain.is_dispatch() && sorted(held) != sorted(rules);
            if by_text || content(*chain, held) != content(*chain, rules) {
                return Err(format!("{chain} is not as it was said to be"));
            }
        }
        for chain in edit.writes.keys().chain(&edit.removals) {
            chains.insert(*chain, Vec::new());
        }
        for (chain, rule) in &edit.deletes {
            let rules = chains.get_mut(chain).ok_or_else(|| format!("no chain {chain}"))?;
            let position = rules.iter().position(|known| known == rule);
            let position = position.ok_or_else(|| render::append_line(*chain, rule))?;
            rules.remove(position);
        }
        for (chain, thinned) in &edit.thinned {
            let rules = chains.get_mut(chain).ok_or_else(|| format!("no chain {chain}"))?;
            for position in thinned.gone.iter().rev() {
                if *position >= rules.len() {
                    return Err(format!("{chain} has no rule {position}"));
                }
                rules.remove(*position);
            }
            if content(*chain, rules) != content(*chain, &thinned.left) {
                return Err(format!("{chain} keeps other rules than was said"));
            }
        }
        let written = edit
            .writes
            .iter()
            .flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain, rule)));
        for (chain, rule) in written.chain(edit.appends.iter().map(|(chain, rule)| (chain, rule))) {
            Self::target_exists(chains, rule)?;
            let rules = chains.get_mut(chain).ok_or_else(|| format!("no chain {chain}"))?;
            rules.push(rule.clone());
        }
        for (chain, rule) in &edit.inserts {
            Self::target_exists(chains, rule)?;
            let rules = chains.get_mut(chain).ok_or_else(|| format!("no chain {chain}"))?;
            rules.insert(0, rule.clone());
        }
        for chain in &edit.removals {
            chains.remove(chain);
        }
        // Every chain was flushed before, so what is still jumped to is in use.
        let dangling = chains
            .values()
            .flatten()
            .find_map(|rule| Self::target_exists(chains, rule).err());
        dangling.map_or(Ok(()), Err)
    }

    fn target_exists(chains: &Chains<A>, rule: &Rule<A>) -> Result<(), String> {
        match rule.jumps_to() {
            Some(target) if !chains.contains_key(&target) => Err(format!("jump to missing chain {target}")),
            _ => Ok(()),
        }
    }

    /// Chains that nothing jumps to, or that a jump reaches in vain because they are empty.
    pub fn useless_chains(&self) -> Vec<(Table, ChainName)> {
        let mut useless = Vec::new();
        for (table, chains) in &self.tables {
            for (chain, rules) in chains.iter().filter(|(chain, _)| chain.is_transient()) {
                let used = chains
                    .values()
                    .flatten()
                    .any(|rule| rule.jumps_to() == Some(*chain));
                if !used || rules.is_empty() {
                    useless.push((*table, *chain));
                }
            }
        }
        useless
    }
}

/// The rules with their comments, in a stable order.
fn sorted<A: Address>(rules: &[Rule<A>]) -> Vec<String> {
    let mut lines: Vec<String> = rules.iter().map(render::specification_text).collect();
    lines.sort_unstable();
    lines
}

/// What a chain does: its rules without comments, sorted where order means nothing.
fn content<A: Address>(chain: ChainName, rules: &[Rule<A>]) -> Vec<String> {
    let without_comment = |rule: &Rule<A>| Rule::new(rule.matches.clone(), rule.target.clone());
    let lines = rules
        .iter()
        .map(|rule| render::append_line(chain, &without_comment(rule)));
    let mut lines: Vec<String> = lines.collect();
    if chain.is_dispatch() {
        lines.sort_unstable();
    }
    lines
}
