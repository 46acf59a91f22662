//! What waits to be written by a loop, and what is being written?

use super::write::outcome;
use super::{Edge, Now};
use crate::writer::Writers;
use pointsman_api_client::{ApiError, ObjectKey};
use pointsman_slices::queue::{Pace, WorkQueue};

/// The queue and the writers of one loop.
pub(super) struct Work<D = Done> {
    pub edge: Edge,
    /// Whether the loop runs at all.
    pub on: bool,
    pub queue: WorkQueue<ObjectKey>,
    pub writers: Writers<D>,
}

/// What became of one object.
pub(super) struct Done {
    pub key: ObjectKey,
    pub failure: Option<ApiError>,
}

impl<D: Send + 'static> Work<D> {
    pub fn new(edge: Edge, on: bool, writers: usize) -> Self {
        Self {
            edge,
            on,
            queue: WorkQueue::new(Pace::default()),
            writers: Writers::new(writers),
        }
    }

    pub fn wake_at(&self) -> Option<std::time::Duration> {
        self.queue.wake_at().filter(|_| self.writers.has_room())
    }
}

impl Work {
    /// Takes back an object.
    pub fn finish(&mut self, done: Done, now: Now) {
        let outcome = outcome(&done.key, done.failure.as_ref());
        self.queue.finish(&done.key, outcome, now.tick);
    }
}
