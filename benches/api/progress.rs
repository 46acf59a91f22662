//! What is going on, for someone who waits?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Says one thing on standard error.
pub fn say(what: &str) {
    eprintln!("bench: {what}");
}

/// A count that is said every two seconds until it is dropped.
pub struct Counter {
    count: Arc<AtomicUsize>,
    ticker: JoinHandle<()>,
}

impl Counter {
    /// Starts at zero.
    pub fn start(what: &'static str, of: Option<usize>) -> Self {
        say(what);
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let ticker = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(2)).await;
                let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
                say(&format!("{what}: {}{of}", seen.load(Ordering::Relaxed)));
            }
        });
        Self { count, ticker }
    }

    /// The number that is said; whoever does the work adds to it.
    pub fn count(&self) -> Arc<AtomicUsize> {
        self.count.clone()
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.ticker.abort();
    }
}
