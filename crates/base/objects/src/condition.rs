//! What is a condition of an object?

use pointsman_model::Moment;
use serde::{Deserialize, Deserializer};

use crate::read::moment;

/// Whether a condition holds. Anything but `True` and `False` is `Unknown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionStatus {
    True,
    False,
    #[default]
    Unknown,
}

impl ConditionStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl<'de> Deserialize<'de> for ConditionStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Option::<String>::deserialize(deserializer)?.as_deref() {
            Some("True") => Self::True,
            Some("False") => Self::False,
            _ => Self::Unknown,
        })
    }
}

/// A condition whose type its place says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub status: ConditionStatus,
    /// When the status last changed, in whole seconds.
    pub changed: Option<Moment>,
}

/// A condition as it is written in a list.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawCondition {
    pub r#type: Option<String>,
    pub status: ConditionStatus,
    #[serde(rename = "lastTransitionTime", deserialize_with = "moment")]
    pub changed: Option<Moment>,
    pub reason: Option<String>,
    pub last_heartbeat_time: Option<String>,
}

impl RawCondition {
    /// The first condition of a type.
    pub fn find(conditions: &[Self], kind: &str) -> Option<Condition> {
        let found = conditions
            .iter()
            .find(|condition| condition.r#type.as_deref() == Some(kind))?;
        Some(Condition {
            status: found.status,
            changed: found.changed,
        })
    }
}
