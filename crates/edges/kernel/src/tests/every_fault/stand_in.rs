//! Every call, every way to fail, with a kernel in memory.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use pointsman_dataplane::{ProgramError, Settings};
use pointsman_iptables::fake::FakeKernel;
use pointsman_iptables::name::{Builtin, ChainName, Table, Top};
use pointsman_iptables::{Inventory, Planner, Rule, Target, Transaction, render};

use super::life::{Checks, Kernel, States, Tale, live};
use crate::iptables::InputSize;
use crate::outside::Tables;

/// Where in the run of a program it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It cannot be started, or fails before it does anything.
    Start,
    /// It is fed, or read from.
    Pipe,
    /// Before it commits one more table, with earlier ones committed.
    Commit,
    /// After it has done everything.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Missing,
    NoProcess,
    BrokenPipe,
    Refused,
    Killed,
    LockHeld,
}

const WAYS: [Way; 6] = [
    Way::Missing,
    Way::NoProcess,
    Way::BrokenPipe,
    Way::Refused,
    Way::Killed,
    Way::LockHeld,
];

/// Which calls fail: those from `first` on, `count` of them.
#[derive(Clone, Copy, Debug)]
struct Fault {
    first: usize,
    count: usize,
    way: Way,
}

#[derive(Debug)]
struct Inner {
    kernel: FakeKernel<Ipv4Addr>,
    fault: Fault,
    calls: Vec<(Place, usize)>,
    fired: usize,
}

impl Inner {
    /// Counts a call; it fails if it is its turn and it can fail this way. `tables` is how many a restore
    /// writes.
    fn call(&mut self, place: Place, tables: usize) -> Result<(), ProgramError> {
        self.calls.push((place, tables));
        let Fault { first, count, way } = self.fault;
        let turn = self.calls.len();
        if turn < first || turn >= first + count {
            return Ok(());
        }
        match failure(way, place, tables) {
            Some(error) => {
                self.fired += 1;
                Err(error)
            }
            None => Ok(()),
        }
    }
}

/// What the caller hears of a failure; `None` if nothing fails like that there.
fn failure(way: Way, place: Place, tables: usize) -> Option<ProgramError> {
    let program = "stand-in".to_owned();
    let source = io::Error::other("injected");
    Some(match (way, place) {
        (Way::Missing, Place::Start) => ProgramError::Missing { program, source },
        (Way::NoProcess, Place::Start) | (Way::BrokenPipe, Place::Pipe | Place::Commit) => {
            ProgramError::Io { program, source }
        }
        // The lock is taken for each table, and means that nothing was written only for a single one.
        (Way::LockHeld, Place::Commit) if tables == 1 => ProgramError::Busy { program },
        (Way::LockHeld, Place::Commit) | (Way::Refused, _) => ProgramError::Refused {
            program,
            rule: None,
            message: "injected".to_owned(),
        },
        (Way::Killed, _) => ProgramError::Interrupted {
            program,
            how: "injected".to_owned(),
        },
        _ => return None,
    })
}

#[derive(Clone, Debug)]
struct StandIn(Arc<Mutex<Inner>>);

impl StandIn {
    fn new(fault: Fault) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            kernel: FakeKernel::default(),
            fault,
            calls: Vec::new(),
            fired: 0,
        })))
    }

    fn inner<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.0.lock().expect("nobody panicked"))
    }
}

impl Tables<Ipv4Addr> for StandIn {
    fn restore(&mut self, transaction: &Transaction<Ipv4Addr>) -> Result<InputSize, ProgramError> {
        let bytes = render::transaction(transaction).len();
        let tables = transaction
            .tables
            .values()
            .filter(|edit| !edit.is_empty())
            .count();
        self.inner(|inner| {
            // Without input nothing is run, but what was kept is checked.
            if bytes == 0 {
                return inner.kernel.apply(transaction);
            }
            inner.call(Place::Start, tables)?;
            inner.call(Place::Pipe, tables)?;
            for (table, edit) in &transaction.tables {
                inner.call(Place::Commit, tables)?;
                let mut single = Transaction::default();
                single.tables.insert(*table, edit.clone());
                inner.kernel.apply(&single)?;
            }
            inner.call(Place::End, tables)
        })?;
        Ok(InputSize {
            bytes,
            ..InputSize::default()
        })
    }

