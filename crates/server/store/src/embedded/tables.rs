//! What do the tables on disk hold, and how are they read and written?
//!
//! `log` has one small record per version and `values` the value, both by place. They are apart so
//! that opening the store reads the log only. `meta` holds what compaction must not forget.
//!
//! redb checks its pages after a crash and not when it reads them. So every record and value carries a checksum over
//! itself and its place, and `meta` the number and the sum of the records' checksums: what is read is what was
//! written, all of it, or [`StoreError::Damaged`].

use super::disk::is_full;
use super::group::Write;
use super::index::{At, FIRST, Index, Version};
use super::window::{Step, StepLimit};
use crate::{Batch, Entry, Event, Revision, StoreError};
use bytes::Bytes;
use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};
use std::io::ErrorKind;
use std::sync::Arc;

const LOG: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("log");
const VALUES: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("values");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

const FORMAT: &str = "format";
/// The format that this release writes. Format 1 had no checksums; it is rewritten when it is opened.
const CURRENT: u64 = 2;
const UNCHECKED: u64 = 1;
/// How many records the log has, and the sum of their checksums.
const RECORDS: &str = "records";
const SUM: &str = "sum";
const COMPACTED: &str = "compacted";
/// The newest revision when history was last forgotten: its record may be gone from the log, and it
/// must not be given out again.
const FLOOR: &str = "floor";

/// How many log records one step of a watch reads before it comes up for air.
const SCAN_RECORDS: usize = 20_000;

/// Why an operation on the tables failed.
#[derive(Debug)]
pub enum Fault {
    /// An answer to give to the caller.
    Answer(StoreError),
    /// The database handle failed and must be opened anew.
    Lost(String),
    /// As `Lost`, for want of space.
    Full,
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Fault::Answer(error)
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Answer(error) => error,
            Fault::Lost(reason) => StoreError::Unavailable(reason),
            Fault::Full => StoreError::Full,
        }
    }
}

/// Sorts any of redb's errors by what is to be done about it.
pub fn fault(error: impl Into<redb::Error>) -> Fault {
    match error.into() {
        redb::Error::Io(error) if is_full(&error) => Fault::Full,
        redb::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Fault::Answer(StoreError::Damaged("the file is cut off".into()))
        }
        redb::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            Fault::Answer(StoreError::Damaged(error.to_string()))
        }
        error @ (redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed) => {
            Fault::Lost(error.to_string())
        }
        error => Fault::Answer(StoreError::Damaged(error.to_string())),
    }
}

/// A version as the log records it.
#[derive(Debug, PartialEq, Eq)]
struct Record<'a> {
    live: bool,
    created: u64,
    previous: Option<At>,
    key: &'a str,
}

impl<'a> Record<'a> {
    const HEAD: usize = 21;

    fn encode(&self) -> Vec<u8> {
        // Revision 0 is never written, so it can stand for "no previous version".
        let previous = self.previous.unwrap_or(At {
            revision: 0,
            index: 0,
        });
        let mut bytes = Vec::with_capacity(Self::HEAD + self.key.len());
        bytes.push(u8::from(self.live));
        bytes.extend(self.created.to_le_bytes());
        bytes.extend(previous.revision.to_le_bytes());
        bytes.extend(previous.index.to_le_bytes());
        bytes.extend(self.key.as_bytes());
        bytes
    }

    fn decode(bytes: &'a [u8]) -> Result<Self, StoreError> {
        let damaged = || StoreError::Damaged("a log record cannot be read".into());
        let (head, key) = bytes.split_at_checked(Self::HEAD).ok_or_else(damaged)?;
        let long = |from: usize| {
            let bytes = head[from..from + 8].try_into().expect("the slice has 8 bytes");
            u64::from_le_bytes(bytes)
        };
        let index = head[17..].try_into().expect("the head has 21 bytes");
        let previous = At {
            revision: long(9),
            index: u32::from_le_bytes(index),
        };
        Ok(Self {
            live: head[0] == 1,
            created: long(1),
            previous: (previous.revision != 0).then_some(previous),
            key: std::str::from_utf8(key).map_err(|_| damaged())?,
        })
    }
}

