//! What are the objects of one kind now, and what changed since revision R?
//!
//! Readers take the newest state; watchers are cursors over a bounded log of changes. A watcher holds
//! nothing but the revision it has seen, so a slow one costs no memory: when the log no longer reaches
//! back to it, it is told so.

use super::object::Object;
use crate::cache::Fate;
use crate::stored::EventType;
use parking_lot::RwLock;
use pointsman_rules::Kind;
use pointsman_store::Revision;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// One change of one object.
#[derive(Debug)]
pub struct Change {
    /// The version that the change made; for a removal the last state, with the removal's revision.
    pub object: Arc<Object>,
    /// The version before, if there was one.
    pub previous: Option<Arc<Object>>,
    /// Whether the object is gone.
    pub deleted: bool,
    at: Instant,
}

impl Change {
    /// The event for a watcher without selectors.
    pub fn event(&self) -> EventType {
        match (self.deleted, &self.previous) {
            (true, _) => EventType::Deleted,
            (false, None) => EventType::Added,
            (false, Some(_)) => EventType::Modified,
        }
    }
}

/// How much of the past a collection keeps.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Changes younger than this are kept while there is room.
    pub age: Duration,
    /// At most so many changes.
    pub changes: usize,
    /// At most so many bytes of objects that only the log holds.
    pub bytes: usize,
}

impl Default for Window {
    /// Upstream keeps at least 75 seconds and up to 100,000 changes of each kind.
    fn default() -> Self {
        Self {
            age: Duration::from_secs(300),
            changes: 100_000,
            bytes: 32 << 20,
        }
    }
}

/// The log does not reach back to the revision that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooOld {
    /// The oldest revision from which changes are known.
    pub oldest: Revision,
}

/// Objects of one kind, and their recent changes.
#[derive(Debug)]
pub struct Collection {
    /// The kind of its objects.
    pub kind: &'static Kind,
    window: Window,
    state: RwLock<State>,
    changed: watch::Sender<Revision>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Arc<str>, Arc<Object>>,
    log: VecDeque<Arc<Change>>,
    /// Changes after this revision are all in the log.
    complete_from: Revision,
    /// Size of the versions that only the log keeps alive.
    superseded_bytes: usize,
    object_bytes: usize,
    /// The revision of the last change.
    last: Revision,
    /// How often everything was replaced.
    generation: u64,
}

/// The objects of a collection at one revision.
#[derive(Debug)]
pub struct Snapshot {
    /// Objects in key order.
    pub objects: Vec<Arc<Object>>,
    /// The state is exactly that of this revision.
    pub revision: Revision,
}

impl Collection {
    /// An empty collection.
    pub fn new(kind: &'static Kind, window: Window) -> Self {
        Self {
            kind,
            window,
            state: RwLock::default(),
            changed: watch::Sender::new(Revision(0)),
        }
    }

    /// Changes when everything was replaced: whoever watched before has to start over.
    pub fn generation(&self) -> u64 {
        self.state.read().generation
    }

    /// Replaces everything with the state at `revision`; the log starts empty there.
    pub fn reset(&self, objects: Vec<Arc<Object>>, revision: Revision) {
        let mut state = self.state.write();
        *state = State {
            complete_from: revision,
            last: revision,
            generation: state.generation + 1,
            ..State::default()
        };
        state.object_bytes = objects.iter().map(|object| object.size()).sum();
        state.objects = objects
            .into_iter()
            .map(|object| (object.key.clone(), object))
            .collect();
        drop(state);
        self.changed.send_replace(revision);
    }

    /// Applies changes of one or more whole revisions, in order. `previous` is filled in from the
    /// present state.
    pub fn apply(&self, changes: Vec<(Arc<Object>, Fate)>, now: Instant) {
        let Some(last) = changes.last().map(|(object, _)| object.revision) else {
            return;
        };
        let mut state = self.state.write();
        for (object, fate) in changes {
            let deleted = fate == Fate::Removed;
            let previous = if deleted {
                state.objects.remove(&object.key)
            } else {
                state.object_bytes += object.size();
                state.objects.insert(object.key.clone(), object.clone())
            };
            let superseded = previous.as_ref().map_or(0, |previous| previous.size());
            state.object_bytes -= superseded;
            state.superseded_bytes += superseded + if deleted { object.size() } else { 0 };
            state.log.push_back(Arc::new(Change {
                object,
                previous,
                deleted,
                at: now,
            }));
        }
        state.last = last;
        state.trim(&self.window, now);
        drop(state);
        self.changed.send_replace(last);
    }

