//! How does a batch of changes become elements of our nf_tables table?
//!
//! Joins the planner and the netlink client. A partial batch is one transaction, and nothing is listed for
//! it. A full batch reads the table once, compares, and writes the difference: on a correct table nothing.
//! A table that does not exist yet is filled in bounded transactions, so that the first Services work while
//! the rest load.

use std::io;
use std::sync::{Arc, mpsc};

use pointsman_dataplane::{
    Batch, Change, Effort, Look, ProgramError, Programmer, Scope, ServiceState, Settings, Written,
};
use pointsman_model::{Address, Protocol};
use pointsman_netlink::nft::{Generation, Name, Op, Set, Transaction};
use pointsman_netlink_io::{Buffers, Client, CommitError, RequestError};
use pointsman_nft::{Inventory, Planner, Pool, RESETS, Records, SetId, TABLE, TableSettings, family};

use crate::clean_up::{Holders, clean_up_iptables};
use crate::commits::{Commits, Drift, NF_TABLES, unreadable};
use crate::memory;
use crate::outside::NfTables;

/// The table that kube-proxy keeps in this mode.
pub(crate) const PREDECESSOR: Name = Name::fixed("kube-proxy");
/// Services for each transaction of a cold start: some milliseconds of kernel time.
const SERVICES_PER_TRANSACTION: usize = 1000;
/// Transactions of a cold start that may wait for the kernel.
const PLANNED_AHEAD: usize = 2;
/// How often a repair is planned again because somebody else changed the ruleset meanwhile. The last
/// attempt is written without asking; the kernel still refuses what does not fit.
const ATTEMPTS: u32 = 4;
/// How often the same transaction is sent again to a kernel that lacked memory or was interrupted.
const REPEATS: u32 = 3;
/// Maps of more elements than this are looked up key by key instead of listed. To list one costs the square of its size:
/// 100,000 elements take 0.15 s of the kernel's time either way, 250,000 take 0.44 s rather than 1.1 s (Linux 6.18).
const LISTED_AT_MOST: u32 = 100_000;

/// The nftables table of one family, in the network namespace of the thread that made the value.
#[derive(Debug)]
pub struct NftablesBackend<A> {
    kernel: Box<dyn NfTables>,
    planner: Planner<A>,
    commits: Commits,
    /// The drift at which the table was last known to be right.
    undisturbed: Option<Drift>,
    /// Settings changed that are not written yet: what differs then is nobody's fault.
    unwritten: bool,
    /// What was read ahead of the first batch, and at which generation.
    read_ahead: Option<(Generation, Option<Found>)>,
    listed_at_most: u32,
}

/// The table as it was read, but for those of its maps that are looked up key by key.
#[derive(Debug)]
struct Found {
    inventory: Inventory,
    /// The maps that are left to read, each with the number of its elements.
    left: Vec<(Pool, Set, u32)>,
}

impl<A: Address> NftablesBackend<A> {
    /// Connects to the kernel; nothing is read or written yet, and the first batch must be full.
    pub fn open(settings: Settings<A>, commits: Commits) -> Result<Self, ProgramError> {
        let client = Client::open(Buffers::default()).map_err(|error| ProgramError::Missing {
            program: NF_TABLES.to_owned(),
            source: io::Error::other(error),
        })?;
        Ok(Self::over(Box::new(client), settings, commits))
    }

    pub(crate) fn over(kernel: Box<dyn NfTables>, settings: Settings<A>, commits: Commits) -> Self {
        Self {
            kernel,
            planner: Planner::new(TableSettings::new(settings)),
            commits,
            undisturbed: None,
            unwritten: false,
            read_ahead: None,
            listed_at_most: LISTED_AT_MOST,
        }
    }

    /// Looks up the elements of smaller maps, too.
    #[cfg(test)]
    pub(crate) fn listing_at_most(mut self, elements: u32) -> Self {
        self.listed_at_most = elements;
        self
    }

    /// Whether nobody else changed the ruleset since it was last known to be right. If somebody did, only
    /// a full batch can tell whether it concerns us.
    pub fn is_undisturbed(&mut self) -> Result<bool, ProgramError> {
        let (_, drift) = self.drift()?;
        Ok(self.undisturbed == Some(drift))
    }

    /// Removes everything of ours.
    pub fn clean_up(&mut self) -> Result<(), ProgramError> {
        self.clean_up_own()?;
        self.remove_table(PREDECESSOR)?;
        Ok(())
    }

    /// Whose tables are there.
    pub(crate) fn holders(&mut self) -> Result<Holders, ProgramError> {
        Ok(Holders {
            ours: self.has_table(&TABLE)?,
            others: self.has_table(&PREDECESSOR)?,
        })
    }

    /// Removes what only we make.
    pub fn clean_up_own(&mut self) -> Result<(), ProgramError> {
        self.remove_table(RESETS)?;
        self.remove_table(TABLE).map(drop)
    }

