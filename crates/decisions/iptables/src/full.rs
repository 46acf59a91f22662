//! How is everything written, or found to be there already?
//!
//! A full plan is a sequence of transactions, each of bounded size and each leaving a working set of rules
//! behind: first the Services' own chains, then the shared ones that lead to them, then leftovers go.
//! Chains that the inventory shows to be right already are kept, so that a restart in a large cluster
//! writes little and disturbs nobody; unless complete restores are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pointsman_dataplane::settings::Settings;
use pointsman_dataplane::{Restores, ServiceState};
use pointsman_model::Address;

use crate::name::{Builtin, ChainName, Table, Top};
use crate::plan::bucket_jump;
use crate::rule::Rule;
use crate::saved::Inventory;
use crate::service::{EndpointComments, ServiceRules};
use crate::top;
use crate::transaction::Transaction;

/// How many rules a transaction holds at most that are only kept, to bound memory.
const KEPT_RULES_PER_TRANSACTION: usize = 50_000;

/// A full sync, transaction by transaction.
#[derive(Debug)]
pub struct FullPlan<A> {
    states: Vec<Arc<ServiceState<A>>>,
    settings: Settings<A>,
    inventory: Inventory,
    comments: EndpointComments,
    rules_per_transaction: usize,
    restores: Restores,
    /// Chains that were found and have not proved useful since; in the end they go.
    leftovers: BTreeSet<(Table, ChainName)>,
    /// The Services with rules in each bucket, by position.
    buckets: BTreeMap<(Table, ChainName), Vec<usize>>,
    unbucketed: BTreeMap<(Table, ChainName), Vec<Rule<A>>>,
    next: Step,
}

/// Where a full sync is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Writing the chain that the Services' own jump to.
    Marks,
    /// Writing the Services' own chains, from this position on.
    Chains(usize),
    /// Writing the buckets, from this one on.
    Buckets(usize),
    /// Writing the fixed chains and hanging them into the kernel's.
    Top,
    /// Removing what is no longer wanted.
    Leftovers,
    Done,
}

/// A transaction that is being filled.
struct Filling<'a, A> {
    inventory: &'a Inventory,
    leftovers: &'a mut BTreeSet<(Table, ChainName)>,
    transaction: Transaction<A>,
    written: usize,
    kept: usize,
    limit: usize,
    restores: Restores,
}

impl<A: Address> Filling<'_, A> {
    /// Writes a chain, or keeps it if it is right already.
    fn chain(&mut self, table: Table, chain: ChainName, rules: Vec<Rule<A>>) {
        self.leftovers.remove(&(table, chain));
        let edit = self.transaction.table(table);
        if self.restores == Restores::Minimal && self.inventory.holds(table, chain, &rules) {
            self.kept += rules.len();
            edit.kept.insert(chain, rules);
        } else {
            self.written += rules.len();
            edit.writes.insert(chain, rules);
        }
    }

    fn is_full(&self) -> bool {
        self.written >= self.limit || self.kept >= KEPT_RULES_PER_TRANSACTION
    }
}

impl<A: Address> FullPlan<A> {
    pub(crate) fn new(
        states: Vec<Arc<ServiceState<A>>>,
        settings: Settings<A>,
        inventory: Inventory,
        comments: EndpointComments,
        rules_per_transaction: usize,
    ) -> Self {
        let found = |table| inventory.transient(table).map(move |chain| (table, chain));
        let leftovers = [Table::Filter, Table::Nat].into_iter().flat_map(found).collect();
        Self {
            states,
            settings,
            inventory,
            comments,
            rules_per_transaction,
            restores: Restores::Minimal,
            leftovers,
            buckets: BTreeMap::new(),
            unbucketed: BTreeMap::new(),
            next: Step::Marks,
        }
    }

    pub(crate) fn with_restores(mut self, restores: Restores) -> Self {
        self.restores = restores;
        self
    }

    fn step(&mut self) -> Option<Transaction<A>> {
        // Taken out so that filling can borrow them beside the rest.
        let inventory = std::mem::take(&mut self.inventory);
        let mut leftovers = std::mem::take(&mut self.leftovers);
        let mut filling = Filling {
            inventory: &inventory,
            leftovers: &mut leftovers,
            transaction: Transaction::default(),
            written: 0,
            kept: 0,
            limit: self.rules_per_transaction,
            restores: self.restores,
        };
        let done = self.next == Step::Done;
        self.next = match self.next {
            Step::Marks => {
                self.write_fixed(&mut filling, |chain| chain == ChainName::Top(Top::MarkMasq));
                Step::Chains(0)
            }
            Step::Chains(from) => self.write_chains(from, &mut filling),
            Step::Buckets(from) => self.write_buckets(from, &mut filling),
            Step::Top => {
                self.write_top(&mut filling);
                Step::Leftovers
            }
            Step::Leftovers => {
                unhang_ipvs_jumps(&mut filling);
                for (table, chain) in std::mem::take(filling.leftovers) {
                    filling.transaction.table(table).removals.insert(chain);
                }
                Step::Done
            }
            Step::Done => Step::Done,
        };
        let transaction = filling.transaction;
        self.inventory = inventory;
        self.leftovers = leftovers;
        (!done).then_some(transaction)
    }