    /// The object with this local key.
    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.state.read().objects.get(key).cloned()
    }

    /// The objects of one namespace or (empty) of all, starting after `after`.
    ///
    /// `applied` must have been read from the cache before: all changes up to it are here, and changes
    /// are applied in order, so the state is that of the later one of `applied` and the last change.
    pub fn list(&self, namespace: &str, after: Option<&str>, applied: Revision) -> Snapshot {
        let (prefix, start) = span(namespace, after);
        let state = self.state.read();
        let range = state
            .objects
            .range::<str, _>((start.as_ref().map(String::as_str), Bound::Unbounded));
        let objects = range
            .take_while(|(key, _)| key.starts_with(&prefix))
            .map(|(_, object)| object.clone());
        Snapshot {
            objects: objects.collect(),
            revision: applied.max(state.last),
        }
    }

    /// The objects as they were at an earlier revision, by undoing the changes since. `None` if the log
    /// does not reach back so far, or if `at` is later than `applied`.
    pub fn list_at(
        &self,
        namespace: &str,
        after: Option<&str>,
        at: Revision,
        applied: Revision,
    ) -> Option<Snapshot> {
        let state = self.state.read();
        if at < state.complete_from || at > applied.max(state.last) {
            return None;
        }
        let newer = state.log.partition_point(|change| change.object.revision <= at);
        let mut then: BTreeMap<&str, Option<&Arc<Object>>> = BTreeMap::new();
        for change in state.log.range(newer..) {
            then.entry(&change.object.key).or_insert(change.previous.as_ref());
        }
        let (prefix, start) = span(namespace, after);
        let bounds = (start.as_ref().map(String::as_str), Bound::Unbounded);
        let unchanged = state
            .objects
            .range::<str, _>(bounds)
            .take_while(|(key, _)| key.starts_with(&prefix))
            .filter(|(key, _)| then.is_empty() || !then.contains_key(&***key))
            .map(|(_, object)| object);
        let changed = then
            .range::<str, _>(bounds)
            .take_while(|(key, _)| key.starts_with(&prefix))
            .filter_map(|(_, object)| *object);
        let mut objects: Vec<Arc<Object>> = unchanged.chain(changed).cloned().collect();
        if !then.is_empty() {
            objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        }
        Some(Snapshot {
            objects,
            revision: at,
        })
    }

    /// How many objects there are.
    pub fn count(&self) -> usize {
        self.state.read().objects.len()
    }

    /// The sum of the encoded objects' sizes.
    pub fn object_bytes(&self) -> usize {
        self.state.read().object_bytes
    }

    /// Changes after `revision`, at most about `limit` of them but never a part of one revision.
    pub fn changes_after(&self, revision: Revision, limit: usize) -> Result<Vec<Arc<Change>>, TooOld> {
        let state = self.state.read();
        if revision < state.complete_from {
            return Err(TooOld {
                oldest: state.complete_from,
            });
        }
        let start = state
            .log
            .partition_point(|change| change.object.revision <= revision);
        let mut changes: Vec<Arc<Change>> = Vec::new();
        for change in state.log.range(start..) {
            let full = changes.len() >= limit;
            if full
                && changes
                    .last()
                    .is_some_and(|last| last.object.revision != change.object.revision)
            {
                break;
            }
            changes.push(change.clone());
        }
        Ok(changes)
    }

    /// Wakes whenever a change was applied.
    pub fn subscribe(&self) -> watch::Receiver<Revision> {
        self.changed.subscribe()
    }
}

/// What all keys of a namespace start with, and where those after `after` begin.
fn span(namespace: &str, after: Option<&str>) -> (String, Bound<String>) {
    let prefix = if namespace.is_empty() {
        String::new()
    } else {
        format!("{namespace}/")
    };
    let start = match after {
        Some(after) if after >= prefix.as_str() => Bound::Excluded(after.to_owned()),
        _ => Bound::Included(prefix.clone()),
    };
    (prefix, start)
}

