//! On how many programmers is each change, and who is behind?
//!
//! Every programmer streams one number per collection: everything up to version R is in my kernel. A
//! change of version r is everywhere when the lowest mark is at least r. Folding a line costs two lookups
//! and one step for each change that the programmer just took in, whatever the size of the cluster.
//!
//! Invariant: for each change that is not everywhere yet, `reached` is the number of programmers that count
//! and whose mark is at least its version.

mod mark;
mod multiset;
mod programmer;
mod ring;

use std::collections::HashMap;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_protocol::watermark::{Report, Resource, Watermark};

use multiset::Marks;
use ring::Ring;

pub use mark::{Fault, Stage};
pub use programmer::{NodeState, OVERDUE, Programmer, SILENCE, State};
pub use ring::{Change, Kind, Milestone, NewChange};

/// How much is kept and believed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Changes kept for each collection.
    pub changes: usize,
    /// A programmer of whose node nothing is known stops counting after a silence of this length.
    pub unknown_for: Duration,
    /// Marks this far above the newest known version are not believed. Other objects use up versions
    /// that we do not see, so some distance is normal.
    pub future: u64,
    /// A line is believed to be at most this old.
    pub oldest: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            changes: 2048,
            unknown_for: Duration::from_secs(30),
            future: 10_000_000,
            oldest: Duration::from_secs(10),
        }
    }
}

/// Names a programmer for as long as it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgrammerId(usize);

/// A programmer that lacks a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag<'a> {
    pub name: &'a str,
    /// Where its oldest missing change waits.
    pub stage: Stage,
    /// That change, unless nothing is missing and the programmer is merely silent.
    pub missing: Option<&'a Change>,
    /// When its last report came.
    pub last_seen: Moment,
}

/// The fold. See the module's documentation.
#[derive(Debug)]
pub struct Fold {
    limits: Limits,
    programmers: Vec<Option<Programmer>>,
    free: Vec<usize>,
    by_name: HashMap<Box<str>, ProgrammerId>,
    counted: usize,
    marks: [Marks; 2],
    rings: [Ring; 2],
    newest: u64,
    done: Vec<(Milestone, Change)>,
}

