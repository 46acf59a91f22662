//! How does a batch of changes become iptables rules in the kernel?
//!
//! Joins the planner and the programs: plan, apply, remember, and count what was written.

use std::io;
use std::sync::Arc;

use pointsman_dataplane::{Batch, ProgramError, Programmer, Scope, ServiceState, Settings};
use pointsman_iptables::plan::cleanup;
use pointsman_iptables::{ChainName, Ledger, Planner, Table};
use pointsman_model::Address;

use crate::iptables::{Iptables, Variant};
use crate::memory;

/// The sysctl that lets packets from 127.0.0.1 leave, without which node ports on localhost go nowhere.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// The iptables rules of one family, in the network namespace of the calling thread.
#[derive(Debug)]
pub struct IptablesBackend<A> {
    planner: Planner<A>,
    tables: Iptables<A>,
}

/// What a sync wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Runs of `iptables-restore`.
    pub restores: usize,
    /// Bytes of their input.
    pub bytes: usize,
    /// Lines of their input.
    pub lines: usize,
    /// Chains written or removed.
    pub chains: usize,
    /// Rules written, added or deleted in the filter table.
    pub filter_rules: usize,
    /// Rules written, added or deleted in the nat table.
    pub nat_rules: usize,
}

/// Everything for comparing partial with full syncs, taken out so that the comparison, which renders all
/// rules, can run beside the thread that writes.
#[derive(Debug)]
pub struct DigestCheck<A> {
    ledger: Ledger,
    settings: Settings<A>,
    states: Vec<Arc<ServiceState<A>>>,
}

impl<A: Address> DigestCheck<A> {
    /// The chains in which the two differ. There should be none; a full batch heals them.
    pub fn divergences(self) -> Vec<(Table, ChainName)> {
        let expected = Planner::new(self.settings).expected(self.states.into_iter());
        self.ledger.differences(&expected)
    }
}

impl<A: Address> IptablesBackend<A> {
    /// A backend that knows nothing about the kernel yet; its first batch must be full.
    pub fn new(settings: Settings<A>, variant: Variant) -> Self {
        let planner = Planner::new(settings).with_rules_per_transaction(variant.rules_per_transaction());
        Self {
            planner,
            tables: Iptables::new(variant),
        }
    }

    /// Brings a batch into the kernel. After an error, its [`ProgramError::recovery`] says what the next
    /// batch has to be.
    pub fn sync(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        let mut written = Written::default();
        for transaction in self.planner.plan(batch, || self.tables.inventory())? {
            let size = self.tables.restore(&transaction)?;
            self.planner.applied(&transaction);
            written.restores += usize::from(size.bytes > 0);
            written.bytes += size.bytes;
            written.lines += size.lines;
            written.chains += size.chains;
            written.filter_rules += transaction.rules(Table::Filter);
            written.nat_rules += transaction.rules(Table::Nat);
        }
        if batch.scope == Scope::Full {
            memory::return_unused();
        }
        Ok(written)
    }

    /// Takes over new settings. If this returns true, the next batch has to be full.
    #[must_use]
    pub fn change_settings(&mut self, settings: Settings<A>) -> bool {
        self.planner.change_settings(settings)
    }

    /// The comparison of what was written with what a full sync of these states would write.
    pub fn digest_check(&self, states: Vec<Arc<ServiceState<A>>>) -> DigestCheck<A> {
        DigestCheck {
            ledger: self.planner.ledger().clone(),
            settings: self.planner.settings().clone(),
            states,
        }
    }

    /// The number of rules of ours in a table.
    pub fn rules(&self, table: Table) -> u64 {
        self.planner.ledger().total(table)
    }

    /// Whether nobody has flushed the tables.
    pub fn is_alive(&self) -> Result<bool, ProgramError> {
        self.tables.canary_is_alive()
    }

    /// Removes everything of ours.
    pub fn clean_up(&mut self) -> Result<(), ProgramError> {
        let inventory = self.tables.inventory()?;
        self.tables.apply(&cleanup(&inventory))
    }
}

/// Lets node ports answer on 127.0.0.1. Only written if it is not so already.
pub fn allow_localhost_node_ports() -> io::Result<()> {
    if std::fs::read_to_string(ROUTE_LOCALNET)?.trim() == "1" {
        return Ok(());
    }
    std::fs::write(ROUTE_LOCALNET, "1")
}
