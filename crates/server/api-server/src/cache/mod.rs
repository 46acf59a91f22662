//! What does the store hold now, close at hand?
//!
//! One task follows the whole store by one watch and folds it into a [`Collection`] per kind; requests
//! only read. Because it is one watch, one number says how far all collections are: a read is
//! consistent once [`Cache::applied`] has reached the store's revision.

pub mod collection;
mod fields;
pub mod object;

use crate::keys;
use crate::stored::EventType;
use bytes::Bytes;
use collection::{Collection, Window};
use object::Object;
use parking_lot::RwLock;
use pointsman_rules::{Kind, kinds};
use pointsman_store::{Batch, Entry, Event, Page, Range, Revision, Store, StoreError};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Written,
    /// The object is shown in its last state.
    Removed,
}

/// Sees every change, in order, before readers can see that it was applied.
pub trait Observer: Send + Sync {
    fn observe(&self, object: &Object, fate: Fate);
}

/// Everything in the store, by kind.
pub struct Cache {
    collections: Vec<Collection>,
    claims: RwLock<BTreeMap<Arc<str>, Bytes>>,
    applied: watch::Sender<Revision>,
    observers: Vec<Arc<dyn Observer>>,
}

/// How many revisions of history are read back at a start, so that clients can resume their watches.
const REPLAYED_REVISIONS: u64 = 10_000;
const PAGE: usize = 2_000;

impl Cache {
    /// An empty cache. [`Cache::load`] fills it.
    pub fn new(window: Window, observers: Vec<Arc<dyn Observer>>) -> Self {
        let collections = kinds::ALL
            .iter()
            .map(|kind| Collection::new(kind, window))
            .collect();
        let applied = watch::Sender::new(Revision(0));
        Self {
            collections,
            claims: RwLock::default(),
            applied,
            observers,
        }
    }

    /// The objects that `kind` shows.
    pub fn of(&self, kind: &'static Kind) -> &Collection {
        &self.collections[kind.stored().index()]
    }

    /// Collections that own their objects (views left out).
    pub fn stored(&self) -> impl Iterator<Item = &Collection> {
        self.collections
            .iter()
            .filter(|collection| collection.kind.stored_as.is_none())
    }

    /// Who holds a claim, by the claim's store key.
    pub fn claim(&self, key: &str) -> Option<Bytes> {
        self.claims.read().get(key).cloned()
    }

    /// All claims, by store key.
    pub fn claims(&self) -> Vec<(Arc<str>, Bytes)> {
        self.claims
            .read()
            .iter()
            .map(|(key, holder)| (key.clone(), holder.clone()))
            .collect()
    }

    /// Everything up to this revision can be read here.
    pub fn applied(&self) -> Revision {
        *self.applied.borrow()
    }

    /// Waits until `revision` can be read here.
    pub async fn wait_for(&self, revision: Revision) {
        let mut applied = self.applied.subscribe();
        // The sender lives as long as `self`.
        let _ = applied.wait_for(|applied| *applied >= revision).await;
    }

    /// Reads the whole store, starting a little in the past so that recent changes are known too.
    /// Returns the revision from which to follow it.
    pub async fn load(&self, store: &dyn Store) -> Result<Revision, StoreError> {
        let newest = store.revision().await?;
        let start = Revision(newest.0.saturating_sub(REPLAYED_REVISIONS));
        let start = match self.read_all(store, start).await {
            Err(StoreError::Compacted { oldest, .. }) => self.read_all(store, oldest.min(newest)).await?,
            other => other?,
        };
        Ok(start)
    }

    async fn read_all(&self, store: &dyn Store, at: Revision) -> Result<Revision, StoreError> {
        let mut objects: HashMap<usize, Vec<Arc<Object>>> = HashMap::new();
        let mut claims = BTreeMap::new();
        let mut after = None;
        loop {
            let range = Range {
                prefix: keys::ROOT.into(),
                after,
                limit: PAGE,
                at: Some(at),
            };
            let Page {
                entries, remaining, ..
            } = store.range(range).await?;
            after = entries.last().map(|entry| entry.key.to_string());
            for entry in entries {
                if entry.key.starts_with(keys::CLAIMS) {
                    claims.insert(entry.key, entry.value);
                } else if let Some(object) = read_entry(&entry, EventType::Added) {
                    objects.entry(object.kind.index()).or_default().push(object);
                }
            }
            if remaining == 0 {
                break;
            }
        }
        for collection in &self.collections {
            self.replace(
                collection,
                objects.remove(&collection.kind.index()).unwrap_or_default(),
                at,
            );
        }
        *self.claims.write() = claims;
        self.applied.send_replace(at);
        Ok(at)
    }

