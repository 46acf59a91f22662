//! How does a decided change reach the kernel?
//!
//! By one seam: batches of Services go in, and what becomes of them (elements over netlink, input of
//! `iptables-restore`, a map in memory, nothing) is behind it. Whoever decides when to write, look and compare
//! needs to know no mode.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::{fmt, io};

use pointsman_model::{Address, ServiceName};

use crate::index::{Batch, Scope};
use crate::settings::Settings;
use crate::state::ServiceState;

/// The states of all Services that were written.
pub type States<A> = Vec<Arc<ServiceState<A>>>;

/// Keeps the rules of one IP family.
pub trait Programmer<A: Address>: fmt::Debug + Send {
    /// Uses the time until the first batch, to read what the kernel has.
    fn prepare(&mut self) -> Result<(), ProgramError> {
        Ok(())
    }

    /// Brings a batch into the kernel; the first must be full. After an error, [`ProgramError::recovery`] says
    /// what the next batch has to be.
    fn sync(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError>;

    /// Takes over settings. If they are new, the next batch must be full.
    fn change_settings(&mut self, settings: Settings<A>);

    /// Looks whether the rules are as the last batch left them.
    fn look(&mut self, effort: Effort) -> Result<Look, ProgramError>;

    /// A comparison with what a full batch of these states would write, which must be all that was written.
    /// `None` where full batches compare anyway.
    fn comparison(&mut self, of: Compared, states: States<A>) -> Result<Option<Comparison>, ProgramError> {
        let _ = (of, states);
        Ok(None)
    }

    /// Removes rules that a predecessor or another mode left. For the time after a first full batch, so that
    /// a node that changes its mode has no gap.
    fn remove_predecessors(&mut self) -> Result<(), ProgramError> {
        Ok(())
    }
}

/// How much of the rules `iptables-restore` is given (gate `MinimizeIPTablesRestore`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restores {
    /// What changed; in a full batch, what is not right already.
    #[default]
    Minimal,
    /// Everything, with each batch: whatever was written before, and by whom, is overwritten.
    Complete,
}

/// What a batch took to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Transactions, or runs of `iptables-restore`.
    pub transactions: usize,
    /// Elements added or deleted (nftables mode).
    pub elements: usize,
    /// Rules that existed had to be changed to be right.
    pub repaired: bool,
    /// The input of `iptables-restore` (iptables mode).
    pub restored: Option<Restored>,
}

/// The size of the input of `iptables-restore`, and of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub bytes: usize,
    pub lines: usize,
    /// Chains written or removed.
    pub chains: usize,
    /// Rules written, added or deleted in the filter and nat tables.
    pub written: [usize; 2],
    /// Rules of ours in the filter and nat tables.
    pub total: [u64; 2],
}

/// How much a look may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// One question to the kernel.
    Quick,
    /// It may run a program.
    Thorough,
}

/// Whether the rules are as we left them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nobody else has written.
    Undisturbed,
    /// They were not flushed, and more cannot be seen cheaply.
    Unclear,
    /// Somebody else has written something; a comparison can tell whether it concerns us.
    Disturbed,
    /// They were flushed, or somebody else has written and only a full batch can tell what.
    Suspect,
}

/// What is compared with a full batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// What the kernel holds: finds what others changed.
    Kernel,
    /// What partial batches are believed to have written: finds faults of our own.
    Ledger,
}

/// What a comparison found. A full batch heals it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// What differs, by name.
    pub names: Vec<String>,
    /// What may differ only because a batch of ours wrote it while it was being read.
    pub in_motion: usize,
    /// Another proxy has written its rules over ours.
    pub another_proxy: bool,
}

/// A comparison that can run on a thread of its own: it reads or renders all rules, which takes longer than a
/// change may wait.
pub struct Comparison(Box<dyn FnOnce() -> Result<Differences, ProgramError> + Send>);

impl Comparison {
    pub fn new(compare: impl FnOnce() -> Result<Differences, ProgramError> + Send + 'static) -> Self {
        Self(Box::new(compare))
    }

