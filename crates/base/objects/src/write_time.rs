//! When was this version of an object written, as far as its metadata say?

use pointsman_model::Moment;
use serde::{Deserialize, Deserializer};

use crate::read::{moment, nullable};

/// What metadata say about writes. Pointsman's API server stamps every write of a Service, its removal
/// included, with microseconds; kube-apiserver keeps whole seconds: of the creation, and of the last write
/// of each field manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WriteTimes {
    #[serde(deserialize_with = "nullable")]
    annotations: Stamp,
    #[serde(deserialize_with = "moment")]
    creation_timestamp: Option<Moment>,
    #[serde(deserialize_with = "newest")]
    managed_fields: Option<Moment>,
    #[serde(deserialize_with = "moment")]
    deletion_timestamp: Option<Moment>,
    #[serde(deserialize_with = "nullable")]
    finalizers: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Stamp {
    /// [`crate::names::CHANGE_TIME_ANNOTATION`]
    #[serde(rename = "pointsman.io/last-change-time", deserialize_with = "moment")]
    written: Option<Moment>,
}

impl WriteTimes {
    /// When this version was written.
    pub fn written(&self) -> Option<Moment> {
        self.stamp().or(self.newest_second())
    }

    /// When the object was removed, read from the last state that a watch shows. Only a stamp that is newer
    /// than the one of the version before is the removal's; that is for whoever knows that version to see.
    pub fn removed(&self) -> Option<Moment> {
        // Finalizers hold an object for longer than it says.
        let asked = self.deletion_timestamp.filter(|_| self.finalizers.is_empty());
        self.stamp().or(asked)
    }

    fn stamp(&self) -> Option<Moment> {
        believed(self.annotations.written, self.newest_second())
    }

    fn newest_second(&self) -> Option<Moment> {
        self.creation_timestamp.max(self.managed_fields)
    }
}

/// A stamp older than what the server says itself was copied from another cluster with the object.
pub(crate) fn believed(stamp: Option<Moment>, newest_second: Option<Moment>) -> Option<Moment> {
    stamp.filter(|at| newest_second.is_none_or(|second| *at >= second))
}

pub(crate) fn newest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Moment>, D::Error> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Manager {
        #[serde(deserialize_with = "moment")]
        time: Option<Moment>,
    }
    let managers: Vec<Manager> = nullable(deserializer)?;
    Ok(managers.into_iter().filter_map(|manager| manager.time).max())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn times(metadata: Value) -> WriteTimes {
        serde_json::from_value(metadata).unwrap()
    }

    fn at(text: &str) -> Option<Moment> {
        Moment::parse(text)
    }

    #[test]
    fn a_stamp_tells_to_the_microsecond() {
        let stamped = times(json!({
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { "pointsman.io/last-change-time": "2026-01-02T03:04:05.678901Z" },
        }));
        assert_eq!(stamped.written(), at("2026-01-02T03:04:05.678901Z"));
        assert_eq!(stamped.removed(), stamped.written());
    }

    #[test]
    fn without_one_the_newest_second_counts() {
        let managed = json!([{ "manager": "a", "time": "2026-01-02T00:00:00Z" }, { "manager": "b" },
            { "manager": "c", "time": "2026-01-03T00:00:00Z" }]);
        let upstream =
            times(json!({ "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": managed }));
        assert_eq!(upstream.written(), at("2026-01-03T00:00:00Z"));
        let fresh = times(json!({ "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": null }));
        assert_eq!(fresh.written(), at("2026-01-01T00:00:00Z"));
        assert_eq!(
            (times(json!({})).written(), times(json!({})).removed()),
            (None, None)
        );
    }

    #[test]
    fn a_stamp_that_came_with_the_object_from_elsewhere_does_not_count() {
        let copied = times(json!({
            "creationTimestamp": "2026-01-02T00:00:00Z",
            "annotations": { "pointsman.io/last-change-time": "2026-01-01T23:59:59.999999Z" },
        }));
        assert_eq!(copied.written(), at("2026-01-02T00:00:00Z"));
        assert_eq!(copied.removed(), None);
    }

    #[test]
    fn a_removal_happened_when_it_was_asked_for_unless_finalizers_held_it() {
        let asked = json!({ "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-05T00:00:00Z" });
        assert_eq!(times(asked.clone()).removed(), at("2026-01-05T00:00:00Z"));
        let mut held = asked;
        held["finalizers"] = json!(["service.kubernetes.io/load-balancer-cleanup"]);
        assert_eq!(times(held).removed(), None);
    }
}
