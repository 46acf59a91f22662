//! Does every programmer keep what the seam promises?
//!
//! The same story for both modes over kernels in memory, and for the programmer that is itself one.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use pointsman_dataplane::{
    Batch, Compared, Effort, Index, Look, MemoryRules, NoRules, ProgramError, Programmer, Recovery, Scope,
    Settings, Written,
};
use pointsman_iptables::fake::FakeKernel;
use pointsman_iptables::name::{ChainName, Table, Top};
use pointsman_iptables::{Inventory, Transaction};
use pointsman_netlink::netlink::Errno;
use pointsman_netlink::nft::{self, Chain, Family, Fault, Generation, Name, Rule, Set, Value};
use pointsman_netlink_io::{CommitError, RequestError};
use pointsman_nft::{KernelTable, Records, TABLE};
use pointsman_testkit::cluster::Cluster;

use crate::commits::Commits;
use crate::iptables::InputSize;
use crate::iptables_backend::IptablesBackend;
use crate::nftables_backend::NftablesBackend;
use crate::outside::{NfTables, Tables};

const BEFORE: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.1.5:8080 node=n1
    endpoint default/web 10.0.2.5:8080 node=n2
    service default/api 172.30.0.2:443
    endpoint default/api 10.0.1.6:8443 node=n1";
const AFTER: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.1.5:8080 node=n1
    service default/new 172.30.0.3:443
    endpoint default/new 10.0.1.7:8443 node=n1";

/// A value that a test and a programmer share.
#[derive(Debug, Default)]
pub(super) struct Shared<T>(pub Arc<Mutex<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.0.lock().expect("nobody panicked"))
    }
}

impl Tables<Ipv4Addr> for Shared<FakeKernel<Ipv4Addr>> {
    fn restore(&mut self, transaction: &Transaction<Ipv4Addr>) -> Result<InputSize, ProgramError> {
        self.with(|kernel| kernel.apply(transaction))?;
        Ok(InputSize {
            bytes: usize::from(!transaction.is_empty()),
            ..InputSize::default()
        })
    }

    fn list(&mut self) -> Result<Inventory, ProgramError> {
        Ok(self.with(|kernel| kernel.inventory()))
    }

    fn has_canary(&mut self) -> Result<bool, ProgramError> {
        Ok(self.with(|kernel| kernel.chain(Table::Mangle, ChainName::Top(Top::Canary)).is_some()))
    }

    fn another(&self) -> Box<dyn Tables<Ipv4Addr>> {
        Box::new(self.clone())
    }
}

/// nf_tables in memory with at most the one table of ours.
#[derive(Debug, Default)]
struct Memory {
    table: KernelTable,
    generation: u32,
}

impl NfTables for Shared<Memory> {
    fn commit(
        &mut self,
        transaction: &nft::Transaction,
        only_at: Option<Generation>,
    ) -> Result<(), CommitError> {
        self.with(|memory| {
            if only_at.is_some_and(|at| at.0 != memory.generation) {
                return Err(CommitError::GenerationChanged);
            }
            let refused = |error: pointsman_nft::RefusedChange| {
                CommitError::Refused(vec![Fault {
                    errno: Errno::NOENT,
                    message: Some(error.to_string()),
                    op: None,
                    element: None,
                    attribute: None,
                }])
            };
            memory.table.apply(transaction).map_err(refused)?;
            memory.generation += 1;
            Ok(())
        })
    }

    fn generation(&mut self) -> Result<Generation, RequestError> {
        Ok(self.with(|memory| Generation(memory.generation)))
    }

    fn tables(&mut self, family: Family) -> Result<Vec<nft::Table>, RequestError> {
        let table = nft::Table::new(family, TABLE);
        Ok(self.with(|memory| memory.table.exists.then_some(table).into_iter().collect()))
    }

    fn chains(&mut self, _: Family, _: &Name) -> Result<Vec<Chain>, RequestError> {
        Ok(self.with(|memory| {
            memory
                .table
                .chains
                .values()
                .map(|content| content.chain.clone())
                .collect()
        }))
    }

    fn rules(&mut self, _: Family, _: &Name) -> Result<Vec<Rule>, RequestError> {
        let rules = |(chain, content): (&Name, &pointsman_nft::ChainContent)| {
            let rule = |exprs: &Vec<nft::Expr>| Rule::new(chain.clone(), exprs.clone());
            content.rules.iter().map(rule).collect::<Vec<_>>()
        };
        Ok(self.with(|memory| memory.table.chains.iter().flat_map(rules).collect()))
    }

    fn sets(&mut self, _: Family, _: &Name) -> Result<Vec<Set>, RequestError> {
        Ok(self.with(|memory| {
            memory
                .table
                .sets
                .values()
                .map(|content| content.set.clone())
                .collect()
        }))
    }

    fn records(&mut self, _: Family, _: &Name, set: &Set) -> Result<Records, RequestError> {
        let mut records = Records::new(set);
        self.with(|memory| {
            let content = memory.table.sets.get(&set.name).ok_or(RequestError::NotFound)?;
            content
                .elements
                .values()
                .for_each(|element| records.push(element));
            Ok::<_, RequestError>(())
        })?;
        Ok(records)
    }

    fn count(&mut self, _: Family, _: &Name, _: &Name) -> Result<Option<u32>, RequestError> {
        Ok(None)
    }

    fn records_of(
        &mut self,
        family: Family,
        table: &Name,
        set: &Set,
        _: &mut dyn Iterator<Item = Value>,
    ) -> Result<Records, RequestError> {
        self.records(family, table, set)
    }
}

