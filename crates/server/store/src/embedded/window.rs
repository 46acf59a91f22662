//! What changed lately, so that watches need not read the disk?
//!
//! A bounded run of the newest events, shared by all watches. Holds every event after `floor`.

use crate::{Batch, Event, Revision};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes of events that stay when all watches have read them: writers look there for the values that they replace.
const READ_BYTES: usize = 1 << 20;

/// How much one step of a watch may carry before it is cut at a revision's end.
#[derive(Clone, Copy, Debug)]
pub struct StepLimit {
    pub events: usize,
    pub bytes: usize,
}

/// The limit for watches: enough to be efficient, little enough to bound a slow watch's memory.
pub const STEP: StepLimit = StepLimit {
    events: 1000,
    bytes: 4 << 20,
};

/// The newest events.
#[derive(Debug)]
pub struct Window {
    events: VecDeque<Event>,
    bytes: usize,
    max_events: usize,
    max_bytes: usize,
    floor: u64,
    newest: u64,
    /// How far each watch has read.
    watches: Vec<Weak<AtomicU64>>,
}

impl Window {
    /// An empty window: history up to `newest` has to be read from disk.
    pub fn new(newest: u64, max_events: usize, max_bytes: usize) -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            max_events,
            max_bytes,
            floor: newest,
            newest,
            watches: Vec::new(),
        }
    }

    /// A watch that has read up to a revision, which it moves on. What it has not read stays, within the bounds.
    pub fn follow(&mut self, revision: u64) -> Arc<AtomicU64> {
        let read = Arc::new(AtomicU64::new(revision));
        self.watches.push(Arc::downgrade(&read));
        read
    }

    /// The revision up to which every watch has read.
    fn read_by_all(&mut self) -> u64 {
        let mut least = self.newest;
        self.watches.retain(|watch| match watch.upgrade() {
            Some(read) => {
                least = least.min(read.load(Ordering::Relaxed));
                true
            }
            None => false,
        });
        least
    }

    /// Every event after this revision is in the window.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Appends the events of newer revisions and drops the oldest revisions: those over the bounds, and most of those that
    /// nobody waits for.
    pub fn push(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.bytes += event.bytes();
            self.newest = event.revision().0;
            self.events.push_back(event);
        }
        while self.events.len() > self.max_events || self.bytes > self.max_bytes {
            self.drop_oldest();
        }
        let read = self.read_by_all();
        let is_read = |event: &Event| event.revision().0 <= read;
        while self.bytes > READ_BYTES && self.events.front().is_some_and(is_read) {
            self.drop_oldest();
        }
        if self.events.capacity() > 4 * self.events.len().max(1024) {
            self.events.shrink_to(2 * self.events.len());
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.events.front().map(Event::revision) else {
            return;
        };
        while let Some(event) = self.events.pop_front_if(|event| event.revision() == oldest) {
            self.bytes -= event.bytes();
        }
        self.floor = oldest.0;
    }

    /// The events below `prefix` after a revision, or `None` if the window no longer reaches back
    /// that far.
    pub fn read(&self, prefix: &str, after: u64, limit: StepLimit) -> Option<Batch> {
        if after < self.floor {
            return None;
        }
        let start = self.events.partition_point(|event| event.revision().0 <= after);
        let mut step = Step::new(after, limit);
        for event in self.events.range(start..) {
            if step.is_full_before(event.revision().0) {
                return Some(step.finish());
            }
            if event.key().starts_with(prefix) {
                step.push(event.clone());
            }
        }
        step.reach(self.newest);
        Some(step.finish())
    }

    /// The value written at a revision to a key, if the window still has it.
    pub fn value(&self, key: &str, revision: u64) -> Option<bytes::Bytes> {
        let start = self.events.partition_point(|event| event.revision().0 < revision);
        self.events
            .range(start..)
            .take_while(|event| event.revision().0 == revision)
            .find_map(|event| match event {
                Event::Put { entry, .. } if &*entry.key == key => Some(entry.value.clone()),
                _ => None,
            })
    }
}

/// A batch in the making: whole revisions until a limit is reached.
#[derive(Debug)]
pub struct Step {
    events: Vec<Event>,
    bytes: usize,
    scanned: u64,
    limit: StepLimit,
}

