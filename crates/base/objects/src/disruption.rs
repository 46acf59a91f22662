//! How many pods must stay, and how many may go?

use std::collections::BTreeMap;

use pointsman_model::Moment;
use serde::{Deserialize, Serialize, Serializer};

use crate::metadata::{All, Metadata};
use crate::read::nullable;
use crate::workload::{Amount, LabelSelector, StatusCondition};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    pub spec: BudgetSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: BudgetStatus,
}

/// A budget's spec: one of the two numbers is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpec {
    pub min_available: Option<Amount>,
    pub max_unavailable: Option<Amount>,
    /// Absent selects nothing; empty selects every pod of the namespace.
    pub selector: Option<LabelSelector>,
}

/// A budget's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// The generation this status is about.
    pub observed_generation: i64,
    /// Pods that may be evicted now.
    pub disruptions_allowed: i32,
    pub current_healthy: i32,
    pub desired_healthy: i32,
    pub expected_pods: i32,
    /// Pods whose eviction was granted, until they are seen to go.
    #[serde(
        deserialize_with = "nullable",
        serialize_with = "texts",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub disrupted_pods: BTreeMap<String, Time>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

/// When an eviction was granted. A time that cannot be read is long ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(pub Moment);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Option<String> = Option::deserialize(deserializer)?;
        let moment = text.as_deref().and_then(Moment::parse);
        Ok(Self(moment.unwrap_or_default()))
    }
}

fn texts<S: Serializer>(times: &BTreeMap<String, Time>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(times.iter().map(|(pod, time)| (pod, time.0.to_string())))
}

impl PodDisruptionBudget {
    /// Whether it is about pods with these labels in its namespace.
    pub fn covers(&self, labels: &pointsman_model::Labels) -> bool {
        let selector = self.spec.selector.as_ref();
        selector.is_some_and(|selector| *selector == LabelSelector::default() || selector.matches(labels))
    }
}