impl Fold {
    /// A fold without programmers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            programmers: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            counted: 0,
            marks: Default::default(),
            rings: [Ring::new(limits.changes), Ring::new(limits.changes)],
            newest: 0,
            done: Vec::new(),
        }
    }

    /// A programmer is there. It counts at once, with nothing in its kernel.
    pub fn join(&mut self, name: &str, now: Moment) -> ProgrammerId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let programmer = Programmer::new(name, now);
        let id = match self.free.pop() {
            Some(at) => {
                self.programmers[at] = Some(programmer);
                ProgrammerId(at)
            }
            None => {
                self.programmers.push(Some(programmer));
                ProgrammerId(self.programmers.len() - 1)
            }
        };
        self.by_name.insert(name.into(), id);
        self.count(id);
        id
    }

    /// A programmer is gone for good.
    pub fn leave(&mut self, id: ProgrammerId) {
        self.discount(id);
        if let Some(programmer) = self.programmers.get_mut(id.0).and_then(Option::take) {
            self.by_name.remove(&programmer.name);
            self.free.push(id.0);
        }
    }

    /// The programmer of this name.
    pub fn id(&self, name: &str) -> Option<ProgrammerId> {
        self.by_name.get(name).copied()
    }

    /// What is known of a programmer.
    pub fn programmer(&self, id: ProgrammerId) -> Option<&Programmer> {
        self.programmers.get(id.0)?.as_ref()
    }

    pub fn programmers(&self) -> impl Iterator<Item = &Programmer> {
        self.programmers.iter().flatten()
    }

    /// How many programmers a change has to reach to be everywhere.
    pub fn counted(&self) -> usize {
        self.counted
    }

    /// How many programmers are in a state.
    pub fn in_state(&self, state: State, now: Moment) -> usize {
        self.programmers().filter(|it| it.state(now) == state).count()
    }

    /// Whether any programmer that counts has ever reported a mark.
    pub fn is_reported_to(&self) -> bool {
        self.programmers().any(|it| it.counted && it.reported)
    }

    /// What became of a programmer's node. It takes effect with the next [`Self::review`].
    pub fn set_node(&mut self, id: ProgrammerId, node: NodeState) {
        if let Some(programmer) = self.programmers.get_mut(id.0).and_then(Option::as_mut) {
            programmer.node = node;
        }
    }

    /// A programmer's clock is ahead of ours by so many microseconds.
    pub fn set_clock(&mut self, id: ProgrammerId, ahead: i64) {
        if let Some(programmer) = self.programmers.get_mut(id.0).and_then(Option::as_mut) {
            programmer.clock_ahead = ahead;
        }
    }

    /// Takes in a line that arrived now.
    pub fn report(&mut self, id: ProgrammerId, report: Report, now: Moment) -> Result<(), Fault> {
        let Some(programmer) = self.programmers.get_mut(id.0).and_then(Option::as_mut) else {
            return Err(Fault::Unknown);
        };
        let ceiling = match self.newest {
            0 => u64::MAX,
            newest => newest.saturating_add(self.limits.future),
        };
        if let Err(fault) = judge(programmer, &report, ceiling) {
            programmer.faults += 1;
            programmer.last_fault = Some(fault);
            return Err(fault);
        }
        programmer.last_seen = now;
        programmer.reported = true;
        let before = std::mem::replace(&mut programmer.report, report)
            .progress
            .committed;
        let committed = report.progress.committed;
        for resource in Resource::ALL {
            let first = &mut programmer.first[index(resource)];
            if *first == 0 {
                *first = committed.of(resource);
            }
            // A mark that fell with a restart is no progress: who restarts again and again is stalled, too.
            if before.of(resource) < committed.of(resource) {
                programmer.lacking[index(resource)] = None;
            }
        }
        let overdue = programmer.is_overdue(now);
        let was_overdue = std::mem::replace(&mut programmer.overdue, overdue);
        if !programmer.counted {
            self.count(id);
            return Ok(());
        }
        if before == committed && was_overdue == overdue {
            return Ok(());
        }
        let at = believed_time(programmer, report.time, now, self.limits.oldest);
        if before != committed {
            programmer.last_commit = Some(at);
        }
        let (first, counted, done) = (programmer.first, self.counted, &mut self.done);
        let mut took = |latency| programmer.took.add(latency, at);
        for resource in Resource::ALL {
            let (marks, ring) = (&mut self.marks[index(resource)], &mut self.rings[index(resource)]);
            let (from, to) = (before.of(resource), committed.of(resource));
            marks.remove(from, was_overdue);
            marks.insert(to, overdue);
            if from < to {
                let first = first[index(resource)];
                ring.rise((id, at, first), (from, to), counted, &mut took, |what, change| {
                    done.push((what, change.clone()));
                });
            } else if to < from {
                ring.fall(id, from, to);
            }
        }
        Ok(())
    }

    /// Time passes: decides anew who counts and who is overdue.
    pub fn review(&mut self, now: Moment) {
        let newest = [self.rings[0].newest(), self.rings[1].newest()];
        for at in 0..self.programmers.len() {
            let Some(programmer) = self.programmers[at].as_mut() else {
                continue;
            };
            for resource in Resource::ALL {
                programmer.compare(resource, newest[index(resource)], now);
            }
            let counts = programmer.counts(now, self.limits.unknown_for);
            let (before, overdue) = (programmer.overdue, programmer.is_overdue(now));
            if programmer.counted && before != overdue {
                for resource in Resource::ALL {
                    self.marks[index(resource)].remove(programmer.mark(resource), before);
                    self.marks[index(resource)].insert(programmer.mark(resource), overdue);
                }
            }
            programmer.overdue = overdue;
            match (programmer.counted, counts) {
                (false, true) => self.count(ProgrammerId(at)),
                (true, false) => self.discount(ProgrammerId(at)),
                _ => {}
            }
        }
    }

    /// Our own watch delivered a change; false if it is known already.
    pub fn change(&mut self, change: NewChange) -> bool {
        self.observe(change.revision);
        let at = index(change.resource);
        // Those that were faster than our own watch have had it since their last commit, at the latest.
        let mut commits = Vec::new();
        if self.marks[at].all.at_least(change.revision) > 0 {
            let began = change.triggered.unwrap_or(Moment(i64::MIN));
            for (slot, programmer) in self.programmers.iter().enumerate() {
                let Some(programmer) = programmer.as_ref().filter(|it| it.counted) else {
                    continue;
                };
                if programmer.mark(change.resource) >= change.revision {
                    let at = programmer.last_commit.unwrap_or(change.written).max(began);
                    commits.push((ProgrammerId(slot), at));
                }
            }
        }
        let done = &mut self.done;
        self.rings[at].push(change, commits, self.counted, |what, change| {
            done.push((what, change.clone()));
        })
    }

    /// A version was seen on any of our own watches.
    pub fn observe(&mut self, revision: u64) {
        self.newest = self.newest.max(revision);
    }

    /// The lowest mark of all programmers that count.
    pub fn lowest(&self, resource: Resource) -> Option<u64> {
        self.marks[index(resource)].all.lowest()
    }

    /// The lowest mark of those among them that are not overdue; none if all are.
    pub fn lowest_punctual(&self, resource: Resource) -> Option<u64> {
        self.marks[index(resource)].punctual.lowest()
    }

    /// The mark that at least this share of the programmers that count have reached.
    pub fn reached_by(&self, resource: Resource, share: f64) -> Option<u64> {
        let behind = (self.counted as f64 * (1.0 - share.clamp(0.0, 1.0)) + 1e-9).floor() as usize;
        self.marks[index(resource)].all.ranked(behind + 1)
    }

    /// The changes that are kept, oldest version first.
    pub fn changes(&self, resource: Resource) -> impl DoubleEndedIterator<Item = &Change> {
        self.rings[index(resource)].iter()
    }

    /// The changes of both collections that are not everywhere.
    pub fn open(&self) -> impl Iterator<Item = &Change> {
        self.rings.iter().flat_map(Ring::open)
    }

    /// Changes that became too old to be kept before they were everywhere.
    pub fn evicted(&self) -> u64 {
        self.rings.iter().map(|ring| ring.evicted_open).sum()
    }

    /// What most or all programmers have since this was last asked.
    pub fn drain_done(&mut self) -> Vec<(Milestone, Change)> {
        std::mem::take(&mut self.done)
    }

    /// Programmers that count and have not reached a version, at most `most` of them, in order of name.
    pub fn behind(&self, resource: Resource, revision: u64, most: usize) -> Vec<&str> {
        let lacks = |programmer: &&Programmer| programmer.counted && programmer.mark(resource) < revision;
        let mut names: Vec<&str> = self.programmers().filter(lacks).map(|it| &*it.name).collect();
        names.sort_unstable();
        names.truncate(most);
        names
    }

    /// Programmers that count and have lacked a change for longer than `patience`, or are silent; those that
    /// have waited longest come first.
    pub fn lagging(&self, now: Moment, patience: Duration) -> Vec<Lag<'_>> {
        let counted = self.programmers().filter(|programmer| programmer.counted);
        let mut lags: Vec<Lag<'_>> = counted.filter_map(|it| self.lag_of(it, now, patience)).collect();
        lags.sort_by_key(|lag| {
            let since = lag.missing.map_or(lag.last_seen, |change| change.what.written);
            (since, lag.name)
        });
        lags
    }

    fn lag_of<'a>(&'a self, programmer: &'a Programmer, now: Moment, patience: Duration) -> Option<Lag<'a>> {
        let report = &programmer.report;
        let missing = Resource::ALL
            .iter()
            .filter_map(|resource| {
                let mark = programmer.mark(*resource);
                self.rings[index(*resource)].oldest_open_above(mark)
            })
            .filter(|change| now.since(change.what.written) > patience)
            .min_by_key(|change| change.what.written);
        let stage = match missing {
            _ if programmer.state(now) == State::Silent => Stage::Silent,
            Some(change) => stage_of(report, &change.what),
            None => return None,
        };
        Some(Lag {
            name: &programmer.name,
            stage,
            missing,
            last_seen: programmer.last_seen,
        })
    }

    fn count(&mut self, id: ProgrammerId) {
        let Some(programmer) = self.programmers.get_mut(id.0).and_then(Option::as_mut) else {
            return;
        };
        programmer.counted = true;
        self.counted += 1;
        let (committed, at) = (programmer.report.progress.committed, programmer.last_seen);
        programmer.last_commit = programmer.last_commit.or((highest(&committed) > 0).then_some(at));
        let (first, overdue) = (programmer.first, programmer.overdue);
        let (counted, done) = (self.counted, &mut self.done);
        for resource in Resource::ALL {
            let (marks, ring) = (&mut self.marks[index(resource)], &mut self.rings[index(resource)]);
            marks.insert(committed.of(resource), overdue);
            let who = (id, at, first[index(resource)]);
            // How long it took nobody knows who did not count meanwhile.
            let up_to = (0, committed.of(resource));
            ring.rise(
                who,
                up_to,
                counted,
                |_| {},
                |what, change| {
                    done.push((what, change.clone()));
                },
            );
            ring.restamp(counted, |what, change| done.push((what, change.clone())));
        }
    }

    fn discount(&mut self, id: ProgrammerId) {
        let Some(programmer) = self.programmers.get_mut(id.0).and_then(Option::as_mut) else {
            return;
        };
        if !std::mem::take(&mut programmer.counted) {
            return;
        }
        self.counted -= 1;
        let committed = programmer.report.progress.committed;
        let (counted, overdue, done) = (self.counted, programmer.overdue, &mut self.done);
        for resource in Resource::ALL {
            let (marks, ring) = (&mut self.marks[index(resource)], &mut self.rings[index(resource)]);
            marks.remove(committed.of(resource), overdue);
            ring.fall(id, committed.of(resource), 0);
            ring.restamp(counted, |what, change| done.push((what, change.clone())));
        }
    }
}

