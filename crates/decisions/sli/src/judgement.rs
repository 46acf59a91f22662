//! What is true of the cluster now?
//!
//! One judgement, of which headline, counters, rows, colours and metrics all are parts, so that no two of them
//! can contradict each other. Laws: all is well exactly if no change is on its way, nobody is behind and no pod
//! waits; and a change that is not everywhere never makes anything look faster.

use std::collections::BTreeSet;
use std::time::Duration;

use pointsman_model::Moment;

use crate::fold::{Change, Fold, Lag, Programmer};
use crate::measure::Unfinished;
use crate::pool::Span;

/// A programmer that lacks a change for longer is behind, and a change that takes longer counts before it ends.
pub const PATIENCE: Duration = Duration::from_millis(250);

/// One word for everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Too little is known.
    Unknown,
    /// A programmer lacks a change for longer than [`PATIENCE`], or says nothing.
    Behind,
    /// Changes are on their way, or pods wait for them.
    Busy,
    /// Everything is everywhere.
    Ok,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Behind => "behind",
            Self::Busy => "busy",
            Self::Ok => "ok",
        }
    }
}

/// What else the judgement depends on.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Whether all endpoints and all nodes have been listed once.
    pub listed: bool,
    /// Pods that wait at shutdown gates.
    pub waiting: usize,
}

/// What it means that programmers are behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impact<'a> {
    /// The one that has waited longest.
    pub worst: Lag<'a>,
    /// Programmers that are behind.
    pub nodes: usize,
    /// Changes that the worst one lacks.
    pub changes: usize,
    /// The Services (namespace/name) that these are of.
    pub services: BTreeSet<&'a str>,
    /// Pods that wait at shutdown gates.
    pub waiting: usize,
}

#[derive(Clone, Debug)]
pub struct Judgement<'a> {
    pub level: Level,
    /// Programmers that are behind; those that have waited longest come first.
    pub behind: Vec<Lag<'a>>,
    /// Changes that are not everywhere.
    pub open: Vec<&'a Change>,
    /// What is missing where; none if nobody is behind.
    pub impact: Option<Impact<'a>>,
    /// What those that take long already add to the SLI.
    pub unfinished: Unfinished,
    names: BTreeSet<&'a str>,
}

impl Judgement<'_> {
    /// Whether a programmer is one of those behind.
    pub fn is_behind(&self, programmer: &Programmer) -> bool {
        self.names.contains(&*programmer.name)
    }

    /// The Services (namespace/name) of which a change is not everywhere.
    pub fn services(&self) -> BTreeSet<&str> {
        self.open
            .iter()
            .map(|change| change.what.service.as_str())
            .collect()
    }
}

/// Judges what the fold knows.
pub fn judge<'a>(fold: &'a Fold, circumstances: Circumstances, now: Moment) -> Judgement<'a> {
    let behind = fold.lagging(now, PATIENCE);
    let open: Vec<&Change> = fold.open().collect();
    let level = match circumstances {
        Circumstances { listed: false, .. } => Level::Unknown,
        _ if !fold.is_reported_to() => Level::Unknown,
        _ if !behind.is_empty() => Level::Behind,
        Circumstances { waiting, .. } if waiting > 0 || !open.is_empty() => Level::Busy,
        _ => Level::Ok,
    };
    Judgement {
        level,
        impact: impact(fold, &behind, &open, circumstances.waiting),
        names: behind.iter().map(|lag| lag.name).collect(),
        behind,
        unfinished: unfinished(&open, now),
        open,
    }
}

fn impact<'a>(fold: &'a Fold, behind: &[Lag<'a>], open: &[&'a Change], waiting: usize) -> Option<Impact<'a>> {
    let worst = behind.first()?;
    let programmer = fold.programmer(fold.id(worst.name)?)?;
    let lacks = |change: &&&Change| programmer.mark(change.what.resource) < change.what.revision;
    let missing: Vec<&str> = open
        .iter()
        .filter(lacks)
        .map(|it| it.what.service.as_str())
        .collect();
    Some(Impact {
        worst: worst.clone(),
        nodes: behind.len(),
        changes: missing.len(),
        services: missing.into_iter().collect(),
        waiting,
    })
}

/// Changes that take long count as if they ended now; in a moment, they count for more.
fn unfinished(open: &[&Change], now: Moment) -> Unfinished {
    let mut unfinished = Unfinished::default();
    for change in open {
        let age = now.since(change.began());
        if age <= PATIENCE {
            continue;
        }
        let lacking = change.of.saturating_sub(change.reached) as u64;
        // Programmers count what has a trigger time, each for itself.
        if change.what.is_pooled() {
            unfinished.pooled.add(Span::exact(age), lacking);
        }
        if change.most.is_none() {
            unfinished.exact.add(Span::exact(age), 1);
        }
    }
    unfinished
}

#[cfg(test)]
mod tests;
