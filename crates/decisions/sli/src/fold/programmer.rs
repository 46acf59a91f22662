//! How is one programmer doing, and does it count?
//!
//! A node whose proxy says nothing still forwards packets, by the rules that it last wrote. So silence alone
//! excuses nobody: a programmer stops counting only when its node is gone or unreachable, too.

use std::time::Duration;

use pointsman_model::Moment;
use pointsman_protocol::watermark::{Report, Resource};

use super::{Fault, index};
use crate::spread::Spread;

/// A silence of this many heartbeats (of a second each) is worth a word.
pub const SILENCE: Duration = Duration::from_secs(3);
/// Whoever says nothing, or makes no progress, for longer is overdue: it stays behind, and gates do not
/// spend their whole bound on it any more.
pub const OVERDUE: Duration = Duration::from_secs(30);

/// What is known of a programmer's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It is there and not unreachable, or the operator says that it is there.
    Reachable,
    /// It is gone or unreachable.
    Unreachable,
    /// Nobody but a relay speaks of it.
    #[default]
    Unknown,
}

/// How a programmer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It says nothing, and counts all the same.
    Silent,
    /// It reports, and has lacked a change for [`OVERDUE`] without any progress.
    Stalled,
    /// It says nothing, and neither does its node: it does not count.
    Unreachable,
    /// It reports, and makes progress.
    Live,
}

impl State {
    pub const ALL: [Self; 4] = [Self::Silent, Self::Stalled, Self::Unreachable, Self::Live];

    /// The word in metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Stalled => "stalled",
            Self::Unreachable => "unreachable",
            Self::Live => "live",
        }
    }
}

/// A programmer as the fold knows it.
#[derive(Clone, Debug)]
pub struct Programmer {
    /// The node's name.
    pub name: Box<str>,
    /// The last line that was believed.
    pub report: Report,
    /// When that line, or the programmer itself, came.
    pub last_seen: Moment,
    /// The first mark of each collection that it ever reported; 0 before. What lies below was in the rules that it
    /// began with, perhaps written by another program: nobody knows since when.
    pub(super) first: [u64; 2],
    /// The last commit, by our clock.
    pub last_commit: Option<Moment>,
    /// How long changes took from being written to its kernel, in the last minutes.
    pub took: Spread,
    /// How far its clock is ahead of ours, in microseconds.
    pub clock_ahead: i64,
    pub node: NodeState,
    /// Whether a change has to be in its kernel to be everywhere.
    pub counted: bool,
    /// Whether it has been silent or stalled for [`OVERDUE`].
    pub overdue: bool,
    /// Since when it lacks changes of each collection without any progress.
    pub(super) lacking: [Option<Moment>; 2],
    /// Whether it has reported anything since it is known.
    pub reported: bool,
    /// Lines that were not believed.
    pub faults: u64,
    /// Why the last of them was not.
    pub last_fault: Option<Fault>,
}

impl Programmer {
    pub(super) fn new(name: &str, now: Moment) -> Self {
        Self {
            name: name.into(),
            report: Report::default(),
            last_seen: now,
            first: [0; 2],
            last_commit: None,
            took: Spread::default(),
            clock_ahead: 0,
            node: NodeState::default(),
            counted: false,
            overdue: false,
            lacking: [None; 2],
            reported: false,
            faults: 0,
            last_fault: None,
        }
    }

    /// Everything of a collection up to this version is in its kernel.
    pub fn mark(&self, resource: Resource) -> u64 {
        self.report.progress.committed.of(resource)
    }

    pub fn state(&self, now: Moment) -> State {
        match () {
            () if !self.counted => State::Unreachable,
            () if !self.reported || self.is_silent(now) => State::Silent,
            () if self.is_stalled(now) => State::Stalled,
            () => State::Live,
        }
    }

    pub(super) fn is_silent(&self, now: Moment) -> bool {
        now.since(self.last_seen) > SILENCE
    }

    fn is_stalled(&self, now: Moment) -> bool {
        let mut lacking = self.lacking.iter().flatten();
        lacking.any(|since| now.since(*since) > OVERDUE)
    }

    pub(super) fn is_overdue(&self, now: Moment) -> bool {
        now.since(self.last_seen) > OVERDUE || self.is_stalled(now)
    }

    /// Whether it has to have a change for the change to be everywhere.
    pub(super) fn counts(&self, now: Moment, unknown_for: Duration) -> bool {
        match self.node {
            NodeState::Reachable => true,
            NodeState::Unreachable => !self.is_silent(now),
            NodeState::Unknown => now.since(self.last_seen) <= unknown_for,
        }
    }

    /// The newest change of a collection has this version.
    pub(super) fn compare(&mut self, resource: Resource, newest: u64, now: Moment) {
        let lacks = self.mark(resource) < newest;
        let since = &mut self.lacking[index(resource)];
        *since = lacks.then(|| since.unwrap_or(now));
    }
}
