//! One life of a proxy.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pointsman_dataplane::schedule::Intervals;
use pointsman_dataplane::sync::Resource;
use pointsman_dataplane::{
    Batch, Compared, Effort, Index, Look, Outcome, ProgramError, Programmer, Recovery, Scope, Settings,
    Synchroniser, convert,
};
use pointsman_model::{Interner, Moment, Revision, SliceName};
use pointsman_testkit::cluster::{Cluster, Family, service_name};

use crate::iptables_backend::IptablesBackend;
use crate::outside::Tables;

/// The states of the kernel's Services.
pub type States = pointsman_dataplane::States<Ipv4Addr>;

/// A kernel whose calls may fail, and what a test may do to it without failing.
pub trait Kernel {
    /// The way in, which may fail.
    fn tables(&self) -> Box<dyn Tables<Ipv4Addr>>;
    /// Somebody flushes everything.
    fn flush(&self);
    /// Somebody puts rules into chains of ours and takes one out.
    fn meddle(&self);
    /// Panics if the kernel does not hold what a full sync of these states writes, and only that.
    fn check(&self, settings: &Settings<Ipv4Addr>, states: States);
    /// Panics if anything of ours is left.
    fn check_clean(&self);
}

/// How a life went.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tale {
    /// Syncs that failed, looks and comparisons that said nothing, cleanups that had to be repeated.
    pub failures: usize,
    /// Partial syncs that worked.
    pub partial: u64,
}

const NODE: &str = "node n1 ip=192.168.0.2 pods=10.0.0.0/8\n";

/// What the cluster is, stage by stage: each is synced before the next comes.
const STAGES: [&str; 6] = [
    "service default/a 172.30.0.1:80/tcp nodeport=30080 lb=198.51.100.1 ranges=203.0.113.0/24
     service default/b 172.30.0.2:80/tcp affinity=60
     service default/c 172.30.1.1:80/tcp
     endpoint default/a 10.0.1.1:8080 node=n1
     endpoint default/a 10.0.2.1:8080 node=n2
     endpoint default/b 10.0.1.2:8080 node=n1",
    // Another endpoint.
    "service default/a 172.30.0.1:80/tcp nodeport=30080 lb=198.51.100.1 ranges=203.0.113.0/24
     service default/b 172.30.0.2:80/tcp affinity=60
     service default/c 172.30.1.1:80/tcp
     endpoint default/a 10.0.1.3:8080 node=n1
     endpoint default/a 10.0.2.1:8080 node=n2
     endpoint default/b 10.0.1.2:8080 node=n1",
    // A refused Service begins to answer: both tables change.
    "service default/a 172.30.0.1:80/tcp nodeport=30080 lb=198.51.100.1 ranges=203.0.113.0/24
     service default/b 172.30.0.2:80/tcp affinity=60
     service default/c 172.30.1.1:80/tcp
     endpoint default/a 10.0.1.3:8080 node=n1
     endpoint default/a 10.0.2.1:8080 node=n2
     endpoint default/b 10.0.1.2:8080 node=n1
     endpoint default/c 10.0.1.4:8080 node=n1",
    // A Service comes, another loses its endpoints.
    "service default/a 172.30.0.1:80/tcp nodeport=30080 lb=198.51.100.1 ranges=203.0.113.0/24
     service default/b 172.30.0.2:80/tcp affinity=60
     service default/c 172.30.1.1:80/tcp
     service default/d 172.30.3.9:80/tcp policy=Local nodeport=30081
     endpoint default/a 10.0.1.3:8080 node=n1
     endpoint default/a 10.0.2.1:8080 node=n2
     endpoint default/b 10.0.1.2:8080 node=n1 unready
     endpoint default/c 10.0.1.4:8080 node=n1",
    // A Service goes.
    "service default/b 172.30.0.2:80/tcp affinity=60
     service default/c 172.30.1.1:80/tcp
     service default/d 172.30.3.9:80/tcp policy=Local nodeport=30081
     endpoint default/b 10.0.1.2:8080 node=n1 unready
     endpoint default/c 10.0.1.4:8080 node=n1",
    // Its address comes back as another's.
    "service default/b 172.30.0.2:80/tcp affinity=60
     service default/c 172.30.1.1:80/tcp
     service default/d 172.30.3.9:80/tcp policy=Local nodeport=30081
     service default/e 172.30.0.1:80/tcp nodeport=30080
     endpoint default/b 10.0.1.2:8080 node=n1
     endpoint default/c 10.0.1.4:8080 node=n1
     endpoint default/d 10.0.2.4:8080 node=n2
     endpoint default/e 10.0.1.5:8080 node=n1",
];

