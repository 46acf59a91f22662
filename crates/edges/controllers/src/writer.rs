//! How many things are written at the same time, and what became of them?

use tokio::task::JoinSet;
use tokio::time::Instant;

/// Sleeps until then, or for ever.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Running writes, at most so many. Dropping it aborts them.
pub(crate) struct Writers<T> {
    running: JoinSet<T>,
    most: usize,
}

impl<T: Send + 'static> Writers<T> {
    pub fn new(most: usize) -> Self {
        Self {
            running: JoinSet::new(),
            most: most.max(1),
        }
    }

    /// Whether one more can be started.
    pub fn has_room(&self) -> bool {
        self.running.len() < self.most
    }

    pub fn start(&mut self, write: impl Future<Output = T> + Send + 'static) {
        self.running.spawn(write);
    }

    /// The next one that is done; waits for ever while none runs.
    pub async fn next(&mut self) -> T {
        match self.running.join_next().await {
            Some(Ok(outcome)) => outcome,
            // A writer that panics found a fault of ours: the owner must not go on without its answer.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            None => std::future::pending().await,
        }
    }

    /// Waits for those that run; tells each.
    pub async fn drain(mut self) -> Vec<T> {
        let mut done = Vec::new();
        while !self.running.is_empty() {
            done.push(self.next().await);
        }
        done
    }
}
