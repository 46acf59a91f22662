//! How does a batch of changes become iptables rules in the kernel?
//!
//! Joins the planner and the programs: plan, apply, remember, and count what was written. Where the kernel
//! counts commits, also notice those of others.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use pointsman_dataplane::{Batch, ProgramError, Programmer, Scope, ServiceState, Settings};
use pointsman_iptables::plan::{Holder, cleanup, cleanup_own};
use pointsman_iptables::{ChainName, Inventory, Ledger, Planner, Table, Transaction};
use pointsman_model::Address;

use crate::iptables::{InputSize, Iptables, Variant};
use crate::memory;
use crate::nftables_backend::Commits;
use crate::witness::Witness;

/// The sysctl that lets packets from 127.0.0.1 leave, without which node ports on localhost go nowhere.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// What the backend asks of the kernel: the seam at which tests put one that fails.
pub trait Tables<A: Address> {
    /// Applies a transaction, table by table, and says how large its input was.
    fn restore(&mut self, transaction: &Transaction<A>) -> Result<InputSize, ProgramError>;
    /// Lists what is there under names of ours.
    fn list(&mut self) -> Result<Inventory, ProgramError>;
    /// Whether our canary chain is there.
    fn has_canary(&mut self) -> Result<bool, ProgramError>;
}

impl<A: Address> Tables<A> for Iptables<A> {
    fn restore(&mut self, transaction: &Transaction<A>) -> Result<InputSize, ProgramError> {
        Self::restore(self, transaction)
    }

    fn list(&mut self) -> Result<Inventory, ProgramError> {
        self.inventory()
    }

    fn has_canary(&mut self) -> Result<bool, ProgramError> {
        self.canary_is_alive()
    }
}

/// The iptables rules of one family, in the network namespace of the calling thread.
#[derive(Debug)]
pub struct IptablesBackend<A, T = Iptables<A>> {
    planner: Planner<A>,
    tables: T,
    witness: Option<Witness>,
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

/// Whether the rules are as we left them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nobody has written.
    Undisturbed,
    /// Somebody else has written something; [`KernelCheck`] can tell whether it concerns us.
    Disturbed,
    /// The canary is there, and more cannot be told cheaply.
    Unclear,
    /// The tables were flushed.
    Flushed,
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

/// Everything for comparing the kernel with what a full sync would write, to run beside the thread that
/// writes: reading all rules takes seconds on a large node.
#[derive(Debug)]
pub struct KernelCheck<A, T = Iptables<A>> {
    tables: T,
    settings: Settings<A>,
    states: Vec<Arc<ServiceState<A>>>,
}

impl<A: Address, T: Tables<A>> KernelCheck<A, T> {
    /// The chains that are not as they should be. A full batch heals them.
    pub fn differences(mut self) -> Result<BTreeSet<(Table, ChainName)>, ProgramError> {
        let inventory = self.tables.list()?;
        Ok(Planner::new(self.settings).differences(self.states, inventory))
    }
}

impl<A: Address> IptablesBackend<A> {
    /// A backend that knows nothing about the kernel yet; its first batch must be full.
    pub fn new(settings: Settings<A>, variant: Variant) -> Self {
        Self::over(Iptables::new(variant), settings, variant.rules_per_transaction())
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
}

impl<A: Address, T: Tables<A>> IptablesBackend<A, T> {
    /// A backend over these tables.
    pub fn over(tables: T, settings: Settings<A>, rules_per_transaction: usize) -> Self {
        Self {
            planner: Planner::new(settings).with_rules_per_transaction(rules_per_transaction),
            tables,
            witness: None,
        }
    }

    /// Brings a batch into the kernel. After an error, its [`ProgramError::recovery`] says what the next
    /// batch has to be.
    pub fn sync(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        let mut written = Written::default();
        // What others write after this moment is not in what we are about to read.
        let drift = self.witness.as_mut().and_then(|witness| witness.drift().ok());
        for transaction in self.planner.plan(batch, || self.tables.list())? {
            let size = self.restore(&transaction)?;
            self.planner.applied(&transaction);
            written.restores += usize::from(size.bytes > 0);
            written.bytes += size.bytes;
            written.lines += size.lines;
            written.chains += size.chains;
            written.filter_rules += transaction.rules(Table::Filter);
            written.nat_rules += transaction.rules(Table::Nat);
        }
        if batch.scope == Scope::Full {
            if let Some(witness) = &mut self.witness {
                witness.trust(drift);
            }
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

    /// The comparison of the kernel with what a full sync of these states would write. What others write from
    /// now on will be noticed again.
    pub fn kernel_check(
        &mut self,
        states: Vec<Arc<ServiceState<A>>>,
    ) -> Result<KernelCheck<A, T>, ProgramError>
    where
        T: Clone,
    {
        if let Some(witness) = &mut self.witness {
            let drift = witness.drift()?;
            witness.trust(Some(drift));
        }
        Ok(KernelCheck {
            tables: self.tables.clone(),
            settings: self.planner.settings().clone(),
            states,
        })
    }

    /// The number of rules of ours in a table.
    pub fn rules(&self, table: Table) -> u64 {
        self.planner.ledger().total(table)
    }

    /// Looks whether the rules are as we left them. A quick look is one question to the kernel; a thorough one
    /// may run a program.
    pub fn look(&mut self, thorough: bool) -> Result<Look, ProgramError> {
        let worth_it = match &mut self.witness {
            Some(witness) => witness.is_disturbed()?,
            None => thorough,
        };
        if !worth_it {
            return Ok(Look::Undisturbed);
        }
        Ok(match (self.tables.has_canary()?, &self.witness) {
            (false, _) => Look::Flushed,
            (true, Some(_)) => Look::Disturbed,
            (true, None) => Look::Unclear,
        })
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
        let mark = self.witness.as_mut().and_then(Witness::mark);
        let size = self.tables.restore(transaction)?;
        if let Some(witness) = &mut self.witness {
            let written = transaction.tables.values().filter(|edit| !edit.is_empty());
            witness.wrote(mark, written.count());
        }
        Ok(size)
    }
}

/// Lets node ports answer on 127.0.0.1. Only written if it is not so already.
pub fn allow_localhost_node_ports() -> io::Result<()> {
    if std::fs::read_to_string(ROUTE_LOCALNET)?.trim() == "1" {
        return Ok(());
    }
    std::fs::write(ROUTE_LOCALNET, "1")
}
