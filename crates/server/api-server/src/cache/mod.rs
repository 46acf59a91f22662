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
use crate::write::stamp::{self, Removals};
use bytes::Bytes;
use collection::{Collection, Window};
use object::Object;
use parking_lot::RwLock;
use pointsman_rules::value::str_at;
use pointsman_rules::{Kind, custom, kinds};
use pointsman_store::{Batch, Entry, Event, Page, Range, Revision, Store, StoreError};
use serde_json::Value;
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
    /// Those of custom resources, by index. They stay once they are made, and are emptied when their kind goes; their
    /// number is limited, as that of their rows is.
    custom: RwLock<BTreeMap<usize, &'static Collection>>,
    window: Window,
    claims: RwLock<BTreeMap<Arc<str>, Bytes>>,
    applied: watch::Sender<Applied>,
    observers: Vec<Arc<dyn Observer>>,
}

/// How far the cache is.
#[derive(Clone, Copy, Debug, Default)]
struct Applied {
    revision: Revision,
    /// Whether the store is followed. When the watch is lost, nobody knows whether the store that comes back is the
    /// one that went: an etcd may have been restored from a snapshot meanwhile.
    following: bool,
}

/// From where the store is followed.
struct Place {
    revision: Revision,
    /// The last write that was seen and is in force, to tell whether the store still has the same history.
    last: Option<Entry>,
}

