//! On how many programmers is each change, and who is behind?
//!
//! Every programmer streams one number per collection: everything up to version R is in my kernel. A
//! change of version r is everywhere when the lowest mark is at least r. Folding a line costs two lookups
//! and one step for each change that the programmer just took in, whatever the size of the cluster.
//!
//! Invariant: for each change that is not everywhere yet, `reached` is the number of live programmers
//! whose mark is at least its version.

mod mark;
mod multiset;
mod ring;

use std::collections::HashMap;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_protocol::watermark::{Report, Resource, Watermark};

use multiset::Multiset;
use ring::Ring;

pub use mark::{Fault, Stage};
pub use ring::{Change, Kind, NewChange};

/// How much is kept and believed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Changes kept for each collection.
    pub changes: usize,
    /// A programmer that was silent for longer is no longer counted.
    pub live_for: Duration,
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
            live_for: Duration::from_secs(30),
            future: 10_000_000,
            oldest: Duration::from_secs(10),
        }
    }
}

/// A silence of this many heartbeats (of a second each) is worth a word.
pub const SILENCE: Duration = Duration::from_secs(3);

/// Names a programmer for as long as it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgrammerId(usize);

/// A programmer as the fold knows it.
#[derive(Clone, Debug)]
pub struct Programmer {
    /// The node's name.
    pub name: Box<str>,
    /// The last line that was believed.
    pub report: Report,
    /// When that line, or the programmer itself, came.
    pub last_seen: Moment,
    /// The last commit, by our clock.
    pub last_commit: Option<Moment>,
    /// How far its clock is ahead of ours, in microseconds.
    pub clock_ahead: i64,
    /// Whether it is counted.
    pub live: bool,
    /// Whether it has reported anything since it is known.
    pub reported: bool,
    /// Lines that were not believed.
    pub faults: u64,
    /// Why the last of them was not.
    pub last_fault: Option<Fault>,
}

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
    live: usize,
    marks: [Multiset; 2],
    rings: [Ring; 2],
    newest: u64,
    done: Vec<Change>,
}

