//! What does one watcher get to see, and when?
//!
//! A watcher is a cursor over its collection's log: it holds the revision it has seen and nothing of
//! what it has not. Lines that are ready are gathered into one write, so a thousand watchers of a busy
//! collection cost a thousand small copies and not a thousand queues.

use super::render::{Renderer, Shown};
use super::select::Selection;
use crate::cache::Cache;
use crate::cache::collection::{Change, Snapshot};
use crate::cache::object::Object;
use crate::server::Server;
use crate::stored::EventType;
use crate::work::Work;
use bytes::{BufMut, Bytes, BytesMut};
use pointsman_rules::ApiError;
use pointsman_store::Revision;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// How often an idle watcher that wants bookmarks gets one.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// How long before its end a stream gets a last bookmark, so that the client can resume from it.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// How many changes are taken from the log at a time.
const CHANGES_AT_ONCE: usize = 256;
/// About how many bytes of initial objects go into one frame.
const INITIAL_FRAME: usize = 64 << 10;

/// What a watcher starts with.
pub enum Start {
    /// The state at a revision, shown as `ADDED` events.
    Snapshot(Snapshot),
    /// Only what changes after this revision.
    After(Revision),
}

/// How a watcher wants to be served.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Which objects it sees.
    pub selection: Selection,
    /// How they look.
    pub renderer: Renderer,
    /// The namespace, or empty for all.
    pub namespace: String,
    /// Whether it understands bookmarks.
    pub bookmarks: bool,
    /// Whether the end of the initial events is marked by a bookmark.
    pub mark_initial_end: bool,
    /// When the stream ends.
    pub deadline: Instant,
}

/// One open watch.
pub struct Watcher {
    cache: Arc<Cache>,
    work: Arc<Work>,
    terms: Terms,
    seen: Revision,
    generation: u64,
    initial: Option<std::vec::IntoIter<Arc<Object>>>,
    first_line: bool,
    next_bookmark: Instant,
    last_bookmark_sent: bool,
    changed: watch::Receiver<Revision>,
    stop: watch::Receiver<bool>,
    over: bool,
    events: u64,
}

impl Watcher {
    /// Opens a watch of what the collection held in `generation`.
    pub fn new(server: &Server, work: Arc<Work>, terms: Terms, start: Start, generation: u64) -> Self {
        let (cache, stop) = (server.cache.clone(), server.farewell.subscribe());
        let (seen, initial) = match start {
            Start::Snapshot(snapshot) => (snapshot.revision, Some(snapshot.objects.into_iter())),
            Start::After(revision) => (revision, None),
        };
        let mut changed = cache.of(terms.renderer.kind).subscribe();
        changed.mark_changed();
        Self {
            cache,
            work,
            terms,
            seen,
            generation,
            initial,
            first_line: true,
            next_bookmark: Instant::now() + BOOKMARK_PERIOD,
            last_bookmark_sent: false,
            changed,
            stop,
            over: false,
            events: 0,
        }
    }