impl State {
    fn trim(&mut self, window: &Window, now: Instant) {
        while let Some(oldest) = self.log.front() {
            let fits = self.log.len() <= window.changes
                && self.superseded_bytes <= window.bytes
                && now.duration_since(oldest.at) <= window.age;
            if fits {
                break;
            }
            // All changes of a revision go together, so that `complete_from` stays exact.
            self.complete_from = oldest.object.revision;
            while self
                .log
                .front()
                .is_some_and(|change| change.object.revision == self.complete_from)
            {
                let gone = self.log.pop_front().expect("looked at above");
                let superseded = gone.previous.as_ref().map_or(0, |previous| previous.size());
                self.superseded_bytes -= superseded + if gone.deleted { gone.object.size() } else { 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Fate::{Removed, Written};
    use crate::stored;
    use serde_json::json;

    fn pod(name: &str, revision: u64) -> Arc<Object> {
        let kind = &pointsman_rules::kinds::POD;
        let stored = stored::encode(kind, &json!({"metadata": {"name": name, "namespace": "a"}}));
        let key: Arc<str> = format!("a/{name}").into();
        Arc::new(Object::from_stored(kind, key, &stored, Revision(revision), EventType::Added).unwrap())
    }

    fn pods(window: Window) -> Collection {
        Collection::new(&pointsman_rules::kinds::POD, window)
    }

    #[test]
    fn changes_after_a_revision_come_in_order_and_whole_revisions_stay_together() {
        let collection = pods(Window::default());
        let now = Instant::now();
        collection.apply(vec![(pod("x", 1), Written)], now);
        collection.apply(vec![(pod("y", 2), Written), (pod("z", 2), Written)], now);
        collection.apply(vec![(pod("x", 3), Removed)], now);
        let seen = |from, limit| -> Vec<(String, u64, EventType)> {
            let changes = collection.changes_after(Revision(from), limit).unwrap();
            changes
                .iter()
                .map(|c| (c.object.name().to_owned(), c.object.revision.0, c.event()))
                .collect()
        };
        assert_eq!(
            seen(1, 1),
            [
                ("y".into(), 2, EventType::Added),
                ("z".into(), 2, EventType::Added)
            ]
        );
        assert_eq!(seen(2, 9), [("x".into(), 3, EventType::Deleted)]);
        let list = |namespace, after| collection.list(namespace, after, Revision(1));
        assert_eq!(list("a", None).objects.len(), 2);
        assert_eq!(list("a", Some("a/y")).objects.len(), 1);
        assert_eq!(list("b", None).objects.len(), 0);
        assert_eq!(list("b", None).revision, Revision(3));
    }

    #[test]
    fn an_earlier_state_is_the_present_one_with_later_changes_undone() {
        let collection = pods(Window {
            changes: 4,
            ..Window::default()
        });
        let now = Instant::now();
        for (name, revision, fate) in [
            ("x", 1, Written),
            ("y", 2, Written),
            ("y", 3, Written),
            ("x", 4, Removed),
            ("w", 5, Written),
        ] {
            collection.apply(vec![(pod(name, revision), fate)], now);
        }
        let at = |revision, after| -> Option<Vec<(String, u64)>> {
            let snapshot = collection.list_at("a", after, Revision(revision), Revision(5))?;
            assert_eq!(snapshot.revision, Revision(revision));
            let objects = snapshot.objects.iter();
            Some(objects.map(|o| (o.name().to_owned(), o.revision.0)).collect())
        };
        let named = |name: &str, revision| (name.to_owned(), revision);
        assert_eq!(at(5, None).unwrap(), [named("w", 5), named("y", 3)]);
        assert_eq!(at(3, None).unwrap(), [named("x", 1), named("y", 3)]);
        assert_eq!(at(2, None).unwrap(), [named("x", 1), named("y", 2)]);
        assert_eq!(at(2, Some("a/x")).unwrap(), [named("y", 2)]);
        assert_eq!(at(0, None), None, "the log forgot the first change");
        assert_eq!(at(6, None), None, "nobody knows yet");
    }

    #[test]
    fn a_cursor_older_than_the_log_is_told_so() {
        let collection = pods(Window {
            changes: 2,
            ..Window::default()
        });
        let now = Instant::now();
        for revision in 1..=5 {
            collection.apply(vec![(pod("x", revision), Written)], now);
        }
        assert_eq!(
            collection.changes_after(Revision(2), 9).unwrap_err(),
            TooOld { oldest: Revision(3) }
        );
        assert_eq!(collection.changes_after(Revision(3), 9).unwrap().len(), 2);
        assert_eq!(collection.object_bytes(), pod("x", 5).size());
    }
}
