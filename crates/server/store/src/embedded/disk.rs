//! How do bytes reach the file, and who else may open it?
//!
//! redb refuses every operation after a failed one and must then be opened anew. Its own file backend
//! would hold the lock of the old handle meanwhile, so the file and the lock live here, outside it.
//!
//! A failed sync ends the disk: not a byte is read or written after it. Linux marks the pages that it could not
//! write as clean, so that they can still be read, are never written again, and the next sync succeeds; whoever
//! tries again takes for durable what is not. The file may be trusted again when it is opened anew, which drops
//! what is cached of it and so reads what is on disk.

use crate::StoreError;
use redb::StorageBackend;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

const DATA_FILE: &str = "store.redb";
const NEW_FILE: &str = "store.redb.new";
const REPLACED_FILE: &str = "store.redb.replaced";
const LOCK_FILE: &str = "store.lock";

/// Where the data of a directory is.
pub fn data_file(dir: &Path) -> PathBuf {
    dir.join(DATA_FILE)
}

/// Makes a new data file under another name, so that a crash cannot leave a half-made one behind.
pub fn make<E: From<StoreError>>(dir: &Path, fill: impl FnOnce(Disk) -> Result<(), E>) -> Result<(), E> {
    let new = dir.join(NEW_FILE);
    let _ = std::fs::remove_file(&new);
    let filled = Disk::open_file(&new).map_err(E::from).and_then(fill);
    if filled.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    filled
}

/// Gives the new data file its name.
pub fn publish(dir: &Path) -> Result<(), StoreError> {
    rename(dir, &dir.join(NEW_FILE), &data_file(dir))
}

/// Keeps the data file under another name, and says which.
pub fn set_aside(dir: &Path) -> Result<PathBuf, StoreError> {
    let aside = dir.join(REPLACED_FILE);
    rename(dir, &data_file(dir), &aside)?;
    Ok(aside)
}

fn rename(dir: &Path, from: &Path, to: &Path) -> Result<(), StoreError> {
    std::fs::rename(from, to)
        .and_then(|()| File::open(dir)?.sync_all())
        .map_err(|error| unavailable(to, &error))
}

/// The medium of a database. Clones share the medium.
#[derive(Clone, Debug)]
pub struct Disk {
    medium: Arc<dyn StorageBackend>,
    full: Arc<AtomicBool>,
    /// Why nothing is read or written any more.
    ended: Arc<OnceLock<String>>,
}

impl Disk {
    /// A disk on any medium.
    pub fn new(medium: impl StorageBackend) -> Self {
        Self {
            medium: Arc::new(medium),
            full: Arc::default(),
            ended: Arc::default(),
        }
    }

    /// Opens the data file of a directory. If there is none, `fill` writes it first.
    pub fn open(dir: &Path, fill: impl FnOnce(Self) -> Result<(), StoreError>) -> Result<Self, StoreError> {
        let path = data_file(dir);
        if !path.exists() {
            make(dir, fill)?;
            publish(dir)?;
        }
        let disk = Self::open_file(&path)?;
        // To redb an empty file is a new one.
        match disk.len() {
            Ok(0) => Err(StoreError::Damaged("the file is empty".into())),
            _ => Ok(disk),
        }
    }

    fn open_file(path: &Path) -> Result<Self, StoreError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .and_then(|file| drop_cached(&file).map(|()| file))
            .map_err(|error| unavailable(path, &error))?;
        Ok(Self::new(DataFile {
            file,
            path: path.to_owned(),
        }))
    }

    /// Why nothing is read or written any more, if that is so.
    pub fn ended(&self) -> Option<StoreError> {
        self.ended.get().map(|why| StoreError::Ended(why.clone()))
    }

    /// Lets nothing be read or written from now on. The first reason stays.
    pub fn end(&self, why: String) {
        if self.ended.set(why).is_ok()
            && let Some(error) = self.ended()
        {
            tracing::error!(%error, "nothing is read from the store or written to it until it is opened again");
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.ended() {
            Some(error) => Err(io::Error::other(error)),
            None => Ok(()),
        }
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
        self.check()?;
        self.medium.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check()?;
        self.medium.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.note(self.medium.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        // Also for want of space: delayed allocation may find that out here, when the pages are lost already.
        self.medium
            .sync_data()
            .inspect_err(|error| self.end(format!("a sync to disk failed: {error}")))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.note(self.medium.write(offset, data))
    }
}

#[derive(Debug)]
struct DataFile {
    file: File,
    path: PathBuf,
}

impl DataFile {
    fn named<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))
    }
}

impl StorageBackend for DataFile {
    fn len(&self) -> io::Result<u64> {
        self.named(self.file.metadata().map(|metadata| metadata.len()))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.named(self.file.read_exact_at(out, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.named(self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.named(self.file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.named(self.file.write_all_at(data, offset))
    }
}

/// Makes reads of a file see what is on disk. Another process may have left pages behind that a failed sync called
/// clean. The sync writes what is dirty, and reports what the kernel failed to write since nobody asked; then all
/// pages are clean, and dropping them needs no more than that nobody else uses them.
fn drop_cached(file: &File) -> io::Result<()> {
    file.sync_all()?;
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
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
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(dir.display().to_string())),
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
