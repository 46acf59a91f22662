//! How does the store go on after an input or output error?
//!
//! redb fails every operation after the first failed one. Here the handle is replaced by a fresh one
//! on the same disk, once every reader of the old one has finished: a reader of the old handle would
//! not be known to the new one, which could then overwrite the pages it reads.
//!
//! After a failed sync there is no going on: see `disk`.

use super::Options;
use super::disk::Disk;
use super::guard;
use super::tables::{self, Changes, Fault, fault};
use crate::StoreError;
use redb::{Builder, Database, ReadTransaction, ReadableDatabase, StorageBackend};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// How often an operation is tried on a fresh handle before its caller is told.
const ATTEMPTS: usize = 3;

/// A redb database that can be opened anew.
pub struct Reopening {
    disk: Disk,
    cache_bytes: usize,
    quick_repair_from: Option<u64>,
    handle: RwLock<Handle>,
}

struct Handle {
    database: Option<Database>,
    generation: u64,
    closed: bool,
}

/// A consistent view; the handle cannot be replaced while it lives.
pub struct Snapshot<'a> {
    reader: ReadTransaction,
    _handle: RwLockReadGuard<'a, Handle>,
}

impl std::ops::Deref for Snapshot<'_> {
    type Target = ReadTransaction;

    fn deref(&self) -> &ReadTransaction {
        &self.reader
    }
}

impl Reopening {
    /// Opens or creates the database on a disk.
    pub fn open(disk: Disk, options: &Options) -> Result<Self, StoreError> {
        let reopening = Self {
            disk,
            cache_bytes: options.cache_bytes,
            quick_repair_from: options.quick_repair_from,
            handle: RwLock::new(Handle {
                database: None,
                generation: 0,
                closed: false,
            }),
        };
        reopening.reopen(0)?;
        Ok(reopening)
    }

    /// Runs a read, on a fresh handle if the present one has failed.
    pub fn retrying<T>(&self, read: impl Fn() -> Result<T, Fault>) -> Result<T, StoreError> {
        let mut attempt = 0;
        loop {
            let generation = self.read().generation;
            match self.caught(&read) {
                Ok(done) => return Ok(done),
                Err(Fault::Answer(error)) => return Err(error),
                Err(fault) => {
                    self.reopen(generation)?;
                    attempt += 1;
                    if attempt == ATTEMPTS {
                        return Err(self.explain(fault));
                    }
                }
            }
        }
    }

    /// A view of what is committed now.
    pub fn snapshot(&self) -> Result<Snapshot<'_>, Fault> {
        self.check()?;
        let handle = self.read();
        let database = handle.database.as_ref().ok_or_else(lost)?;
        let reader = database.begin_read().map_err(fault)?;
        Ok(Snapshot {
            reader,
            _handle: handle,
        })
    }

    /// Writes changes durably. After an error they are on disk as a whole or not at all, which only
    /// a look at a fresh handle can tell.
    pub fn write(&self, changes: &Changes) -> Result<(), Fault> {
        self.caught(|| {
            let handle = self.read();
            let database = handle.database.as_ref().ok_or_else(lost)?;
            tables::write(database, changes, self.quick_repair()?)
        })
    }

    /// Works on the database. A panic means that it is damaged, and that its state in memory may be as well.
    fn caught<T>(&self, work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        guard::catch(work).unwrap_or_else(|panic| {
            let error = StoreError::Damaged(panic);
            self.disk.end(error.to_string());
            Err(error.into())
        })
    }

    /// What a failed operation means to callers.
    pub fn explain(&self, fault: Fault) -> StoreError {
        let full = self.disk.take_full();
        match self.disk.ended() {
            Some(ended) => ended,
            None if full => StoreError::Full,
            None => fault.into(),
        }
    }

    /// Says whether anything can be read or written any more.
    pub fn check(&self) -> Result<(), StoreError> {
        self.disk.ended().map_or(Ok(()), Err)
    }

    /// Whether the file is so large by now that a walk over it after a crash would take long.
    fn quick_repair(&self) -> Result<bool, Fault> {
        let Some(from) = self.quick_repair_from else {
            return Ok(false);
        };
        let length = self
            .disk
            .len()
            .map_err(|error| fault(redb::StorageError::from(error)))?;
        Ok(length >= from)
    }

    /// Replaces the handle of the given generation; does nothing if that was done already.
    pub fn reopen(&self, generation: u64) -> Result<(), StoreError> {
        let mut handle = self.handle.write().unwrap_or_else(PoisonError::into_inner);
        if handle.closed {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        if handle.database.is_some() && handle.generation != generation {
            return Ok(());
        }
        // A database that failed may fail again while it is dropped.
        let _ = guard::catch(|| handle.database = None);
        self.check()?;
        let database = guard::catch(|| self.open_anew())
            .unwrap_or_else(|panic| Err(StoreError::Damaged(panic).into()))
            .map_err(|fault| self.explain(fault))?;
        handle.database = Some(database);
        handle.generation += 1;
        Ok(())
    }

    fn open_anew(&self) -> Result<Database, Fault> {
        let database = Builder::new()
            .set_cache_size(self.cache_bytes)
            .create_with_backend(self.disk.clone())
            .map_err(fault)?;
        tables::prepare(&database, self.quick_repair()?)?;
        Ok(database)
    }

    /// The generation of the present handle.
    pub fn generation(&self) -> u64 {
        self.read().generation
    }

    /// Closes the database for good, once its readers have finished.
    pub fn close(&self) {
        let mut handle = self.handle.write().unwrap_or_else(PoisonError::into_inner);
        handle.closed = true;
        // Closing writes to the database.
        if let Err(panic) = guard::catch(|| handle.database = None) {
            tracing::error!(panic, "the store was not closed cleanly");
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Handle> {
        self.handle.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lost() -> Fault {
    Fault::Lost("the database is not open".into())
}
