//! What happens around the rules of one family?
//!
//! A [`Side`] joins the synchroniser of a family with the thread that writes, and tells the world what a
//! sync changed. It runs on the owner's task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pointsman_dataplane::schedule::Next;
use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::sync::{Done, Resource};
use pointsman_dataplane::{
    Batch, Index, Outcome, ProgramError, Progress, Scope, ServiceState, Settings, Synchroniser, TriggerTime,
};
use pointsman_kernel::iptables_backend::Look;
use pointsman_kernel::nftables_backend::Commits;
use pointsman_model::{Address, NodeName};
use tokio::sync::watch;

use crate::backend::{Chain, Job, Report, Worker, Written};
use crate::config::{Config, Mode, NodeState};
use crate::flows::Flows;
use crate::health::Health;
use crate::metrics::FamilyMetrics;
use crate::service_health::ServiceServers;

/// One family.
#[derive(Debug)]
pub(crate) struct Side<A> {
    sync: Synchroniser<A>,
    worker: Worker<A>,
    flows: Flows<A>,
    servers: ServiceServers,
    settings: Settings<A>,
    metrics: FamilyMetrics,
    mode: Mode,
    sync_period: Duration,
    checking: bool,
    digesting: bool,
    comparison: Comparison,
    /// When the next look at the rules is a thorough one.
    thorough_after: Option<Instant>,
    /// The last sync failed, so that nobody knows what was written.
    unsure: bool,
    /// Before this, a look that finds trouble does not lead to a full sync again; nobody compares with the kernel
    /// again; nor with a full render.
    rewrite_after: Option<Instant>,
    compare_after: Option<Instant>,
    digest_after: Option<Instant>,
    /// A full sync is to put right what somebody changed.
    repairing: bool,
}

/// What is known about a comparison with the kernel that runs beside the syncs (iptables mode).
#[derive(Clone, Copy, Debug, Default)]
struct Comparison {
    /// Something asks for one.
    wanted: bool,
    /// Only because nobody knows better.
    guessing: bool,
    /// One is running, and began after so many syncs.
    running_since: Option<u64>,
    /// The last one found differences that syncs of the meantime may explain.
    inconclusive: bool,
}

/// How much of the time may be spent on comparing rules with the kernel, as one part in so many; and the same
/// for comparing with a full render, which finds only faults of our own.
const COMPARING_SHARE: u32 = 10;
const DIGESTING_SHARE: u32 = 100;
/// The least time between two comparisons with the kernel.
const COMPARING_LEAST: Duration = Duration::from_secs(1);
/// The same for comparisons that run beside the syncs, which read everything by a program: at most one part in so
/// many of the time, and no oftener than this; less often where only guessing leads to them.
const READING_SHARE: u32 = 30;
const READING_LEAST: Duration = Duration::from_secs(10);
const GUESSING_LEAST: Duration = Duration::from_secs(60);
/// How often a look at the rules may run a program.
const THOROUGH_LEAST: Duration = Duration::from_secs(10);

impl<A: Address> Side<A> {
    /// Starts the family's threads.
    pub fn start(
        config: &Config,
        node: &NodeState,
        commits: Commits,
        metrics: FamilyMetrics,
        health: watch::Receiver<Health>,
        report: impl Fn(Report<A>) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let started = TriggerTime::from(Timestamp::now());
        let name = NodeName::from(config.node.as_str());
        let index = Index::new(name, ExternalIps::Honoured, started);
        let settings = config.settings::<A>(node);
        let mut servers = ServiceServers::new(health);
        servers.listen_on(&settings.node_ports);
        Ok(Self {
            sync: Synchroniser::new(index, config.intervals()),
            worker: Worker::start(config.mode, settings.clone(), commits, report)?,
            flows: Flows::start(metrics.clone())?,
            servers,
            settings,
            metrics,
            mode: config.mode,
            sync_period: config.sync_period,
            checking: false,
            digesting: false,
            comparison: Comparison::default(),
            thorough_after: None,
            unsure: false,
            rewrite_after: None,
            compare_after: None,
            digest_after: None,
            repairing: false,
        })
    }

    /// Folds changes in.
    pub fn fold(&mut self, now: Instant, changes: impl FnOnce(&mut Index<A>)) {
        self.sync.fold(now, changes);
        self.metrics.queued();
    }

    /// A list begins.
    pub fn list_begins(&mut self, resource: Resource) {
        self.sync.list_begins(resource);
    }