impl Place {
    fn advance(&mut self, batch: &Batch) {
        self.revision = batch.complete_to;
        for event in &batch.events {
            match event {
                Event::Put { entry, .. } => self.last = Some(entry.clone()),
                Event::Delete { key, .. } => drop(self.last.take_if(|last| last.key == *key)),
            }
        }
    }
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
        let applied = watch::Sender::default();
        Self {
            collections,
            custom: RwLock::default(),
            window,
            claims: RwLock::default(),
            applied,
            observers,
        }
    }

    /// The objects that `kind` shows.
    pub fn of(&self, kind: &'static Kind) -> &Collection {
        let index = kind.stored().index();
        match self.collections.get(index) {
            Some(built_in) => built_in,
            None => self.of_custom(kind.stored(), index),
        }
    }

    fn of_custom(&self, kind: &'static Kind, index: usize) -> &'static Collection {
        let known = self.custom.read().get(&index).copied();
        known.unwrap_or_else(|| {
            let mut custom = self.custom.write();
            *custom.entry(index).or_insert_with(|| {
                let empty = Collection::new(kind, self.window);
                empty.reset(Vec::new(), self.applied());
                Box::leak(Box::new(empty))
            })
        })
    }

    /// Puts a definition of custom resources into force before anybody reads that it is there; returns the kind under
    /// which its objects are stored.
    fn define(&self, definition: &Object, fate: Fate) -> Option<&'static Kind> {
        let outcome = match fate {
            Fate::Written => custom::define(&definition.value()),
            Fate::Removed => Ok(custom::remove(&definition.value()).inspect(|kind| {
                // What is left in the store is shown again when the kind comes back, and to nobody until then.
                let now = definition.revision.max(self.applied());
                self.of(kind).reset(Vec::new(), now);
            })),
        };
        outcome.unwrap_or_else(|error| {
            tracing::error!(
                definition = definition.name(),
                error,
                "custom resources cannot be served"
            );
            None
        })
    }

    /// The objects of custom kinds that come, come back or are shown in another way in a batch, by the revision of
    /// the definition that says so. What was written before a kind came is in no event.
    async fn shown_anew(
        &self,
        store: &dyn Store,
        batch: &Batch,
    ) -> Result<BTreeMap<Revision, Vec<Entry>>, StoreError> {
        let definitions = keys::collection(&kinds::CUSTOM_RESOURCE_DEFINITION);
        let mut found = BTreeMap::new();
        let mut names = HashSet::new();
        for event in &batch.events {
            let Event::Put { entry, .. } = event else { continue };
            let Some(name) = entry.key.strip_prefix(&definitions) else {
                continue;
            };
            let definition: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
            // A later state is compared with the one before, which is not in force yet.
            if !names.contains(name) && !custom::shows_anew(&definition) {
                continue;
            }
            names.insert(name);
            let text = |path| str_at(&definition, path);
            let range = Range {
                prefix: keys::of_group(text(&["spec", "group"]), text(&["spec", "names", "plural"])),
                after: None,
                limit: 0,
                at: Some(entry.revision),
            };
            found.insert(entry.revision, store.range(range).await?.entries);
        }
        Ok(found)
    }

    /// Collections that own their objects (views left out).
    pub fn stored(&self) -> impl Iterator<Item = &Collection> {
        let custom: Vec<&'static Collection> = self.custom.read().values().copied().collect();
        self.collections
            .iter()
            .chain(custom)
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
        self.applied.borrow().revision
    }

    /// Whether what is here is known to be what the store holds, save for what is on its way.
    pub fn is_following(&self) -> bool {
        self.applied.borrow().following
    }

    /// Whether `revision` of the store can be read here.
    pub fn has(&self, revision: Revision) -> bool {
        let applied = *self.applied.borrow();
        applied.following && applied.revision >= revision
    }

    /// Waits until `revision` of the store can be read here.
    pub async fn wait_for(&self, revision: Revision) {
        let mut applied = self.applied.subscribe();
        // The sender lives as long as `self`.
        let _ = applied
            .wait_for(|applied| applied.following && applied.revision >= revision)
            .await;
    }

    /// Reads the whole store, starting a little in the past so that recent changes are known too.
    /// Returns the place from which to follow it.
    async fn load(&self, store: &dyn Store) -> Result<Place, StoreError> {
        let newest = store.revision().await?;
        let start = Revision(newest.0.saturating_sub(REPLAYED_REVISIONS));
        match self.read_all(store, start).await {
            Err(StoreError::Compacted { oldest, .. }) => self.read_all(store, oldest.min(newest)).await,
            other => other,
        }
    }

    async fn read_all(&self, store: &dyn Store, at: Revision) -> Result<Place, StoreError> {
        let mut last: Option<Entry> = None;
        let mut objects: HashMap<usize, Vec<Arc<Object>>> = HashMap::new();
        let mut claims = BTreeMap::new();
        self.load_definitions(store, at).await?;
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
                if last.as_ref().is_none_or(|last| entry.revision > last.revision) {
                    last = Some(entry.clone());
                }
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
        for collection in self.stored() {
            self.replace(
                collection,
                objects.remove(&collection.kind.index()).unwrap_or_default(),
                at,
            );
        }
        *self.claims.write() = claims;
        self.applied.send_replace(Applied {
            revision: at,
            following: true,
        });
        Ok(Place { revision: at, last })
    }

    /// Puts definitions of custom resources into force: objects come before them in the order of keys.
    async fn load_definitions(&self, store: &dyn Store, at: Revision) -> Result<(), StoreError> {
        let range = Range {
            prefix: keys::collection(&kinds::CUSTOM_RESOURCE_DEFINITION),
            after: None,
            limit: 0,
            at: Some(at),
        };
        for entry in store.range(range).await?.entries {
            if let Some(definition) = read_entry(&entry, EventType::Added) {
                self.define(&definition, Fate::Written);
                let kind = &definition.value()["spec"];
                let group = kind["group"].as_str().unwrap_or_default();
                let plural = kind["names"]["plural"].as_str().unwrap_or_default();
                if let Some(kind) = Kind::by_store_key(group, plural) {
                    self.of(kind);
                }
            }
        }
        Ok(())
    }

    /// Puts a whole new state into a collection; observers see what vanished meanwhile, too.
    fn replace(&self, collection: &Collection, objects: Vec<Arc<Object>>, at: Revision) {
        let present: HashSet<&str> = objects.iter().map(|object| &*object.key).collect();
        let before = collection.list("", None, Revision(0)).objects;
        let gone = before.iter().filter(|object| !present.contains(&*object.key));
        if collection.kind == &kinds::CUSTOM_RESOURCE_DEFINITION {
            gone.clone()
                .for_each(|object| _ = self.define(object, Fate::Removed));
        }
        for observer in &self.observers {
            gone.clone()
                .for_each(|object| observer.observe(object, Fate::Removed));
            objects
                .iter()
                .for_each(|object| observer.observe(object, Fate::Written));
        }
        collection.reset(objects, at);
    }

    /// Fills the cache and returns what keeps it up, until the store has ended.
    pub async fn start<S: AsRef<dyn Store>>(
        self: &Arc<Self>,
        store: S,
    ) -> Result<impl Future<Output = StoreError> + use<S>, StoreError> {
        let place = self.load(store.as_ref()).await?;
        let cache = Arc::clone(self);
        Ok(async move { cache.follow(store.as_ref(), place).await })
    }

    async fn follow(&self, store: &dyn Store, mut place: Place) -> StoreError {
        loop {
            let error = self.follow_once(store, &mut place).await;
            self.applied.send_modify(|applied| applied.following = false);
            match error {
                StoreError::Ended(_) => return error,
                // What happened in between is no longer known, or never happened: watchers start over.
                StoreError::Compacted { .. } | StoreError::Future { .. } => {
                    tracing::warn!(%error, revision = place.revision.0, "reading the store anew");
                    match self.load(store).await {
                        Ok(at) => place = at,
                        Err(error) => tracing::error!(%error, "cannot read the store"),
                    }
                }
                error => {
                    tracing::warn!(%error, revision = place.revision.0, "lost the watch on the store, resuming")
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Follows the store until the watch ends.
    async fn follow_once(&self, store: &dyn Store, place: &mut Place) -> StoreError {
        let opened = async {
            let watch = store.watch(keys::ROOT.into(), place.revision).await?;
            check_history(store, place).await?;
            Ok(watch)
        };
        let mut watch = match opened.await {
            Ok(watch) => watch,
            Err(error) => return error,
        };
        self.applied.send_modify(|applied| applied.following = true);
        loop {
            match watch.next().await {
                Ok(batch) => {
                    let shown_anew = match self.shown_anew(store, &batch).await {
                        Ok(objects) => objects,
                        Err(error) => return error,
                    };
                    place.advance(&batch);
                    self.apply(batch, shown_anew);
                }
                Err(error) => return error,
            }
        }
    }

    fn apply(&self, batch: Batch, mut shown_anew: BTreeMap<Revision, Vec<Entry>>) {
        let now = Instant::now();
        let mut changes = BTreeMap::<usize, (_, Vec<_>)>::new();
        let removals = stamp::removals(&batch.events);
        for event in batch.events {
            let Some((object, fate)) = self.read_event(event, &removals) else {
                continue;
            };
            for observer in &self.observers {
                observer.observe(&object, fate);
            }
            if object.kind == &kinds::CUSTOM_RESOURCE_DEFINITION
                && let Some(kind) = self.define(&object, fate)
                && let Some(entries) = shown_anew.remove(&object.revision)
            {
                let objects = entries
                    .iter()
                    .filter_map(|entry| read_entry(entry, EventType::Added));
                self.replace(self.of(kind), objects.collect(), object.revision);
                changes.remove(&kind.index());
            }
            changes
                .entry(object.kind.index())
                .or_insert_with(|| (object.kind, Vec::new()))
                .1
                .push((object, fate));
        }
        for (kind, changes) in changes.into_values() {
            self.of(kind).apply(changes, now);
        }
        self.applied.send_if_modified(|applied| {
            let moved = batch.complete_to > applied.revision;
            applied.revision = batch.complete_to.max(applied.revision);
            moved
        });
    }

    fn read_event(&self, event: Event, removals: &Removals) -> Option<(Arc<Object>, Fate)> {
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
                let (kind, _) = keys::parse(&key)?;
                let entry = Entry {
                    value: stamp::last_state(kind, previous, removals.get(&revision)),
                    key,
                    revision,
                    created: revision,
                };
                Some((read_entry(&entry, EventType::Deleted)?, Fate::Removed))
            }
        }
    }
}

/// Says whether the store's history is still the one that led to a place. A store that was restored from a backup has
/// another one, and revisions alone do not tell once they have caught up.
async fn check_history(store: &dyn Store, place: &Place) -> Result<(), StoreError> {
    let Some(last) = &place.last else { return Ok(()) };
    let range = Range {
        prefix: last.key.to_string(),
        after: None,
        limit: 1,
        at: Some(place.revision),
    };
    let then = store.range(range).await?;
    if then.entries.first() == Some(last) {
        return Ok(());
    }
    Err(StoreError::Future {
        asked: place.revision,
        newest: last.revision,
    })
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

    async fn commit(store: &dyn Store, op: pointsman_store::Op) -> Revision {
        let transaction = pointsman_store::Transaction {
            expect: Vec::new(),
            ops: vec![op],
        };
        match store.commit(transaction).await {
            Ok(pointsman_store::Outcome::Committed(revision)) => revision,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_store_is_followed_when_the_last_write_that_was_seen_is_compacted() {
        use pointsman_store::Op;
        use pointsman_store::embedded::{EmbeddedStore, Options};
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir.path(), Options::default()).unwrap());
        let key = |name: &str| -> Arc<str> { format!("{}{name}", keys::ROOT).into() };
        for name in ["a", "b"] {
            commit(&*store, Op::Put(key(name), Bytes::new())).await;
        }
        let newest = commit(&*store, Op::Delete(key("b"))).await;
        store.compact(newest).await.unwrap();
        let cache = Arc::new(Cache::new(Window::default(), Vec::new()));
        let following = cache.start(store.clone()).await.unwrap();
        let following = tokio::spawn(following);
        let later = commit(&*store, Op::Put(key("c"), Bytes::new())).await;
        let seen = tokio::time::timeout(Duration::from_secs(20), cache.wait_for(later)).await;
        assert!(seen.is_ok(), "the write is seen");
        following.abort();
    }
}
