//! Files of earlier and later releases.

use super::sim::{Plan, SimDisk};
use super::{events_after, open};
use crate::{Revision, Store, StoreError};
use redb::{Builder, TableDefinition};

const LOG: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("log");
const VALUES: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("values");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// A file as a release with another format leaves it: two writes of one key, as format 1 had them.
fn file(format: u64) -> SimDisk {
    let disk = SimDisk::new(Plan::Sound);
    let database = Builder::new()
        .create_with_backend(disk.clone())
        .expect("a sound disk");
    let writer = database.begin_write().expect("a sound disk");
    {
        let mut log = writer.open_table(LOG).expect("a sound disk");
        let mut values = writer.open_table(VALUES).expect("a sound disk");
        let mut meta = writer.open_table(META).expect("a sound disk");
        meta.insert("format", format).expect("a sound disk");
        for revision in [2u64, 3] {
            let previous = if revision == 2 { 0 } else { 2u64 };
            let mut record = vec![1];
            record.extend(2u64.to_le_bytes());
            record.extend(previous.to_le_bytes());
            record.extend(0u32.to_le_bytes());
            record.extend(b"/a");
            log.insert((revision, 0), record.as_slice())
                .expect("a sound disk");
            values
                .insert((revision, 0), format!("value {revision}").as_bytes())
                .expect("a sound disk");
        }
    }
    writer.commit().expect("a sound disk");
    drop(database);
    disk
}

#[tokio::test]
async fn a_file_of_format_1_gets_checksums_and_keeps_everything() {
    let disk = file(1);
    for _ in 0..2 {
        let store = open(&disk).expect("format 1 is known");
        let events = events_after(&store, Revision(1))
            .await
            .expect("history can be read");
        let revisions: Vec<u64> = events.iter().map(|event| event.revision().0).collect();
        assert_eq!(revisions, [2, 3]);
        assert_eq!(store.revision().await.expect("it is open"), Revision(3));
    }
}

#[test]
fn a_file_of_a_later_release_is_refused_and_left_alone() {
    let disk = file(3);
    let error = open(&disk).err().expect("format 3 is not known");
    assert!(matches!(error, StoreError::UnknownFormat(3)), "{error}");
    assert!(error.to_string().contains("release"), "{error}");
    let error = open(&disk).err().expect("format 3 is still not known");
    assert!(matches!(error, StoreError::UnknownFormat(3)), "{error}");
}