    /// A first list is complete.
    pub fn listed(&mut self, now: Instant, resource: Resource) {
        self.sync.listed(now, resource);
    }

    /// Takes over what the node says about itself.
    pub fn node_changed(&mut self, now: Instant, config: &Config, node: &NodeState) {
        let settings = config.settings::<A>(node);
        if settings == self.settings {
            return;
        }
        tracing::info!(family = %A::FAMILY, "the node changed, all rules are written again");
        self.servers.listen_on(&settings.node_ports);
        self.settings = settings.clone();
        self.worker.send(Job::Settings(Box::new(settings)));
        self.fold(now, Index::force_full);
    }

    /// Asks whether the rules are as we left them, and whether they are what we believe.
    pub fn check(&mut self, now: Instant) {
        if self.sync.tally().full == 0 {
            return;
        }
        if !self.checking {
            self.checking = true;
            let thorough = self.thorough_after.is_none_or(|after| now >= after);
            if thorough {
                self.thorough_after = Some(now + self.sync_period.min(THOROUGH_LEAST));
            }
            self.worker.send(Job::Check(thorough));
        }
        // A batch on its way would be in the written rules or not, depending on who is quicker, and new
        // settings are in the rules only after the full batch that they ask for.
        let settled =
            self.sync.next(now) != Next::Running && !self.unsure && !self.sync.index().has_changes();
        if self.mode == Mode::Iptables && settled {
            self.digest(now);
            self.compare(now);
        }
    }

    /// Compares what was written with a full render, if it is time.
    fn digest(&mut self, now: Instant) {
        let due = *self.digest_after.get_or_insert(now + self.sync_period) <= now;
        if due && !self.digesting {
            self.digesting = true;
            let states = self.programmed();
            self.worker.send(Job::Digest(states));
        }
    }

    /// Compares the kernel with a full render, if something asks for it and it is time.
    fn compare(&mut self, now: Instant) {
        let due = self.compare_after.is_none_or(|after| now >= after);
        if self.comparison.wanted && due && self.comparison.running_since.is_none() {
            self.comparison.running_since = Some(self.syncs());
            let states = self.programmed();
            self.worker.send(Job::Compare(states));
        }
    }

    fn programmed(&self) -> Vec<Arc<ServiceState<A>>> {
        let programmed = self.sync.index().programmed();
        programmed.map(|(_, state)| Arc::clone(state)).collect()
    }

    /// How many syncs have ended.
    fn syncs(&self) -> u64 {
        let tally = self.sync.tally();
        tally.full + tally.partial + tally.failures
    }

    /// Begins a sync if it is time. Returns when to ask again, and whether something was committed.
    pub fn step(&mut self, now: Instant) -> Step {
        let mut committed = false;
        while let Some(batch) = self.sync.begin(now) {
            if !batch.is_empty() {
                self.worker.send(Job::Sync(Box::new(batch)));
                return Step {
                    wake: None,
                    committed,
                    began: true,
                };
            }
            // Nothing to write: only times and the watermark are due.
            self.finish(batch, Ok(Written::default()), now);
            committed = true;
        }
        let wake = match self.sync.next(now) {
            Next::Wait(at) => Some(at),
            Next::Run | Next::Running => None,
        };
        Step {
            wake,
            committed,
            began: false,
        }
    }

    /// Takes in what the thread says; true if something was committed.
    pub fn take(&mut self, report: Report<A>, now: Instant) -> bool {
        match report {
            Report::Synced { batch, result, at } => self.finish(*batch, result, at),
            Report::Checked(look) => {
                self.checking = false;
                self.looked(look, now);
                false
            }
            Report::Compared { differing, took } => {
                self.compared(differing, took, now);
                false
            }
            Report::Digested { diverged, took } => {
                self.digesting = false;
                self.digest_after = Some(now + self.sync_period.max(took * DIGESTING_SHARE));
                if diverged > 0 {
                    self.metrics.divergences.add(diverged as u64);
                    self.fold(now, Index::force_full);
                }
                false
            }
        }
    }

