//! How does a watch read on from where it is?
//!
//! A watch is a position in the shared history. It reads from the window of recent events, or from
//! disk if it is further behind, so a slow watch costs no memory and never holds up the writer.

use super::Shared;
use super::tables;
use super::window::STEP;
use crate::{Answer, Batch, StoreError, Watch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// What watches wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    /// The newest published revision.
    pub revision: u64,
    /// How often progress was asked for.
    pub asked: u64,
    /// The store was closed.
    pub closed: bool,
}

/// A running watch of the embedded engine.
pub struct Cursor {
    shared: Arc<Shared>,
    signal: watch::Receiver<Signal>,
    prefix: Arc<str>,
    /// Up to where it has read, which the window looks at.
    position: Arc<AtomicU64>,
    asked: u64,
}

impl Cursor {
    /// A watch that goes on after a revision.
    pub fn new(shared: Arc<Shared>, prefix: &str, from: u64) -> Result<Self, StoreError> {
        shared.index().check(from)?;
        let signal = shared.signal.subscribe();
        let asked = signal.borrow().asked;
        let position = shared.window_mut().follow(from);
        Ok(Self {
            shared,
            signal,
            prefix: prefix.into(),
            position,
            asked,
        })
    }

    fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    async fn step(&mut self) -> Result<Batch, StoreError> {
        loop {
            let signal = *self.signal.borrow_and_update();
            if signal.closed {
                self.shared.database.check()?;
                return Err(StoreError::Unavailable("the store is closed".into()));
            }
            if self.position() < signal.revision || signal.asked != self.asked {
                let batch = self.read().await?;
                self.asked = signal.asked;
                self.position.store(batch.complete_to.0, Ordering::Relaxed);
                return Ok(batch);
            }
            // The sender lives in `shared`.
            let _ = self.signal.changed().await;
        }
    }

    async fn read(&self) -> Result<Batch, StoreError> {
        let recent = self.shared.window().read(&self.prefix, self.position(), STEP);
        if let Some(batch) = recent {
            return Ok(batch);
        }
        let shared = Arc::clone(&self.shared);
        let (prefix, after) = (Arc::clone(&self.prefix), self.position());
        tokio::task::spawn_blocking(move || shared.read_history(&prefix, after))
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?
    }
}

impl Watch for Cursor {
    fn next(&mut self) -> Answer<'_, Batch> {
        Box::pin(self.step())
    }
}

impl Shared {
    fn read_history(&self, prefix: &str, after: u64) -> Result<Batch, StoreError> {
        let up_to = self.window().floor();
        self.database.retrying(|| {
            let index = self.index();
            index.check(after)?;
            // Taken under the index lock: what is not compacted now is in the snapshot.
            let snapshot = self.database.snapshot()?;
            drop(index);
            tables::read_events(&snapshot, prefix, after, up_to, STEP)
        })
    }
}
