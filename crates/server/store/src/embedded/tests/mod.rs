//! Does the engine keep its promises on a disk that fails, and compared with a simple model?

mod damage;
mod faults;
mod formats;
mod model;
mod sim;

use super::disk::Disk;
use super::{EmbeddedStore, Options};
use crate::{Event, Revision, Store, StoreError, Watch};
use sim::SimDisk;

fn open(disk: &SimDisk) -> Result<EmbeddedStore, StoreError> {
    let options = Options {
        cache_bytes: 1 << 20,
        window_events: 8,
        ..Options::default()
    };
    EmbeddedStore::start(Disk::new(disk.clone()), None, options)
}

/// All events after one revision and up to the newest.
async fn events_after(store: &EmbeddedStore, from: Revision) -> Result<Vec<Event>, StoreError> {
    let newest = store.revision().await?;
    let mut watch: Box<dyn Watch> = store.watch(String::new(), from).await?;
    let mut events = Vec::new();
    let mut complete = from;
    while complete < newest {
        let batch = watch.next().await?;
        complete = batch.complete_to;
        events.extend(batch.events);
    }
    Ok(events)
}