    /// How many events were sent so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The next piece of the stream; `None` at its end.
    pub async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        if self.initial.is_some() {
            let work = self.work.clone();
            let piece = work.on(self.initial_cost(), || self.next_initial()).await;
            if piece.is_some() {
                return piece;
            }
        }
        loop {
            // Read before the log: every change up to here is in the log by now.
            let applied = self.cache.applied();
            match self.drain().await {
                Ok(piece) if !piece.is_empty() => return Some(piece),
                Ok(_) => self.seen = self.seen.max(applied),
                Err(error) => return Some(self.fail(&error)),
            }
            if let Some(bookmark) = self.due_bookmark() {
                return Some(bookmark);
            }
            let wake = self.wake_at();
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() { return None },
                () = sleep_until(wake) => if Instant::now() >= self.terms.deadline { return None },
                stopped = self.stop.wait_for(|stop| *stop) => { let _ = stopped; return None }
            }
        }
    }

    /// About what the next frame of initial objects costs; all of them may have to be looked at for it.
    fn initial_cost(&self) -> usize {
        let rest = self
            .initial
            .as_ref()
            .map_or(&[][..], |initial| initial.as_slice());
        let first = &rest[..rest.len().min(CHANGES_AT_ONCE)];
        self.terms
            .selection
            .cost(rest)
            .max(self.terms.renderer.cost(first))
    }

    fn next_initial(&mut self) -> Option<Bytes> {
        let initial = self.initial.as_mut()?;
        let mut frame = BytesMut::new();
        for object in initial.by_ref() {
            if !self.terms.selection.matches(&object) {
                continue;
            }
            let shown = Shown {
                event: EventType::Added,
                object: &object,
                at: None,
            };
            self.terms.renderer.line(&shown, self.first_line, &mut frame);
            self.first_line = false;
            self.events += 1;
            if frame.len() >= INITIAL_FRAME {
                return Some(frame.freeze());
            }
        }
        self.initial = None;
        if self.terms.mark_initial_end {
            frame.put(self.terms.renderer.bookmark(self.seen, true));
        }
        (!frame.is_empty()).then(|| frame.freeze())
    }

    /// Lines for the next changes; empty if there is none to show yet.
    async fn drain(&mut self) -> Result<Bytes, ApiError> {
        let (cache, work) = (self.cache.clone(), self.work.clone());
        let collection = cache.of(self.terms.renderer.kind);
        let mut frame = BytesMut::new();
        let mut single: Option<Bytes> = None;
        loop {
            // Changes that are made from here on wake us again.
            self.changed.mark_unchanged();
            let changes = collection.changes_after(self.seen, CHANGES_AT_ONCE);
            // Looked at after the changes: they may be of another history.
            let changes = changes
                .ok()
                .filter(|_| collection.generation() == self.generation)
                .ok_or_else(|| too_old(self.seen))?;
            let Some(last) = changes.last() else { break };
            self.seen = last.object.revision;
            let cost = self.cost(&changes);
            work.on(cost, || self.write(&changes, &mut single, &mut frame))
                .await;
            if changes.len() >= CHANGES_AT_ONCE && (frame.len() < INITIAL_FRAME) {
                continue;
            }
            if single.is_some() || !frame.is_empty() {
                break;
            }
        }
        Ok(single.unwrap_or_else(|| frame.freeze()))
    }

    /// About what it costs to show these changes.
    fn cost(&self, changes: &[Arc<Change>]) -> usize {
        if self.terms.renderer.plain() && self.terms.selection.is_everything() {
            return 0;
        }
        let objects: Vec<Arc<Object>> = changes.iter().map(|change| change.object.clone()).collect();
        self.terms
            .selection
            .cost(&objects)
            .max(self.terms.renderer.cost(&objects))
    }

    /// Writes the lines for these changes; a ready one that is alone is not copied.
    fn write(&mut self, changes: &[Arc<Change>], single: &mut Option<Bytes>, frame: &mut BytesMut) {
        for change in changes {
            let Some(shown) = self.shown(change) else { continue };
            self.events += 1;
            match self.terms.renderer.ready_line(&shown) {
                Some(line) if frame.is_empty() && single.is_none() => *single = Some(line),
                _ => {
                    frame.put(single.take().unwrap_or_default());
                    self.terms.renderer.line(&shown, self.first_line, frame);
                }
            }
            self.first_line = false;
        }
    }

    /// What this watcher sees of a change, if it sees it at all.
    fn shown<'a>(&self, change: &'a Change) -> Option<Shown<'a>> {
        let namespace = &self.terms.namespace;
        if !namespace.is_empty() && change.object.namespace() != namespace {
            return None;
        }
        let object = &*change.object;
        if self.terms.selection.is_everything() {
            return Some(Shown {
                event: change.event(),
                object,
                at: None,
            });
        }
        let previous = change
            .previous
            .as_deref()
            .filter(|object| self.terms.selection.matches(object));
        let stays = !change.deleted && self.terms.selection.matches(object);
        match (previous, stays) {
            (Some(_), true) => Some(Shown {
                event: EventType::Modified,
                object,
                at: None,
            }),
            (None, true) => Some(Shown {
                event: EventType::Added,
                object,
                at: None,
            }),
            // Leaving the selection is told with the content that was in it.
            (Some(previous), false) => Some(Shown {
                event: EventType::Deleted,
                object: previous,
                at: Some(object.revision),
            }),
            (None, false) => None,
        }
    }

    fn wake_at(&self) -> Instant {
        let deadline = self.terms.deadline;
        if !self.terms.bookmarks {
            return deadline;
        }
        let last = if self.last_bookmark_sent {
            deadline
        } else {
            self.last_bookmark_at()
        };
        self.next_bookmark.min(last).min(deadline)
    }

    fn last_bookmark_at(&self) -> Instant {
        self.terms
            .deadline
            .checked_sub(LAST_BOOKMARK)
            .unwrap_or(self.terms.deadline)
    }

    fn due_bookmark(&mut self) -> Option<Bytes> {
        if !self.terms.bookmarks {
            return None;
        }
        let now = Instant::now();
        let last = !self.last_bookmark_sent && now >= self.last_bookmark_at();
        if !last && now < self.next_bookmark {
            return None;
        }
        self.last_bookmark_sent |= last;
        self.next_bookmark = now + BOOKMARK_PERIOD;
        Some(self.terms.renderer.bookmark(self.seen, false))
    }

    fn fail(&mut self, error: &ApiError) -> Bytes {
        self.over = true;
        Bytes::from(format!(
            "{{\"type\":\"ERROR\",\"object\":{}}}\n",
            error.to_status()
        ))
    }
}

/// The log no longer reaches back to `revision`.
pub fn too_old(revision: Revision) -> ApiError {
    ApiError::Expired {
        message: format!("too old resource version: {revision}"),
        fresh_continue: None,
    }
}
