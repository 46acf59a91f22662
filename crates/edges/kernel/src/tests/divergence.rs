//! Does the check that partial syncs lead where a full one would ever fire?
//!
//! A fault is planted in each of the three places where the two could part (what the planner writes, what the
//! ledger remembers, what the kernel holds), and the guard, the comparisons and the next sync have to find it,
//! count it and heal it without being told.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pointsman_dataplane::guard::{Comparisons, Event, Found, Guard, Order};
use pointsman_dataplane::sync::Resource;
use pointsman_dataplane::{Batch, Index, Look, Outcome, Programmer, Scope, Synchroniser};
use pointsman_iptables::Transaction;
use pointsman_iptables::fake::FakeKernel;
use pointsman_iptables::name::{ChainName, Table};
use pointsman_testkit::cluster::Cluster;

use super::contract::Shared;
use crate::iptables_backend::IptablesBackend;

const PERIOD: Duration = Duration::from_secs(30);
const START: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.1.5:8080 node=n1
    service default/api 172.30.0.2:443
    endpoint default/api 10.0.1.6:8443 node=n1";
const MOVED: &str = "node n1
    service default/web 172.30.0.1:80
    endpoint default/web 10.0.1.7:8080 node=n1
    service default/api 172.30.0.2:443
    endpoint default/api 10.0.1.6:8443 node=n1";

/// The loop of a proxy in iptables mode on a kernel in memory.
struct Proxy {
    sync: Synchroniser<Ipv4Addr>,
    guard: Guard,
    backend: IptablesBackend<Ipv4Addr>,
    kernel: Shared<FakeKernel<Ipv4Addr>>,
    now: Instant,
    divergences: usize,
    repairs: usize,
    reported: usize,
    full: usize,
    /// Writes changes while the kernel is read, as in a busy cluster.
    busy: bool,
}

impl Proxy {
    fn start() -> Self {
        let kernel = Shared(Arc::new(Mutex::new(FakeKernel::default())));
        let cluster = Cluster::parse(START);
        let backend = IptablesBackend::over(Box::new(kernel.clone()), cluster.settings(), 1000);
        let mut proxy = Self {
            sync: Synchroniser::new(cluster.index(), Default::default()),
            guard: Guard::new(Comparisons::BesideSyncs, PERIOD),
            backend,
            kernel,
            now: Instant::now(),
            divergences: 0,
            repairs: 0,
            reported: 0,
            full: 0,
            busy: false,
        };
        proxy.sync.listed(proxy.now, Resource::Services);
        proxy.sync.listed(proxy.now, Resource::Slices);
        proxy.write(|_| {});
        proxy
    }

    /// Writes what is due; `fault` may change what the planner believes.
    fn write(&mut self, fault: impl FnOnce(&mut Batch<Ipv4Addr>)) {
        let Some(mut batch) = self.sync.begin(self.now) else {
            return;
        };
        fault(&mut batch);
        let result = self.backend.sync(&batch).map(drop);
        self.full += usize::from(batch.scope == Scope::Full);
        let verdict = result.map_err(|error| error.recovery());
        let Outcome::Done(done) = self.sync.finish(batch, verdict, self.now) else {
            panic!("the kernel refused a batch");
        };
        let (scope, took) = (done.scope, done.took);
        self.guarded(Event::Synced { scope, took });
    }

    fn fold(&mut self, cluster: &str) {
        self.sync
            .fold(self.now, |index| Cluster::parse(cluster).fold_into(index));
    }

    fn guarded(&mut self, event: Event) {
        for order in self.guard.step(self.now, event, self.sync.situation()) {
            match order {
                Order::Look(_) => self.guarded(Event::Looked(Look::Unclear)),
                Order::Compare(of) => {
                    let states = self.sync.index().programmed();
                    let states = states.map(|(_, state)| Arc::clone(state)).collect();
                    let comparison = self.backend.comparison(of, states).unwrap().unwrap();
                    if self.busy {
                        let moved = self.kernel().contains("10.0.1.7");
                        self.fold(if moved { START } else { MOVED });
                        self.write(|_| {});
                    }
                    let found = Some(Found::from(&comparison.differences().unwrap()));
                    self.guarded(Event::Compared {
                        of,
                        found,
                        took: Duration::ZERO,
                    });
                }
                Order::WriteAll => self.sync.fold(self.now, Index::force_full),
                Order::CountDivergences(chains) => self.divergences += chains,
                Order::CountRepair => self.repairs += 1,
                Order::ReportForeignChange => self.reported += 1,
                Order::CountDisturbance => {}
            }
        }
    }