fn highest(watermark: &Watermark) -> u64 {
    Resource::ALL
        .map(|resource| watermark.of(resource))
        .into_iter()
        .max()
        .unwrap_or(0)
}

/// Whether either mark is lower than in `other`.
fn below(watermark: &Watermark, other: &Watermark) -> bool {
    Resource::ALL
        .iter()
        .any(|resource| watermark.of(*resource) < other.of(*resource))
}

/// Whether a line can be true.
fn judge(programmer: &Programmer, report: &Report, ceiling: u64) -> Result<(), Fault> {
    let known = &programmer.report;
    if programmer.reported && report.generation < known.generation {
        return Err(Fault::Stale);
    }
    if highest(&report.progress.committed) > ceiling {
        return Err(Fault::Future);
    }
    let same = programmer.reported && report.generation == known.generation;
    if same && below(&report.progress.committed, &known.progress.committed) {
        return Err(Fault::Backwards);
    }
    Ok(())
}

/// When a commit happened by our clock: not after its report came, not before the commit before it, and
/// not so long ago that the line cannot have been under way.
fn believed_time(programmer: &Programmer, told: Moment, now: Moment, oldest: Duration) -> Moment {
    let corrected = Moment(told.0.saturating_sub(programmer.clock_ahead));
    let floor = programmer
        .last_commit
        .unwrap_or(corrected)
        .max(now.before(oldest));
    corrected.max(floor).min(now)
}

fn stage_of(report: &Report, change: &NewChange) -> Stage {
    if report.progress.received.of(change.resource) < change.revision {
        Stage::Watch
    } else if report.progress.planned.of(change.resource) < change.revision {
        Stage::Plan
    } else {
        Stage::Kernel
    }
}

fn index(resource: Resource) -> usize {
    match resource {
        Resource::Services => 0,
        Resource::Slices => 1,
    }
}

#[cfg(test)]
mod tests;
