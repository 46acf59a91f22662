//! What happened in the last two hours?
//!
//! Points of the SLI, each with its slowest changes, and incidents: times in which somebody was behind. A click on a
//! chart leads to the changes of that time, long after newer ones have taken their places. Memory is bounded by the
//! constants below, whatever the cluster does.

use std::collections::VecDeque;
use std::time::Duration;

use pointsman_model::Moment;

use crate::fold::{Change, Stage};
use crate::judgement::Impact;
use crate::pool::Estimate;
use crate::spread::{Quantiles, Spread};

/// How much time a point stands for.
pub const STEP: Duration = Duration::from_secs(15);
const POINTS: usize = 480;
/// Changes that are kept for each point.
const SLOWEST: usize = 4;
const INCIDENTS: usize = 64;
/// Somebody who is behind again so soon still is.
const PAUSE: Duration = Duration::from_secs(5);

/// A part of a change's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From the change to the API.
    Api,
    /// From there to the slice that says so.
    Slice,
    /// From there until half of the kernels have it.
    Half,
    /// From there until the last one has it.
    All,
}

impl Part {
    pub const ALL: [Self; 4] = [Self::Api, Self::Slice, Self::Half, Self::All];

    /// The word in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Slice => "slice",
            Self::Half => "half",
            Self::All => "all",
        }
    }
}

/// How long each part of the way took, as far as it can be told apart. Their sum is the time until the change was in
/// every kernel; `None` before.
pub fn parts(change: &Change) -> Option<Vec<(Part, Duration)>> {
    let all = change.all?;
    let mut parts = Vec::with_capacity(4);
    let mut from = change.began();
    let until = [
        (Part::Api, change.api()),
        // A Service is itself what programmers read: nothing lies between its write and its slice.
        (Part::Slice, (change.written() > from).then(|| change.written())),
        (Part::Half, change.half),
        (Part::All, Some(all)),
    ];
    for (part, at) in until {
        if let Some(at) = at {
            let at = at.max(from).min(all.max(from));
            parts.push((part, at.since(from)));
            from = at;
        }
    }
    Some(parts)
}

/// The SLI at the end of a step, and what was slowest in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub at: Moment,
    pub p99: Option<Estimate>,
    /// Changes that came to be everywhere.
    pub changes: u64,
    /// The slowest of them, slowest first.
    pub slowest: Vec<Change>,
}

/// A time in which programmers were behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    pub from: Moment,
    /// When it was over; `None` while it lasts.
    pub to: Option<Moment>,
    /// Who was behind for the longest time, at its worst moment.
    pub node: Box<str>,
    pub stage: Stage,
    /// Programmers that were behind, at most.
    pub nodes: usize,
    /// Changes that one of them lacked, at most.
    pub changes: usize,
    /// Services that these were of, at most.
    pub services: usize,
    /// Pods that waited to be stopped, at most.
    pub waiting: usize,
}

impl Incident {
    fn took(&self) -> Duration {
        self.to.map_or(Duration::MAX, |to| to.since(self.from))
    }
}

#[derive(Debug, Default)]
pub struct History {
    points: VecDeque<Point>,
    incidents: VecDeque<Incident>,
    /// What came since the last point.
    changes: u64,
    slowest: Vec<Change>,
    spreads: [Spread; 4],
}

impl History {
    /// A change is everywhere.
    pub fn done(&mut self, change: &Change, now: Moment) {
        self.changes += 1;
        for (part, took) in parts(change).into_iter().flatten() {
            self.spreads[part as usize].add(took, now);
        }
        let shorter = |other: &Change| latency(other) < latency(change);
        let at = self
            .slowest
            .iter()
            .position(shorter)
            .unwrap_or(self.slowest.len());
        if at < SLOWEST {
            self.slowest.insert(at, change.clone());
            self.slowest.truncate(SLOWEST);
        }
    }

    /// A step is over.
    pub fn step(&mut self, now: Moment, p99: Option<Estimate>) {
        self.points.push_back(Point {
            at: now,
            p99,
            changes: std::mem::take(&mut self.changes),
            slowest: std::mem::take(&mut self.slowest),
        });
        while self.points.len() > POINTS {
            self.points.pop_front();
        }
        let oldest = self.points.front().map_or(now, |point| point.at);
        self.incidents.retain(|it| it.to.is_none_or(|to| to >= oldest));
    }

    /// Somebody is behind now, or nobody.
    pub fn observe(&mut self, impact: Option<&Impact<'_>>, now: Moment) {
        let last = self.incidents.back_mut();
        let Some(impact) = impact else {
            if let Some(last) = last.filter(|it| it.to.is_none()) {
                last.to = Some(now);
            }
            return;
        };
        let goes_on = |it: &Incident| it.to.is_none_or(|to| now.since(to) <= PAUSE);
        match last.filter(|it| goes_on(it)) {
            Some(last) => {
                if impact.changes >= last.changes {
                    (last.node, last.stage) = (impact.worst.name.into(), impact.worst.stage);
                }
                last.to = None;
                last.nodes = last.nodes.max(impact.nodes);
                last.changes = last.changes.max(impact.changes);
                last.services = last.services.max(impact.services.len());
                last.waiting = last.waiting.max(impact.waiting);
            }
            None => {
                self.incidents.push_back(Incident {
                    from: now,
                    to: None,
                    node: impact.worst.name.into(),
                    stage: impact.worst.stage,
                    nodes: impact.nodes,
                    changes: impact.changes,
                    services: impact.services.len(),
                    waiting: impact.waiting,
                });
                self.drop_shortest();
            }
        }
    }

    /// One long outage tells more than many blinks.
    fn drop_shortest(&mut self) {
        if self.incidents.len() <= INCIDENTS {
            return;
        }
        let shortest = (0..self.incidents.len()).min_by_key(|at| self.incidents[*at].took());
        shortest.and_then(|at| self.incidents.remove(at));
    }

    /// One per step, the oldest first.
    pub fn points(&self) -> impl ExactSizeIterator<Item = &Point> {
        self.points.iter()
    }

    /// Those that are over and the one that is not, the oldest first.
    pub fn incidents(&self) -> impl DoubleEndedIterator<Item = &Incident> {
        self.incidents.iter()
    }

    /// The slowest changes of every step, oldest step first, and those of the step that is not over.
    pub fn slowest(&self) -> impl Iterator<Item = &Change> {
        self.points
            .iter()
            .flat_map(|point| &point.slowest)
            .chain(&self.slowest)
    }

    /// How long a part of the way took in the last minutes.
    pub fn spread(&self, part: Part, now: Moment) -> Option<Quantiles> {
        self.spreads[part as usize].quantiles(now)
    }
}

/// How long a change took to be everywhere.
pub fn latency(change: &Change) -> Option<Duration> {
    change.all.map(|all| all.since(change.began()))
}

#[cfg(test)]
pub(crate) mod tests;
