//! What happens around the rules of one family?
//!
//! A [`Side`] joins the synchroniser and the guard of a family with the thread that writes, and publishes what
//! a sync changed. It runs on the owner's task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use pointsman_dataplane::guard::{Comparisons, Event, Found, Guard, Order};
use pointsman_dataplane::health::HealthCheck;
use pointsman_dataplane::localhost::Listening;
use pointsman_dataplane::schedule::Next;
use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::sync::{Done, Resource};
use pointsman_dataplane::trigger::Trigger;
use pointsman_dataplane::{
    Batch, Committed, Index, Localhost, NoRules, NodePortAddresses, Outcome, ProgramError, Progress,
    Restores, Scope, Settings, States, Synchroniser, Written,
};
use pointsman_kernel::interfaces::has_family;
use pointsman_kernel::{Commits, Mode};
use pointsman_model::{Address, Moment, NodeName, ServiceName};
use pointsman_observe::Behind;
use pointsman_peers::GoneNodes;

use crate::config::{Config, NodeState};
use crate::flows::Flows;
use crate::localhost::{Listeners, count_refused};
use crate::metrics::FamilyMetrics;
use crate::observer::{Observed, Observer};
use crate::resets::{Ends, pods_of};
use crate::worker::{Chain, Job, Open, Report, Worker};

#[derive(Debug)]
pub(crate) struct Side<A> {
    sync: Synchroniser<A>,
    guard: Guard,
    worker: Worker<A>,
    flows: Flows<A>,
    /// Of connections to nodes that are gone.
    ends: Ends<A>,
    /// On loopback addresses, where they are served.
    listeners: Option<Listeners<A>>,
    /// Packets that the table refused there, as last read.
    refused: [u64; 3],
    settings: Settings<A>,
    metrics: FamilyMetrics,
    /// What the last comparison found.
    differing: Vec<String>,
    /// What a predecessor left has been looked for.
    cleaned: bool,
    /// Another proxy wrote over our rules since somebody asked.
    overwritten: bool,
    /// Follows another program's rules, where it is that which writes.
    observer: Option<Observer<A>>,
}

impl<A: Address> Side<A> {
    /// Starts the family's threads.
    pub fn start(
        config: &Config,
        node: &NodeState,
        commits: Commits,
        metrics: FamilyMetrics,
        report: impl Fn(Report<A>) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let started = Moment::from(Timestamp::now());
        let name = NodeName::from(config.node.as_str());
        let index = Index::new(name, ExternalIps::Honoured, started);
        let settings = config.settings::<A>(node);
        let mode = config.mode;
        let (comparisons, restores) = match mode {
            Mode::Iptables => (Comparisons::BesideSyncs, config.restores),
            Mode::Nftables => (Comparisons::WithFullSyncs, Restores::Minimal),
        };
        let ends = Ends::start(config, commits.clone(), metrics.resets.clone())?;
        let report = Arc::new(report);
        let observer = match config.observe {
            true => {
                let report = Arc::clone(&report);
                Some(Observer::start(mode, move |observed| {
                    report(Report::Observed(observed))
                })?)
            }
            false => None,
        };
        let observes = config.observe;
        let open: Open<A> = Box::new(move |settings| match observes {
            true => Ok(Box::new(NoRules)),
            false => mode.open(settings, commits.clone(), restores),
        });
        Ok(Self {
            sync: Synchroniser::new(index, config.intervals()).with_restores(restores),
            guard: Guard::new(comparisons, config.sync_period),
            worker: Worker::start(open, settings.clone(), move |it| report(it))?,
            flows: Flows::start(metrics.clone())?,
            ends,
            listeners: (settings.localhost == Localhost::Served && has_family(A::FAMILY))
                .then(|| Listeners::new(metrics.localhost.clone())),
            refused: [0; 3],
            settings,
            metrics,
            differing: Vec::new(),
            cleaned: false,
            overwritten: false,
            observer,
        })
    }