    pub fn differences(self) -> Result<Differences, ProgramError> {
        (self.0)()
    }
}

impl fmt::Debug for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Comparison")
    }
}

/// Keeps no rules: for an IP family that the machine does not speak, and where only the times of changes count.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRules;

impl<A: Address> Programmer<A> for NoRules {
    fn sync(&mut self, _: &Batch<A>) -> Result<Written, ProgramError> {
        Ok(Written::default())
    }

    fn change_settings(&mut self, _: Settings<A>) {}

    fn look(&mut self, _: Effort) -> Result<Look, ProgramError> {
        Ok(Look::Undisturbed)
    }
}

/// Keeps the states of Services in memory, and behaves as a kernel does: a change to what is not there as it was
/// said to be is refused, others can take rules away, and a look notices that.
#[derive(Clone, Debug)]
pub struct MemoryRules<A> {
    /// What a packet would find.
    pub services: BTreeMap<ServiceName, Arc<ServiceState<A>>>,
    /// Somebody else wrote since the last full batch.
    disturbed: bool,
}

impl<A> Default for MemoryRules<A> {
    fn default() -> Self {
        Self {
            services: BTreeMap::new(),
            disturbed: false,
        }
    }
}

impl<A: Address> MemoryRules<A> {
    /// Somebody else removes everything.
    pub fn flush(&mut self) {
        self.services.clear();
        self.disturbed = true;
    }
}

impl<A: Address> Programmer<A> for MemoryRules<A> {
    fn sync(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        let mut services = match batch.scope {
            Scope::Full => BTreeMap::new(),
            Scope::Partial => self.services.clone(),
        };
        for change in &batch.changes {
            if batch.scope == Scope::Partial && services.get(&change.name) != change.before.as_ref() {
                return Err(ProgramError::Refused {
                    program: "memory".to_owned(),
                    rule: Some(change.name.to_string()),
                    message: "it is not there as it should be".to_owned(),
                });
            }
            match &change.after {
                Some(state) => services.insert(change.name.clone(), Arc::clone(state)),
                None => services.remove(&change.name),
            };
        }
        self.services = services;
        self.disturbed &= batch.scope == Scope::Partial;
        Ok(Written {
            transactions: 1,
            ..Written::default()
        })
    }

    fn change_settings(&mut self, _: Settings<A>) {}

    fn look(&mut self, _: Effort) -> Result<Look, ProgramError> {
        Ok(match self.disturbed {
            true => Look::Suspect,
            false => Look::Undisturbed,
        })
    }
}

/// Why the kernel does not have the rules.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Another program holds the lock; nothing was written.
    #[error("{program} could not get the lock that another program holds")]
    Busy {
        /// The program or interface.
        program: String,
    },
    /// The kernel or the tool refused the rules; part of them may have been written.
    #[error("{program} refused the rules{}: {message}", .rule.as_ref().map(|rule| format!(" at {rule:?}")).unwrap_or_default())]
    Refused {
        /// The program or interface.
        program: String,
        /// The rule it complained about, if it said so.
        rule: Option<String>,
        /// Its complaint, shortened.
        message: String,
    },
    /// It is not installed or the kernel lacks it.
    #[error("{program} is missing")]
    Missing {
        /// The program or interface.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It ended without a verdict (killed, crashed, timed out); anything may have been written.
    #[error("{program} ended without a verdict: {how}")]
    Interrupted {
        /// The program or interface.
        program: String,
        /// How it ended.
        how: String,
    },
    /// Talking to it failed.
    #[error("talking to {program} failed")]
    Io {
        /// The program or interface.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing was written: the same change can be tried again.
    Retry,
    /// The kernel's state is unknown: everything has to be written again.
    FullResync,
}

impl ProgramError {
    /// What to do next.
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Busy { .. } | Self::Missing { .. } => Recovery::Retry,
            Self::Refused { .. } | Self::Interrupted { .. } | Self::Io { .. } => Recovery::FullResync,
        }
    }
}
