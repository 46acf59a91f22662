//! How does a batch of changes become iptables rules in the kernel?
//!
//! Joins the planner and the programs: plan, apply, remember, and count what was written. Where the kernel
//! counts commits, also notice those of others.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pointsman_dataplane::{
    Batch, Compared, Comparison, Differences, Effort, Look, ProgramError, Programmer, Restored, Restores,
    Scope, Settings, States, Written,
};
use pointsman_iptables::plan::{Holder, cleanup, cleanup_own};
use pointsman_iptables::{ChainName, Planner, Table, Transaction};
use pointsman_model::Address;

use crate::clean_up::clean_up_nftables;
use crate::commits::{Commits, Witness};
use crate::iptables::{InputSize, Iptables, Variant};
use crate::memory;
use crate::outside::Tables;

/// The sysctl that lets packets from 127.0.0.1 leave, without which node ports on localhost go nowhere.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// The tables whose rules are counted.
const COUNTED: [Table; 2] = [Table::Filter, Table::Nat];

/// The iptables rules of one family, in the network namespace of the calling thread.
#[derive(Debug)]
pub struct IptablesBackend<A> {
    planner: Planner<A>,
    tables: Box<dyn Tables<A>>,
    witness: Option<Witness>,
    /// What was written since a comparison began to read, as long as it reads.
    meanwhile: Weak<Chains>,
    /// Our chains were seen to be gone; the next full batch makes them anew.
    flushed: bool,
}

type Chains = Mutex<BTreeSet<(Table, ChainName)>>;

impl<A: Address> IptablesBackend<A> {
    /// A backend that knows nothing about the kernel yet; its first batch must be full.
    pub fn new(settings: Settings<A>, variant: Variant) -> Self {
        let tables = Box::new(Iptables::new(variant));
        let mut backend = Self::over(tables, settings, variant.rules_per_transaction());
        backend.planner = backend.planner.removing_ahead_from(variant.removes_ahead_from());
        backend
    }

    /// Notices the commits of others, if this is nf_tables and the kernel tells. All that write in this process
    /// share `commits`.
    #[must_use]
    pub fn watching(mut self, variant: Variant, commits: Commits) -> Self {
        self.witness = match variant {
            Variant::Nft => Witness::open(commits),
            Variant::System | Variant::Legacy => None,
        };
        self
    }

    /// Sets how much each batch writes.
    #[must_use]
    pub fn with_restores(mut self, restores: Restores) -> Self {
        self.planner = self.planner.with_restores(restores);
        self
    }

    pub(crate) fn over(
        tables: Box<dyn Tables<A>>,
        settings: Settings<A>,
        rules_per_transaction: usize,
    ) -> Self {
        Self {
            planner: Planner::new(settings).with_rules_per_transaction(rules_per_transaction),
            tables,
            witness: None,
            meanwhile: Weak::new(),
            flushed: false,
        }
    }

    /// Remembers what was never written, as a fault of ours would.
    #[cfg(test)]
    pub(crate) fn pretend(&mut self, transaction: &Transaction<A>) {
        self.planner.applied(transaction);
    }

    /// Removes everything of ours and of kube-proxy's.
    pub fn clean_up(&mut self) -> Result<(), ProgramError> {
        let inventory = self.tables.list()?;
        self.restore(&cleanup(&inventory)).map(drop)
    }

    /// Whose rules packets go through.
    pub fn holder(&mut self) -> Result<Holder, ProgramError> {
        Ok(Holder::of(&self.tables.list()?))
    }

    /// Removes what kube-proxy, which has taken over, does not know.
    pub fn clean_up_own(&mut self) -> Result<(), ProgramError> {
        let inventory = self.tables.list()?;
        self.restore(&cleanup_own(&inventory)).map(drop)
    }

    fn restore(&mut self, transaction: &Transaction<A>) -> Result<InputSize, ProgramError> {
        if let Some(meanwhile) = self.meanwhile.upgrade() {
            lock(&meanwhile).extend(transaction.touched());
        }
        let mark = self.witness.as_mut().and_then(Witness::mark);
        let restored = self.tables.restore(transaction);
        // Also if it failed: tables before the one that was refused are committed.
        if let Some(witness) = &mut self.witness {
            let written = transaction.tables.values().filter(|edit| !edit.is_empty());
            witness.wrote(mark, written.count());
        }
        restored
    }
}

