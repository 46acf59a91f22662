//! In which order do writes reach the disk, the readers and their callers?
//!
//! One thread takes all waiting transactions, decides them one after the other, writes them in one
//! disk commit, publishes them to readers and watches, and only then answers. While a commit waits
//! for the disk the next group gathers, so the group grows with the load.
//!
//! After a failed commit the group may be on disk as a whole or not at all. It stays `unsettled`,
//! and nothing else is written, until a fresh handle on the database has told which. After a failed sync
//! no handle could tell: the group is answered with the end of the store, and the writer ends.

use super::Shared;
use super::group::{Group, Verdict, Write};
use super::index::{At, Version};
use super::tables::{self, Changes, Fault, Values};
use crate::{Entry, Event, Outcome, Revision, StoreError, Transaction};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// The most transactions in one disk commit.
const GROUP_TRANSACTIONS: usize = 512;
/// The most bytes of values in one disk commit, save for a single larger transaction.
const GROUP_BYTES: usize = 8 << 20;
/// How many old versions one disk commit drops. A thousand take a few milliseconds.
const GARBAGE_CHUNK: usize = 1000;

/// Something for the writer to do.
pub enum Job {
    Commit(Transaction, oneshot::Sender<Result<Outcome, StoreError>>),
    Compact(u64, oneshot::Sender<Result<(), StoreError>>),
}

type Waiting = (Transaction, oneshot::Sender<Result<Outcome, StoreError>>);
type Compaction = (u64, oneshot::Sender<Result<(), StoreError>>);

/// The writer's own state.
pub struct Writer {
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Job>,
    /// A job that was taken from the queue but belongs to the next group.
    held: Option<Job>,
    unsettled: Option<Decided>,
    /// Set after a failure, so that a full disk is not hammered with clean-up.
    garbage_paused: bool,
}

/// A group that is ready for the disk.
struct Decided {
    writes: Vec<Write>,
    events: Vec<Event>,
    garbage: Vec<At>,
}

/// What the writer does next.
enum Turn {
    Group(Vec<Waiting>),
    Compact(Compaction),
    CollectGarbage,
    Stop,
}

impl Writer {
    /// A writer that has not started.
    pub fn new(shared: Arc<Shared>, queue: mpsc::Receiver<Job>) -> Self {
        Self {
            shared,
            queue,
            held: None,
            unsettled: None,
            garbage_paused: false,
        }
    }

    /// Works until the last sender of jobs is gone, or the disk fails for good.
    pub fn run(mut self) {
        while self.shared.database.check().is_ok() {
            match self.next_turn() {
                Turn::Group(jobs) => self.commit_group(jobs),
                Turn::Compact((revision, reply)) => {
                    let result = self.compact(revision);
                    let _ = reply.send(result);
                }
                Turn::CollectGarbage => self.commit_group(Vec::new()),
                Turn::Stop => break,
            }
        }
        self.shared.close();
    }

    fn next_turn(&mut self) -> Turn {
        let waiting = self.held.take().map_or_else(|| self.queue.try_recv(), Ok);
        let first = match waiting {
            Ok(job) => job,
            Err(mpsc::error::TryRecvError::Disconnected) => return Turn::Stop,
            Err(mpsc::error::TryRecvError::Empty) if self.has_garbage() => {
                return Turn::CollectGarbage;
            }
            Err(mpsc::error::TryRecvError::Empty) => match self.queue.blocking_recv() {
                Some(job) => job,
                None => return Turn::Stop,
            },
        };
        match first {
            Job::Compact(revision, reply) => Turn::Compact((revision, reply)),
            Job::Commit(transaction, reply) => Turn::Group(self.gather((transaction, reply))),
        }
    }

    fn gather(&mut self, first: Waiting) -> Vec<Waiting> {
        let mut bytes = size(&first.0);
        let mut jobs = vec![first];
        while jobs.len() < GROUP_TRANSACTIONS && bytes < GROUP_BYTES {
            match self.queue.try_recv() {
                Ok(Job::Commit(transaction, reply)) => {
                    bytes += size(&transaction);
                    jobs.push((transaction, reply));
                }
                Ok(compaction) => {
                    self.held = Some(compaction);
                    break;
                }
                Err(_) => break,
            }
        }
        jobs
    }

