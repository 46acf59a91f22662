//! Which changes are on their way, and how far has each come?

use std::collections::VecDeque;
use std::time::Duration;

use super::ProgrammerId;
use pointsman_model::{Dated, Moment};
use pointsman_protocol::watermark::Resource;

/// In clusters of at most this size, the commits of every programmer are kept for each change.
const DETAILED: usize = 64;

/// What kind of change it is, in the words of the SLI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// An endpoint became ready, or a ready one appeared.
    Ready,
    /// An endpoint stopped being ready without being deleted.
    NotReady,
    /// An endpoint stopped being ready although its pod is: traffic avoids its node.
    Withdrawn,
    /// An endpoint's pod is being deleted.
    Terminating,
    /// An endpoint went away.
    Removed,
    /// A slice changed in other ways.
    Endpoints,
    /// A Service was created.
    ServiceCreated,
    /// A Service was changed.
    ServiceChanged,
    /// A Service was deleted.
    ServiceDeleted,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Ready,
        Self::NotReady,
        Self::Withdrawn,
        Self::Terminating,
        Self::Removed,
        Self::Endpoints,
        Self::ServiceCreated,
        Self::ServiceChanged,
        Self::ServiceDeleted,
    ];

    /// A word for metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady => "not-ready",
            Self::Withdrawn => "withdrawn",
            Self::Terminating => "terminating",
            Self::Removed => "removed",
            Self::Endpoints => "endpoints",
            Self::ServiceCreated => "service-created",
            Self::ServiceChanged => "service-changed",
            Self::ServiceDeleted => "service-deleted",
        }
    }
}

/// A change as the collector's own watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChange {
    pub resource: Resource,
    /// The version that the API server gave it.
    pub revision: u64,
    /// The Service concerned, as namespace/name.
    pub service: String,
    pub kind: Kind,
    /// The pod that changed first, as namespace/name, if it was a pod.
    pub pod: Option<String>,
    /// When the pod or Service changed, as far as somebody wrote it down.
    pub triggered: Option<Moment>,
    /// How well that is known.
    pub dated: Dated,
    /// When the pod's change was seen in the API.
    pub api: Option<Moment>,
    /// When our watch delivered it.
    pub written: Moment,
}

impl NewChange {
    /// Whether programmers measure it: Services by their writes, slices by the trigger times in them.
    pub fn is_pooled(&self) -> bool {
        self.resource == Resource::Services || self.triggered.is_some()
    }
}

/// A change and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub what: NewChange,
    /// Programmers that have it.
    pub reached: usize,
    /// Programmers that there were: now, or when it was everywhere.
    pub of: usize,
    /// The first commit that had it.
    pub earliest: Option<Moment>,
    /// The latest commit among those that have it.
    pub latest: Option<Moment>,
    /// Whose commit that was, as far as it was seen.
    pub last: Option<ProgrammerId>,
    /// When each programmer had it, in clusters small enough to keep that.
    pub commits: Vec<(ProgrammerId, Moment)>,
    /// When half of the programmers had it.
    pub half: Option<Moment>,
    /// When 99 % had it.
    pub most: Option<Moment>,
    /// When all had it.
    pub all: Option<Moment>,
}

impl Change {
    /// When the change began: its trigger, or else when it was written.
    pub fn began(&self) -> Moment {
        let triggered = self.what.triggered.map(|at| at.min(self.what.written));
        triggered.unwrap_or_else(|| self.seen_first())
    }

    /// When the pod's change was in the API, as far as that is known.
    pub fn api(&self) -> Option<Moment> {
        self.what.api.map(|at| at.clamp(self.began(), self.written()))
    }

    /// When it was written, as far as that is known: what a kernel has was written before, however late our own
    /// watch delivered it.
    pub fn written(&self) -> Moment {
        self.seen_first().max(self.began())
    }

    fn seen_first(&self) -> Moment {
        self.earliest
            .map_or(self.what.written, |at| at.min(self.what.written))
    }

    /// Writes down what it has reached among so many programmers, and reports what is new.
    fn stamp(&mut self, counted: usize, mut done: impl FnMut(Milestone, &Self)) {
        if counted == 0 || self.all.is_some() {
            return;
        }
        self.of = counted;
        let Some(latest) = self.latest else {
            // It was in every kernel before its programmer first said so: nobody can tell how long it took.
            self.all = (self.reached >= counted).then_some(self.what.written);
            return;
        };
        let reached = |percent: usize| self.reached * 100 >= counted * percent;
        let (half, most, all) = (reached(50), reached(99), self.reached >= counted);
        self.half = self.half.or(half.then_some(latest));
        if most && self.most.is_none() {
            self.most = Some(latest);
            done(Milestone::Most, self);
        }
        if all {
            self.all = Some(latest);
            done(Milestone::All, self);
        }
    }
}

