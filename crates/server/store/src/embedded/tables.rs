//! What do the tables on disk hold, and how are they read and written?
//!
//! `log` has one small record per version and `values` the value, both by place. They are apart so
//! that opening the store reads the log only. `meta` holds what compaction must not forget.

use super::disk::is_full;
use super::group::Write;
use super::index::{At, FIRST, Index, Version};
use super::window::{Step, StepLimit};
use crate::{Batch, Entry, Event, Revision, StoreError};
use bytes::Bytes;
use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
};
use std::sync::Arc;

const LOG: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("log");
const VALUES: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("values");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

const FORMAT: (&str, u64) = ("format", 1);
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

/// Makes the tables of a new database, and refuses one of another format.
pub fn prepare(database: &Database, quick_repair: bool) -> Result<(), Fault> {
    let reader = database.begin_read().map_err(fault)?;
    match reader.open_table(META) {
        Ok(meta) => {
            let format = meta.get(FORMAT.0).map_err(fault)?.map(|format| format.value());
            if format == Some(FORMAT.1) {
                return Ok(());
            }
            let message = format!("format {format:?} is not {}, which this release reads", FORMAT.1);
            return Err(StoreError::Damaged(message).into());
        }
        Err(redb::TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(fault(error)),
    }
    let mut writer = database.begin_write().map_err(fault)?;
    writer.set_two_phase_commit(true);
    writer.set_quick_repair(quick_repair);
    {
        writer.open_table(LOG).map_err(fault)?;
        writer.open_table(VALUES).map_err(fault)?;
        let mut meta = writer.open_table(META).map_err(fault)?;
        meta.insert(FORMAT.0, FORMAT.1).map_err(fault)?;
    }
    writer.commit().map_err(fault)
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
        for write in changes.writes {
            let place = (write.at.revision, write.at.index);
            let record = Record {
                live: write.value.is_some(),
                created: write.created,
                previous: write.previous,
                key: &write.key,
            };
            log.insert(place, record.encode().as_slice()).map_err(fault)?;
            if let Some(value) = &write.value {
                values.insert(place, &value[..]).map_err(fault)?;
            }
        }
        for at in changes.garbage {
            log.remove((at.revision, at.index)).map_err(fault)?;
            values.remove((at.revision, at.index)).map_err(fault)?;
        }
        if let Some((compacted, newest)) = changes.compact {
            let mut meta = writer.open_table(META).map_err(fault)?;
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
    for item in log.iter().map_err(fault)? {
        let (place, record) = item.map_err(fault)?;
        let (revision, place) = place.value();
        let record = Record::decode(record.value())?;
        let at = At {
            revision,
            index: place,
        };
        let version = Version {
            at,
            created: record.created,
            live: record.live,
        };
        index.insert(record.key.into(), version);
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
        Ok(Bytes::copy_from_slice(value.value()))
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
        let (place, record) = item.map_err(fault)?;
        let (revision, index) = place.value();
        if step.is_full_before(revision) || (index == 0 && count >= SCAN_RECORDS) {
            return Ok(step.finish_before(revision));
        }
        let record = Record::decode(record.value())?;
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
