//! Which edits bring the kernel from what it holds to what it should hold?
//!
//! A partial plan is one transaction whose size depends on the changed Services only: their own chains are
//! rewritten if their content differs, and their rules in shared chains are added and deleted one by one.
//! A full plan ([`full`](crate::full)) makes sure of everything in a sequence of transactions.
//!
//! `KUBE-SERVICES` is split into buckets by the last byte of the destination address. Upstream's flat chain
//! costs every new connection a walk over all Services, and deleting one rule from it means fetching all
//! of them from the kernel (10,000 Services, iptables-nft 1.8.9: 190 ms against 16 ms with buckets).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pointsman_dataplane::settings::Settings;
use pointsman_dataplane::{Batch, Change, Restores, Scope, ServiceState};
use pointsman_model::Address;

use crate::full::FullPlan;
use crate::ledger::Ledger;
use crate::name::{ChainName, Table, Top};
use crate::rule::{Match, Rule, Target};
use crate::saved::Inventory;
use crate::service::{DispatchRule, EndpointComments, ServiceRules};
use crate::top;
use crate::transaction::{Thinned, Transaction};

/// Above this many endpoints, rules about endpoints carry no comments (upstream's large-cluster mode).
pub const LARGE_CLUSTER_ENDPOINTS: u64 = 1000;

/// How many rules a transaction of a full plan writes, if the kernel's interface is nf_tables. One large
/// restore takes far longer than many small ones (5,000 Services of 5 endpoints with iptables-nft 1.8.9:
/// 100 s at once, 7 s in parts of this size).
pub const NFT_RULES_PER_TRANSACTION: usize = 3_000;

/// The same for the older interface, which replaces the whole table at every restore.
pub const LEGACY_RULES_PER_TRANSACTION: usize = 50_000;

/// With nf_tables, a transaction that only deletes takes some 16 ms whatever the size of the cluster, and one that writes
/// takes longer than that the more rules there are: 76 ms at 85,000 (5,000 Services of 5 endpoints), with iptables-nft
/// 1.8.9 on Linux 6.18. From this many rules in the nat table on, leaving endpoints are taken out ahead of the rest.
pub const NFT_RULES_THAT_MAKE_WRITING_SLOW: u64 = 50_000;

/// Plans edits and keeps the ledger of what was applied.
#[derive(Debug)]
pub struct Planner<A> {
    settings: Settings<A>,
    ledger: Ledger,
    rules_per_transaction: usize,
    restores: Restores,
    /// The number of rules from which on leaving endpoints are taken out ahead; `None` if never.
    removes_ahead_from: Option<u64>,
}

/// The transactions that bring a batch into the kernel. Apply them in order; after each, tell
/// [`Planner::applied`].
#[derive(Debug)]
pub enum Plan<A> {
    /// At most two transactions: one that only takes leaving endpoints out, and one that does everything.
    Partial([Option<Transaction<A>>; 2]),
    /// Many, made one by one.
    Full(Box<FullPlan<A>>),
}

impl<A: Address> Iterator for Plan<A> {
    type Item = Transaction<A>;

    fn next(&mut self) -> Option<Transaction<A>> {
        match self {
            Self::Partial(transactions) => transactions.iter_mut().find_map(Option::take),
            Self::Full(plan) => plan.next(),
        }
    }
}

impl<A: Address> Planner<A> {
    /// A planner that knows nothing about the kernel yet; its first plan must be full.
    pub fn new(settings: Settings<A>) -> Self {
        Self {
            settings,
            ledger: Ledger::default(),
            rules_per_transaction: NFT_RULES_PER_TRANSACTION,
            restores: Restores::Minimal,
            removes_ahead_from: None,
        }
    }

    /// Sets from how many rules on leaving endpoints are taken out ahead of everything else.
    #[must_use]
    pub fn removing_ahead_from(mut self, rules: Option<u64>) -> Self {
        self.removes_ahead_from = rules;
        self
    }

    /// Sets how many rules a transaction of a full plan writes.
    #[must_use]
    pub fn with_rules_per_transaction(mut self, rules: usize) -> Self {
        self.rules_per_transaction = rules;
        self
    }

