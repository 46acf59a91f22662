//! What do the lines of a watch and the pages of a list look like?

use crate::error::ApiError;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// One line of a watch. The object stays text until somebody knows what it is.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(borrow)]
    pub object: &'a RawValue,
}

/// What a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    /// Something newer than this program.
    #[serde(other)]
    Unknown,
}

/// The part of every object that a watcher itself needs.
#[derive(Deserialize)]
pub(super) struct Head<'a> {
    #[serde(borrow)]
    pub metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata<'a> {
    #[serde(borrow, default)]
    pub namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub resource_version: Cow<'a, str>,
    #[serde(borrow, default)]
    pub annotations: Annotations<'a>,
}

#[derive(Deserialize, Default)]
pub(super) struct Annotations<'a> {
    #[serde(borrow, default, rename = "k8s.io/initial-events-end")]
    pub initial_events_end: Option<Cow<'a, str>>,
}

impl<'a> Head<'a> {
    pub fn read(text: &'a str) -> Result<Self, ApiError> {
        serde_json::from_str(text).map_err(|error| ApiError::Unreadable(error.to_string()))
    }
}

/// One page of a list.
#[derive(Deserialize)]
pub(crate) struct Page {
    pub metadata: PageMetadata,
    #[serde(default, deserialize_with = "nullable")]
    pub items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageMetadata {
    pub resource_version: String,
    #[serde(default)]
    pub r#continue: String,
}

fn nullable<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Box<RawValue>>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
