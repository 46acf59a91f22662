//! Which gates are asked, and which of them open now?

pub(crate) mod deletions;
mod index;
mod judge;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pointsman_api_client::Scope;
use pointsman_model::Moment;
use pointsman_protocol::gate::{Answer, Subject};
use pointsman_protocol::watermark::Resource;
use pointsman_sli::endpoints::Requirement;
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::world::World;
use deletions::PodState;
use index::{Index, Place};
use judge::{Verdict, judge};

pub(crate) use index::GateId;

/// Gates that may wait at once; more are turned away, and whoever asked goes on without.
const MOST: usize = 10_000;
/// Of these, gates that one address asks for: more than a node has pods.
const OF_ONE_SOURCE: usize = 512;
/// Answered gates that the page shows.
const RECENT: usize = 50;

/// The question whether a pod may be stopped.
#[derive(Debug)]
pub(crate) struct Question {
    pub id: GateId,
    pub source: IpAddr,
    pub gate: Subject,
    pub bound: Duration,
    pub reply: oneshot::Sender<Result<Answer, Refused>>,
}

/// Why a question is not even considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refused {
    #[error("too many gates are waiting")]
    TooMany,
    #[error("too many gates of this address are waiting")]
    TooManyOfSource,
}

/// A gate that has opened.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub gate: Subject,
    pub opened: Answer,
    pub at: Moment,
}

/// A gate that is closed.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub gate: Subject,
    pub asked: Instant,
    pub bound: Duration,
    /// What it waits for, as of the last look.
    pub requirement: Requirement,
    word: Word,
    source: IpAddr,
    reply: oneshot::Sender<Result<Answer, Refused>>,
    place: Place,
}

/// What the API server itself says of the gate's pods, read after the question came.
#[derive(Clone, Debug, Default)]
enum Word {
    #[default]
    Unasked,
    Asked,
    Unanswered,
    Said(Arc<[PodState]>),
}

#[derive(Debug, Default)]
pub(crate) struct Gates {
    waiting: BTreeMap<GateId, Waiting>,
    pub recent: VecDeque<Past>,
    index: Index,
    sources: HashMap<IpAddr, usize>,
    /// Gates to look at because something happened to them alone.
    changed: BTreeSet<GateId>,
    /// What has to be read from the API server.
    to_read: Vec<(GateId, Scope)>,
    seen: Seen,
    /// How many gates were looked at so far.
    visited: u64,
}

/// What all gates have in common, as of the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Whether endpoints and nodes are listed, and whether anybody reports.
    basis: (bool, bool),
    /// The lowest marks: of all, and of those that are not overdue.
    marks: [u64; 2],
}

impl Seen {
    fn of(world: &World) -> Self {
        let fold = &world.fold;
        let marks = [
            fold.lowest(Resource::Slices),
            fold.lowest_punctual(Resource::Slices),
        ];
        Self {
            basis: (world.knows_enough(), fold.is_reported_to()),
            marks: marks.map(|mark| mark.unwrap_or(u64::MAX)),
        }
    }
}

impl Gates {
    /// Takes a question in; whoever asks too much gets an answer at once.
    pub fn ask(&mut self, question: Question, now: Instant) {
        let of_source = self.sources.get(&question.source).copied().unwrap_or(0);
        let refused = match (of_source, self.waiting.len()) {
            (OF_ONE_SOURCE.., _) => Some(Refused::TooManyOfSource),
            (_, MOST..) => Some(Refused::TooMany),
            _ => None,
        };
        if let Some(refused) = refused {
            tracing::debug!(source = %question.source, %refused, "refusing a shutdown gate");
            // Whoever asked may be gone.
            let _ = question.reply.send(Err(refused));
            return;
        }
        self.sources.insert(question.source, of_source + 1);
        let place = Place {
            pods: Vec::new(),
            revision: None,
            turn: now,
        };
        self.index.insert(question.id, &place);
        let waiting = Waiting {
            gate: question.gate,
            asked: now,
            bound: question.bound,
            requirement: Requirement::Unmarked,
            word: Word::default(),
            source: question.source,
            reply: question.reply,
            place,
        };
        self.waiting.insert(question.id, waiting);
    }

    /// Whoever asked does not wait any more.
    pub fn hung_up(&mut self, id: GateId) {
        self.remove(id);
    }

    /// The API server said what becomes of the gate's pods; nothing if it could not be asked.
    pub fn read(&mut self, id: GateId, said: Option<Arc<[PodState]>>) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.word = said.map_or(Word::Unanswered, Word::Said);
            self.changed.insert(id);
        }
    }

    /// What has to be read from the API server, since this was last asked.
    pub fn take_reads(&mut self) -> Vec<(GateId, Scope)> {
        std::mem::take(&mut self.to_read)
    }

    /// Opens what may open, answers, and returns what was opened.
    pub fn open(&mut self, world: &mut World, now: Instant, wall: Moment) -> Vec<Past> {
        let due = self.due(world, now);
        let mut opened = Vec::new();
        for id in due {
            let Some(waiting) = self.waiting.get_mut(&id) else {
                continue;
            };
            self.visited += 1;
            let closed = waiting.reply.is_closed();
            match judge(waiting, world, now, wall) {
                _ if closed => drop(self.remove(id)),
                Verdict::Open(answer) => opened.extend(self.answer(id, answer, wall)),
                Verdict::Wait(place, read) => {
                    self.index.remove(id, &waiting.place);
                    self.index.insert(id, &place);
                    waiting.place = place;
                    self.to_read.extend(read.map(|scope| (id, scope)));
                }
            }
        }
        self.recent.extend(opened.iter().cloned());
        while self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        opened
    }

    /// When to look again, whatever happens.
    pub fn wake(&self) -> Option<Instant> {
        self.index.next_turn()
    }

    /// The gates that are closed, the oldest first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.waiting.values()
    }

    /// The gates that what happened since the last look may open.
    fn due(&mut self, world: &mut World, now: Instant) -> BTreeSet<GateId> {
        let mut due = std::mem::take(&mut self.changed);
        let touched = world.take_touched();
        let seen = Seen::of(world);
        let before = std::mem::replace(&mut self.seen, seen);
        if before.basis != seen.basis {
            due.extend(self.waiting.keys());
            return due;
        }
        for pod in touched {
            due.extend(self.index.of_pod(&pod));
        }
        for (from, to) in before.marks.into_iter().zip(seen.marks) {
            due.extend(self.index.between(from, to));
        }
        due.extend(self.index.due(now));
        due
    }

    fn answer(&mut self, id: GateId, answer: Answer, at: Moment) -> Option<Past> {
        let waiting = self.remove(id)?;
        let past = Past {
            gate: waiting.gate,
            opened: answer.clone(),
            at,
        };
        // Whoever asked may be gone in the same moment.
        let _ = waiting.reply.send(Ok(answer));
        Some(past)
    }

    fn remove(&mut self, id: GateId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.index.remove(id, &waiting.place);
        if let Some(count) = self.sources.get_mut(&waiting.source) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&waiting.source);
            }
        }
        Some(waiting)
    }
}

#[cfg(test)]
mod tests;
