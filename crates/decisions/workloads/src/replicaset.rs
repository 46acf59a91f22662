//! How many pods should a ReplicaSet create or delete, and which ones go first?

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::meta::{Condition, Metadata, nullable, whole_second};
use crate::ownership::{Claim, claim};
use crate::pod::Pod;
use crate::selector::{LabelSelector, LabelSource};
use crate::template;

/// Most pods created or deleted in one pass (upstream's burst).
const BURST: usize = 500;

/// A ReplicaSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    /// Metadata.
    pub metadata: Metadata,
    /// Spec.
    #[serde(deserialize_with = "nullable")]
    pub spec: ReplicaSetSpec,
    /// Status.
    #[serde(deserialize_with = "nullable")]
    pub status: ReplicaSetStatus,
}

/// A ReplicaSet's spec.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpec {
    /// Pods wanted.
    pub replicas: i32,
    /// How long a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Its pods.
    pub selector: LabelSelector,
    /// What pods are made from.
    pub template: Value,
}

impl Default for ReplicaSetSpec {
    fn default() -> Self {
        Self {
            replicas: 1,
            min_ready_seconds: 0,
            selector: LabelSelector::default(),
            template: Value::Null,
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
    /// Ready pods.
    pub ready_replicas: i32,
    /// Pods ready for long enough.
    pub available_replicas: i32,
    /// Pods on their way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i32>,
    /// The generation this status tells of.
    pub observed_generation: i64,
    /// Conditions.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What to do for a ReplicaSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaSetPlan {
    /// Pods to adopt, by name and uid.
    pub adopt: Vec<(String, String)>,
    /// Pods to let go, by name and uid.
    pub release: Vec<(String, String)>,
    /// How many pods to create.
    pub create: usize,
    /// Pods to delete, by name and uid.
    pub delete: Vec<(String, String)>,
    /// The status to write, if it differs from the one there is.
    pub status: Option<ReplicaSetStatus>,
    /// When the answer may change without an event: a ready pod becomes available.
    pub look_again: Option<Timestamp>,
}

/// Decides for one ReplicaSet.
///
/// `pods` are those of its namespace that it controls or selects; `siblings` counts active pods per
/// node of all ReplicaSets with the same owner, so that crowded nodes are thinned out first.
/// `failure` is why the last creation or deletion failed, if it did.
pub fn plan(
    set: &ReplicaSet,
    pods: &[&Pod],
    siblings: &HashMap<String, usize>,
    failure: Option<&str>,
    now: Timestamp,
) -> ReplicaSetPlan {
    let mut plan = ReplicaSetPlan::default();
    let mut mine = Vec::new();
    for pod in pods.iter().copied().filter(|pod| !pod.finished()) {
        let matches = set.spec.selector.matches(&pod.metadata.labels);
        let owners = &pod.metadata.owner_references;
        match claim(
            &set.metadata.uid,
            set.metadata.deleting(),
            owners,
            matches,
            pod.deleting(),
        ) {
            Claim::Owned => mine.push(pod),
            Claim::Adopt => plan.adopt.push(identity(pod)),
            Claim::Release => plan.release.push(identity(pod)),
            Claim::Other => {}
        }
    }
    let (leaving, mut active): (Vec<&Pod>, Vec<&Pod>) = mine.into_iter().partition(|pod| pod.deleting());
    let have = active.len() + plan.adopt.len();
    let want = usize::try_from(set.spec.replicas).unwrap_or(0);
    let mut surplus = 0;
    if !set.metadata.deleting() {
        plan.create = want.saturating_sub(have).min(BURST);
        surplus = have.saturating_sub(want).min(BURST).min(active.len());
        if surplus > 0 {
            active.sort_by(|a, b| deletion_order(a, b, siblings, now));
            plan.delete = active[..surplus].iter().map(|pod| identity(pod)).collect();
        }
    }
    // Pods that go now no longer count: a Deployment that still saw them would take others too.
    let staying = &active[surplus..];
    let status = status(set, staying, leaving.len() + surplus, failure, now);
    plan.look_again = next_available(set, staying, now);
    plan.status = (status != set.status).then_some(status);
    plan
}

/// The pod to create.
pub fn new_pod(set: &ReplicaSet) -> Value {
    let owner = set.metadata.as_owner("ReplicaSet");
    template::pod(
        &set.spec.template,
        &set.metadata.namespace,
        &set.metadata.name,
        &owner,
    )
}

/// Active pods per node, over all ReplicaSets of one owner.
pub fn count_by_node<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for pod in pods.into_iter().filter(|pod| pod.active()) {
        *counts.entry(pod.node().unwrap_or("").to_owned()).or_default() += 1;
    }
    counts
}

/// Which of two pods is missed less: it is deleted first. Upstream's order, rule by rule.
pub fn deletion_order(a: &Pod, b: &Pod, siblings: &HashMap<String, usize>, now: Timestamp) -> Ordering {
    let crowd = |pod: &Pod| siblings.get(pod.node().unwrap_or("")).copied().unwrap_or(0);
    let placed = |pod: &Pod| {
        (
            pod.node().is_some(),
            pod.status.phase,
            pod.ready(),
            pod.deletion_cost(),
        )
    };
    placed(a)
        .cmp(&placed(b))
        .then_with(|| crowd(b).cmp(&crowd(a)))
        .then_with(|| {
            if a.ready() && b.ready() {
                by_age(a, b, a.ready_since(), b.ready_since(), now)
            } else {
                Ordering::Equal
            }
        })
        .then_with(|| b.restarts().cmp(&a.restarts()))
        .then_with(|| {
            by_age(
                a,
                b,
                a.metadata.creation_timestamp,
                b.metadata.creation_timestamp,
                now,
            )
        })
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

/// Younger first, ages compared by powers of two: among pods of about the same age the choice is
/// arbitrary but fixed, so that not always the same failure domain is hit.
fn by_age(a: &Pod, b: &Pod, at: Option<Timestamp>, bt: Option<Timestamp>, now: Timestamp) -> Ordering {
    let (Some(at), Some(bt)) = (at, bt) else {
        return at.is_some().cmp(&bt.is_some());
    };
    if at == bt {
        return Ordering::Equal;
    }
    let rank =
        |at: Timestamp| u64::try_from(now.duration_since(at).as_nanos()).map_or(0, |age| age.max(1).ilog2());
    rank(at)
        .cmp(&rank(bt))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

fn status(
    set: &ReplicaSet,
    active: &[&Pod],
    leaving: usize,
    failure: Option<&str>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let labels: BTreeMap<String, String> = set
        .spec
        .template
        .pointer("/metadata/labels")
        .and_then(|labels| serde_json::from_value(labels.clone()).ok())
        .unwrap_or_default();
    let count = |test: &dyn Fn(&Pod) -> bool| active.iter().filter(|pod| test(pod)).count() as i32;
    let mut conditions = set.status.conditions.clone();
    let wrong_count = active.len() as i64 - i64::from(set.spec.replicas);
    match failure {
        Some(message)
            if conditions
                .iter()
                .all(|condition| condition.r#type != "ReplicaFailure") =>
        {
            conditions.push(Condition {
                r#type: "ReplicaFailure".into(),
                status: "True".into(),
                reason: if wrong_count < 0 {
                    "FailedCreate"
                } else {
                    "FailedDelete"
                }
                .into(),
                message: message.into(),
                last_transition_time: Some(whole_second(now)),
                last_update_time: None,
            });
        }
        Some(_) => {}
        None => conditions.retain(|condition| condition.r#type != "ReplicaFailure"),
    }
    ReplicaSetStatus {
        replicas: active.len() as i32,
        fully_labeled_replicas: count(&|pod| {
            labels
                .iter()
                .all(|(key, value)| pod.metadata.labels.label(key) == Some(value))
        }),
        ready_replicas: count(&|pod| pod.ready()),
        available_replicas: count(&|pod| pod.available_at(min_ready(set)).is_some_and(|at| at <= now)),
        // Servers without this field would drop it and we would write it again and again.
        terminating_replicas: set.status.terminating_replicas.map(|_| leaving as i32),
        observed_generation: set.metadata.generation,
        conditions,
    }
}

fn next_available(set: &ReplicaSet, active: &[&Pod], now: Timestamp) -> Option<Timestamp> {
    active
        .iter()
        .filter_map(|pod| pod.available_at(min_ready(set)))
        .filter(|at| *at > now)
        .min()
}

fn min_ready(set: &ReplicaSet) -> Duration {
    Duration::from_secs(u64::try_from(set.spec.min_ready_seconds).unwrap_or(0))
}

fn identity(pod: &Pod) -> (String, String) {
    (pod.metadata.name.to_string(), pod.metadata.uid.to_string())
}
