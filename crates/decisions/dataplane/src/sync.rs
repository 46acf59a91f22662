//! What happens around one write to the kernel?
//!
//! [`Synchroniser`] joins the index, the schedule and the health of one IP family into the loop every
//! backend shares, still without IO: ask [`Synchroniser::begin`] for a batch, bring it into the kernel,
//! report with [`Synchroniser::finish`], and do what the [`Outcome`] says. No rule is written before both
//! Services and slices have delivered their first lists.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pointsman_model::{Address, ServiceName};

use crate::conntrack::UdpReview;
use crate::guard::{Situation, SyncProgress};
use crate::health::{HealthCheck, SyncHealth};
use crate::index::{Batch, Committed, Index, Scope};
use crate::programmer::{Recovery, Restores};
use crate::schedule::{Intervals, Next, Schedule};

/// The watched resources without which nothing may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Services,
    Slices,
}

/// The loop of one IP family.
#[derive(Debug)]
pub struct Synchroniser<A> {
    index: Index<A>,
    schedule: Schedule,
    health: SyncHealth,
    services_listed: bool,
    slices_listed: bool,
    health_checks: BTreeMap<ServiceName, HealthCheck>,
    tally: Tally,
    started: Option<Instant>,
    last_full: Option<Instant>,
    full_after: Duration,
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Full syncs that succeeded.
    pub full: u64,
    /// Partial syncs that succeeded.
    pub partial: u64,
    /// Syncs that failed.
    pub failures: u64,
    /// Those of them that were partial, so that a full one follows.
    pub partial_failures: u64,
}

/// What to publish after a sync.
#[derive(Debug)]
pub enum Outcome<A> {
    /// The kernel has everything.
    Done(Box<Done<A>>),
    /// Nothing may be published; the schedule tries again.
    Failed {
        /// What was tried.
        scope: Scope,
        /// How long it took.
        took: Duration,
        /// What the next one has to be.
        recovery: Recovery,
    },
}

/// What a successful sync gives to publish.
#[derive(Debug)]
pub struct Done<A> {
    /// What was written.
    pub scope: Scope,
    /// How long it took.
    pub took: Duration,
    /// Trigger times to observe, the watermark to publish, the totals.
    pub committed: Committed,
    /// UDP flows to look at.
    pub udp: UdpReview<A>,
}

impl<A: Address> Synchroniser<A> {
    /// A loop around an index.
    pub fn new(index: Index<A>, intervals: Intervals) -> Self {
        Self {
            index,
            schedule: Schedule::new(intervals),
            health: SyncHealth::new(intervals.longest_retry),
            services_listed: false,
            slices_listed: false,
            health_checks: BTreeMap::new(),
            tally: Tally::default(),
            started: None,
            last_full: None,
            full_after: intervals.longest,
        }
    }

    /// With complete restores, every sync is full.
    #[must_use]
    pub fn with_restores(mut self, restores: Restores) -> Self {
        if restores == Restores::Complete {
            self.full_after = Duration::ZERO;
        }
        self
    }

    /// Folds changes in; a sync is requested if they matter.
    pub fn fold(&mut self, now: Instant, changes: impl FnOnce(&mut Index<A>)) {
        changes(&mut self.index);
        if self.index.has_changes() {
            self.schedule.request();
            self.health.queued(now);
        }
    }

    /// A list of a resource begins, the first one or one after a gap.
    pub fn list_begins(&mut self, resource: Resource) {
        self.index.list_begins(resource);
    }

    /// The first list of a resource is complete.
    pub fn listed(&mut self, now: Instant, resource: Resource) {
        match resource {
            Resource::Services => self.services_listed = true,
            Resource::Slices => self.slices_listed = true,
        }
        self.fold(now, |_| {});
    }

    /// What to do at this moment.
    pub fn next(&self, now: Instant) -> Next {
        match self.schedule.next(now) {
            Next::Run if !self.is_ready() => Next::Wait(now + Duration::from_secs(1)),
            next => next,
        }
    }

    /// Whether both lists have arrived.
    pub fn is_ready(&self) -> bool {
        self.services_listed && self.slices_listed
    }

    /// Takes out a batch, if it is time. Give it back to [`Synchroniser::finish`].
    pub fn begin(&mut self, now: Instant) -> Option<Batch<A>> {
        if self.next(now) != Next::Run {
            return None;
        }
        // Somebody may have changed rules in a way that no partial sync would notice.
        if self
            .last_full
            .is_some_and(|last| now.saturating_duration_since(last) >= self.full_after)
        {
            self.index.force_full();
        }
        self.schedule.started();
        self.started = Some(now);
        Some(self.index.checkout())
    }

    /// Records how the batch fared.
    pub fn finish(&mut self, batch: Batch<A>, result: Result<(), Recovery>, now: Instant) -> Outcome<A> {
        let started = self.started.take().unwrap_or(now);
        let (scope, took) = (batch.scope, now.saturating_duration_since(started));
        if let Err(recovery) = result {
            self.index.abort(batch, recovery);
            self.schedule.failed(now);
            self.tally.failures += 1;
            let falls_back = scope == Scope::Partial && recovery == Recovery::FullResync;
            self.tally.partial_failures += u64::from(falls_back);
            return Outcome::Failed {
                scope,
                took,
                recovery,
            };
        }
        for change in &batch.changes {
            match change.after.as_deref().and_then(HealthCheck::of) {
                Some(check) => self.health_checks.insert(change.name.clone(), check),
                None => self.health_checks.remove(&change.name),
            };
        }
        let udp = UdpReview::of(&batch.changes);
        let committed = self.index.commit(batch);
        self.schedule.succeeded(now);
        self.health.updated(started, now);
        match scope {
            Scope::Full => {
                self.tally.full += 1;
                self.last_full = Some(now);
            }
            Scope::Partial => self.tally.partial += 1,
        }
        Outcome::Done(Box::new(Done {
            scope,
            took,
            committed,
            udp,
        }))
    }

    /// How the syncs stand, for those who watch over the rules.
    pub fn situation(&self) -> Situation {
        let progress = if self.schedule.is_running() {
            SyncProgress::Running
        } else if self.schedule.is_failing() || self.index.has_changes() {
            SyncProgress::Unsettled
        } else {
            SyncProgress::Settled
        };
        Situation {
            full_syncs: self.tally.full,
            progress,
        }
    }

    pub fn index(&self) -> &Index<A> {
        &self.index
    }

    /// Whether the rules follow the cluster.
    pub fn health(&self) -> &SyncHealth {
        &self.health
    }

    /// What the health check node ports answer, as far as it is in the kernel.
    pub fn health_checks(&self) -> &BTreeMap<ServiceName, HealthCheck> {
        &self.health_checks
    }

    /// How often what happened.
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

#[cfg(test)]
mod tests;
