//! How are objects kept on one machine, without another program?
//!
//! Versions are stored in redb by revision; the index of keys and a window of recent events are in
//! memory; one thread writes, many transactions per disk commit. `README.md` in this crate draws the
//! path of a commit and says what happens in a crash.

mod cursor;
mod database;
mod disk;
mod group;
mod guard;
mod index;
mod restore;
mod tables;
#[cfg(test)]
mod tests;
mod window;
mod writer;

use crate::{Answer, Entry, Outcome, Page, Range, Revision, Store, StoreError, Transaction, Watch};
use cursor::{Cursor, Signal};
use database::Reopening;
use disk::Disk;
use index::Index;
pub use restore::{RestoreError, Restored, restore};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use tables::{Fault, Values};
use tokio::sync::{mpsc, oneshot, watch};
use window::Window;
use writer::{Job, Writer};

/// Ranges with a limit up to this are read in place; larger ones on a thread that may block.
const READ_IN_PLACE: usize = 64;

/// How much memory and disk work the engine may spend.
#[derive(Clone, Debug)]
pub struct Options {
    /// The page cache of the database. It keeps what is read often: the upper pages of its trees. The kernel has the rest.
    pub cache_bytes: usize,
    /// How many recent events are kept in memory for watches. They bridge the time between a commit and
    /// the reader; the API server, the one reader there is, remembers changes for its own watchers.
    pub window_events: usize,
    /// How many bytes of values, old and new, those events may hold.
    pub window_bytes: usize,
    /// How many transactions may wait for the writer before callers have to.
    pub queue: usize,
    /// From this size of the file on, every commit records the free pages, so that opening after a crash
    /// need not walk the whole file. That costs a second sync per commit, which a small file need not pay:
    /// with 100,000 objects of 1 KiB on a busy two-core machine, opening after a kill took 0.16 to 0.26 s
    /// with it and 0.56 to 0.90 s without; 64 writers committed 4,900 to 5,300 times per second with it
    /// and 7,000 to 9,500 times without. `None` never records them.
    pub quick_repair_from: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 8 << 20,
            window_events: 100_000,
            window_bytes: 8 << 20,
            queue: 1024,
            quick_repair_from: Some(64 << 20),
        }
    }
}

/// The embedded engine. Dropping it finishes the writes under way and closes the files.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    queue: Option<mpsc::Sender<Job>>,
    writer: Option<JoinHandle<()>>,
}

/// What the writer, the readers and the watches have in common.
struct Shared {
    database: Reopening,
    index: RwLock<Index>,
    window: RwLock<Window>,
    signal: watch::Sender<Signal>,
    lock: Mutex<Option<File>>,
}

/// Whether there is a store in a directory, of whatever state.
pub fn exists(dir: &Path) -> bool {
    disk::data_file(dir).exists()
}

impl EmbeddedStore {
    /// Opens or creates the store in a directory, which no other process may use meanwhile.
    pub fn open(dir: &Path, options: Options) -> Result<Self, StoreError> {
        let lock = disk::lock(dir)?;
        let open = || {
            let disk = Disk::open(dir, |disk| Reopening::open(disk, &options).map(drop))?;
            Self::start(disk, Some(lock), options.clone())
        };
        open().map_err(|error| match error {
            StoreError::Damaged(what) => {
                StoreError::Damaged(format!("{}: {what}", disk::data_file(dir).display()))
            }
            other => other,
        })
    }

    fn start(disk: Disk, lock: Option<File>, options: Options) -> Result<Self, StoreError> {
        let database = Reopening::open(disk, &options)?;
        let index = database.retrying(|| tables::load_index(&*database.snapshot()?))?;
        let window = Window::new(index.newest(), options.window_events, options.window_bytes);
        let signal = watch::Sender::new(Signal {
            revision: index.newest(),
            ..Signal::default()
        });
        let (queue, jobs) = mpsc::channel(options.queue);
        let shared = Arc::new(Shared {
            database,
            index: RwLock::new(index),
            window: RwLock::new(window),
            signal,
            lock: Mutex::new(lock),
        });
        let writer = Writer::new(Arc::clone(&shared), jobs);
        let writer = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer.run())
            .map_err(|error| StoreError::Unavailable(format!("the writer cannot start: {error}")))?;
        Ok(Self {
            shared,
            queue: Some(queue),
            writer: Some(writer),
        })
    }

    async fn submit<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job,
    ) -> Result<T, StoreError> {
        let stopped = || match self.shared.database.check() {
            Err(ended) => ended,
            Ok(()) => StoreError::Unavailable("the writer has stopped".into()),
        };
        let queue = self.queue.as_ref().ok_or_else(stopped)?;
        let (reply, answer) = oneshot::channel();
        queue.send(job(reply)).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Store for EmbeddedStore {
    fn revision(&self) -> Answer<'_, Revision> {
        Box::pin(async {
            self.shared.database.check()?;
            Ok(Revision(self.shared.index().newest()))
        })
    }

    fn range(&self, range: Range) -> Answer<'_, Page> {
        Box::pin(async move {
            if (1..=READ_IN_PLACE).contains(&range.limit) {
                return self.shared.read_range(&range);
            }
            let shared = Arc::clone(&self.shared);
            tokio::task::spawn_blocking(move || shared.read_range(&range))
                .await
                .map_err(|error| StoreError::Unavailable(error.to_string()))?
        })
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Outcome> {
        Box::pin(async move {
            transaction.check()?;
            self.submit(|reply| Job::Commit(transaction, reply)).await
        })
    }

    fn watch(&self, prefix: String, from: Revision) -> Answer<'_, Box<dyn Watch>> {
        Box::pin(async move {
            let cursor = Cursor::new(Arc::clone(&self.shared), &prefix, from.0)?;
            Ok(Box::new(cursor) as Box<dyn Watch>)
        })
    }

    fn request_progress(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.shared.signal.send_modify(|signal| signal.asked += 1);
            Ok(())
        })
    }

    fn compact(&self, revision: Revision) -> Answer<'_, ()> {
        Box::pin(self.submit(move |reply| Job::Compact(revision.0, reply)))
    }
}

/// A fault that says which key cannot be read.
fn named(key: &str, fault: Fault) -> Fault {
    match fault {
        Fault::Answer(StoreError::Damaged(what)) => StoreError::Damaged(format!("{key}: {what}")).into(),
        other => other,
    }
}

impl Shared {
    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn window(&self) -> RwLockReadGuard<'_, Window> {
        self.window.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn window_mut(&self) -> RwLockWriteGuard<'_, Window> {
        self.window.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_range(&self, range: &Range) -> Result<Page, StoreError> {
        self.database.retrying(|| {
            let index = self.index();
            let selection = index.select(range)?;
            // Taken under the index lock: every version the index lists now is in the snapshot.
            let snapshot = self.database.snapshot()?;
            drop(index);
            let values = Values::open(&snapshot)?;
            let mut entries = Vec::with_capacity(selection.entries.len());
            for (key, version) in selection.entries {
                let value = values.get(version.at).map_err(|fault| named(&key, fault))?;
                entries.push(Entry {
                    key,
                    value,
                    revision: Revision(version.at.revision),
                    created: Revision(version.created),
                });
            }
            let at = Revision(selection.at);
            Ok(Page {
                entries,
                at,
                remaining: selection.remaining,
            })
        })
    }

    /// Ends the watches and lets another process have the directory.
    fn close(&self) {
        self.signal.send_modify(|signal| signal.closed = true);
        self.database.close();
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
