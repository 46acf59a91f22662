//! How does a store begin with what a backup holds?

use super::database::Reopening;
use super::disk::{self, Disk};
use super::group::Write;
use super::index::At;
use super::tables::{Changes, Fault};
use super::{Options, StoreError};
use crate::Revision;
use crate::backup::{BackupError, Reader};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// How many entries one disk commit takes.
const CHUNK: usize = 1000;

/// Why a backup was not restored. The store is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is a store already.
    #[error("{0} exists")]
    Exists(PathBuf),
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What became of a restore.
#[derive(Debug)]
pub struct Restored {
    pub entries: u64,
    /// The revision that the store begins at.
    pub revision: Revision,
    /// Where the store is that was there before.
    pub replaced: Option<PathBuf>,
}

/// Makes the store of a directory from a backup. No process may use it meanwhile. One that is there stays unless
/// `replace` is set, and is kept beside it then.
///
/// Revisions go on `bump` after the backup's, and all before are too old to be read. So whoever saw what happened after
/// the backup and is undone now starts over, as with etcd's `--bump-revision --mark-compacted`.
pub fn restore<R: Read>(
    dir: &Path,
    backup: Reader<R>,
    bump: u64,
    replace: bool,
) -> Result<Restored, RestoreError> {
    let _lock = disk::lock(dir)?;
    let path = disk::data_file(dir);
    let exists = path.exists();
    if exists && !replace {
        return Err(RestoreError::Exists(path));
    }
    let entries = backup.contents().entries;
    let mut revision = Revision(0);
    disk::make(dir, |disk| {
        revision = fill(disk, backup, bump)?;
        Ok::<_, RestoreError>(())
    })?;
    let replaced = exists.then(|| disk::set_aside(dir)).transpose()?;
    disk::publish(dir)?;
    Ok(Restored {
        entries,
        revision,
        replaced,
    })
}

fn fill<R: Read>(disk: Disk, mut backup: Reader<R>, bump: u64) -> Result<Revision, RestoreError> {
    let database = Reopening::open(disk, &Options::default())?;
    let commit = |changes: &Changes| {
        database
            .write(changes)
            .map_err(|fault: Fault| database.explain(fault))
    };
    // Entries that one transaction wrote have places of their own within its revision.
    let mut places: HashMap<u64, u32> = HashMap::new();
    let mut newest = backup.contents().revision.0;
    let mut writes = Vec::new();
    loop {
        let entry = backup.next_entry()?;
        let last = entry.is_none();
        writes.extend(entry.map(|entry| {
            let place = places.entry(entry.revision.0).or_default();
            let at = At::from((entry.revision.0, *place));
            *place += 1;
            newest = newest.max(entry.revision.0);
            Write {
                at,
                key: entry.key,
                value: Some(entry.value),
                created: entry.created.0,
                previous: None,
            }
        }));
        if last || writes.len() == CHUNK {
            commit(&Changes {
                writes: &writes,
                ..Changes::default()
            })?;
            writes.clear();
        }
        if last {
            break;
        }
    }
    let newest = newest.saturating_add(bump);
    commit(&Changes {
        compact: Some((newest, newest)),
        ..Changes::default()
    })?;
    database.close();
    Ok(Revision(newest))
}