    pub fn fold(&mut self, now: Instant, changes: impl FnOnce(&mut Index<A>)) {
        self.sync.fold(now, changes);
        self.metrics.queued();
    }

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
        if self.observer.is_none() {
            tracing::info!(family = %A::FAMILY, "the node changed, all rules are written again");
        }
        self.settings = settings.clone();
        self.worker.send(Job::Settings(Box::new(settings)));
        self.fold(now, Index::force_full);
    }

    /// Looks after the rules: whether they are as we left them, and whether they are what we believe.
    pub fn check(&mut self, now: Instant) {
        self.guarded(now, Event::Due);
        if let Some(listeners) = &mut self.listeners {
            listeners.try_again();
        }
    }

    /// What is done every sync period, whatever happens.
    pub fn look(&mut self) {
        if self.settings.localhost != Localhost::Ignored {
            count_refused::<A>(&mut self.refused, &self.metrics.localhost);
        }
    }

    /// Ends connections to pods of these nodes, and to no others.
    pub fn end_connections(&self, config: &Config, nodes: &GoneNodes) {
        let known = self
            .sync
            .index()
            .addresses_on(|node| nodes.contains_key(node.as_str()));
        self.ends.order(pods_of(config, nodes, known));
    }

    fn guarded(&mut self, now: Instant, event: Event) {
        for order in self.guard.step(now, event, self.sync.situation()) {
            match order {
                Order::Look(effort) => self.worker.send(Job::Look(effort)),
                Order::Compare(of) => self.worker.send(Job::Compare(of, self.programmed())),
                Order::WriteAll => {
                    tracing::info!(family = %A::FAMILY, "writing all rules again");
                    self.fold(now, Index::force_full);
                }
                Order::CountDisturbance => self.metrics.disturbances.inc(),
                Order::CountRepair => self.metrics.repairs.inc(),
                Order::CountDivergences(chains) => {
                    self.metrics.divergences.add(chains as u64);
                    let first = self.differing.get(..5).unwrap_or(&self.differing);
                    tracing::error!(family = %A::FAMILY, chains, ?first, "partial syncs differ from a full one");
                }
                Order::ReportForeignChange => {
                    let (chains, first) = (
                        self.differing.len(),
                        self.differing.get(..5).unwrap_or(&self.differing),
                    );
                    tracing::warn!(family = %A::FAMILY, chains, ?first, "another program changed rules of the proxy");
                }
            }
        }
    }

    fn programmed(&self) -> States<A> {
        let programmed = self.sync.index().programmed();
        programmed.map(|(_, state)| Arc::clone(state)).collect()
    }

    /// Begins a sync if it is time. Returns when to ask again, and whether something was committed.
    pub fn step(&mut self, now: Instant) -> Step {
        let (mut committed, mut began) = (false, false);
        while let Some(batch) = self.sync.begin(now) {
            began |= !batch.is_empty();
            if !batch.is_empty() && self.observer.is_none() {
                self.worker.send(Job::Sync(Box::new(batch)));
                return Step {
                    wake: None,
                    committed,
                    began,
                };
            }
            // Nothing to write, or not for us: only times and the watermark are due.
            committed |= self.finish(batch, Ok(Written::default()), now);
        }
        let wake = match self.sync.next(now) {
            Next::Wait(at) => Some(at),
            Next::Run | Next::Running => None,
        };
        Step {
            wake,
            committed,
            began,
        }
    }

    /// Takes in what came of a job; true if something was committed.
    pub fn take(&mut self, report: Report<A>, now: Instant) -> bool {
        match report {
            Report::Synced { batch, result, at } => return self.finish(*batch, result, at),
            Report::Cleaned { leftovers } => {
                self.cleaned = true;
                self.metrics.cleanup_failures.add(u64::from(leftovers));
            }
            Report::Observed(observed) => return self.observed(observed),
            Report::Looked(look) => self.guarded(now, Event::Looked(look)),
            Report::Compared { of, found, took } => {
                let event = Event::Compared {
                    of,
                    found: found.as_ref().map(Found::from),
                    took,
                };
                let found = found.unwrap_or_default();
                self.overwritten |= found.another_proxy;
                self.differing = found.names;
                self.guarded(now, event);
            }
        }
        false
    }

    fn finish(&mut self, batch: Batch<A>, result: Result<Written, ProgramError>, at: Instant) -> bool {
        let quiet = batch.is_empty();
        let listening = self.listeners.as_ref().map(|_| Listening::of(&batch.changes));
        let followed = self.observer.as_ref().map(|_| batch.changes.clone());
        let verdict = result.as_ref().map(|_| ()).map_err(ProgramError::recovery);
        match self.sync.finish(batch, verdict, at) {
            Outcome::Done(done) => {
                let (scope, took) = (done.scope, done.took);
                if !quiet {
                    self.metrics.took(scope, took);
                }
                if scope == Scope::Full {
                    // The batch is gone only now, and it was as large as the cluster.
                    pointsman_kernel::memory::return_unused();
                }
                self.guarded(at, Event::Synced { scope, took });
                if let Ok(written) = &result {
                    self.metrics.wrote(written);
                    if self.observer.is_none() {
                        log_written(A::FAMILY.as_str(), &done, written);
                    }
                }
                if let Some((listeners, listening)) = self.listeners.as_mut().zip(listening) {
                    listeners.apply(listening);
                }
                match (&self.observer, followed) {
                    (Some(observer), Some(changes)) => {
                        let Committed {
                            watermark, triggers, ..
                        } = done.committed;
                        observer.follow(changes, pointsman_observe::Step { watermark, triggers });
                        return false;
                    }
                    _ => self.publish(*done, at),
                }
                true
            }
            Outcome::Failed {
                scope,
                took,
                recovery,
            } => {
                self.metrics.took(scope, took);
                self.metrics.failed(scope, recovery);
                if let Err(error) = &result {
                    tracing::error!(family = %A::FAMILY, ?scope, error = %Chain(error), "rules could not be written, trying again");
                }
                false
            }
        }
    }

    /// Another program's rules say more than before, or somebody is behind; true if a watermark moved.
    fn observed(&mut self, observed: Observed) -> bool {
        let Some(observer) = &mut self.observer else {
            return false;
        };
        self.metrics.observed.error.set(observed.error.as_secs_f64());
        if observer.behind != observed.behind {
            log_behind(A::FAMILY.as_str(), observed.behind.as_ref());
            let services = observed
                .behind
                .as_ref()
                .map_or(0, |behind| behind.services.max(1));
            self.metrics.observed.behind.set(services as f64);
            observer.behind = observed.behind;
        }
        let Some(newest) = observed.steps.last() else {
            return false;
        };
        observer.said = newest.watermark;
        for step in &observed.steps {
            self.in_kernel(&step.triggers, observed.at);
        }
        true
    }

    /// Since when whose rules, written by another program, have differed from what they must say.
    pub fn behind(&self) -> Option<&Behind> {
        self.observer.as_ref()?.behind.as_ref()
    }

    fn in_kernel(&self, triggers: &[Trigger], at: Instant) {
        let now = Moment::from(Timestamp::now());
        let late = at.elapsed();
        for trigger in triggers {
            let latency = now.since(trigger.began.at).saturating_sub(late);
            self.metrics.programmed(trigger, latency);
        }
    }

    fn publish(&mut self, done: Done<A>, at: Instant) {
        self.in_kernel(&done.committed.triggers, at);
        self.metrics.synced(&done.committed.totals);
        self.flows.review(done.udp);
    }

    /// What health check node ports say, and where node ports answer.
    pub fn health_checks(&self) -> (&BTreeMap<ServiceName, HealthCheck>, &NodePortAddresses<A>) {
        (self.sync.health_checks(), &self.settings.node_ports)
    }

    /// Whether our rules have replaced those of a predecessor.
    pub const fn has_replaced_predecessors(&self) -> bool {
        self.cleaned
    }

    /// Whether another proxy wrote over our rules since the last time this was asked.
    pub fn take_overwritten(&mut self) -> bool {
        std::mem::take(&mut self.overwritten)
    }

    /// The node's address of this family.
    pub const fn node_ip(&self) -> Option<A> {
        self.settings.node_ip
    }

    /// How far changes have come.
    pub fn progress(&self) -> Progress {
        let progress = self.sync.index().progress();
        Progress {
            committed: self
                .observer
                .as_ref()
                .map_or(progress.committed, |observer| observer.said),
            ..progress
        }
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
    /// Changes went to the thread that writes, or that follows who writes.
    pub began: bool,
}

/// Says whose rules have differed for long from what they must say, or that none do any more.
fn log_behind(family: &str, behind: Option<&Behind>) {
    match behind {
        Some(behind) => {
            let service = behind.service.as_ref().map_or("any", ServiceName::as_str);
            let (services, since_seconds) = (behind.services, behind.since.elapsed().as_secs());
            let differs = &behind.differs;
            tracing::warn!(
                family,
                service,
                differs,
                services,
                since_seconds,
                "kube-proxy is behind"
            );
        }
        None => tracing::info!(family, "kube-proxy is no longer behind"),
    }
}

fn log_written<A: Address>(family: &str, done: &Done<A>, written: &Written) {
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
