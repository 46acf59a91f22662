//! Who learns at once how far the rules are?
//!
//! An observer's own thread publishes what it finds out: on a busy node the owner's task gets a processor tens of
//! milliseconds later. The owner adds what is still on its way.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use pointsman_dataplane::{Progress, Watermark};
use pointsman_watermarks::Watermarks;

use crate::metrics::Metrics;

/// Clones publish the same.
#[derive(Clone, Debug)]
pub(crate) struct Publisher(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    watermarks: Watermarks,
    metrics: Metrics,
    /// What the rules of each family say, where another program writes them.
    said: [Watermark; 2],
    /// As published last.
    progress: Progress,
}

impl Publisher {
    pub fn new(watermarks: Watermarks, metrics: Metrics) -> Self {
        Self(Arc::new(Mutex::new(State {
            watermarks,
            metrics,
            said: [Watermark::default(); 2],
            progress: Progress::default(),
        })))
    }

    fn with(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The rules of a family, by its place, say everything up to here.
    pub fn said(&self, family: usize, watermark: Watermark) {
        self.with(|state| {
            state.said[family] = watermark;
            let [four, six] = state.said.map(|committed| Progress {
                committed,
                ..state.progress
            });
            state.publish(four.lower(six));
        });
    }

    /// Everything up to the watermark is in the kernel.
    pub fn publish(&self, progress: Progress) {
        self.with(|state| state.publish(progress));
    }

    /// Changes are on their way; how far the rules are stays as it was published.
    pub fn advance(&self, progress: Progress) {
        self.with(|state| {
            let committed = state.progress.committed;
            state.progress = Progress {
                committed,
                ..progress
            };
            state.watermarks.advance(state.progress);
        });
    }
}

impl State {
    fn publish(&mut self, progress: Progress) {
        if progress.committed != self.progress.committed {
            self.progress = progress;
            self.metrics.watermark(progress.committed);
            self.watermarks.publish(progress, Timestamp::now());
        }
    }
}