    fn sync_full(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        for attempt in 1..=ATTEMPTS {
            let (generation, drift) = self.drift()?;
            let only_at = (attempt < ATTEMPTS).then_some(generation);
            let found = match self.read_ahead.take() {
                Some((at, found)) if at == generation => found,
                _ => self.read_table()?,
            };
            // What a process finds at its start is as old as the last one, and nobody's fault either.
            let were_right = self.undisturbed.is_some() && !self.unwritten;
            let Some(found) = found else {
                let written = Written {
                    repaired: were_right,
                    ..self.fill(batch)?
                };
                self.undisturbed = Some(drift);
                self.unwritten = false;
                return Ok(written);
            };
            let found = self.look_up(found, batch)?;
            let services = states(batch).map(|state| (&state.service.name, state));
            let adoption = self.planner.adopt(services, &found);
            drop(found);
            let written = Written {
                transactions: usize::from(!adoption.repair.is_empty()),
                elements: adoption.repair.element_count(),
                repaired: !adoption.repair.is_empty() && were_right,
                restored: None,
            };
            match self.commit(&adoption.repair, only_at) {
                Ok(()) => {
                    self.planner = adoption.planner;
                    self.unwritten = false;
                    // What others committed since this was read shows in the next check.
                    self.undisturbed = Some(drift);
                    return Ok(written);
                }
                Err(CommitError::GenerationChanged) => continue,
                Err(error) => return Err(refused(error)),
            }
        }
        Err(ProgramError::Busy {
            program: NF_TABLES.to_owned(),
        })
    }

    /// Makes the table from nothing.
    fn fill(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        self.planner = Planner::new(self.planner.settings().clone());
        let (create, last) = self.planner.ruleset().create_gently();
        self.commit(&create, None).map_err(refused)?;
        let mut written = Written {
            transactions: 1,
            elements: create.element_count(),
            ..Written::default()
        };
        self.fill_elements(batch, &mut written)?;
        if !last.is_empty() {
            self.commit(&last, None).map_err(refused)?;
            written.transactions += 1;
            written.elements += last.element_count();
        }
        Ok(written)
    }

    /// Writes all Services into a table without any. A second thread plans what comes next while the kernel
    /// takes a transaction.
    fn fill_elements(&mut self, batch: &Batch<A>, written: &mut Written) -> Result<(), ProgramError> {
        let mut planner = self.planner.clone();
        let (sender, planned) = mpsc::sync_channel(PLANNED_AHEAD);
        let (planner, outcome) = std::thread::scope(|scope| {
            let planning = scope.spawn(move || {
                for chunk in batch.changes.chunks(SERVICES_PER_TRANSACTION) {
                    let added: Vec<Change<A>> = chunk.iter().filter_map(addition).collect();
                    let planned = planner.plan(&added);
                    planner.commit(planned.update);
                    if sender.send(planned.transaction).is_err() {
                        break;
                    }
                }
                planner
            });
            let outcome = planned.iter().try_for_each(|it| self.write(&it, written));
            // After a failure, this is what ends the planning.
            drop(planned);
            let planner = planning
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (planner, outcome)
        });
        self.planner = planner;
        outcome
    }

    fn write(&mut self, transaction: &Transaction, written: &mut Written) -> Result<(), ProgramError> {
        if !transaction.is_empty() {
            self.commit(transaction, None).map_err(refused)?;
            written.transactions += 1;
            written.elements += transaction.element_count();
        }
        Ok(())
    }

    fn commit(&mut self, transaction: &Transaction, only_at: Option<Generation>) -> Result<(), CommitError> {
        if transaction.is_empty() {
            return Ok(());
        }
        let mut repeats = 0;
        loop {
            let Self { kernel, commits, .. } = &mut *self;
            match commits.making(|| kernel.commit(transaction, only_at)) {
                Err(CommitError::TryAgain(_)) if repeats < REPEATS => repeats += 1,
                outcome => return outcome,
            }
        }
    }

    /// Reads the table for comparison; `None` if it does not exist.
    fn read_table(&mut self) -> Result<Option<Found>, ProgramError> {
        let family = family::<A>();
        if !self.has_table(&TABLE)? {
            return Ok(None);
        }
        let chains = self.kernel.chains(family, &TABLE).map_err(unreadable)?;
        let rules = self.kernel.rules(family, &TABLE).map_err(unreadable)?;
        let mut inventory = Inventory::new(chains, rules);
        // Packets fill these, and nobody compares them.
        let affinity = SetId::Affinity.name();
        let mut left = Vec::new();
        for set in self.kernel.sets(family, &TABLE).map_err(unreadable)? {
            if let Some((pool, count)) = self.is_large(&set)? {
                left.push((pool, set, count));
                continue;
            }
            let records = if set.name == affinity {
                Records::new(&set)
            } else {
                self.kernel.records(family, &TABLE, &set).map_err(unreadable)?
            };
            inventory.add_set(set, records);
        }
        Ok(Some(Found { inventory, left }))
    }

