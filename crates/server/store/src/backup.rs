//! How is everything that a store holds kept in one file, and known to be whole?
//!
//! A backup is the state at one revision: every key with its value and the revisions that it was created and written
//! at. History is not in it. Numbers are little-endian:
//!
//! ```text
//! "pointsman backup\n"  format: u32  revision: u64  entries: u64
//! entry:  created: u64  revision: u64  key length: u32  value length: u32  key  value
//! SHA-256 of all of the above
//! ```

use crate::{Entry, Range, Revision, Store, StoreError};
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use sha2::{Digest, Sha256};
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;

const MAGIC: &[u8] = b"pointsman backup\n";
const FORMAT: u32 = 1;
/// How many entries are read from the store at a time.
const PAGE: usize = 500;
/// More than any engine takes for a key or value, so that a damaged length does not become an allocation.
const MAX_PART: u32 = 64 << 20;

/// Why a file is no backup that could be restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("it is not a backup of `pointsman apiserver backup`")]
    Foreign,
    #[error(
        "it has format {0}, and this release reads format {FORMAT}; restore it with the release that wrote it"
    )]
    UnknownFormat(u32),
    #[error("it is cut off: it ends before its checksum")]
    CutOff,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

impl From<io::Error> for BackupError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => BackupError::CutOff,
            _ => BackupError::Io(error),
        }
    }
}

/// What a backup begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The state is exactly that of this revision.
    pub revision: Revision,
    pub entries: u64,
}

/// Reads a store into a backup, piece by piece, all at one revision. After an error the pieces are no backup, and the
/// missing checksum says so.
pub fn write(store: Arc<dyn Store>) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    let start = Some(Writing {
        store,
        at: None,
        after: None,
        digest: Sha256::new(),
    });
    futures::stream::try_unfold(start, async |writing| match writing {
        Some(writing) => writing.next().await.map(Some),
        None => Ok(None),
    })
}

struct Writing {
    store: Arc<dyn Store>,
    /// The revision that the first page was of.
    at: Option<Revision>,
    after: Option<String>,
    digest: Sha256,
}

impl Writing {
    async fn next(mut self) -> Result<(Bytes, Option<Self>), StoreError> {
        let range = Range {
            prefix: String::new(),
            after: self.after.take(),
            limit: PAGE,
            at: self.at,
        };
        let page = self.store.range(range).await?;
        let mut piece = BytesMut::new();
        if self.at.is_none() {
            piece.put(MAGIC);
            piece.put_u32_le(FORMAT);
            piece.put_u64_le(page.at.0);
            piece.put_u64_le(page.entries.len() as u64 + page.remaining);
            self.at = Some(page.at);
        }
        for entry in &page.entries {
            piece.put_u64_le(entry.created.0);
            piece.put_u64_le(entry.revision.0);
            piece.put_u32_le(entry.key.len() as u32);
            piece.put_u32_le(entry.value.len() as u32);
            piece.put(entry.key.as_bytes());
            piece.put(&entry.value[..]);
        }
        self.digest.update(&piece);
        if page.remaining == 0 {
            piece.put(&self.digest.finalize()[..]);
            return Ok((piece.freeze(), None));
        }
        self.after = page.entries.last().map(|entry| entry.key.to_string());
        Ok((piece.freeze(), Some(self)))
    }
}

/// Reads a backup. What it gives may be trusted only when all of it was read without an error.
pub struct Reader<R> {
    source: Digesting<R>,
    contents: Contents,
    left: u64,
}

impl<R: Read> Reader<R> {
    /// Reads what a backup begins with.
    pub fn new(source: R) -> Result<Self, BackupError> {
        let mut source = Digesting {
            source,
            digest: Sha256::new(),
        };
        let mut magic = [0; MAGIC.len()];
        let read = source.read_exact(&mut magic);
        if read.is_err() || magic != MAGIC {
            return Err(BackupError::Foreign);
        }
        match source.u32()? {
            FORMAT => {}
            format => return Err(BackupError::UnknownFormat(format)),
        }
        let contents = Contents {
            revision: Revision(source.u64()?),
            entries: source.u64()?,
        };
        Ok(Self {
            source,
            contents,
            left: contents.entries,
        })
    }

    pub fn contents(&self) -> Contents {
        self.contents
    }

    /// Reads on to the end, and says whether the backup is whole.
    pub fn verify(mut self) -> Result<Contents, BackupError> {
        while self.next_entry()?.is_some() {}
        Ok(self.contents)
    }

    /// The next entry, in key order; none when all were read and the checksum is right.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, BackupError> {
        if self.left == 0 {
            self.source.check()?;
            return Ok(None);
        }
        let (created, revision) = (self.source.u64()?, self.source.u64()?);
        let (key, value) = (self.source.u32()?, self.source.u32()?);
        let key = String::from_utf8(self.source.part(key)?);
        let value = self.source.part(value)?;
        self.left -= 1;
        Ok(Some(Entry {
            key: key.map_err(|_| BackupError::Damaged("a key is not text"))?.into(),
            value: value.into(),
            revision: Revision(revision),
            created: Revision(created),
        }))
    }
}

struct Digesting<R> {
    source: R,
    digest: Sha256,
}

impl<R: Read> Digesting<R> {
    fn read_exact(&mut self, out: &mut [u8]) -> io::Result<()> {
        self.source.read_exact(out)?;
        self.digest.update(out);
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, BackupError> {
        let mut bytes = [0; 4];
        self.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, BackupError> {
        let mut bytes = [0; 8];
        self.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn part(&mut self, length: u32) -> Result<Vec<u8>, BackupError> {
        if length > MAX_PART {
            return Err(BackupError::Damaged("a length cannot be right"));
        }
        let mut bytes = vec![0; length as usize];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Compares what was read with the checksum that follows, after which nothing may come.
    fn check(&mut self) -> Result<(), BackupError> {
        let mut stated = [0; 32];
        self.source.read_exact(&mut stated)?;
        if stated[..] != std::mem::take(&mut self.digest).finalize()[..] {
            return Err(BackupError::Damaged("its checksum is wrong"));
        }
        if self.source.read(&mut [0])? > 0 {
            return Err(BackupError::Damaged("something follows its checksum"));
        }
        Ok(())
    }
}