/// What one commit to disk changes.
#[derive(Debug, Default)]
pub struct Changes<'a> {
    pub writes: &'a [Write],
    /// Versions to drop.
    pub garbage: &'a [At],
    /// The revision before which history is forgotten, and the newest revision now.
    pub compact: Option<(u64, u64)>,
}

/// Makes the tables of a new database, brings an older one up to date, and refuses one that this release does not know.
pub fn prepare(database: &Database, quick_repair: bool) -> Result<(), Fault> {
    let reader = database.begin_read().map_err(fault)?;
    let format = match reader.open_table(META) {
        Ok(meta) => meta.get(FORMAT).map_err(fault)?.map(|format| format.value()),
        Err(redb::TableError::TableDoesNotExist(_)) => Some(0),
        Err(error) => return Err(fault(error)),
    };
    match format {
        Some(CURRENT) => Ok(()),
        Some(0) => begin(database, quick_repair, |_| Ok(Log::default())),
        Some(UNCHECKED) => {
            tracing::info!("rewriting the store with checksums; earlier releases cannot read it afterwards");
            begin(database, quick_repair, |writer| add_checksums(&reader, writer))
        }
        Some(newer) => Err(StoreError::UnknownFormat(newer).into()),
        None => Err(StoreError::Damaged("it does not say which format it has".into()).into()),
    }
}

/// Writes what a database of the current format has, in one commit with what `fill` writes.
fn begin(
    database: &Database,
    quick_repair: bool,
    fill: impl FnOnce(&WriteTransaction) -> Result<Log, Fault>,
) -> Result<(), Fault> {
    let mut writer = database.begin_write().map_err(fault)?;
    writer.set_two_phase_commit(true);
    writer.set_quick_repair(quick_repair);
    {
        writer.open_table(LOG).map_err(fault)?;
        writer.open_table(VALUES).map_err(fault)?;
        let log = fill(&writer)?;
        let mut meta = writer.open_table(META).map_err(fault)?;
        meta.insert(FORMAT, CURRENT).map_err(fault)?;
        log.store(&mut meta)?;
    }
    writer.commit().map_err(fault)
}

/// Rewrites every record and value of format 1.
fn add_checksums(reader: &ReadTransaction, writer: &WriteTransaction) -> Result<Log, Fault> {
    let mut sums = Log::default();
    for (definition, is_log) in [(LOG, true), (VALUES, false)] {
        let mut table = writer.open_table(definition).map_err(fault)?;
        for item in reader
            .open_table(definition)
            .map_err(fault)?
            .iter()
            .map_err(fault)?
        {
            let (place, bytes) = item.map_err(fault)?;
            let at = At::from(place.value());
            let sealed = seal(at, bytes.value());
            if is_log {
                Record::decode(bytes.value())?;
                sums.add(&sealed);
            }
            table.insert(place.value(), sealed.as_slice()).map_err(fault)?;
        }
    }
    Ok(sums)
}

/// What the log holds, in two numbers that change with every record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Log {
    records: u64,
    sum: u64,
}

impl Log {
    fn load(meta: &impl ReadableTable<&'static str, u64>) -> Result<Self, Fault> {
        let number = |name| -> Result<u64, Fault> {
            let number = meta.get(name).map_err(fault)?;
            let missing = || StoreError::Damaged(format!("its {name} are missing"));
            Ok(number.ok_or_else(missing)?.value())
        };
        Ok(Self {
            records: number(RECORDS)?,
            sum: number(SUM)?,
        })
    }

    fn store(self, meta: &mut redb::Table<'_, &'static str, u64>) -> Result<(), Fault> {
        meta.insert(RECORDS, self.records).map_err(fault)?;
        meta.insert(SUM, self.sum).map_err(fault)?;
        Ok(())
    }

