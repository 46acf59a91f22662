//! What do ReplicaSets, Deployments and DaemonSets ask for, and how far are they?

use std::collections::BTreeMap;
use std::time::Duration;

use pointsman_model::{Labels, Moment};
use serde::{Deserialize, Serialize, Serializer};

use crate::metadata::{All, Metadata};
use crate::pod::Requirement;
use crate::read::{moment, nullable};
use crate::template::Template;

/// A condition in a status that we write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCondition {
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The generation it was decided from, on kinds that say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When it was last confirmed or changed; Deployments only.
    #[serde(
        deserialize_with = "moment",
        serialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_update_time: Option<Moment>,
    /// When the status last changed.
    #[serde(
        deserialize_with = "moment",
        serialize_with = "written",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Moment>,
    /// One word why.
    pub reason: String,
    /// A sentence why.
    pub message: String,
}

pub(crate) fn written<S: Serializer>(moment: &Option<Moment>, serializer: S) -> Result<S::Ok, S::Error> {
    match moment {
        Some(moment) => serializer.collect_str(moment),
        None => serializer.serialize_none(),
    }
}

/// A label selector as ReplicaSets and Deployments carry it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Pairs that must all be there.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

impl LabelSelector {
    /// Whether everything that the selector asks for holds. A selector that asks for nothing would
    /// match everything; that is never meant here, so it matches nothing.
    pub fn matches(&self, labels: &Labels) -> bool {
        let empty = self.match_labels.is_empty() && self.match_expressions.is_empty();
        let mut pairs = self.match_labels.iter();
        let mut expressions = self.match_expressions.iter();
        !empty
            && pairs.all(|(key, value)| labels.get(key) == Some(value))
            && expressions.all(|requirement| requirement.holds(labels.get(&requirement.key)))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    pub spec: ReplicaSetSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: ReplicaSetStatus,
}

/// A ReplicaSet's spec.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpec {
    pub replicas: i32,
    /// How long a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    pub selector: LabelSelector,
    /// What pods are made from.
    pub template: Template,
}

impl Default for ReplicaSetSpec {
    fn default() -> Self {
        Self {
            replicas: 1,
            min_ready_seconds: 0,
            selector: LabelSelector::default(),
            template: Template::default(),
        }
    }
}

/// A ReplicaSet's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetStatus {
    /// Pods there are.
    pub replicas: i32,
    /// Pods with all labels of the template.
    pub fully_labeled_replicas: i32,
    pub ready_replicas: i32,
    /// Pods ready for long enough.
    pub available_replicas: i32,
    /// Pods on their way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i32>,
    /// The generation this status is about.
    pub observed_generation: i64,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    pub spec: DeploymentSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: DeploymentStatus,
}

/// A Deployment's spec.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    pub replicas: i32,
    pub selector: LabelSelector,
    /// What pods are made from.
    pub template: Template,
    /// How pods are replaced.
    pub strategy: Strategy,
    /// How long a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Old ReplicaSets kept for undo.
    pub revision_history_limit: i32,
    /// How long a rollout may stand still before it is called failed.
    pub progress_deadline_seconds: Option<i32>,
    /// Nothing is rolled out.
    pub paused: bool,
}

impl Default for DeploymentSpec {
    /// The API's defaults.
    fn default() -> Self {
        Self {
            replicas: 1,
            selector: LabelSelector::default(),
            template: Template::default(),
            strategy: Strategy::default(),
            min_ready_seconds: 0,
            revision_history_limit: 10,
            progress_deadline_seconds: Some(600),
            paused: false,
        }
    }
}

/// How pods are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `RollingUpdate` (the default) or `Recreate`.
    pub r#type: String,
    /// Bounds of a rolling update.
    #[serde(deserialize_with = "nullable")]
    pub rolling_update: RollingUpdate,
}

/// Bounds of a rolling update.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Pods above the wanted number.
    pub max_surge: Amount,
    /// Pods below the wanted number.
    pub max_unavailable: Amount,
}

impl Default for RollingUpdate {
    /// The API's defaults.
    fn default() -> Self {
        Self {
            max_surge: Amount::Text("25%".into()),
            max_unavailable: Amount::Text("25%".into()),
        }
    }
}

/// A number or a percentage.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    Number(i32),
    /// A percentage, like `25%`.
    Text(String),
}

/// A Deployment's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// The generation this status is about.
    pub observed_generation: i64,
    /// Pods there are.
    pub replicas: i32,
    /// Pods of the newest template.
    pub updated_replicas: i32,
    pub ready_replicas: i32,
    /// Pods ready for long enough.
    pub available_replicas: i32,
    /// Pods missing to the wanted number of available ones.
    pub unavailable_replicas: i32,
    /// How often a ReplicaSet name was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    pub metadata: Metadata<All>,
    #[serde(deserialize_with = "nullable")]
    pub spec: DaemonSetSpec,
    #[serde(deserialize_with = "nullable")]
    pub status: DaemonSetStatus,
}

