//! How does a watch of etcd stay whole, and small, whatever its reader does?
//!
//! All watches share one connection, and one that is not read would stall the rest. So a task of its
//! own reads each stream into a bounded buffer. When the buffer is full the stream is given up, and
//! the watch opens another from its position once its reader has caught up.

use super::client::Client;
use super::keys::{Namespace, revision, wire_revision};
use super::messages::*;
use crate::{Answer, Batch, Event, Revision, StoreError, Watch};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::Streaming;

/// The most batches waiting for the reader of one watch.
const BATCHES: usize = 256;
/// The most bytes waiting for the reader of one watch, save for a single larger batch.
const BYTES: usize = 8 << 20;

/// A running watch of the etcd engine.
pub struct Follower {
    client: Client,
    namespace: Namespace,
    prefix: String,
    position: Revision,
    asks: watch::Receiver<u64>,
    feed: Option<Feed>,
}

/// A stream being read by its own task.
struct Feed {
    batches: mpsc::Receiver<Result<Batch, StoreError>>,
    waiting: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    /// A watch that goes on after a revision. `asks` changes when progress is wanted.
    pub fn new(
        client: Client,
        namespace: Namespace,
        prefix: String,
        from: Revision,
        asks: watch::Receiver<u64>,
    ) -> Self {
        let mut follower = Self {
            client,
            namespace,
            prefix,
            position: from,
            asks,
            feed: None,
        };
        follower.feed = Some(follower.open());
        follower
    }

    fn open(&self) -> Feed {
        let (sender, batches) = mpsc::channel(BATCHES);
        let waiting = Arc::new(AtomicUsize::new(0));
        let pump = Pump {
            namespace: self.namespace.clone(),
            position: self.position,
            held: Vec::new(),
            batches: sender,
            waiting: Arc::clone(&waiting),
        };
        let (key, range_end) = self.namespace.span(&self.prefix, None);
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: wire_revision(Revision(self.position.0 + 1)),
            progress_notify: true,
            prev_kv: true,
            fragment: true,
        };
        let task = tokio::spawn(pump.run(self.client.clone(), create, self.asks.clone()));
        Feed {
            batches,
            waiting,
            task,
        }
    }

    async fn step(&mut self) -> Result<Batch, StoreError> {
        loop {
            let Some(feed) = &mut self.feed else {
                self.feed = Some(self.open());
                continue;
            };
            match feed.batches.recv().await {
                Some(Ok(batch)) => {
                    feed.waiting.fetch_sub(size(&batch), Ordering::AcqRel);
                    self.position = batch.complete_to;
                    return Ok(batch);
                }
                Some(Err(error)) => return Err(error),
                None => self.feed = None,
            }
        }
    }
}

impl Watch for Follower {
    fn next(&mut self) -> Answer<'_, Batch> {
        Box::pin(self.step())
    }
}

/// Why a pump stops.
enum Stop {
    /// The reader is too far behind, or gone.
    Behind,
    Failed(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Failed(error)
    }
}

/// Reads one stream.
struct Pump {
    namespace: Namespace,
    position: Revision,
    /// Events of an answer that comes in fragments.
    held: Vec<WireEvent>,
    batches: mpsc::Sender<Result<Batch, StoreError>>,
    waiting: Arc<AtomicUsize>,
}

impl Pump {
    async fn run(mut self, client: Client, create: WatchCreateRequest, asks: watch::Receiver<u64>) {
        if let Err(Stop::Failed(error)) = self.follow(client, create, asks).await {
            // If there is no room for the error the next stream will meet it again.
            let _ = self.batches.try_send(Err(error));
        }
    }