const SYNC_PERIOD: Duration = Duration::from_secs(30);

struct Life<'a, K: Kernel> {
    kernel: &'a K,
    sync: Synchroniser<Ipv4Addr>,
    backend: IptablesBackend<Ipv4Addr>,
    settings: Settings<Ipv4Addr>,
    now: Instant,
    revision: u64,
    /// Everything folded so far, as text.
    known: BTreeMap<String, String>,
    triggered: Vec<i64>,
    observed: Vec<i64>,
    /// The next batch has to be full.
    full_owed: bool,
    checks: Checks,
    /// The failures when the kernel was last compared.
    checked: usize,
    tale: Tale,
}

/// When the kernel is compared with what it should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// After every step.
    Always,
    /// After a step with a failure, and in the end.
    AfterFailures,
}

/// Lives once; panics if anything goes wrong that a failure does not excuse.
pub fn live<K: Kernel>(kernel: &K, checks: Checks) -> Tale {
    let first = Cluster::parse(NODE);
    let intervals = Intervals {
        longest_retry: SYNC_PERIOD,
        longest: Duration::from_secs(1 << 20),
        ..Intervals::default()
    };
    let settings = first.settings::<Ipv4Addr>();
    let mut life = Life {
        kernel,
        sync: Synchroniser::new(first.index(), intervals),
        // So few rules in a transaction that a first sync needs several.
        backend: IptablesBackend::over(kernel.tables(), settings.clone(), 8),
        settings,
        now: Instant::now(),
        revision: 0,
        known: BTreeMap::new(),
        triggered: Vec::new(),
        observed: Vec::new(),
        full_owed: true,
        checks,
        checked: 0,
        tale: Tale::default(),
    };
    life.run();
    life.tale.partial = life.sync.tally().partial;
    life.tale
}