    fn has_garbage(&self) -> bool {
        !self.garbage_paused && !self.shared.index().due(1).is_empty()
    }

    fn commit_group(&mut self, jobs: Vec<Waiting>) {
        let (transactions, replies): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let answers = self.settle().and_then(|()| self.try_group(transactions));
        match answers {
            Ok(outcomes) => {
                for (reply, outcome) in replies.into_iter().zip(outcomes) {
                    let _ = reply.send(Ok(outcome));
                }
            }
            Err(error) => {
                tracing::warn!(%error, transactions = replies.len(), "cannot commit a group of transactions");
                for reply in replies {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }

    fn try_group(&mut self, transactions: Vec<Transaction>) -> Result<Vec<Outcome>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let (verdicts, writes, garbage) = {
            let index = shared.index();
            let mut group = Group::new(&index);
            let verdicts: Vec<_> = transactions.into_iter().map(|t| group.decide(t)).collect();
            let garbage = if self.garbage_paused {
                Vec::new()
            } else {
                index.due(GARBAGE_CHUNK)
            };
            (verdicts, group.into_writes(), garbage)
        };
        let values = shared.old_values(&verdicts, &writes)?;
        let events = writes.iter().map(|write| event(write, &values)).collect();
        let outcomes = verdicts.into_iter().map(|v| outcome(v, &values)).collect();
        let decided = Decided {
            writes,
            events,
            garbage,
        };
        if !decided.writes.is_empty() || !decided.garbage.is_empty() {
            self.carry_out(decided)?;
        }
        Ok(outcomes)
    }

    /// Writes and publishes a group.
    fn carry_out(&mut self, decided: Decided) -> Result<(), StoreError> {
        let changes = Changes {
            writes: &decided.writes,
            garbage: &decided.garbage,
            compact: None,
        };
        let generation = self.shared.database.generation();
        match self.shared.database.write(&changes) {
            Ok(()) => {
                self.garbage_paused = false;
                self.publish(decided);
                Ok(())
            }
            Err(fault) => {
                self.garbage_paused = true;
                let error = self.shared.database.explain(fault);
                self.unsettled = Some(decided);
                self.shared.database.reopen(generation)?;
                match self.settle_as_of_disk()? {
                    true => Ok(()),
                    false => Err(error),
                }
            }
        }
    }

    /// Makes sure that the fate of the last failed group is known.
    fn settle(&mut self) -> Result<(), StoreError> {
        if self.unsettled.is_some() {
            self.settle_as_of_disk()?;
        }
        Ok(())
    }

    /// Looks on disk for the unsettled group, publishes it if it is there, and says whether it was.
    fn settle_as_of_disk(&mut self) -> Result<bool, StoreError> {
        let database = &self.shared.database;
        let logged = database.retrying(|| tables::last_logged(&*database.snapshot()?))?;
        let arrived = self
            .unsettled
            .as_ref()
            .and_then(|group| group.writes.last())
            .is_some_and(|write| write.at.revision <= logged);
        if arrived {
            // The failed commit may be visible without being durable. Its pages are dirty still, for no sync
            // has failed, so that one more commit on the fresh handle makes it so before anyone sees it.
            let generation = database.generation();
            if let Err(fault) = database.write(&Changes::default()) {
                let error = database.explain(fault);
                database.reopen(generation)?;
                return Err(error);
            }
        }
        if let Some(group) = self.unsettled.take()
            && arrived
        {
            self.publish(group);
        }
        Ok(arrived)
    }

    fn publish(&mut self, decided: Decided) {
        let Decided {
            writes,
            events,
            garbage,
        } = decided;
        let mut index = self.shared.index_mut();
        index.forget(garbage.len());
        for write in writes {
            let Write {
                at,
                key,
                value,
                created,
                ..
            } = write;
            index.insert(
                key,
                Version {
                    at,
                    created,
                    live: value.is_some(),
                },
            );
        }
        let newest = index.newest();
        drop(index);
        self.shared.window_mut().push(events);
        self.shared.signal.send_modify(|signal| signal.revision = newest);
    }

    fn compact(&mut self, revision: u64) -> Result<(), StoreError> {
        self.settle()?;
        let newest = {
            let index = self.shared.index();
            if revision <= index.compacted() {
                return Ok(());
            }
            index.check(revision)?;
            index.newest()
        };
        let changes = Changes {
            compact: Some((revision, newest)),
            ..Changes::default()
        };
        let generation = self.shared.database.generation();
        if let Err(fault) = self.shared.database.write(&changes) {
            // Forgetting twice is harmless, so it does not matter whether the mark arrived.
            let error = self.shared.database.explain(fault);
            self.shared.database.reopen(generation)?;
            return Err(error);
        }
        self.shared.index_mut().compact(revision);
        self.garbage_paused = false;
        Ok(())
    }
}

impl Shared {
    /// Fetches the values that a group replaces or that its refusals show.
    fn old_values(&self, verdicts: &[Verdict], writes: &[Write]) -> Result<HashMap<At, Bytes>, StoreError> {
        let mut wanted: Vec<(At, &Arc<str>)> = Vec::new();
        for write in writes {
            wanted.extend(write.previous.map(|at| (at, &write.key)));
        }
        for verdict in verdicts {
            if let Verdict::Refused(failed) = verdict {
                wanted.extend(failed.iter().filter_map(|(key, live)| Some(((*live)?.at, key))));
            }
        }
        let mut values: HashMap<At, Bytes> = writes
            .iter()
            .filter_map(|write| Some((write.at, write.value.clone()?)))
            .collect();
        wanted.retain(|(at, _)| !values.contains_key(at));
        {
            let window = self.window();
            wanted.retain(|(at, key)| match window.value(key, at.revision) {
                Some(value) => values.insert(*at, value).is_some(),
                None => true,
            });
        }
        if wanted.is_empty() {
            return Ok(values);
        }
        let read = self.database.retrying(|| {
            let snapshot = self.database.snapshot()?;
            let table = Values::open(&snapshot)?;
            wanted
                .iter()
                .map(|(at, _)| Ok((*at, table.get(*at)?)))
                .collect::<Result<Vec<_>, Fault>>()
        })?;
        values.extend(read);
        Ok(values)
    }
}

fn event(write: &Write, values: &HashMap<At, Bytes>) -> Event {
    let revision = Revision(write.at.revision);
    let key = Arc::clone(&write.key);
    let previous = write.previous.map(|at| values[&at].clone());
    match &write.value {
        Some(value) => {
            let created = Revision(write.created);
            let entry = Entry {
                key,
                value: value.clone(),
                revision,
                created,
            };
            Event::Put { entry, previous }
        }
        None => {
            let previous = previous.expect("only a key that exists is removed");
            Event::Delete {
                key,
                previous,
                revision,
            }
        }
    }
}

fn outcome(verdict: Verdict, values: &HashMap<At, Bytes>) -> Outcome {
    let failed = match verdict {
        Verdict::Committed(revision) => return Outcome::Committed(revision),
        Verdict::Refused(failed) => failed,
    };
    let entry = |key: &Arc<str>, version: Version| Entry {
        key: Arc::clone(key),
        value: values[&version.at].clone(),
        revision: Revision(version.at.revision),
        created: Revision(version.created),
    };
    let failed = failed.into_iter().map(|(key, live)| {
        let entry = live.map(|version| entry(&key, version));
        (key, entry)
    });
    Outcome::Refused(failed.collect())
}

fn size(transaction: &Transaction) -> usize {
    transaction
        .ops
        .iter()
        .map(|op| match op {
            crate::Op::Put(_, value) => value.len(),
            crate::Op::Delete(_) => 0,
        })
        .sum()
}