    /// Sets whether a full plan leaves chains alone that are right already.
    #[must_use]
    pub fn with_restores(mut self, restores: Restores) -> Self {
        self.restores = restores;
        self
    }

    /// The settings rules are made with.
    pub fn settings(&self) -> &Settings<A> {
        &self.settings
    }

    /// Takes over new settings. If this returns true, the next batch has to be full.
    pub fn change_settings(&mut self, settings: Settings<A>) -> bool {
        let changed = self.settings != settings;
        self.settings = settings;
        changed
    }

    /// Plans a batch. `inventory` is asked for only if the batch is full.
    pub fn plan<E>(
        &mut self,
        batch: &Batch<A>,
        inventory: impl FnOnce() -> Result<Inventory, E>,
    ) -> Result<Plan<A>, E> {
        match batch.scope {
            Scope::Partial => {
                let transactions = self.partial(&batch.changes, comments(batch));
                Ok(Plan::Partial(transactions.map(|it| {
                    Some(it).filter(|transaction| !transaction.is_empty())
                })))
            }
            Scope::Full => {
                let inventory = inventory()?;
                let states = batch
                    .changes
                    .iter()
                    .filter_map(|change| change.after.clone())
                    .collect();
                self.ledger = Ledger::default();
                Ok(Plan::Full(Box::new(self.full_plan(
                    states,
                    inventory,
                    comments(batch),
                ))))
            }
        }
    }

    /// Plans a full sync of these states, whatever was applied before.
    pub fn full(&mut self, states: Vec<Arc<ServiceState<A>>>, inventory: Inventory) -> FullPlan<A> {
        self.ledger = Ledger::default();
        self.full_plan(states, inventory, EndpointComments::Written)
    }

    fn full_plan(
        &self,
        states: Vec<Arc<ServiceState<A>>>,
        inventory: Inventory,
        comments: EndpointComments,
    ) -> FullPlan<A> {
        FullPlan::new(
            states,
            self.settings.clone(),
            inventory,
            comments,
            self.rules_per_transaction,
        )
        .with_restores(self.restores)
    }

    /// Records that the kernel has accepted a transaction.
    pub fn applied(&mut self, transaction: &Transaction<A>) {
        self.ledger.apply(transaction);
    }

    /// What the kernel is believed to hold.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What the kernel would hold after a full sync of these states: compare it with
    /// [`Planner::ledger`] to check that partial syncs have not gone astray.
    pub fn expected(&self, states: impl Iterator<Item = Arc<ServiceState<A>>>) -> Ledger {
        let mut ledger = Ledger::default();
        let plan = self.full_plan(states.collect(), Inventory::default(), EndpointComments::LeftOut);
        for transaction in plan {
            ledger.apply(&transaction);
        }
        ledger
    }

    /// The chains that a full sync of these states would change in a kernel that holds this.
    pub fn differences(
        &self,
        states: Vec<Arc<ServiceState<A>>>,
        inventory: Inventory,
    ) -> BTreeSet<(Table, ChainName)> {
        let mut differing = BTreeSet::new();
        for transaction in self.full_plan(states, inventory, EndpointComments::LeftOut) {
            differing.extend(transaction.touched());
        }
        differing
    }

    fn partial(&self, changes: &[Change<A>], comments: EndpointComments) -> [Transaction<A>; 2] {
        let mut ahead = Transaction::default();
        let mut transaction = Transaction::default();
        let rules = self.ledger.total(Table::Nat);
        let removes_ahead = self.removes_ahead_from.is_some_and(|from| rules >= from);
        let mut shared = SharedChanges::default();
        for change in changes {
            // Comments of what is there are irrelevant: chains are compared without them.
            let before = ServiceRules::of(change.before.as_deref(), &self.settings, comments);
            let after = ServiceRules::of(change.after.as_deref(), &self.settings, comments);
            if removes_ahead {
                take_out(&before.chains, &after.chains, &self.ledger, &mut ahead);
            }
            own_chains(before.chains, after.chains, &mut transaction);
            shared.add(&before.dispatch, &after.dispatch);
        }
        shared.write(&self.ledger, &mut transaction);
        [ahead, transaction]
    }
}