/// What a change has just reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The kernels of 99 % of the programmers.
    Most,
    All,
}

/// The newest changes of one collection, in order of version.
#[derive(Debug)]
pub(super) struct Ring {
    changes: VecDeque<Change>,
    capacity: usize,
    /// Everything before this index is everywhere.
    open_from: usize,
    pub evicted_open: u64,
}

impl Ring {
    pub fn new(capacity: usize) -> Self {
        Self {
            changes: VecDeque::new(),
            capacity: capacity.max(1),
            open_from: 0,
            evicted_open: 0,
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.changes.iter()
    }

    /// The version of the newest change; 0 before the first.
    pub fn newest(&self) -> u64 {
        self.changes.back().map_or(0, |change| change.what.revision)
    }

    /// The changes that are not everywhere.
    pub fn open(&self) -> impl Iterator<Item = &Change> {
        let from = self.changes.range(self.open_from..);
        from.filter(|change| change.all.is_none())
    }

    /// The oldest change that is not everywhere and lies above a mark.
    pub fn oldest_open_above(&self, mark: u64) -> Option<&Change> {
        let from = self.first_above(mark).max(self.open_from);
        self.changes.range(from..).find(|change| change.all.is_none())
    }

    /// Adds a change; false if its version is already known.
    pub fn push(
        &mut self,
        change: NewChange,
        commits: Vec<(ProgrammerId, Moment)>,
        counted: usize,
        done: impl FnMut(Milestone, &Change),
    ) -> bool {
        // Watches tell in order; a list after a gap does not.
        let at = self.first_above(change.revision);
        if at > 0 && self.changes[at - 1].what.revision == change.revision {
            return false;
        }
        let earliest = commits.iter().map(|(_, at)| *at).min();
        let last = commits.iter().max_by_key(|(_, at)| *at);
        let (latest, last) = (last.map(|(_, at)| *at), last.map(|(id, _)| *id));
        let reached = commits.len();
        let commits = if counted <= DETAILED { commits } else { Vec::new() };
        let mut change = Change {
            what: change,
            reached,
            of: counted,
            earliest,
            latest,
            last,
            commits,
            half: None,
            most: None,
            all: None,
        };
        change.stamp(counted, done);
        self.changes.insert(at, change);
        self.open_from = self.open_from.min(at);
        while self.changes.len() > self.capacity {
            let oldest = self.changes.pop_front();
            self.evicted_open += u64::from(oldest.is_some_and(|change| change.all.is_none()));
            self.open_from = self.open_from.saturating_sub(1);
        }
        true
    }

    /// A programmer's mark rose at this moment: it now has what lies in between, and was seen to get what lies above
    /// its first mark. `took` gets how long each change that it was seen to get took from being written, `done` what most
    /// or all have since then.
    pub fn rise(
        &mut self,
        (id, at, first): (ProgrammerId, Moment, u64),
        (from, to): (u64, u64),
        counted: usize,
        mut took: impl FnMut(Duration),
        mut done: impl FnMut(Milestone, &Change),
    ) {
        let lowest = self.first_above(from).max(self.open_from);
        for change in self.changes.range_mut(lowest..) {
            if change.what.revision > to {
                break;
            }
            if change.all.is_some() {
                continue;
            }
            change.reached += 1;
            if change.what.revision > first {
                change.earliest = Some(change.earliest.map_or(at, |earliest| earliest.min(at)));
                if change.latest <= Some(at) {
                    (change.latest, change.last) = (Some(at), Some(id));
                }
                took(at.since(change.written()));
                if counted <= DETAILED {
                    change.commits.push((id, at));
                }
            }
            change.stamp(counted, &mut done);
        }
        self.skip_closed();
    }

    /// A programmer's mark fell, or it left: it no longer counts for what lies in between.
    pub fn fall(&mut self, id: ProgrammerId, from: u64, to: u64) {
        let first = self.first_above(to).max(self.open_from);
        for change in self.changes.range_mut(first..) {
            if change.what.revision > from {
                break;
            }
            if change.all.is_none() {
                change.reached = change.reached.saturating_sub(1);
                change.commits.retain(|(other, _)| *other != id);
            }
        }
    }

    /// The number of programmers changed.
    pub fn restamp(&mut self, counted: usize, mut done: impl FnMut(Milestone, &Change)) {
        for change in self.changes.range_mut(self.open_from..) {
            if change.all.is_some() {
                continue;
            }
            change.of = counted;
            change.stamp(counted, &mut done);
        }
        self.skip_closed();
    }

    fn skip_closed(&mut self) {
        while self
            .changes
            .get(self.open_from)
            .is_some_and(|change| change.all.is_some())
        {
            self.open_from += 1;
        }
    }

    fn first_above(&self, mark: u64) -> usize {
        self.changes
            .partition_point(|change| change.what.revision <= mark)
    }
}
