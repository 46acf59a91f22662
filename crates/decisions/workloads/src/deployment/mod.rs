//! Which ReplicaSets should a Deployment have, how large, and how far is its rollout?
//!
//! One call is one step: it looks at what there is and says the next safe change. Steps repeat as
//! ReplicaSets report back, until nothing is left to do.
//!
//! Laws, tested in `tests/rollout.rs`: a rolling update never wants more pods than `replicas +
//! maxSurge`, never takes available pods below `replicas - maxUnavailable`, and comes to its end.

mod revision;
mod rollout;
mod scale;
mod status;

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::meta::{Condition, Metadata, nullable};
use crate::ownership::{Claim, claim};
use crate::replicaset::ReplicaSet;
use crate::selector::LabelSelector;

pub use revision::{DESIRED_ANNOTATION, HISTORY_ANNOTATION, MAX_ANNOTATION, REVISION_ANNOTATION};

/// A Deployment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Metadata.
    pub metadata: Metadata,
    /// Spec.
    #[serde(deserialize_with = "nullable")]
    pub spec: DeploymentSpec,
    /// Status.
    #[serde(deserialize_with = "nullable")]
    pub status: DeploymentStatus,
}

/// A Deployment's spec.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    /// Pods wanted.
    pub replicas: i32,
    /// Its pods.
    pub selector: LabelSelector,
    /// What pods are made from.
    pub template: Value,
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
            template: Value::Null,
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
    /// This many.
    Number(i32),
    /// A percentage, like `25%`.
    Text(String),
}

/// A Deployment's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// The generation this status tells of.
    pub observed_generation: i64,
    /// Pods there are.
    pub replicas: i32,
    /// Pods of the newest template.
    pub updated_replicas: i32,
    /// Ready pods.
    pub ready_replicas: i32,
    /// Pods ready for long enough.
    pub available_replicas: i32,
    /// Pods missing to the wanted number of available ones.
    pub unavailable_replicas: i32,
    /// How often a ReplicaSet name was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
    /// Conditions.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A change of one ReplicaSet, to be sent as a merge patch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaSetPatch {
    /// Name.
    pub name: String,
    /// The version that was decided from.
    pub resource_version: String,
    /// New size.
    pub replicas: Option<i32>,
    /// New time a pod must be ready to count as available.
    pub min_ready_seconds: Option<i32>,
    /// Annotations to set.
    pub annotations: BTreeMap<String, String>,
}

impl ReplicaSetPatch {
    /// The merge patch; it fails if the ReplicaSet changed meanwhile.
    pub fn body(&self) -> Value {
        let mut patch = json!({ "metadata": { "resourceVersion": self.resource_version } });
        if !self.annotations.is_empty() {
            patch["metadata"]["annotations"] = json!(self.annotations);
        }
        if let Some(replicas) = self.replicas {
            patch["spec"]["replicas"] = replicas.into();
        }
        if let Some(seconds) = self.min_ready_seconds {
            patch["spec"]["minReadySeconds"] = seconds.into();
        }
        patch
    }

    fn of(set: &ReplicaSet) -> Self {
        Self {
            name: set.metadata.name.clone(),
            resource_version: set.metadata.resource_version.clone(),
            ..Self::default()
        }
    }

    fn is_empty(&self) -> bool {
        self.replicas.is_none() && self.min_ready_seconds.is_none() && self.annotations.is_empty()
    }
}

/// What to do for a Deployment in this step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeploymentPlan {
    /// ReplicaSets to adopt, by name and uid.
    pub adopt: Vec<(String, String)>,
    /// ReplicaSets to let go, by name and uid.
    pub release: Vec<(String, String)>,
    /// The ReplicaSet to create. If its name is taken by another one, write [`Deployment::collided`].
    pub create: Option<Value>,
    /// ReplicaSets to change.
    pub patch: Vec<ReplicaSetPatch>,
    /// ReplicaSets to delete, by name and uid.
    pub delete: Vec<(String, String)>,
    /// The revision annotation to set on the Deployment.
    pub revision: Option<String>,
    /// The status to write, if it differs from the one there is.
    pub status: Option<DeploymentStatus>,
    /// Events with reason `ScalingReplicaSet`.
    pub scaling_events: Vec<String>,
    /// When the answer may change without an event: the progress deadline.
    pub look_again: Option<Timestamp>,
}

impl DeploymentPlan {
    /// Whether nothing has to be written.
    pub fn is_empty(&self) -> bool {
        *self
            == Self {
                look_again: self.look_again,
                ..Self::default()
            }
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

    fn recreates(&self) -> bool {
        self.spec.strategy.r#type == "Recreate"
    }

    fn replicas(&self) -> i32 {
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
    pub(crate) fn resolve(&self, total: i32, round_up: bool) -> i32 {
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

/// The ReplicaSets of a Deployment: the one of its present template, and the others, oldest first.
pub(crate) struct Sets<'a> {
    new: Option<&'a ReplicaSet>,
    old: Vec<&'a ReplicaSet>,
}

impl<'a> Sets<'a> {
    fn all(&self) -> impl Iterator<Item = &'a ReplicaSet> + '_ {
        self.old.iter().copied().chain(self.new)
    }

    fn wanted_pods(&self) -> i32 {
        self.all().map(|set| set.spec.replicas).sum()
    }
}

/// Decides the next step for one Deployment.
///
/// `sets` are the ReplicaSets of its namespace that it controls or selects. `pods` counts, by
/// ReplicaSet uid, the pods that still exist and are not at their end, terminating ones included.
pub fn plan(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    pods: &HashMap<String, usize>,
    now: Timestamp,
) -> DeploymentPlan {
    let mut plan = DeploymentPlan::default();
    let mut owned: Vec<&ReplicaSet> = Vec::new();
    let metadata = &deployment.metadata;
    for set in sets {
        let matches = deployment.spec.selector.matches(&set.metadata.labels);
        let owners = &set.metadata.owner_references;
        let identity = || (set.metadata.name.clone(), set.metadata.uid.clone());
        match claim(
            &metadata.uid,
            metadata.deleting(),
            owners,
            matches,
            set.metadata.deleting(),
        ) {
            Claim::Owned => owned.push(set),
            Claim::Adopt => plan.adopt.push(identity()),
            Claim::Release => plan.release.push(identity()),
            Claim::Other => {}
        }
    }
    if !plan.adopt.is_empty() {
        // What is being adopted counts from the next step on, when it is ours for certain.
        return plan;
    }
    let sets = revision::sort(deployment, owned);
    let mut status = status::base(deployment, &sets);
    if !metadata.deleting() {
        if deployment.spec.paused {
            scale::scale(deployment, &sets, &mut plan);
            revision::clean_up(deployment, &sets, &mut plan);
        } else if scale::is_wanted(deployment, &sets) {
            scale::scale(deployment, &sets, &mut plan);
        } else {
            rollout::roll(deployment, &sets, pods, &mut plan);
            if status::complete(deployment, &status) {
                revision::clean_up(deployment, &sets, &mut plan);
            }
        }
        plan.look_again = status::conditions(deployment, &sets, &plan, &mut status, now);
    }
    plan.status = (status != deployment.status).then_some(status);
    plan
}