impl Fold {
    /// A fold without programmers.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            programmers: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            live: 0,
            marks: Default::default(),
            rings: [Ring::new(limits.changes), Ring::new(limits.changes)],
            newest: 0,
            done: Vec::new(),
        }
    }

    /// A programmer is there. It counts at once, with nothing in its kernel, and stops to count if it is
    /// silent for too long.
    pub fn join(&mut self, name: &str, now: Moment) -> ProgrammerId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let programmer = Programmer {
            name: name.into(),
            report: Report::default(),
            last_seen: now,
            last_commit: None,
            clock_ahead: 0,
            live: false,
            reported: false,
            faults: 0,
            last_fault: None,
        };
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
        self.revive(id);
        id
    }

    /// A programmer is gone for good.
    pub fn leave(&mut self, id: ProgrammerId) {
        self.bury(id);
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

    /// How many programmers count.
    pub fn live(&self) -> usize {
        self.live
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
        let before = programmer.report;
        programmer.report = report;
        if !programmer.live {
            self.revive(id);
            return Ok(());
        }
        if before.progress.committed == report.progress.committed {
            return Ok(());
        }
        let at = believed_time(programmer, report.time, now, self.limits.oldest);
        programmer.last_commit = Some(at);
        let (live, done) = (self.live, &mut self.done);
        for (resource, (marks, ring)) in Resource::ALL
            .iter()
            .zip(self.marks.iter_mut().zip(&mut self.rings))
        {
            let (from, to) = (
                before.progress.committed.of(*resource),
                report.progress.committed.of(*resource),
            );
            marks.replace(from, to);
            if from < to {
                ring.rise((id, at), (from, to), live, |change| done.push(change.clone()));
            } else if to < from {
                ring.fall(id, from, to);
            }
        }
        Ok(())
    }

    /// Stops counting programmers that have been silent for too long; returns how many.
    pub fn expire(&mut self, now: Moment) -> usize {
        let limit = self.limits.live_for;
        let silent = |programmer: &Programmer| programmer.live && now.since(programmer.last_seen) > limit;
        let gone: Vec<ProgrammerId> = (0..self.programmers.len())
            .filter(|at| self.programmers[*at].as_ref().is_some_and(silent))
            .map(ProgrammerId)
            .collect();
        gone.iter().for_each(|id| self.bury(*id));
        gone.len()
    }

    /// Our own watch delivered a change; false if it is known already.
    pub fn change(&mut self, change: NewChange) -> bool {
        self.observe(change.revision);
        let at = index(change.resource);
        // Those that were faster than our own watch have had it since their last commit, at the latest.
        let mut commits = Vec::new();
        if self.marks[at].at_least(change.revision) > 0 {
            let began = change.triggered.unwrap_or(Moment(i64::MIN));
            for (slot, programmer) in self.programmers.iter().enumerate() {
                let Some(programmer) = programmer.as_ref().filter(|it| it.live) else {
                    continue;
                };
                if programmer.report.progress.committed.of(change.resource) >= change.revision {
                    let at = programmer.last_commit.unwrap_or(change.written).max(began);
                    commits.push((ProgrammerId(slot), at));
                }
            }
        }
        let (revision, everywhere) = (change.revision, commits.len() >= self.live && self.live > 0);
        let ring = &mut self.rings[at];
        let new = ring.push(change, commits, self.live);
        if new && everywhere {
            let done = ring.iter().rev().find(|change| change.what.revision == revision);
            self.done.extend(done.cloned());
        }
        new
    }

    /// A version was seen on any of our own watches.
    pub fn observe(&mut self, revision: u64) {
        self.newest = self.newest.max(revision);
    }

    /// The lowest mark of all live programmers.
    pub fn lowest(&self, resource: Resource) -> Option<u64> {
        self.marks[index(resource)].lowest()
    }

    /// The mark that at least this share of live programmers have reached.
    pub fn reached_by(&self, resource: Resource, share: f64) -> Option<u64> {
        let behind = (self.live as f64 * (1.0 - share.clamp(0.0, 1.0)) + 1e-9).floor() as usize;
        self.marks[index(resource)].ranked(behind + 1)
    }

    /// The changes that are kept, oldest version first.
    pub fn changes(&self, resource: Resource) -> impl DoubleEndedIterator<Item = &Change> {
        self.rings[index(resource)].iter()
    }

    /// Changes that became too old to be kept before they were everywhere.
    pub fn evicted(&self) -> u64 {
        self.rings.iter().map(|ring| ring.evicted_open).sum()
    }

    /// The changes that are everywhere since this was last asked.
    pub fn drain_done(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.done)
    }

    /// Live programmers that have not reached a version, at most `most` of them, in order of name.
    pub fn behind(&self, resource: Resource, revision: u64, most: usize) -> Vec<&str> {
        let lacks = |programmer: &&Programmer| {
            programmer.live && programmer.report.progress.committed.of(resource) < revision
        };
        let mut names: Vec<&str> = self.programmers().filter(lacks).map(|it| &*it.name).collect();
        names.sort_unstable();
        names.truncate(most);
        names
    }

    /// Live programmers that have lacked a change for longer than `patience`, or are silent; those that
    /// have waited longest come first.
    pub fn lagging(&self, now: Moment, patience: Duration) -> Vec<Lag<'_>> {
        let live = self.programmers().filter(|programmer| programmer.live);
        let mut lags: Vec<Lag<'_>> = live.filter_map(|it| self.lag_of(it, now, patience)).collect();
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
                let mark = report.progress.committed.of(*resource);
                self.rings[index(*resource)].oldest_open_above(mark)
            })
            .filter(|change| now.since(change.what.written) > patience)
            .min_by_key(|change| change.what.written);
        let silent = now.since(programmer.last_seen) > SILENCE;
        let stage = match missing {
            _ if silent => Stage::Silent,
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

    fn revive(&mut self, id: ProgrammerId) {
        let Some(programmer) = self.programmers.get_mut(id.0).and_then(Option::as_mut) else {
            return;
        };
        programmer.live = true;
        self.live += 1;
        let (committed, at) = (programmer.report.progress.committed, programmer.last_seen);
        programmer.last_commit = programmer.last_commit.or((highest(&committed) > 0).then_some(at));
        let (live, done) = (self.live, &mut self.done);
        for (resource, (marks, ring)) in Resource::ALL
            .iter()
            .zip(self.marks.iter_mut().zip(&mut self.rings))
        {
            marks.insert(committed.of(*resource));
            ring.rise((id, at), (0, committed.of(*resource)), live, |change| {
                done.push(change.clone())
            });
            ring.restamp(live, |change| done.push(change.clone()));
        }
    }

    fn bury(&mut self, id: ProgrammerId) {
        let Some(programmer) = self.programmers.get_mut(id.0).and_then(Option::as_mut) else {
            return;
        };
        if !std::mem::take(&mut programmer.live) {
            return;
        }
        self.live -= 1;
        let committed = programmer.report.progress.committed;
        let (live, done) = (self.live, &mut self.done);
        for (resource, (marks, ring)) in Resource::ALL
            .iter()
            .zip(self.marks.iter_mut().zip(&mut self.rings))
        {
            marks.remove(committed.of(*resource));
            ring.fall(id, committed.of(*resource), 0);
            ring.restamp(live, |change| done.push(change.clone()));
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