impl<K: Kernel> Life<'_, K> {
    fn run(&mut self) {
        for (number, stage) in STAGES.iter().enumerate() {
            self.fold(stage);
            if number == 0 {
                self.sync.listed(self.now, Resource::Services);
                self.sync.listed(self.now, Resource::Slices);
            }
            self.settle();
        }
        self.look();
        self.kernel.flush();
        self.look();
        self.kernel.meddle();
        self.compare();
        self.check();
        assert_eq!(
            self.observed, self.triggered,
            "each change is reported once, in order"
        );
        while let Err(error) = self.backend.clean_up() {
            self.failed(&error.to_string());
        }
        self.kernel.check_clean();
    }

    /// Folds what is new, what changed and what is gone, each with a version, slices with a trigger time too.
    fn fold(&mut self, stage: &str) {
        let cluster = Cluster::parse(&format!("{NODE}{stage}"));
        let mut names = Interner::default();
        let mut known = BTreeMap::new();
        for (name, object) in &cluster.services {
            let (key, text) = (format!("service {name}"), format!("{object:?}"));
            if self.known.get(&key) != Some(&text) {
                let converted = convert::service(object, &mut names).expect("a Service");
                let (name, revision) = (converted.name.clone(), self.next_revision());
                self.sync.fold(self.now, |index| {
                    index.fold_service(&name, Ipv4Addr::service(converted), revision);
                });
            }
            known.insert(key, text);
        }
        for (name, object) in &cluster.slices {
            let (key, text) = (format!("slice {name}"), format!("{object:?}"));
            if self.known.get(&key) != Some(&text) {
                let converted = convert::slice(object, &mut names).expect("a slice");
                let slice = Ipv4Addr::slice(converted).expect("of this family");
                let revision = self.next_revision();
                let trigger = i64::try_from(self.revision).expect("a small number");
                self.triggered.push(trigger);
                self.sync.fold(self.now, |index| {
                    index.fold_slice(slice, revision, Some(Moment(trigger)));
                });
            }
            known.insert(key, text);
        }
        let before = std::mem::replace(&mut self.known, known);
        for key in before
            .keys()
            .filter(|key| !self.known.contains_key(*key))
            .cloned()
            .collect::<Vec<_>>()
        {
            let revision = self.next_revision();
            let (kind, name) = key.split_once(' ').expect("kind and name");
            let (namespace, plain) = name.split_once('/').expect("namespace/name");
            self.sync.fold(self.now, |index| match kind {
                "service" => index.fold_service(&service_name(name), None, revision),
                _ => index.remove_slice(&SliceName::new(namespace, plain).expect("a name"), revision),
            });
        }
    }

    fn next_revision(&mut self) -> Option<Revision> {
        self.revision += 1;
        Some(Revision(self.revision))
    }

    /// Syncs until nothing is left to do.
    fn settle(&mut self) {
        self.now += Duration::from_secs(1);
        while let Some(batch) = self.sync.begin(self.now) {
            self.attempt(batch);
            self.now += SYNC_PERIOD;
        }
        assert!(!self.sync.index().has_changes(), "everything was written");
        let progress = self.sync.index().progress();
        assert_eq!(progress.committed, progress.received);
        if self.checks == Checks::Always || self.checked != self.tale.failures {
            self.check();
        }
    }

    fn check(&mut self) {
        self.checked = self.tale.failures;
        let states = self.programmed();
        let ledger = self.differences(Compared::Ledger, states.clone());
        assert_eq!(ledger.expect("nothing is read"), [""; 0], "partial is full");
        self.kernel.check(&self.settings, states);
    }

    fn attempt(&mut self, batch: Batch<Ipv4Addr>) {
        let scope = batch.scope;
        assert!(!self.full_owed || scope == Scope::Full, "a full sync was queued");
        let (before, tally) = (self.sync.index().watermark(), self.sync.tally());
        let result = match batch.is_empty() {
            true => Ok(()),
            false => self.backend.sync(&batch).map(drop),
        };
        let recovery = result.as_ref().copied().map_err(|error| error.recovery());
        match self.sync.finish(batch, recovery, self.now) {
            Outcome::Done(done) => {
                self.full_owed = false;
                self.observed
                    .extend(done.committed.triggers.iter().map(|trigger| trigger.began.at.0));
                let later = self.now + SYNC_PERIOD * 100;
                assert!(self.sync.health().is_healthy(later), "nothing waits");
            }
            Outcome::Failed { .. } => {
                self.full_owed = scope == Scope::Full || recovery == Err(Recovery::FullResync);
                assert_eq!(self.sync.index().watermark(), before, "nothing was promised");
                let counted = self.sync.tally();
                assert_eq!(counted.failures, tally.failures + 1);
                let partial = u64::from(scope == Scope::Partial && self.full_owed);
                assert_eq!(counted.partial_failures, tally.partial_failures + partial);
                let later = self.now + SYNC_PERIOD * 2;
                assert!(!self.sync.health().is_healthy(later), "a change waits");
                self.failed(&result.err().map_or_else(String::new, |error| error.to_string()));
            }
        }
    }

    /// Looks whether the rules are there, and writes them again if not or if nobody knows.
    fn look(&mut self) {
        let look = self.backend.look(Effort::Thorough);
        if look.is_err() {
            self.failed("a look");
        }
        if matches!(look, Ok(Look::Suspect) | Err(_)) {
            self.sync.fold(self.now, Index::force_full);
            self.full_owed = true;
        }
        self.settle();
    }

    /// Compares with the kernel, which has been meddled with, and repairs it.
    fn compare(&mut self) {
        let differing = loop {
            let states = self.programmed();
            match self.differences(Compared::Kernel, states) {
                Ok(differing) => break differing,
                Err(error) => self.failed(&error.to_string()),
            }
        };
        assert!(!differing.is_empty(), "foreign rules are noticed");
        self.sync.fold(self.now, Index::force_full);
        self.full_owed = true;
        self.settle();
    }

    fn differences(&mut self, of: Compared, states: States) -> Result<Vec<String>, ProgramError> {
        let comparison = self.backend.comparison(of, states)?;
        let found = comparison.expect("this mode compares").differences()?;
        Ok(found.names)
    }

    fn programmed(&self) -> States {
        let programmed = self.sync.index().programmed();
        programmed.map(|(_, state)| Arc::clone(state)).collect()
    }

    fn failed(&mut self, what: &str) {
        self.tale.failures += 1;
        assert!(self.tale.failures < 60, "it never ends: {what}");
    }
}
