//! What was said about an object, and when last?

use jiff::Timestamp;
use serde::Deserialize;

use crate::read::nullable;

/// An event of the core group. Those of other writers may lack what ours always have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    #[serde(deserialize_with = "nullable")]
    pub involved_object: Involved,
    #[serde(deserialize_with = "nullable")]
    pub reason: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub message: Box<str>,
    /// Unset in events that are not counted.
    pub last_timestamp: Option<Timestamp>,
}

/// The object an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Involved {
    #[serde(deserialize_with = "nullable")]
    pub kind: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub name: Box<str>,
}
