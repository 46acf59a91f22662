//! What is a ConfigMap that carries settings?

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::metadata::{All, Metadata};
use crate::read::nullable;

/// A ConfigMap, with all of its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
}
