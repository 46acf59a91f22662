//! Does the cache of slices already show our own last writes?
//!
//! Planning from a cache that lags behind would repeat writes or undo them. The server's answer to
//! each write tells the generation that the cache must have reached.

use std::collections::HashMap;

use crate::service::ServiceKey;
use pointsman_model::Text;
use pointsman_objects::EndpointSlice;

/// What the cache has to show for one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Generation(i64),
    Deleted,
}

/// The slices written by this process, by Service.
#[derive(Debug, Default)]
pub struct SliceTracker(HashMap<ServiceKey, Slices>);

/// In order of uid: most Services have one, and of no other is there a table.
type Slices = Vec<(Text, Expected)>;

impl SliceTracker {
    /// The server answered a create or an update.
    pub fn written(&mut self, key: &ServiceKey, uid: &Text, generation: i64) {
        self.expect(key, uid, Expected::Generation(generation));
    }

    /// The server accepted a delete.
    pub fn deleted(&mut self, key: &ServiceKey, uid: &Text) {
        self.expect(key, uid, Expected::Deleted);
    }

    fn expect(&mut self, key: &ServiceKey, uid: &Text, expected: Expected) {
        let slices = self.0.entry(key.clone()).or_default();
        match place(slices, uid) {
            Ok(at) => slices[at].1 = expected,
            Err(at) => {
                slices.reserve_exact(1);
                slices.insert(at, (uid.clone(), expected));
            }
        }
    }

    /// Whether a slice version that showed up in the cache is somebody else's work.
    pub fn is_foreign(&self, key: &ServiceKey, uid: &Text, generation: i64) -> bool {
        match self.0.get(key).and_then(|slices| find(slices, uid)) {
            None => true,
            Some(Expected::Generation(known)) => generation > known,
            Some(Expected::Deleted) => false,
        }
    }

    /// Whether the cached slices of a Service lack one of our writes. Slices that are being deleted
    /// belong in the list: a finalizer may hold them for long.
    pub fn is_stale<'a>(
        &self,
        key: &ServiceKey,
        cached: impl IntoIterator<Item = &'a EndpointSlice>,
    ) -> bool {
        let Some(expected) = self.0.get(key) else {
            return false;
        };
        let mut seen = 0;
        for slice in cached {
            match find(expected, &slice.metadata.uid) {
                Some(Expected::Generation(generation)) if slice.metadata.generation < generation => {
                    return true;
                }
                Some(Expected::Generation(_)) => seen += 1,
                Some(Expected::Deleted) if !slice.metadata.is_terminating() => return true,
                Some(Expected::Deleted) | None => {}
            }
        }
        seen < expected
            .iter()
            .filter(|(_, expected)| *expected != Expected::Deleted)
            .count()
    }

    /// A slice left the cache. True when it was not us who deleted it.
    pub fn gone(&mut self, key: &ServiceKey, uid: &Text) -> bool {
        let Some(slices) = self.0.get_mut(key) else {
            return true;
        };
        let removed = place(slices, uid).ok().map(|at| slices.remove(at).1);
        if slices.is_empty() {
            self.0.remove(key);
        }
        removed != Some(Expected::Deleted)
    }

    /// The Service is gone.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.0.remove(key);
    }
}

fn place(slices: &Slices, uid: &Text) -> Result<usize, usize> {
    slices.binary_search_by(|(known, _)| known.cmp(uid))
}

fn find(slices: &Slices, uid: &Text) -> Option<Expected> {
    place(slices, uid).ok().map(|at| slices[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_model::Moment;

    fn slice(uid: &str, generation: i64) -> EndpointSlice {
        let mut slice = EndpointSlice::default();
        (slice.metadata.uid, slice.metadata.generation) = (uid.into(), generation);
        slice
    }

    fn tracker() -> (SliceTracker, ServiceKey) {
        let key = ServiceKey::new("ns", "svc");
        let mut tracker = SliceTracker::default();
        tracker.written(&key, &"a".into(), 12);
        (tracker, key)
    }

    #[test]
    fn case_12_a_cache_behind_our_write_is_stale() {
        let (tracker, key) = tracker();
        for (generation, stale) in [(10, true), (12, false), (13, false)] {
            assert_eq!(
                tracker.is_stale(&key, [&slice("a", generation)]),
                stale,
                "{generation}"
            );
        }
        assert!(tracker.is_stale(&key, []), "a slice we wrote has to show up");
        assert!(!tracker.is_stale(&ServiceKey::new("ns", "other"), [&slice("a", 1)]));
    }

    #[test]
    fn case_52_only_the_same_slice_of_the_same_service_is_known() {
        let (mut tracker, key) = tracker();
        assert!(!tracker.is_foreign(&key, &"a".into(), 12));
        assert!(tracker.is_foreign(&key, &"a".into(), 13));
        assert!(tracker.is_foreign(&key, &"b".into(), 1));
        assert!(tracker.is_foreign(&ServiceKey::new("other", "svc"), &"a".into(), 12));
        tracker.deleted(&key, &"b".into());
        assert!(!tracker.gone(&key, &"b".into()), "we deleted that one");
        assert!(tracker.gone(&key, &"a".into()), "somebody else deleted this one");
        assert!(!tracker.is_stale(&key, []));
    }

    #[test]
    fn a_deleted_slice_held_by_a_finalizer_is_not_stale() {
        let (mut tracker, key) = tracker();
        let mut held = slice("a", 12);
        held.metadata.deletion = Some(Moment::from_seconds(1));
        assert!(!tracker.is_stale(&key, [&held]));
        tracker.deleted(&key, &"a".into());
        assert!(!tracker.is_stale(&key, [&held]));
        assert!(tracker.is_stale(&key, [&slice("a", 12)]));
    }
}