    fn looked(&mut self, look: Look, now: Instant) {
        match look {
            Look::Undisturbed => {}
            Look::Unclear => {
                self.comparison.guessing |= !self.comparison.wanted;
                self.comparison.wanted = true;
                let pause = GUESSING_LEAST.min(self.sync_period * 2);
                self.compare_after.get_or_insert(now + pause);
            }
            Look::Disturbed => {
                if !self.comparison.wanted {
                    self.metrics.disturbances.inc();
                }
                self.comparison.wanted = true;
                self.comparison.guessing = false;
            }
            Look::Flushed => {
                // If it is too early, the next look says the same again.
                if self.rewrite_after.is_none_or(|after| now >= after) {
                    self.metrics.disturbances.inc();
                    tracing::info!(family = %A::FAMILY, "somebody may have changed the rules, comparing all of them");
                    self.fold(now, Index::force_full);
                }
            }
        }
    }

    fn compared(&mut self, differing: Option<usize>, took: Duration, now: Instant) {
        let undisturbed = self.comparison.running_since.take() == Some(self.syncs())
            && self.sync.next(now) != Next::Running;
        let least = match self.comparison.guessing {
            true => GUESSING_LEAST.min(self.sync_period * 2),
            false => READING_LEAST.min(self.sync_period),
        };
        self.compare_after = Some(now + least.max(took * READING_SHARE));
        let differs = match differing {
            Some(differing) => differing > 0,
            // Nobody knows, so the next look has to ask again.
            None => return,
        };
        // Twice in a row is no coincidence.
        let believed = differs && (undisturbed || self.comparison.inconclusive);
        self.comparison = Comparison {
            wanted: differs && !believed,
            guessing: false,
            running_since: None,
            inconclusive: differs && !believed,
        };
        if believed {
            tracing::warn!(family = %A::FAMILY, "somebody changed our rules, all of them are written again");
            self.repairing = true;
            self.fold(now, Index::force_full);
        }
    }

    fn finish(&mut self, batch: Batch<A>, result: Result<Written, ProgramError>, at: Instant) -> bool {
        let quiet = batch.is_empty();
        let verdict = result.as_ref().map(|_| ()).map_err(ProgramError::recovery);
        self.unsure = verdict.is_err();
        match self.sync.finish(batch, verdict, at) {
            Outcome::Done(done) => {
                if !quiet {
                    self.metrics.took(done.scope, done.took);
                }
                if done.scope == Scope::Full {
                    if std::mem::take(&mut self.repairing) {
                        self.metrics.repairs.inc();
                    }
                    // The batch is gone only now, and it was as large as the cluster.
                    pointsman_kernel::memory::return_unused();
                    let pause = done.took * COMPARING_SHARE;
                    self.rewrite_after =
                        Some(at + pause.clamp(COMPARING_LEAST, self.sync_period.max(COMPARING_LEAST)));
                }
                if let Ok(written) = &result {
                    self.metrics.wrote(written);
                    tell(A::FAMILY.as_str(), &done, written);
                }
                self.publish(*done, at);
                true
            }
            Outcome::Failed { scope, took } => {
                self.metrics.took(scope, took);
                self.metrics.failed(scope);
                if let Err(error) = &result {
                    tracing::error!(family = %A::FAMILY, ?scope, error = %Chain(error), "rules could not be written, trying again");
                }
                false
            }
        }
    }

    fn publish(&mut self, done: Done<A>, at: Instant) {
        let now = TriggerTime::from(Timestamp::now());
        let late = at.elapsed();
        for trigger in &done.committed.triggers {
            self.metrics
                .programmed(trigger.at.elapsed(now).saturating_sub(late));
        }
        self.metrics.synced(&done.committed.totals);
        self.servers.reconcile(self.sync.health_checks());
        self.flows.review(done.udp);
    }

    /// How far changes have come.
    pub fn progress(&self) -> Progress {
        self.sync.index().progress()
    }

    /// Whether the rules follow the cluster.
    pub fn health(&self) -> pointsman_dataplane::health::SyncHealth {
        *self.sync.health()
    }
}

/// What a step led to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// When to ask again; something else wakes us before if there is none.
    pub wake: Option<Instant>,
    /// A watermark may have moved.
    pub committed: bool,
    /// A batch went to the thread.
    pub began: bool,
}

fn tell<A: Address>(family: &str, done: &Done<A>, written: &Written) {
    let took_seconds = done.took.as_secs_f64();
    let services = done.committed.totals.services;
    if done.scope == Scope::Full {
        let endpoints = done.committed.totals.endpoints;
        let repaired = written.repaired;
        tracing::info!(
            family,
            took_seconds,
            services,
            endpoints,
            repaired,
            "all rules are in place"
        );
    } else {
        let transactions = written.transactions;
        tracing::debug!(family, took_seconds, services, transactions, "rules changed");
    }
}
