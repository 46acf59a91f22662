//! How does a watch read on from where it is?
//!
//! A watch is a position in the shared history. It reads from the window of recent events, or from
//! disk if it is further behind, so a slow watch costs no memory and never holds up the writer.

use super::Shared;
use super::signals::Subscription;
use super::tables;
use super::window::STEP;
use crate::{Answer, Batch, StoreError, Watch};
use std::sync::Arc;

/// A running watch of the embedded engine.
pub struct Cursor {
    shared: Arc<Shared>,
    subscription: Subscription,
    prefix: Arc<str>,
    position: u64,
    /// The newest revision when the watch began: up to here no signal will come.
    start: u64,
    asked: u64,
}

impl Cursor {
    /// A watch that goes on after a revision.
    pub fn new(shared: Arc<Shared>, prefix: &str, from: u64) -> Result<Self, StoreError> {
        // Joining comes before looking at the newest revision, so that no change falls between.
        let mut subscription = shared.signals.subscribe(prefix);
        let asked = subscription.now().asked;
        shared.index().check(from)?;
        let start = shared.window().newest();
        Ok(Self {
            shared,
            subscription,
            prefix: prefix.into(),
            position: from,
            start,
            asked,
        })
    }

    async fn step(&mut self) -> Result<Batch, StoreError> {
        loop {
            let signal = self.subscription.now();
            if signal.closed {
                return Err(StoreError::Unavailable("the store is closed".into()));
            }
            let due = self.position < signal.revision.max(self.start);
            if due || signal.asked != self.asked {
                let batch = self.read().await?;
                self.asked = signal.asked;
                self.position = batch.complete_to.0;
                return Ok(batch);
            }
            self.subscription.changed().await;
        }
    }

    async fn read(&self) -> Result<Batch, StoreError> {
        let recent = self.shared.window().read(&self.prefix, self.position, STEP);
        if let Some(batch) = recent {
            return Ok(batch);
        }
        let shared = Arc::clone(&self.shared);
        let (prefix, after) = (Arc::clone(&self.prefix), self.position);
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