impl<A: Address> Programmer<A> for IptablesBackend<A> {
    fn sync(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        let mut restored = Restored::default();
        let mut transactions = 0;
        // What others write after this moment is not in what we are about to read.
        let drift = self.witness.as_mut().and_then(|witness| witness.drift().ok());
        for transaction in self.planner.plan(batch, || self.tables.list())? {
            let size = self.restore(&transaction)?;
            self.planner.applied(&transaction);
            transactions += usize::from(size.bytes > 0);
            restored.bytes += size.bytes;
            restored.lines += size.lines;
            restored.chains += size.chains;
            for (written, table) in restored.written.iter_mut().zip(COUNTED) {
                *written += transaction.rules(table);
            }
        }
        let repaired = batch.scope == Scope::Full && std::mem::take(&mut self.flushed);
        restored.total = COUNTED.map(|table| self.planner.ledger().total(table));
        if batch.scope == Scope::Full {
            if let Some(witness) = &mut self.witness {
                witness.trust(drift);
            }
            memory::return_unused();
        }
        Ok(Written {
            transactions,
            repaired,
            restored: Some(restored),
            ..Written::default()
        })
    }

    fn change_settings(&mut self, settings: Settings<A>) {
        self.planner.change_settings(settings);
    }

    fn look(&mut self, effort: Effort) -> Result<Look, ProgramError> {
        let worth_it = match &mut self.witness {
            Some(witness) => witness.is_disturbed()?,
            None => effort == Effort::Thorough,
        };
        if !worth_it {
            return Ok(Look::Undisturbed);
        }
        self.flushed = !self.tables.has_canary()?;
        Ok(match (self.flushed, &self.witness) {
            (true, _) => Look::Suspect,
            (false, Some(_)) => Look::Disturbed,
            (false, None) => Look::Unclear,
        })
    }

    fn comparison(&mut self, of: Compared, states: States<A>) -> Result<Option<Comparison>, ProgramError> {
        let planner = Planner::new(self.planner.settings().clone());
        Ok(Some(match of {
            Compared::Kernel => {
                // What others write from now on will be noticed again.
                if let Some(witness) = &mut self.witness {
                    let drift = witness.drift()?;
                    witness.trust(Some(drift));
                }
                let mut tables = self.tables.another();
                let meanwhile = Arc::<Chains>::default();
                self.meanwhile = Arc::downgrade(&meanwhile);
                Comparison::new(move || {
                    let inventory = tables.list()?;
                    let another_proxy = Holder::of(&inventory) == Holder::Another;
                    let differing = planner.differences(states, inventory);
                    let written = lock(&meanwhile);
                    let foreign = differing.difference(&written).copied();
                    Ok(Differences {
                        in_motion: differing.intersection(&written).count(),
                        names: named(foreign),
                        another_proxy,
                    })
                })
            }
            Compared::Ledger => {
                let ledger = self.planner.ledger().clone();
                Comparison::new(move || {
                    let differing = ledger.differences(&planner.expected(states.into_iter()));
                    Ok(Differences {
                        names: named(differing),
                        ..Differences::default()
                    })
                })
            }
        }))
    }

    fn remove_predecessors(&mut self) -> Result<(), ProgramError> {
        clean_up_nftables::<A>()
    }
}

/// Nobody panics with them; if somebody did, they are still good.
fn lock(chains: &Chains) -> MutexGuard<'_, BTreeSet<(Table, ChainName)>> {
    chains.lock().unwrap_or_else(PoisonError::into_inner)
}

fn named(chains: impl IntoIterator<Item = (Table, ChainName)>) -> Vec<String> {
    let name = |(table, chain): (Table, ChainName)| format!("{chain} in {}", table.as_str());
    chains.into_iter().map(name).collect()
}

/// Lets node ports answer on 127.0.0.1. Only written if it is not so already.
pub fn allow_localhost_node_ports() -> io::Result<()> {
    if std::fs::read_to_string(ROUTE_LOCALNET)?.trim() == "1" {
        return Ok(());
    }
    std::fs::write(ROUTE_LOCALNET, "1")
}
