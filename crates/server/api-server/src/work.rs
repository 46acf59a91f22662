//! Where is the work of large requests done?
//!
//! Reading, patching and rendering take time in proportion to what they are given, and a task that computes holds up every
//! connection that its thread serves. So what is small is done at once; the rest takes turns, few at a time, on threads
//! that nobody else waits for. The parsed objects of a request live only during its turn: what waits for a turn, for the
//! store or for a slow client is bytes, which admission has weighed ([`crate::auth::flow`]).
//!
//! Nodes, controllers and administrators do not take turns with tenants.

use crate::auth::flow::Class;
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Bytes that are worked on at once, in about a millisecond. A heartbeat is a fiftieth of it, a slice of 100 endpoints
/// two thirds.
const AT_ONCE: usize = 32 << 10;

/// More than is ever done at once: for work whose cost its bytes do not show.
pub const MUCH: usize = usize::MAX;

/// Whether work on so many bytes is done at once.
pub fn is_small(bytes: usize) -> bool {
    bytes <= AT_ONCE
}

/// Who takes turns with whom.
#[derive(Debug, Default)]
pub struct Lanes {
    pub system: Arc<Work>,
    pub tenants: Arc<Work>,
}

impl Lanes {
    /// Where requests of this class take their turns.
    pub fn of(&self, class: Class) -> Arc<Work> {
        match class {
            Class::Exempt | Class::NodeHigh | Class::System => self.system.clone(),
            Class::Workload | Class::CatchAll => self.tenants.clone(),
        }
    }
}

/// The turns of large requests.
#[derive(Debug)]
pub struct Work {
    turns: Semaphore,
}

impl Default for Work {
    /// Half of the cores work on large requests, the other half stays for everybody else.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            turns: Semaphore::new((cores / 2).max(1)),
        }
    }
}

impl Work {
    /// Does `job`, whose cost is that of reading or writing about `bytes`.
    pub async fn on<T>(&self, bytes: usize, job: impl FnOnce() -> T + Send) -> T {
        if is_small(bytes) {
            return job();
        }
        let _turn = self.turns.acquire().await.expect("turns do not end");
        match Handle::current().runtime_flavor() {
            // The other tasks of this thread go on in another one.
            RuntimeFlavor::MultiThread => tokio::task::block_in_place(job),
            _ => job(),
        }
    }

    /// Every turn there is, for a test of who waits for one.
    #[cfg(test)]
    pub async fn all_turns(&self) -> impl Drop {
        let turns = Self::default().turns.available_permits() as u32;
        self.turns.acquire_many(turns).await.expect("turns do not end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// How many jobs of `bytes` each run at the same time.
    async fn at_the_same_time(bytes: usize) -> usize {
        let (work, running, most) = (
            Arc::new(Work::default()),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let jobs = (0..16).map(|_| {
            let (work, running, most) = (work.clone(), running.clone(), most.clone());
            tokio::spawn(async move {
                work.on(bytes, || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    running.fetch_sub(1, Ordering::SeqCst);
                })
                .await;
            })
        });
        for job in jobs.collect::<Vec<_>>() {
            job.await.unwrap();
        }
        most.load(Ordering::SeqCst)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn large_jobs_take_turns() {
        let turns = (std::thread::available_parallelism().unwrap().get() / 2).max(1);
        assert!(at_the_same_time(AT_ONCE + 1).await <= turns);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_small_request_is_served_while_a_large_one_is_worked_on() {
        let work = Arc::new(Work::default());
        let (send, receive) = std::sync::mpsc::channel();
        let large = tokio::spawn({
            let work = work.clone();
            async move { work.on(MUCH, move || receive.recv()).await }
        });
        // On the only thread of the runtime: it runs because the large job has left it.
        let small = tokio::spawn(async move { work.on(10, || 7).await });
        assert_eq!(small.await.unwrap(), 7);
        send.send(()).unwrap();
        large.await.unwrap().unwrap();
    }
}