    /// Puts a whole new state into a collection; observers see what vanished meanwhile, too.
    fn replace(&self, collection: &Collection, objects: Vec<Arc<Object>>, at: Revision) {
        let present: HashSet<&str> = objects.iter().map(|object| &*object.key).collect();
        let before = collection.list("", None, Revision(0)).objects;
        let gone = before.iter().filter(|object| !present.contains(&*object.key));
        for observer in &self.observers {
            gone.clone()
                .for_each(|object| observer.observe(object, Fate::Removed));
            objects
                .iter()
                .for_each(|object| observer.observe(object, Fate::Written));
        }
        collection.reset(objects, at);
    }

    /// Follows the store from `from` for ever; call it once, after [`Cache::load`].
    pub async fn follow(&self, store: &dyn Store, from: Revision) {
        let mut from = from;
        loop {
            let error = match store.watch(keys::ROOT.into(), from).await {
                Ok(mut watch) => loop {
                    match watch.next().await {
                        Ok(batch) => {
                            from = batch.complete_to;
                            self.apply(batch);
                        }
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            tracing::warn!(%error, revision = from.0, "lost the watch on the store, resuming");
            if let StoreError::Compacted { .. } = error {
                // What happened in between is no longer known: watchers start over.
                match self.load(store).await {
                    Ok(at) => from = at,
                    Err(error) => tracing::error!(%error, "cannot read the store"),
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn apply(&self, batch: Batch) {
        let now = Instant::now();
        let mut changes: BTreeMap<usize, Vec<(Arc<Object>, Fate)>> = BTreeMap::new();
        for event in batch.events {
            let Some((object, fate)) = self.read_event(event) else {
                continue;
            };
            for observer in &self.observers {
                observer.observe(&object, fate);
            }
            changes
                .entry(object.kind.index())
                .or_default()
                .push((object, fate));
        }
        for (kind, changes) in changes {
            self.collections[kind].apply(changes, now);
        }
        self.applied.send_if_modified(|applied| {
            let moved = batch.complete_to > *applied;
            *applied = batch.complete_to.max(*applied);
            moved
        });
    }

    fn read_event(&self, event: Event) -> Option<(Arc<Object>, Fate)> {
        match event {
            Event::Put { entry, .. } if entry.key.starts_with(keys::CLAIMS) => {
                self.claims.write().insert(entry.key, entry.value);
                None
            }
            Event::Delete { key, .. } if key.starts_with(keys::CLAIMS) => {
                self.claims.write().remove(&key);
                None
            }
            Event::Put { entry, previous } => {
                let event = if previous.is_some() {
                    EventType::Modified
                } else {
                    EventType::Added
                };
                Some((read_entry(&entry, event)?, Fate::Written))
            }
            Event::Delete {
                key,
                previous,
                revision,
            } => {
                let entry = Entry {
                    key,
                    value: previous,
                    revision,
                    created: revision,
                };
                Some((read_entry(&entry, EventType::Deleted)?, Fate::Removed))
            }
        }
    }
}

/// An object from a store entry; an entry that is no object of ours is reported and left out.
pub fn read_entry(entry: &Entry, event: EventType) -> Option<Arc<Object>> {
    let (kind, local) = keys::parse(&entry.key)?;
    match Object::from_stored(kind, local.into(), &entry.value, entry.revision, event) {
        Ok(object) => Some(Arc::new(object)),
        Err(error) => {
            tracing::error!(key = %entry.key, %error, "a stored object cannot be read and is not served");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use serde_json::json;

    #[derive(Default)]
    struct Log(Mutex<Vec<(String, Fate)>>);

    impl Observer for Log {
        fn observe(&self, object: &Object, fate: Fate) {
            self.0.lock().push((object.name().to_owned(), fate));
        }
    }

    #[test]
    fn observers_see_what_vanished_while_the_store_was_out_of_sight() {
        let log = Arc::new(Log::default());
        let cache = Cache::new(Window::default(), vec![log.clone()]);
        let kind = &kinds::CLUSTER_ROLE;
        let role = |name: &str| {
            let value = crate::stored::encode(kind, &json!({"metadata": {"name": name}}));
            let key = keys::object(kind, "", name).into();
            read_entry(
                &Entry {
                    key,
                    value,
                    revision: Revision(1),
                    created: Revision(1),
                },
                EventType::Added,
            )
            .unwrap()
        };
        cache.replace(cache.of(kind), vec![role("a"), role("b")], Revision(1));
        log.0.lock().clear();
        cache.replace(cache.of(kind), vec![role("b")], Revision(9));
        assert_eq!(
            *log.0.lock(),
            [("a".to_owned(), Fate::Removed), ("b".to_owned(), Fate::Written)]
        );
    }
}
