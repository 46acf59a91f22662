//! How late does this machine itself let things be?
//!
//! Probers and proxies wait for processors, and what they report is wrong by that. A thread that only sleeps waits as
//! they do, so that the worst of its delays says what a comparison to the millisecond is worth here and now.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread means to sleep.
const NAP: Duration = Duration::from_millis(1);

/// A thread that notices its own delays until it is stopped.
pub struct Jitter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Jitter {
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let started = Instant::now();
                std::thread::sleep(NAP);
                worst = worst.max(started.elapsed().saturating_sub(NAP));
            }
            worst
        });
        Self { stop, thread }
    }

    /// Ends it; returns its worst delay.
    pub fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
