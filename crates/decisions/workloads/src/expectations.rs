//! Does the cache already show the pods this controller created and deleted?
//!
//! Deciding again from a cache that lags behind would create or delete too many pods.

use std::collections::{HashMap, HashSet};

use std::time::Duration;

use pointsman_model::Moment;

/// After this long an expectation was missed and the cache is believed again (upstream's 5 minutes).
const LIFETIME: Duration = Duration::from_secs(300);

/// Creations and deletions of each controller that the cache has still to show, by controller uid.
#[derive(Debug, Default)]
pub struct Expectations(HashMap<String, Expected>);

#[derive(Debug)]
struct Expected {
    created: HashSet<String>,
    deleted: HashSet<String>,
    since: Moment,
}

impl Expectations {
    /// The server answered a create with this pod uid.
    pub fn created(&mut self, controller: &str, pod_uid: &str, now: Moment) {
        self.entry(controller, now).created.insert(pod_uid.to_owned());
    }

    /// The server accepted a delete of this pod uid.
    pub fn deleted(&mut self, controller: &str, pod_uid: &str, now: Moment) {
        self.entry(controller, now).deleted.insert(pod_uid.to_owned());
    }

    /// Whether decisions can be made: everything expected is seen, or too long ago. `seen` tells of a
    /// pod uid whether the cache has it, and whether it is going away there.
    pub fn satisfied(&mut self, controller: &str, now: Moment, seen: impl Fn(&str) -> Seen) -> bool {
        let Some(expected) = self.0.get_mut(controller) else {
            return true;
        };
        expected.created.retain(|uid| seen(uid) == Seen::Absent);
        expected.deleted.retain(|uid| seen(uid) == Seen::Present);
        let done = expected.created.is_empty() && expected.deleted.is_empty();
        let expired = now.since(expected.since) > LIFETIME;
        if done || expired {
            self.0.remove(controller);
        }
        done || expired
    }

    /// A pod was seen to come or go, even if the cache does not have it any more.
    pub fn observed(&mut self, controller: &str, pod_uid: &str) {
        if let Some(expected) = self.0.get_mut(controller) {
            expected.created.remove(pod_uid);
        }
    }

    /// The controller is gone.
    pub fn forget(&mut self, controller: &str) {
        self.0.remove(controller);
    }

    fn entry(&mut self, controller: &str, now: Moment) -> &mut Expected {
        let expected = self.0.entry(controller.to_owned()).or_insert_with(|| Expected {
            created: HashSet::new(),
            deleted: HashSet::new(),
            since: now,
        });
        expected.since = now;
        expected
    }
}

/// How the cache shows a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Not at all.
    Absent,
    /// As a pod that is there to stay.
    Present,
    /// As a pod that is being deleted.
    Leaving,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creations_and_deletions_have_to_show_up() {
        let now = Moment::default();
        let mut expectations = Expectations::default();
        expectations.created("rs", "a", now);
        expectations.deleted("rs", "b", now);
        let cache = |a: Seen, b: Seen| move |uid: &str| if uid == "a" { a } else { b };
        assert!(!expectations.satisfied("rs", now, cache(Seen::Absent, Seen::Leaving)));
        assert!(
            !expectations.satisfied("rs", now, cache(Seen::Absent, Seen::Present)),
            "a is still missing"
        );
        assert!(
            expectations.satisfied("rs", now, cache(Seen::Present, Seen::Present)),
            "b left before, a came"
        );
        assert!(expectations.satisfied("other", now, cache(Seen::Absent, Seen::Present)));
    }

    #[test]
    fn an_expectation_that_is_never_met_expires() {
        let now = Moment::default();
        let mut expectations = Expectations::default();
        expectations.created("rs", "a", now);
        let later = now.after(Duration::from_secs(301));
        assert!(expectations.satisfied("rs", later, |_| Seen::Absent));
    }
}
