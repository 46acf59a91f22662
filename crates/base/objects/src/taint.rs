//! Which nodes keep which pods away?

use pointsman_model::Text;
use serde::{Deserialize, Deserializer, Serialize};

use crate::read::nullable;

/// What a taint does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Effect {
    /// New pods stay away.
    #[default]
    NoSchedule,
    /// New pods stay away if they can.
    PreferNoSchedule,
    /// New pods stay away and running ones leave.
    NoExecute,
    /// API servers admit no others; one that appeared would do nothing here.
    Other,
}

impl Effect {
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
            Self::Other => "Other",
        }
    }

    fn parse(text: &str) -> Self {
        match text {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            _ => Self::Other,
        }
    }
}

impl<'de> Deserialize<'de> for Effect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::parse(&text))
    }
}

/// A taint of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: Text,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "is_empty")]
    pub value: Text,
    pub effect: Effect,
}

fn is_empty(text: &Text) -> bool {
    text.is_empty()
}

impl Taint {
    /// A taint without a value.
    pub fn new(key: &str, effect: Effect) -> Self {
        Self {
            key: key.into(),
            value: "".into(),
            effect,
        }
    }

    /// Whether both are about the same key and effect, of which a node has at most one.
    pub fn same_slot(&self, other: &Taint) -> bool {
        self.key == other.key && self.effect == other.effect
    }
}

/// How a toleration compares values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TolerationOperator {
    /// Also what an absent operator means.
    #[default]
    Equal,
    Exists,
    /// One we do not know tolerates nothing.
    Other,
}

impl<'de> Deserialize<'de> for TolerationOperator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("" | "Equal") => Self::Equal,
            Some("Exists") => Self::Exists,
            Some(_) => Self::Other,
        })
    }
}

/// A toleration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Taint key; empty means all.
    #[serde(deserialize_with = "nullable")]
    pub key: Text,
    pub operator: TolerationOperator,
    #[serde(deserialize_with = "nullable")]
    pub value: Text,
    /// Absent means all.
    #[serde(deserialize_with = "effect")]
    pub effect: Option<Effect>,
    /// For how long; absent means for ever.
    pub toleration_seconds: Option<i64>,
}

/// Go writes an absent effect as an empty text.
fn effect<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Effect>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text
        .filter(|text| !text.is_empty())
        .map(|text| Effect::parse(&text)))
}

impl Toleration {
    /// Whether the toleration is about this taint, as upstream's `ToleratesTaint` decides it.
    pub fn covers(&self, taint: &Taint) -> bool {
        let value = match self.operator {
            TolerationOperator::Equal => self.value == taint.value,
            TolerationOperator::Exists => true,
            TolerationOperator::Other => false,
        };
        value
            && (self.key.is_empty() || self.key == taint.key)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}