    fn rules(&self, position: usize) -> ServiceRules<A> {
        ServiceRules::of(Some(&self.states[position]), &self.settings, self.comments)
    }

    fn write_chains(&mut self, from: usize, filling: &mut Filling<'_, A>) -> Step {
        for position in from..self.states.len() {
            if filling.is_full() {
                return Step::Chains(position);
            }
            let rules = self.rules(position);
            for (chain, rules) in rules.chains {
                filling.chain(Table::Nat, chain, rules);
            }
            for (table, chain, rule) in rules.dispatch {
                match chain {
                    ChainName::Bucket(_) => {
                        let services = self.buckets.entry((table, chain)).or_default();
                        if services.last() != Some(&position) {
                            services.push(position);
                        }
                    }
                    _ => self.unbucketed.entry((table, chain)).or_default().push(rule),
                }
            }
        }
        Step::Buckets(0)
    }

    fn write_buckets(&self, from: usize, filling: &mut Filling<'_, A>) -> Step {
        for (position, ((table, chain), services)) in self.buckets.iter().enumerate().skip(from) {
            if filling.is_full() {
                return Step::Buckets(position);
            }
            let all = services
                .iter()
                .flat_map(|position| self.rules(*position).dispatch);
            let mine = all.filter(|(its_table, its_chain, _)| its_table == table && its_chain == chain);
            filling.chain(*table, *chain, mine.map(|(_, _, rule)| rule).collect());
        }
        Step::Top
    }

    fn write_top(&mut self, filling: &mut Filling<'_, A>) {
        self.write_fixed(filling, |chain| chain != ChainName::Top(Top::MarkMasq));
        hang_jumps(filling);
        guard_localhost(filling, &self.settings);
    }

    fn write_fixed(&mut self, filling: &mut Filling<'_, A>, wanted: impl Fn(ChainName) -> bool) {
        let chains = top::chains(&self.settings);
        for (table, chain, fixed) in chains.into_iter().filter(|(_, chain, _)| wanted(*chain)) {
            let mut rules: Vec<Rule<A>> = Vec::new();
            if chain == ChainName::Top(Top::Services) {
                let mine = self.buckets.keys().filter(|(its_table, _)| *its_table == table);
                rules.extend(mine.map(|(_, bucket)| bucket_jump(*bucket)));
            }
            rules.extend(self.unbucketed.remove(&(table, chain)).unwrap_or_default());
            rules.extend(fixed);
            filling.chain(table, chain, rules);
        }
    }
}

/// Puts our jumps in front of the kernel's chains, unless they are all there in the right order.
fn hang_jumps<A: Address>(filling: &mut Filling<'_, A>) {
    let mut by_chain: BTreeMap<(Table, Builtin), Vec<Rule<A>>> = BTreeMap::new();
    for (table, from, rule) in top::jumps() {
        by_chain.entry((table, from)).or_default().push(rule);
    }
    for ((table, from), rules) in by_chain {
        let chain = ChainName::Builtin(from);
        let wanted: Vec<&Rule<A>> = rules.iter().collect();
        let positions = filling.inventory.positions(table, chain, &wanted);
        // Each is inserted before the last, so the first of the list stands behind the others.
        let ordered = positions.iter().rev().is_sorted_by(|a, b| a.is_some() && a < b);
        let mut hanging = Vec::new();
        let mut repeated = false;
        for rule in &rules {
            let before = hanging.len();
            for words in top::words(rule) {
                let times = filling.inventory.occurrences(table, chain, &words);
                hanging.extend(std::iter::repeat_n((chain, words), times));
            }
            repeated |= hanging.len() > before + 1;
        }
        if ordered && positions.iter().all(Option::is_some) && !repeated {
            continue;
        }
        let edit = filling.transaction.table(table);
        // A jump of other words is not ours to take out; behind ours it does no harm.
        edit.deletes.extend(hanging);
        edit.inserts.extend(rules.into_iter().map(|rule| (chain, rule)));
    }
}

/// Takes out the jumps of kube-proxy's IPVS mode, whose chains are leftovers.
fn unhang_ipvs_jumps<A: Address>(filling: &mut Filling<'_, A>) {
    for (table, from, rule) in top::ipvs_jumps() {
        let chain = ChainName::Builtin(from);
        let times = filling.inventory.occurrences(table, chain, &rule);
        if times > 0 {
            let edit = filling.transaction.table(table);
            edit.deletes.extend(std::iter::repeat_n((chain, rule), times));
        }
    }
}

/// Adds our rule to the chain shared with the kubelet, which must not be emptied.
fn guard_localhost<A: Address>(filling: &mut Filling<'_, A>, settings: &Settings<A>) {
    let chain = ChainName::Top(Top::Firewall);
    let edit = filling.transaction.table(Table::Filter);
    if !filling.inventory.contains(Table::Filter, chain) {
        edit.writes.insert(chain, Vec::new());
    }
    if let Some(rule) = top::localhost_guard(settings)
        && filling.inventory.positions(Table::Filter, chain, &[&rule]) == [None]
    {
        edit.appends.push((chain, rule));
    }
}

impl<A: Address> Iterator for FullPlan<A> {
    type Item = Transaction<A>;

    fn next(&mut self) -> Option<Transaction<A>> {
        loop {
            let transaction = self.step()?;
            if !transaction.is_empty() {
                return Some(transaction);
            }
        }
    }
}