    fn list(&mut self) -> Result<Inventory, ProgramError> {
        self.inner(|inner| {
            for _table in 0..3 {
                inner.call(Place::Start, 1)?;
                inner.call(Place::Pipe, 1)?;
                inner.call(Place::End, 1)?;
            }
            Ok(inner.kernel.inventory())
        })
    }

    fn has_canary(&mut self) -> Result<bool, ProgramError> {
        self.inner(|inner| {
            inner.call(Place::Start, 1)?;
            inner.call(Place::End, 1)?;
            let canary = ChainName::Top(Top::Canary);
            Ok(inner.kernel.chain(Table::Mangle, canary).is_some())
        })
    }

    fn another(&self) -> Box<dyn Tables<Ipv4Addr>> {
        Box::new(self.clone())
    }
}

impl Kernel for StandIn {
    fn tables(&self) -> Box<dyn Tables<Ipv4Addr>> {
        self.another()
    }

    fn flush(&self) {
        self.inner(|inner| inner.kernel.flush());
    }

    fn meddle(&self) {
        self.inner(|inner| {
            let (nat, services) = (Table::Nat, ChainName::Top(Top::Services));
            let bucket = ChainName::parse("KUBE-SERVICES-02").expect("a bucket");
            inner
                .kernel
                .foreign_rule(nat, services, Rule::new(Vec::new(), Target::Return));
            inner
                .kernel
                .foreign_rule(nat, bucket, Rule::new(Vec::new(), Target::Return));
            let jump = Rule::new(Vec::new(), Target::Jump(services)).comment("kubernetes service portals");
            let prerouting = ChainName::Builtin(Builtin::Prerouting);
            inner.kernel.foreign_rule(nat, prerouting, jump);
            let stale = ChainName::parse("KUBE-SVC-XPGD46QRK7WJZT7O").expect("a chain of a Service");
            inner.kernel.foreign_chain(nat, stale);
        });
    }

    fn check(&self, settings: &Settings<Ipv4Addr>, states: States) {
        let mut fresh = FakeKernel::default();
        for transaction in Planner::new(settings.clone()).full(states, Inventory::default()) {
            fresh.apply(&transaction).expect("a full plan is sound");
        }
        self.inner(|inner| {
            assert_eq!(inner.kernel.normalised(), fresh.normalised());
            assert_eq!(inner.kernel.useless_chains(), []);
        });
    }

    fn check_clean(&self) {
        self.inner(|inner| {
            let saved = inner.kernel.save();
            let mut ours = saved
                .lines()
                .filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL"));
            assert_eq!(ours.next(), None);
        });
    }
}

/// Lives with a fault at the first call, then at the one `step` later, until there is no call left.
fn sweep(count: usize, step: usize) {
    let quiet = StandIn::new(Fault {
        first: usize::MAX - count,
        count,
        way: Way::Killed,
    });
    let undisturbed = live(&quiet, Checks::Always);
    assert_eq!(undisturbed.failures, 0);
    assert!(undisturbed.partial >= 5, "{undisturbed:?}");
    let calls = quiet.inner(|inner| std::mem::take(&mut inner.calls));
    for way in WAYS {
        let mut failed = 0;
        for first in (1..).step_by(step) {
            // Up to here, this life is the quiet one.
            let Some((place, tables)) = calls.get(first - 1) else {
                break;
            };
            if count == 1 && failure(way, *place, *tables).is_none() {
                continue;
            }
            let kernel = StandIn::new(Fault { first, count, way });
            let tale: Tale = live(&kernel, Checks::AfterFailures);
            let fired = kernel.inner(|inner| inner.fired);
            assert_eq!(tale.failures > 0, fired > 0, "{way:?} at call {first}");
            failed += usize::from(fired > 0);
        }
        let calls = calls.len();
        eprintln!("{way:?}: {failed} lives with a failure, {calls} calls in a quiet one");
        assert!(failed > 0);
    }
}

#[test]
fn nothing_is_lost_whichever_call_fails() {
    sweep(1, 1);
}

#[test]
fn nothing_is_lost_if_several_calls_in_a_row_fail() {
    sweep(7, 5);
}