    async fn follow(
        &mut self,
        client: Client,
        create: WatchCreateRequest,
        mut asks: watch::Receiver<u64>,
    ) -> Result<(), Stop> {
        let (requests, outbox) = mpsc::channel(4);
        let outbox = futures::stream::unfold(outbox, async |mut outbox: mpsc::Receiver<WatchRequest>| {
            outbox.recv().await.map(|request| (request, outbox))
        });
        let request = |action| WatchRequest { action: Some(action) };
        let _ = requests.try_send(request(WatchAction::Create(create)));
        let mut answers = client.watch(outbox).await.map_err(StoreError::from)?;
        // Progress asked for before the watch exists would be that of an empty stream.
        while !self.advance(&mut answers).await? {}
        // An ask that came meanwhile is still answered.
        asks.mark_changed();
        loop {
            tokio::select! {
                created = self.advance(&mut answers) => { created?; }
                Ok(()) = asks.changed() => {
                    if *asks.borrow_and_update() > 0 {
                        let _ = requests.try_send(request(WatchAction::Progress(WatchProgressRequest {})));
                    }
                }
            }
        }
    }

    /// Takes one answer and passes on what it tells; says whether it was the creation.
    async fn advance(&mut self, answers: &mut Streaming<WatchResponse>) -> Result<bool, Stop> {
        let answer = match answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(StoreError::Unavailable("etcd closed the watch".into()).into()),
            Err(status) => {
                let reason = format!("the watch was lost: {}", status.message());
                return Err(StoreError::Unavailable(reason).into());
            }
        };
        if answer.canceled {
            return Err(self.cancelled(&answer).into());
        }
        if answer.created {
            // Etcd waits for a start in the future, which may never come if it was restored from a snapshot.
            let newest = answer.header.map(|header| revision(header.revision));
            if let Some(newest) = newest.filter(|newest| *newest < self.position) {
                let asked = self.position;
                return Err(StoreError::Future { asked, newest }.into());
            }
            return Ok(true);
        }
        let is_progress = answer.events.is_empty() && self.held.is_empty() && !answer.fragment;
        if is_progress {
            let complete_to = answer
                .header
                .map_or(self.position, |header| revision(header.revision));
            self.pass(Vec::new(), complete_to.max(self.position))?;
            return Ok(false);
        }
        self.held.extend(answer.events);
        if !answer.fragment {
            let events = std::mem::take(&mut self.held);
            let events = events
                .into_iter()
                .map(|event| self.event(event))
                .collect::<Result<Vec<_>, _>>()?;
            // Not the header's revision: there may be more answers up to that one.
            let complete_to = events.last().map_or(self.position, Event::revision);
            self.pass(events, complete_to)?;
        }
        Ok(false)
    }

    fn pass(&mut self, events: Vec<Event>, complete_to: Revision) -> Result<(), Stop> {
        let batch = Batch { events, complete_to };
        let size = size(&batch);
        if self.waiting.load(Ordering::Acquire) > BYTES {
            return Err(Stop::Behind);
        }
        self.waiting.fetch_add(size, Ordering::AcqRel);
        self.batches.try_send(Ok(batch)).map_err(|_| Stop::Behind)?;
        self.position = complete_to;
        Ok(())
    }

    fn event(&self, event: WireEvent) -> Result<Event, StoreError> {
        let removed = event.r#type == EventType::Delete as i32;
        let kv = event
            .kv
            .ok_or_else(|| StoreError::Damaged("an event of etcd has no key".into()))?;
        let replaces = removed || kv.create_revision != kv.mod_revision;
        let previous: Option<Bytes> = event.prev_kv.map(|kv| kv.value);
        if replaces && previous.is_none() {
            // Etcd leaves it out when the version before is compacted.
            return Err(StoreError::Compacted {
                asked: self.position,
                oldest: revision(kv.mod_revision),
            });
        }
        let entry = self.namespace.entry(kv)?;
        Ok(match previous {
            Some(previous) if removed => Event::Delete {
                key: entry.key,
                previous,
                revision: entry.revision,
            },
            previous => Event::Put { entry, previous },
        })
    }

    fn cancelled(&self, answer: &WatchResponse) -> StoreError {
        if answer.compact_revision > 0 {
            let oldest = revision(answer.compact_revision);
            return StoreError::Compacted {
                asked: self.position,
                oldest,
            };
        }
        StoreError::Unavailable(format!("etcd ended the watch: {}", answer.cancel_reason))
    }
}

fn size(batch: &Batch) -> usize {
    batch.events.iter().map(Event::bytes).sum()
}