/// Takes everything of ours out of the kernel again (`--cleanup`). What the kubelet shares stays.
pub fn cleanup<A: Address>(inventory: &Inventory) -> Transaction<A> {
    let mut transaction = Transaction::default();
    let kept = |chain: ChainName| chain == ChainName::Top(Top::Firewall);
    for (table, from, jump) in top::jumps::<A>().into_iter().chain(top::ipvs_jumps()) {
        if jump.jumps_to().is_none_or(kept) {
            continue;
        }
        let chain = ChainName::Builtin(from);
        for rule in top::words(&jump) {
            let times = inventory.occurrences(table, chain, &rule);
            if times > 0 {
                let edit = transaction.table(table);
                edit.deletes.extend(std::iter::repeat_n((chain, rule), times));
            }
        }
    }
    let fixed = top::chains::<A>(&Settings::default())
        .into_iter()
        .map(|(table, chain, _)| (table, chain));
    let transient = [Table::Filter, Table::Nat]
        .into_iter()
        .flat_map(|table| inventory.transient(table).map(move |chain| (table, chain)));
    for (table, chain) in fixed.chain(transient) {
        if inventory.contains(table, chain) {
            transaction.table(table).removals.insert(chain);
        }
    }
    transaction
}

/// Whose rules packets go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// There are none.
    Nobody,
    /// Ours: `KUBE-SERVICES` leads to buckets.
    Ourselves,
    /// Another proxy's: its `KUBE-SERVICES` knows Services itself.
    Another,
    /// There are no Services, so they look the same.
    Unclear,
}

impl Holder {
    /// Who holds the chains that an inventory shows.
    pub fn of(inventory: &Inventory) -> Self {
        if !inventory.contains(Table::Nat, ChainName::Top(Top::Services)) {
            return Self::Nobody;
        }
        let ours = [Table::Filter, Table::Nat]
            .iter()
            .any(|table| inventory.idle_buckets(*table).1);
        match ours {
            true => Self::Ourselves,
            false if inventory.is_flat(Table::Nat) => Self::Another,
            false => Self::Unclear,
        }
    }
}

/// Takes out what another proxy that has taken over does not know (`--cleanup-own`): it shares the names of all
/// chains but those of the buckets. Where it has no rules, everything goes.
pub fn cleanup_own<A: Address>(inventory: &Inventory) -> Transaction<A> {
    match Holder::of(inventory) {
        Holder::Nobody | Holder::Ourselves => return cleanup(inventory),
        Holder::Another | Holder::Unclear => {}
    }
    let mut transaction = Transaction::default();
    for table in [Table::Filter, Table::Nat] {
        let (idle, _) = inventory.idle_buckets(table);
        if !idle.is_empty() {
            transaction.table(table).removals.extend(idle);
        }
    }
    transaction
}

fn comments<A>(batch: &Batch<A>) -> EndpointComments {
    match batch.totals.endpoints > LARGE_CLUSTER_ENDPOINTS {
        true => EndpointComments::LeftOut,
        false => EndpointComments::Written,
    }
}

/// Takes rules out of the chains that stay, so that no packet goes to an endpoint that leaves: without writing any rule, and
/// without leaving a packet nowhere to go. Whatever chances the other endpoints have then, the next transaction puts right.
fn take_out<A: Address>(
    before: &BTreeMap<ChainName, Vec<Rule<A>>>,
    after: &BTreeMap<ChainName, Vec<Rule<A>>>,
    ledger: &Ledger,
    transaction: &mut Transaction<A>,
) {
    for (chain, rules) in before {
        let Some(after) = after.get(chain).filter(|after| *after != rules) else {
            continue;
        };
        let stay: BTreeSet<ChainName> = after.iter().filter_map(Rule::jumps_to).collect();
        let endpoint = |rule: &Rule<A>| rule.jumps_to().filter(|chain| chain.is_endpoint());
        let stays = |rule: &Rule<A>| endpoint(rule).is_some_and(|chain| stay.contains(&chain));
        // Of the rules that any packet follows one has to stay, for those that none of the others caught.
        let caught = rules.iter().any(|rule| rule.matches.is_empty() && stays(rule));
        let goes = |rule: &Rule<A>| {
            let leaves = endpoint(rule).is_some_and(|chain| !stay.contains(&chain));
            leaves && (caught || !rule.matches.is_empty())
        };
        let (gone, left): (Vec<_>, Vec<_>) = rules.iter().enumerate().partition(|(_, rule)| goes(rule));
        // After a failure the chain may be thinned already.
        if gone.is_empty() || !ledger.holds(Table::Nat, *chain, rules) {
            continue;
        }
        let thinned = Thinned {
            gone: gone.into_iter().map(|(position, _)| position).collect(),
            left: left.into_iter().map(|(_, rule)| rule.clone()).collect(),
        };
        transaction.table(Table::Nat).thinned.insert(*chain, thinned);
    }
}