    /// Whether this is a map of a pool's endpoints that is too large to be listed, and how many elements it has.
    fn is_large(&mut self, set: &Set) -> Result<Option<(Pool, u32)>, ProgramError> {
        let mut pools = Pool::ALL.into_iter();
        let Some(pool) = pools.find(|pool| SetId::Backends(*pool).name() == set.name) else {
            return Ok(None);
        };
        // Whatever is declared otherwise goes anyway, and its keys may be of another length.
        if *set != SetId::Backends(pool).declare::<A>(0) {
            return Ok(None);
        }
        let count = self.kernel.count(family::<A>(), &TABLE, &set.name);
        let large = count
            .map_err(unreadable)?
            .filter(|count| *count > self.listed_at_most);
        Ok(large.map(|count| (pool, count)))
    }

    /// Looks up what the Services of a batch need in the maps that are left to read. If that is all there is in a map, as
    /// its number of elements says, it is the same as a list; otherwise it is listed after all.
    fn look_up(&mut self, found: Found, batch: &Batch<A>) -> Result<Inventory, ProgramError> {
        let Found { mut inventory, left } = found;
        for (pool, set, count) in left {
            let mut keys = Planner::slot_keys(pool, states(batch));
            let found = self.kernel.records_of(family::<A>(), &TABLE, &set, &mut keys);
            let mut records = found.map_err(unreadable)?;
            if records.count() != count as usize {
                records = self
                    .kernel
                    .records(family::<A>(), &TABLE, &set)
                    .map_err(unreadable)?;
            }
            inventory.add_set(set, records);
        }
        Ok(inventory)
    }

    fn has_table(&mut self, name: &Name) -> Result<bool, ProgramError> {
        let tables = self.kernel.tables(family::<A>()).map_err(unreadable)?;
        Ok(tables.iter().any(|table| table.name == *name))
    }

    fn remove_table(&mut self, name: Name) -> Result<bool, ProgramError> {
        if !self.has_table(&name)? {
            return Ok(false);
        }
        let mut transaction = Transaction::new(family::<A>(), name);
        transaction.ops.push(Op::DeleteTable);
        self.commit(&transaction, None).map_err(refused)?;
        Ok(true)
    }

    fn drift(&mut self) -> Result<(Generation, Drift), ProgramError> {
        let Self { kernel, commits, .. } = self;
        commits.drift(|| kernel.generation())
    }
}

/// How many packets our table refused on loopback addresses, in the network namespace of the calling thread.
pub fn refused_on_localhost<A: Address>() -> Result<Vec<(Protocol, u64)>, RequestError> {
    let mut client = Client::open(Buffers::default())?;
    let rules = client.rules(family::<A>(), &TABLE)?;
    let rules: Vec<_> = rules.into_iter().map(|(rule, _)| rule).collect();
    Ok(pointsman_nft::refused_on_localhost(&rules))
}

impl<A: Address> Programmer<A> for NftablesBackend<A> {
    /// Reads the table while the lists of Services and slices are still on their way. The first batch uses it, if
    /// nobody has committed anything meanwhile.
    fn prepare(&mut self) -> Result<(), ProgramError> {
        let (generation, _) = self.drift()?;
        self.read_ahead = Some((generation, self.read_table()?));
        Ok(())
    }

    fn sync(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        if batch.scope == Scope::Full {
            let written = self.sync_full(batch)?;
            memory::return_unused();
            return Ok(written);
        }
        let planned = self.planner.plan(&batch.changes);
        let mut written = Written::default();
        self.write(&planned.transaction, &mut written)?;
        self.planner.commit(planned.update);
        Ok(written)
    }

    fn change_settings(&mut self, settings: Settings<A>) {
        if self.planner.settings().shared != settings {
            self.planner = Planner::new(TableSettings {
                shared: settings,
                ..self.planner.settings().clone()
            });
            self.unwritten = true;
        }
    }

    /// Whatever the effort: what somebody else changed only a full batch can tell, as comparing is part of it.
    fn look(&mut self, _: Effort) -> Result<Look, ProgramError> {
        Ok(match self.is_undisturbed()? {
            true => Look::Undisturbed,
            false => Look::Suspect,
        })
    }

    fn remove_predecessors(&mut self) -> Result<(), ProgramError> {
        self.remove_table(PREDECESSOR)?;
        clean_up_iptables::<A>()
    }
}

/// The Services that a batch leaves.
fn states<A>(batch: &Batch<A>) -> impl Iterator<Item = &ServiceState<A>> {
    batch.changes.iter().filter_map(|change| change.after.as_deref())
}

/// The change that adds a Service to an empty table.
fn addition<A: Address>(change: &Change<A>) -> Option<Change<A>> {
    let after = change.after.as_ref()?;
    Some(Change {
        name: change.name.clone(),
        before: None,
        after: Some(Arc::clone(after)),
    })
}

fn refused(error: CommitError) -> ProgramError {
    let program = NF_TABLES.to_owned();
    match error {
        CommitError::GenerationChanged | CommitError::TryAgain(_) => ProgramError::Busy { program },
        CommitError::Unknown(source) => ProgramError::Io {
            program,
            source: io::Error::other(source),
        },
        error @ CommitError::Unacknowledged => ProgramError::Interrupted {
            program,
            how: error.to_string(),
        },
        error @ (CommitError::Encode(_) | CommitError::Refused(_) | CommitError::TooLarge { .. }) => {
            ProgramError::Refused {
                program,
                rule: None,
                message: error.to_string(),
            }
        }
    }
}
