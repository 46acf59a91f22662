//! How do bytes reach the file, and who else may open it?
//!
//! redb refuses every operation after a failed one and must then be opened anew. Its own file backend
//! would hold the lock of the old handle meanwhile, so the file and the lock live here, outside it.

use crate::StoreError;
use redb::StorageBackend;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const DATA_FILE: &str = "store.redb";
const NEW_FILE: &str = "store.redb.new";
const LOCK_FILE: &str = "store.lock";

/// The medium of a database. Clones share the medium.
#[derive(Clone, Debug)]
pub struct Disk {
    medium: Arc<dyn StorageBackend>,
    full: Arc<AtomicBool>,
}

impl Disk {
    /// A disk on any medium.
    pub fn new(medium: impl StorageBackend) -> Self {
        Self {
            medium: Arc::new(medium),
            full: Arc::default(),
        }
    }

    /// Opens the data file of a directory. If there is none, `make` writes it under another name
    /// first, so that a crash cannot leave a half-made one behind.
    pub fn open(dir: &Path, make: impl FnOnce(Self) -> Result<(), StoreError>) -> Result<Self, StoreError> {
        let path = dir.join(DATA_FILE);
        if !path.exists() {
            let new = dir.join(NEW_FILE);
            let _ = std::fs::remove_file(&new);
            make(Self::open_file(&new)?)?;
            std::fs::rename(&new, &path)
                .and_then(|()| File::open(dir)?.sync_all())
                .map_err(|error| unavailable(&path, &error))?;
        }
        Self::open_file(&path)
    }

    fn open_file(path: &Path) -> Result<Self, StoreError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| unavailable(path, &error))?;
        Ok(Self::new(DataFile(file)))
    }

    /// Whether an operation failed for want of space since the last call.
    pub fn take_full(&self) -> bool {
        self.full.swap(false, Ordering::AcqRel)
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && is_full(error)
        {
            self.full.store(true, Ordering::Release);
        }
        result
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.medium.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.medium.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.note(self.medium.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.note(self.medium.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(self.medium.write(offset, data))
    }
}

#[derive(Debug)]
struct DataFile(File);

impl StorageBackend for DataFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

/// Creates the directory and takes it for this process until the file is dropped.
pub fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK_FILE);
    let file = std::fs::create_dir_all(dir)
        .and_then(|()| {
            if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                File::open(parent)?.sync_all()?;
            }
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
        })
        .map_err(|error| unavailable(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Unavailable(format!(
            "{} is in use by another process",
            dir.display()
        ))),
        Err(TryLockError::Error(error)) => Err(unavailable(&path, &error)),
    }
}

/// Whether an error means that there is no room, by the disk, a quota or a file size limit.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

fn unavailable(path: &Path, error: &io::Error) -> StoreError {
    if is_full(error) {
        return StoreError::Full;
    }
    StoreError::Unavailable(format!("{}: {error}", path.display()))
}