    /// Some minutes pass in which nothing changes.
    fn rest(&mut self) {
        for _ in 0..300 {
            self.now += Duration::from_secs(1);
            self.guarded(Event::Due);
            self.write(|_| {});
        }
    }

    fn kernel(&self) -> String {
        self.kernel.with(|kernel| format!("{:?}", kernel.normalised()))
    }
}

/// The kernel of a proxy that nobody disturbed.
fn sound() -> String {
    let mut proxy = Proxy::start();
    proxy.fold(MOVED);
    proxy.write(|_| {});
    proxy.kernel()
}

/// The chain that leads to an endpoint.
fn endpoint_chain(kernel: &FakeKernel<Ipv4Addr>, address: &str) -> ChainName {
    let leads_there = |chain: &ChainName, rules: &[String]| {
        chain.to_string().starts_with("KUBE-SEP-") && rules.concat().contains(address)
    };
    let chains = kernel.normalised().into_iter();
    let found = chains
        .map(|((_, chain), rules)| (chain, rules))
        .find(|(chain, rules)| leads_there(chain, rules));
    found.expect("an endpoint has a chain").0
}

/// Somebody else empties a chain.
fn empty(kernel: &mut FakeKernel<Ipv4Addr>, address: &str) {
    let mut emptied = Transaction::default();
    let chain = endpoint_chain(kernel, address);
    emptied.table(Table::Nat).writes.insert(chain, Vec::new());
    kernel.apply(&emptied).unwrap();
}

#[test]
fn without_a_fault_nothing_is_counted_and_nothing_written_again() {
    let mut proxy = Proxy::start();
    proxy.fold(MOVED);
    proxy.write(|batch| assert_eq!(batch.scope, Scope::Partial));
    proxy.rest();
    assert_eq!((proxy.divergences, proxy.repairs, proxy.full), (0, 0, 1));
    assert_eq!(proxy.kernel(), sound());
}

#[test]
fn changes_of_our_own_while_the_kernel_is_read_are_never_taken_for_another_program_s() {
    let mut proxy = Proxy::start();
    proxy.busy = true;
    for _ in 0..10 {
        proxy.rest();
    }
    assert_eq!(
        (proxy.reported, proxy.repairs, proxy.divergences, proxy.full),
        (0, 0, 0, 1)
    );
}

#[test]
fn what_another_program_changed_is_found_and_healed_also_while_we_write() {
    let mut proxy = Proxy::start();
    proxy.busy = true;
    proxy.kernel.with(|kernel| empty(kernel, "10.0.1.6"));
    proxy.rest();
    assert_eq!((proxy.reported, proxy.repairs), (1, 1));
}

#[test]
fn a_planner_that_writes_something_else_than_a_full_sync_is_found_counted_and_healed() {
    let mut proxy = Proxy::start();
    proxy.fold(MOVED);
    // It forgets what was there, and so leaves the old endpoint's chain and dispatch rules behind.
    proxy.write(|batch| batch.changes.iter_mut().for_each(|change| change.before = None));
    assert_ne!(proxy.kernel(), sound());
    proxy.rest();
    assert!(proxy.divergences > 0);
    assert_eq!((proxy.full, proxy.kernel()), (2, sound()));
}

#[test]
fn a_ledger_that_remembers_what_was_never_written_is_found_counted_and_healed() {
    let mut proxy = Proxy::start();
    proxy.fold(MOVED);
    proxy.write(|_| {});
    let mut never_written = Transaction::default();
    let chain = proxy.kernel.with(|kernel| endpoint_chain(kernel, "10.0.1.7"));
    never_written.table(Table::Nat).removals.insert(chain);
    proxy.backend.pretend(&never_written);
    proxy.rest();
    assert!(proxy.divergences > 0);
    assert_eq!((proxy.full, proxy.kernel()), (2, sound()));
}

#[test]
fn a_kernel_that_lost_the_rules_of_a_chain_is_found_counted_as_a_repair_and_healed() {
    let mut proxy = Proxy::start();
    proxy.fold(MOVED);
    proxy.write(|_| {});
    proxy.kernel.with(|kernel| empty(kernel, "10.0.1.7"));
    assert_ne!(proxy.kernel(), sound());
    proxy.rest();
    assert_eq!(
        (proxy.divergences, proxy.repairs),
        (0, 1),
        "it is not our own mistake"
    );
    assert_eq!((proxy.full, proxy.kernel()), (2, sound()));
}