    fn add(&mut self, sealed: &[u8]) {
        self.records = self.records.wrapping_add(1);
        self.sum = self.sum.wrapping_add(stated(sealed));
    }

    fn remove(&mut self, sealed: &[u8]) {
        self.records = self.records.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(stated(sealed));
    }
}

/// The checksum that comes before some bytes.
fn stated(sealed: &[u8]) -> u64 {
    let stated = sealed.first_chunk().copied().unwrap_or_default();
    u64::from(u32::from_le_bytes(stated))
}

/// Bytes with the checksum of themselves and their place before them.
fn seal(at: At, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(4 + bytes.len());
    sealed.extend(checksum(at, bytes).to_le_bytes());
    sealed.extend(bytes);
    sealed
}

/// What was sealed, if it still is.
fn unseal<'a>(at: At, what: &str, sealed: &'a [u8]) -> Result<&'a [u8], StoreError> {
    let damaged = || {
        StoreError::Damaged(format!(
            "the {what} of revision {} does not match its checksum",
            at.revision
        ))
    };
    let (stated, bytes) = sealed.split_first_chunk().ok_or_else(damaged)?;
    match u32::from_le_bytes(*stated) == checksum(at, bytes) {
        true => Ok(bytes),
        false => Err(damaged()),
    }
}

