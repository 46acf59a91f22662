//! What do all objects have in common?

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use pointsman_model::{Labels, Moment, Revision, Text};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::job::TRACKING;
use crate::names;
use crate::read::{labels, moment, nullable};
use crate::write_time::believed;

/// The metadata of an object.
///
/// `K` says which annotations are kept: those that some role reads, unless the kind asks for [`All`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, bound = "K: Keep + Default")]
pub struct Metadata<K = Known> {
    pub namespace: Text,
    pub name: Text,
    /// An object recreated under the same name has another one.
    pub uid: Text,
    pub resource_version: Box<str>,
    /// Counts changes of the spec.
    #[serde(deserialize_with = "nullable")]
    pub generation: i64,
    #[serde(deserialize_with = "labels")]
    pub labels: Labels,
    pub annotations: Annotations<K>,
    #[serde(deserialize_with = "nullable")]
    pub owner_references: Box<[OwnerReference]>,
    /// Whether it stays until its Job has counted it. Of the finalizers no other is read, and pods are many.
    #[serde(rename = "finalizers", deserialize_with = "counted_by_job")]
    pub counted_by_job: bool,
    #[serde(rename = "creationTimestamp", deserialize_with = "moment")]
    pub created: Option<Moment>,
    /// Set once somebody asked for its end: when it has to be gone. A time that cannot be read counts
    /// as the epoch, since the object is going away all the same.
    #[serde(rename = "deletionTimestamp", deserialize_with = "deletion")]
    pub deletion: Option<Moment>,
    /// More than 68 years are 68 years.
    #[serde(deserialize_with = "seconds")]
    pub deletion_grace_period_seconds: Option<i32>,
}

impl<K> Metadata<K> {
    /// The resource version as a number; 0 when it is none.
    pub fn revision(&self) -> Revision {
        Revision::parse(&self.resource_version).unwrap_or_default()
    }

    pub fn is_terminating(&self) -> bool {
        self.deletion.is_some()
    }

    /// When deletion was asked for: the deletion timestamp less the grace period. Whole seconds.
    pub fn deletion_requested(&self) -> Option<Moment> {
        let grace = self.deletion_grace_period_seconds.unwrap_or(0).max(0);
        self.deletion.map(|at| at.minus_seconds(grace.into()))
    }

    /// The owner that controls the object; at most one does.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }

    /// The reference with which an object controls another.
    pub fn as_owner(&self, api_version: &str, kind: &str) -> OwnerReference {
        OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: true,
            block_owner_deletion: true,
        }
    }

    /// When Pointsman's API server wrote this version, if it stamps the kind ([`crate::WriteTimes`]).
    pub fn stamped(&self) -> Option<Moment> {
        believed(self.annotated_moment(names::CHANGE_TIME_ANNOTATION), self.created)
    }

    /// A time in an annotation.
    pub fn annotated_moment(&self, name: &str) -> Option<Moment> {
        Moment::parse(self.annotations.get(name)?)
    }
}

/// One owner of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub api_version: Text,
    pub kind: Text,
    pub name: Text,
    pub uid: Text,
    /// Whether this owner controls the object.
    #[serde(deserialize_with = "nullable")]
    pub controller: bool,
    /// Whether the owner's foreground deletion waits for the object.
    #[serde(deserialize_with = "nullable")]
    pub block_owner_deletion: bool,
}

/// Annotations of which only some are kept: other people's can be as large as the rest of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations<K = Known> {
    pairs: Labels,
    keep: PhantomData<K>,
}

/// Which annotations are kept.
pub trait Keep {
    fn keeps(name: &str) -> bool;
}

/// Those that some role reads, and all of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known;

/// All of them: workloads copy theirs, and ConfigMaps that carry settings are few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct All;

impl Keep for Known {
    fn keeps(name: &str) -> bool {
        const READ: [&str; 4] = [
            names::TRIGGER_TIME_ANNOTATION,
            names::TOPOLOGY_HINTS_ANNOTATION,
            names::TOPOLOGY_MODE_ANNOTATION,
            names::DELETION_COST_ANNOTATION,
        ];
        name.starts_with("pointsman.io/") || READ.contains(&name)
    }
}

impl Keep for All {
    fn keeps(_: &str) -> bool {
        true
    }
}

impl<K> Annotations<K> {
    pub fn new(pairs: Labels) -> Self {
        Self {
            pairs,
            keep: PhantomData,
        }
    }
}

impl<K> Deref for Annotations<K> {
    type Target = Labels;

    fn deref(&self) -> &Labels {
        &self.pairs
    }
}

impl<'de, K: Keep> Deserialize<'de> for Annotations<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(Labels::new(filtered(deserializer, K::keeps)?)))
    }
}

/// Reads a map but for the entries that nobody asks for, which are not even allocated.
pub(crate) fn filtered<'de, D: Deserializer<'de>>(
    deserializer: D,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Entries<F>(F);

    #[derive(Deserialize)]
    struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

    impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Entries<F> {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of texts")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<M: MapAccess<'de>>(self, mut entries: M) -> Result<Self::Value, M::Error> {
            let mut kept = BTreeMap::new();
            while let Some(Key(key)) = entries.next_key()? {
                if (self.0)(&key) {
                    let value: Option<String> = entries.next_value()?;
                    kept.insert(key.into_owned(), value.unwrap_or_default());
                } else {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
            Ok(kept)
        }
    }

    deserializer.deserialize_any(Entries(wanted))
}

fn counted_by_job<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let finalizers: Vec<Cow<'de, str>> = nullable(deserializer)?;
    Ok(finalizers.iter().any(|finalizer| finalizer == TRACKING))
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i32>, D::Error> {
    let seconds: Option<i64> = Option::deserialize(deserializer)?;
    Ok(seconds.map(|seconds| seconds.clamp(i32::MIN.into(), i32::MAX.into()) as i32))
}

fn deletion<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Moment>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.map(|text| Moment::parse(&text).unwrap_or_default()))
}