/// Rewrites the chains that differ and removes those that are gone.
fn own_chains<A: Address>(
    mut before: BTreeMap<ChainName, Vec<Rule<A>>>,
    after: BTreeMap<ChainName, Vec<Rule<A>>>,
    transaction: &mut Transaction<A>,
) {
    for (chain, rules) in after {
        if before.remove(&chain).as_ref() != Some(&rules) {
            transaction.table(Table::Nat).writes.insert(chain, rules);
        }
    }
    if !before.is_empty() {
        transaction.table(Table::Nat).removals.extend(before.into_keys());
    }
}

/// Single-rule edits of shared chains.
struct SharedChanges<A> {
    chains: BTreeMap<(Table, ChainName), RuleChanges<A>>,
}

/// Single-rule edits of one chain.
struct RuleChanges<A> {
    deletes: Vec<Rule<A>>,
    adds: Vec<Rule<A>>,
}

impl<A> Default for SharedChanges<A> {
    fn default() -> Self {
        Self {
            chains: BTreeMap::new(),
        }
    }
}

impl<A: Address> SharedChanges<A> {
    fn of(&mut self, table: Table, chain: ChainName) -> &mut RuleChanges<A> {
        let none = || RuleChanges {
            deletes: Vec::new(),
            adds: Vec::new(),
        };
        self.chains.entry((table, chain)).or_insert_with(none)
    }

    fn add(&mut self, before: &[DispatchRule<A>], after: &[DispatchRule<A>]) {
        for entry in before.iter().filter(|entry| !after.contains(entry)) {
            self.of(entry.0, entry.1).deletes.push(entry.2.clone());
        }
        for entry in after.iter().filter(|entry| !before.contains(entry)) {
            self.of(entry.0, entry.1).adds.push(entry.2.clone());
        }
    }

    fn write(self, ledger: &Ledger, transaction: &mut Transaction<A>) {
        for ((table, chain), RuleChanges { deletes, adds }) in self.chains {
            let edit = transaction.table(table);
            let held = ledger.rules(table, chain) as usize;
            let left = (held + adds.len()).saturating_sub(deletes.len());
            match chain {
                ChainName::Bucket(_) if left == 0 => {
                    edit.deletes
                        .push((ChainName::Top(Top::Services), bucket_jump(chain)));
                    edit.removals.insert(chain);
                }
                ChainName::Bucket(_) if held == 0 => {
                    // In front, because the jump to the node ports has to stay last.
                    edit.inserts
                        .push((ChainName::Top(Top::Services), bucket_jump(chain)));
                    edit.writes.insert(chain, adds);
                }
                _ => {
                    edit.deletes.extend(deletes.into_iter().map(|rule| (chain, rule)));
                    edit.appends.extend(adds.into_iter().map(|rule| (chain, rule)));
                }
            }
        }
    }
}

/// The rule of `KUBE-SERVICES` that leads to a bucket.
pub(crate) fn bucket_jump<A: Address>(chain: ChainName) -> Rule<A> {
    let matches = match chain {
        ChainName::Bucket(end) => vec![Match::DestinationEnd(end)],
        _ => Vec::new(),
    };
    Rule::new(matches, Target::Jump(chain))
}

#[cfg(test)]
mod tests;