fn checksum(at: At, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&at.revision.to_le_bytes());
    hasher.update(&at.index.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// Writes changes; when this returns they survive a power loss.
pub fn write(database: &Database, changes: &Changes, quick_repair: bool) -> Result<(), Fault> {
    let mut writer = database.begin_write().map_err(fault)?;
    writer.set_durability(Durability::Immediate).map_err(fault)?;
    // The pages are synced before the byte that makes them count. With one phase redb takes a commit whose pages do
    // not match their checksums for one that a crash cut short, and silently goes back to the commit before it:
    // also when the commit was acknowledged and its pages were damaged later. With two phases that is an error.
    writer.set_two_phase_commit(true);
    writer.set_quick_repair(quick_repair);
    {
        let mut log = writer.open_table(LOG).map_err(fault)?;
        let mut values = writer.open_table(VALUES).map_err(fault)?;
        let mut meta = writer.open_table(META).map_err(fault)?;
        let mut sums = Log::load(&meta)?;
        for write in changes.writes {
            let place = (write.at.revision, write.at.index);
            let record = Record {
                live: write.value.is_some(),
                created: write.created,
                previous: write.previous,
                key: &write.key,
            };
            let sealed = seal(write.at, &record.encode());
            sums.add(&sealed);
            log.insert(place, sealed.as_slice()).map_err(fault)?;
            if let Some(value) = &write.value {
                values
                    .insert(place, seal(write.at, value).as_slice())
                    .map_err(fault)?;
            }
        }
        for at in changes.garbage {
            if let Some(sealed) = log.remove((at.revision, at.index)).map_err(fault)? {
                sums.remove(sealed.value());
            }
            values.remove((at.revision, at.index)).map_err(fault)?;
        }
        if !changes.writes.is_empty() || !changes.garbage.is_empty() {
            sums.store(&mut meta)?;
        }
        if let Some((compacted, newest)) = changes.compact {
            meta.insert(COMPACTED, compacted).map_err(fault)?;
            meta.insert(FLOOR, newest).map_err(fault)?;
        }
    }
    writer.commit().map_err(fault)
}

/// The newest revision in the log, which a group that failed halfway may or may not have reached.
pub fn last_logged(reader: &ReadTransaction) -> Result<u64, Fault> {
    let log = reader.open_table(LOG).map_err(fault)?;
    let last = log.last().map_err(fault)?;
    Ok(last.map_or(0, |(place, _)| place.value().0))
}

/// Reads the whole log into an index.
pub fn load_index(reader: &ReadTransaction) -> Result<Index, Fault> {
    let meta = reader.open_table(META).map_err(fault)?;
    let number = |name| -> Result<u64, Fault> {
        Ok(meta.get(name).map_err(fault)?.map_or(0, |number| number.value()))
    };
    let mut index = Index::new(number(FLOOR)?.max(FIRST), number(COMPACTED)?);
    let log = reader.open_table(LOG).map_err(fault)?;
    let mut sums = Log::default();
    for item in log.iter().map_err(fault)? {
        let (place, sealed) = item.map_err(fault)?;
        let at = At::from(place.value());
        sums.add(sealed.value());
        let record = Record::decode(unseal(at, "record", sealed.value())?)?;
        let version = Version {
            at,
            created: record.created,
            live: record.live,
        };
        index.insert(record.key.into(), version);
    }
    let stated = Log::load(&meta)?;
    if sums != stated {
        let (found, stated) = (sums.records, stated.records);
        return Err(StoreError::Damaged(format!(
            "its log has {found} records that are not the {stated} written"
        ))
        .into());
    }
    Ok(index)
}

/// Reads values by their place.
pub struct Values(ReadOnlyTable<(u64, u32), &'static [u8]>);

impl Values {
    /// The values as one transaction sees them.
    pub fn open(reader: &ReadTransaction) -> Result<Self, Fault> {
        reader.open_table(VALUES).map(Self).map_err(fault)
    }

    /// The value at a place that the index or the log points to.
    pub fn get(&self, at: At) -> Result<Bytes, Fault> {
        let value = self.0.get((at.revision, at.index)).map_err(fault)?;
        let value = value.ok_or_else(|| {
            StoreError::Damaged(format!("the value of revision {} is missing", at.revision))
        })?;
        Ok(Bytes::copy_from_slice(unseal(at, "value", value.value())?))
    }
}

/// Reads the events below `prefix` after one revision and up to another from the log.
pub fn read_events(
    reader: &ReadTransaction,
    prefix: &str,
    after: u64,
    up_to: u64,
    limit: StepLimit,
) -> Result<Batch, Fault> {
    let log = reader.open_table(LOG).map_err(fault)?;
    let values = Values::open(reader)?;
    let mut step = Step::new(after, limit);
    let places = (after + 1, 0)..=(up_to, u32::MAX);
    for (count, item) in log.range(places).map_err(fault)?.enumerate() {
        let (place, sealed) = item.map_err(fault)?;
        let (revision, index) = place.value();
        if step.is_full_before(revision) || (index == 0 && count >= SCAN_RECORDS) {
            return Ok(step.finish_before(revision));
        }
        let record = Record::decode(unseal(At { revision, index }, "record", sealed.value())?)?;
        if record.key.starts_with(prefix) {
            step.push(event(&values, At { revision, index }, &record)?);
        }
    }
    step.reach(up_to);
    Ok(step.finish())
}

fn event(values: &Values, at: At, record: &Record) -> Result<Event, Fault> {
    let key: Arc<str> = record.key.into();
    let previous = record.previous.map(|at| values.get(at)).transpose()?;
    if record.live {
        let entry = Entry {
            key,
            value: values.get(at)?,
            revision: Revision(at.revision),
            created: Revision(record.created),
        };
        return Ok(Event::Put { entry, previous });
    }
    let previous = previous.ok_or_else(|| {
        StoreError::Damaged(format!("revision {} removes a key without a value", at.revision))
    })?;
    Ok(Event::Delete {
        key,
        previous,
        revision: Revision(at.revision),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_record_reads_back_as_written(
            live: bool, created: u64, revision in 1u64.., index: u32, key in ".*", first: bool,
        ) {
            let previous = (!first).then_some(At { revision, index });
            let record = Record { live, created, previous, key: &key };
            let bytes = record.encode();
            prop_assert_eq!(Record::decode(&bytes).expect("own bytes"), record);
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let _ = Record::decode(&bytes);
        }
    }
}
