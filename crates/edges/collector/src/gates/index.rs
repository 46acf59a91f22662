//! Which waiting gates does an event concern?
//!
//! A cluster that is rolled out anew has thousands of gates waiting while thousands of lines a second arrive.
//! So each gate stands where the event that may open it finds it: under its pods, under the version that has to
//! be everywhere, and at a moment.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

/// Names a gate for as long as it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GateId(pub u64);

/// Where a gate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The pods (namespace/name) that it is for, as far as they are known.
    pub pods: Vec<Box<str>>,
    /// The version that has to be everywhere, if it is known.
    pub revision: Option<u64>,
    /// When to look again, whatever happens.
    pub turn: Instant,
}

/// Where every gate stands.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pods: HashMap<Box<str>, BTreeSet<GateId>>,
    revisions: BTreeSet<(u64, GateId)>,
    turns: BTreeSet<(Instant, GateId)>,
}

impl Index {
    pub fn insert(&mut self, id: GateId, place: &Place) {
        for pod in &place.pods {
            self.pods.entry(pod.clone()).or_default().insert(id);
        }
        self.revisions
            .extend(place.revision.map(|revision| (revision, id)));
        self.turns.insert((place.turn, id));
    }

    pub fn remove(&mut self, id: GateId, place: &Place) {
        for pod in &place.pods {
            if let Some(gates) = self.pods.get_mut(pod) {
                gates.remove(&id);
                if gates.is_empty() {
                    self.pods.remove(pod);
                }
            }
        }
        if let Some(revision) = place.revision {
            self.revisions.remove(&(revision, id));
        }
        self.turns.remove(&(place.turn, id));
    }

    pub fn of_pod(&self, pod: &str) -> impl Iterator<Item = GateId> {
        self.pods.get(pod).into_iter().flatten().copied()
    }

    /// Gates that wait for a version above the first and not above the second.
    pub fn between(&self, above: u64, to: u64) -> impl Iterator<Item = GateId> {
        let from = above.saturating_add(1);
        let range = (from <= to).then(|| self.revisions.range((from, GateId(0))..=(to, GateId(u64::MAX))));
        range.into_iter().flatten().map(|(_, id)| *id)
    }

    /// Gates whose turn has come.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = GateId> {
        self.turns.range(..=(now, GateId(u64::MAX))).map(|(_, id)| *id)
    }

    /// When the next turn is.
    pub fn next_turn(&self) -> Option<Instant> {
        self.turns.first().map(|(turn, _)| *turn)
    }
}