/// A DaemonSet's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetSpec {
    pub selector: LabelSelector,
    /// What pods are made from.
    pub template: Template,
    /// How pods are replaced.
    #[serde(deserialize_with = "nullable")]
    pub update_strategy: UpdateStrategy,
    /// How long a pod must be ready to count as available.
    pub min_ready_seconds: i32,
}

/// How pods are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    /// `RollingUpdate` (the default) or `OnDelete`.
    pub r#type: String,
    /// Bounds of a rolling update.
    #[serde(deserialize_with = "nullable")]
    pub rolling_update: Bounds,
}

/// Bounds of a rolling update.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bounds {
    /// Nodes that may have two pods meanwhile.
    pub max_surge: Amount,
    /// Nodes that may be without an available pod meanwhile.
    pub max_unavailable: Amount,
}

impl Default for Bounds {
    /// The API's defaults.
    fn default() -> Self {
        Self {
            max_surge: Amount::Number(0),
            max_unavailable: Amount::Number(1),
        }
    }
}

/// A DaemonSet's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    /// Nodes that have a pod and should.
    pub current_number_scheduled: i32,
    /// Nodes that have a pod and should not.
    pub number_misscheduled: i32,
    /// Nodes that should have a pod.
    pub desired_number_scheduled: i32,
    /// Nodes with a ready pod.
    pub number_ready: i32,
    /// The generation this status is about.
    pub observed_generation: i64,
    /// Nodes with a pod of the newest template.
    pub updated_number_scheduled: i32,
    /// Nodes with a pod that has been ready for long enough.
    pub number_available: i32,
    /// Nodes that should have such a pod and do not.
    pub number_unavailable: i32,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

impl ReplicaSet {
    /// How long a pod must be ready to count as available.
    pub fn min_ready(&self) -> Duration {
        seconds(self.spec.min_ready_seconds)
    }
}

impl Deployment {
    /// The status to write after a ReplicaSet's name turned out to be taken by a stranger.
    pub fn collided(&self) -> DeploymentStatus {
        let collision_count = Some(self.status.collision_count.unwrap_or(0) + 1);
        DeploymentStatus {
            collision_count,
            ..self.status.clone()
        }
    }

    pub fn recreates(&self) -> bool {
        self.spec.strategy.r#type == "Recreate"
    }

    pub fn replicas(&self) -> i32 {
        self.spec.replicas.max(0)
    }

    /// Pods allowed above and below the wanted number. Not both are 0, or nothing could ever move.
    pub fn bounds(&self) -> (i32, i32) {
        if self.recreates() {
            return (0, 0);
        }
        let rolling = &self.spec.strategy.rolling_update;
        let surge = rolling.max_surge.resolve(self.replicas(), true);
        let unavailable = rolling.max_unavailable.resolve(self.replicas(), false);
        if surge == 0 && unavailable == 0 {
            (0, 1)
        } else {
            (surge, unavailable.min(self.replicas()))
        }
    }
}

impl Amount {
    /// The number for a total of so many pods.
    pub fn resolve(&self, total: i32, round_up: bool) -> i32 {
        let number = match self {
            Self::Number(number) => i64::from(*number),
            Self::Text(text) => {
                let percent = text
                    .strip_suffix('%')
                    .and_then(|digits| digits.parse::<i32>().ok())
                    .unwrap_or(0);
                let hundredfold = i64::from(percent) * i64::from(total);
                if round_up {
                    (hundredfold + 99).div_euclid(100)
                } else {
                    hundredfold.div_euclid(100)
                }
            }
        };
        i32::try_from(number.max(0)).unwrap_or(i32::MAX)
    }
}

impl DaemonSet {
    /// How long a pod must be ready to count as available.
    pub fn min_ready(&self) -> Duration {
        seconds(self.spec.min_ready_seconds)
    }
}

pub(crate) fn seconds(number: i32) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_mean_what_kubernetes_says() {
        for (operator, values, label, expected) in [
            ("In", &["a", "b"][..], Some("a"), true),
            ("In", &["a"], None, false),
            ("NotIn", &["a"], None, true),
            ("NotIn", &["a"], Some("a"), false),
            ("Exists", &[], Some(""), true),
            ("DoesNotExist", &[], Some(""), false),
            ("Gt", &["5"], Some("6"), true),
            ("Gt", &["5"], Some("x"), false),
            ("Lt", &["5"], Some("4"), true),
            ("Sideways", &[], Some("a"), false),
        ] {
            let requirement = Requirement {
                key: "k".into(),
                operator: operator.into(),
                values: values.iter().map(|value| (*value).into()).collect(),
            };
            assert_eq!(
                requirement.holds(label),
                expected,
                "{operator} {values:?} {label:?}"
            );
        }
    }

    #[test]
    fn an_empty_selector_matches_nothing() {
        assert!(!LabelSelector::default().matches(&Labels::new([("a", "b")])));
    }
}