impl Programmer<Ipv4Addr> for Shared<MemoryRules<Ipv4Addr>> {
    fn sync(&mut self, batch: &Batch<Ipv4Addr>) -> Result<Written, ProgramError> {
        self.with(|rules| rules.sync(batch))
    }

    fn change_settings(&mut self, settings: Settings<Ipv4Addr>) {
        self.with(|rules| rules.change_settings(settings));
    }

    fn look(&mut self, effort: Effort) -> Result<Look, ProgramError> {
        self.with(|rules| rules.look(effort))
    }
}

/// A programmer, what its kernel holds as text, and somebody who flushes it.
struct Subject {
    programmer: Box<dyn Programmer<Ipv4Addr>>,
    held: Box<dyn Fn() -> String>,
    flush: Box<dyn Fn()>,
}

fn subjects() -> [(&'static str, Subject); 3] {
    let settings = || Cluster::parse(BEFORE).settings::<Ipv4Addr>();
    let tables = Shared(Arc::new(Mutex::new(FakeKernel::default())));
    let iptables = IptablesBackend::over(Box::new(tables.clone()), settings(), 8);
    let table = Shared::<Memory>::default();
    let nftables = NftablesBackend::over(Box::new(table.clone()), settings(), Commits::default());
    let memory = Shared::<MemoryRules<Ipv4Addr>>::default();
    [
        (
            "iptables",
            Subject::new(
                iptables,
                tables,
                |tables| format!("{:?}", tables.normalised()),
                FakeKernel::flush,
            ),
        ),
        (
            "nftables",
            Subject::new(
                nftables,
                table,
                |memory| format!("{:?}", memory.table),
                |memory| {
                    memory.table = KernelTable::default();
                    memory.generation += 1;
                },
            ),
        ),
        (
            "memory",
            Subject::new(
                memory.clone(),
                memory,
                |rules| format!("{:?}", rules.services),
                MemoryRules::flush,
            ),
        ),
    ]
}

impl Subject {
    fn new<T: 'static>(
        programmer: impl Programmer<Ipv4Addr> + 'static,
        kernel: Shared<T>,
        held: fn(&T) -> String,
        flush: fn(&mut T),
    ) -> Self {
        let other = kernel.clone();
        Self {
            programmer: Box::new(programmer),
            held: Box::new(move || kernel.with(|kernel| held(kernel))),
            flush: Box::new(move || other.with(flush)),
        }
    }
}

fn write(
    programmer: &mut dyn Programmer<Ipv4Addr>,
    index: &mut Index<Ipv4Addr>,
) -> Result<Written, ProgramError> {
    let batch = index.checkout();
    let result = programmer.sync(&batch);
    match &result {
        Ok(_) => drop(index.commit(batch)),
        Err(error) => index.abort(batch, error.recovery()),
    }
    result
}

#[test]
fn every_programmer_writes_notices_a_flush_and_heals() {
    for ((name, mut subject), (_, mut fresh)) in subjects().into_iter().zip(subjects()) {
        let programmer = subject.programmer.as_mut();
        let empty = (subject.held)();
        programmer.prepare().expect("readable");
        let mut index = Cluster::parse(BEFORE).index::<Ipv4Addr>();
        assert!(
            write(programmer, &mut index).expect("accepted").transactions > 0,
            "{name}"
        );
        let before = (subject.held)();
        assert_ne!(before, empty, "{name}");
        assert_eq!(
            programmer.look(Effort::Quick).expect("an answer"),
            Look::Undisturbed
        );

        Cluster::parse(AFTER).fold_into(&mut index);
        let batch = index.checkout();
        assert_eq!(batch.scope, Scope::Partial);
        programmer.sync(&batch).expect("accepted");
        let _ = index.commit(batch);
        let after = (subject.held)();
        assert_ne!(after, before, "{name}");

        (subject.flush)();
        let look = programmer.look(Effort::Thorough).expect("an answer");
        assert_eq!(look, Look::Suspect, "{name}");
        Cluster::parse(BEFORE).fold_into(&mut index);
        let error = write(programmer, &mut index).expect_err("what it changes is gone");
        assert_eq!(error.recovery(), Recovery::FullResync, "{name}");

        // The index has turned that into a full batch.
        write(programmer, &mut index).expect("accepted");
        let mut all = Cluster::parse(AFTER).index::<Ipv4Addr>();
        Cluster::parse(BEFORE).fold_into(&mut all);
        write(fresh.programmer.as_mut(), &mut all).expect("accepted");
        assert_eq!((subject.held)(), (fresh.held)(), "{name}");
        assert_eq!(
            programmer.look(Effort::Quick).expect("an answer"),
            Look::Undisturbed,
            "{name}"
        );
        for of in [Compared::Kernel, Compared::Ledger] {
            let states = index.desired().collect();
            if let Some(comparison) = programmer.comparison(of, states).expect("readable") {
                assert_eq!(
                    comparison.differences().expect("readable").names,
                    [""; 0],
                    "{name} {of:?}"
                );
            }
        }
    }
}

#[test]
fn a_programmer_without_rules_takes_everything_and_holds_nothing() {
    let mut index = Cluster::parse(BEFORE).index::<Ipv4Addr>();
    assert_eq!(
        write(&mut NoRules, &mut index).expect("accepted"),
        Written::default()
    );
    let look = Programmer::<Ipv4Addr>::look(&mut NoRules, Effort::Thorough);
    assert_eq!(look.expect("an answer"), Look::Undisturbed);
}