impl Step {
    /// A batch that goes on after a revision.
    pub fn new(after: u64, limit: StepLimit) -> Self {
        Self {
            events: Vec::new(),
            bytes: 0,
            scanned: after,
            limit,
        }
    }

    /// Notes that scanning reached `revision`, and says whether the batch must end before it.
    pub fn is_full_before(&mut self, revision: u64) -> bool {
        let full = self.events.len() >= self.limit.events || self.bytes >= self.limit.bytes;
        if revision > self.scanned {
            if full {
                return true;
            }
            self.scanned = revision;
        }
        false
    }

    /// Adds an event of the revision reached.
    pub fn push(&mut self, event: Event) {
        self.bytes += event.bytes();
        self.events.push(event);
    }

    /// The batch, if scanning stops before any event of `revision` was looked at.
    pub fn finish_before(mut self, revision: u64) -> Batch {
        self.scanned = self.scanned.min(revision - 1);
        self.finish()
    }

    /// Notes that everything up to `revision` was scanned.
    pub fn reach(&mut self, revision: u64) {
        self.scanned = self.scanned.max(revision);
    }

    /// The batch, complete up to the last revision scanned.
    pub fn finish(self) -> Batch {
        Batch {
            events: self.events,
            complete_to: Revision(self.scanned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entry;
    use bytes::Bytes;

    fn put(revision: u64, key: &str) -> Event {
        let entry = Entry {
            key: key.into(),
            value: Bytes::from_static(b"1234"),
            revision: Revision(revision),
            created: Revision(revision),
        };
        Event::Put {
            entry,
            previous: None,
        }
    }

    #[test]
    fn a_window_drops_whole_revisions_and_then_says_it_does_not_reach_back() {
        let mut window = Window::new(1, 3, 1 << 20);
        window.push([put(2, "a"), put(2, "b"), put(3, "a"), put(4, "a")]);
        assert_eq!(window.floor(), 2, "revision 2 went as a whole");
        assert!(window.read("", 1, STEP).is_none());
        let batch = window.read("", 2, STEP).expect("revision 2 is the floor");
        assert_eq!(batch.events.len(), 2);
        assert_eq!(batch.complete_to, Revision(4));
    }

    #[test]
    fn a_batch_is_cut_between_revisions_only() {
        let mut window = Window::new(1, 100, 1 << 20);
        window.push([put(2, "a"), put(2, "b"), put(2, "c"), put(3, "a")]);
        let limit = StepLimit {
            events: 1,
            bytes: 1 << 20,
        };
        let batch = window.read("", 1, limit).expect("the window reaches back");
        assert_eq!(batch.events.len(), 3);
        assert_eq!(batch.complete_to, Revision(2));
        let batch = window.read("", 2, limit).expect("the window reaches back");
        assert_eq!(batch.events.len(), 1);
        assert_eq!(batch.complete_to, Revision(3));
    }

    #[test]
    fn changes_elsewhere_count_as_progress() {
        let mut window = Window::new(1, 100, 1 << 20);
        window.push([put(2, "a/1"), put(3, "b/1")]);
        let batch = window.read("a/", 2, STEP).expect("the window reaches back");
        assert!(batch.events.is_empty());
        assert_eq!(batch.complete_to, Revision(3));
    }

    #[test]
    fn what_a_watch_has_not_read_stays_and_most_of_the_rest_goes() {
        let large = |revision| {
            let Event::Put { entry, previous } = put(revision, "a") else {
                unreachable!()
            };
            let value = vec![0; 300 << 10].into();
            let entry = Entry { value, ..entry };
            Event::Put { entry, previous }
        };
        let mut window = Window::new(1, 100, 8 << 20);
        let (slow, fast) = (window.follow(1), window.follow(1));
        window.push((2..12).map(large));
        fast.store(11, Ordering::Relaxed);
        window.push([large(12)]);
        assert_eq!(window.floor(), 1);
        slow.store(5, Ordering::Relaxed);
        window.push([large(13)]);
        assert_eq!(window.floor(), 5);
        drop((slow, fast));
        window.push([large(14)]);
        assert_eq!(window.floor(), 11);
        assert!(window.bytes <= READ_BYTES);
    }

    #[test]
    fn the_byte_bound_holds() {
        let mut window = Window::new(1, 100, 10);
        window.push((2..10).map(|revision| put(revision, "a")));
        assert_eq!(window.bytes, 8);
        assert_eq!(window.floor(), 7);
    }
}
