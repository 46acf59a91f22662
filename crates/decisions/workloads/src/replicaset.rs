//! How many pods should a ReplicaSet create or delete, and which ones go first?

use std::cmp::Ordering;
use std::collections::HashMap;

use pointsman_model::Moment;
use pointsman_objects::workload::{ReplicaSetStatus, StatusCondition};
use pointsman_objects::{Pod, ReplicaSet};

use crate::ownership::{Claim, claim};

/// Most pods created or deleted in one pass (upstream's burst).
const BURST: usize = 500;

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
    pub look_again: Option<Moment>,
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
    now: Moment,
) -> ReplicaSetPlan {
    let mut plan = ReplicaSetPlan::default();
    let mut mine = Vec::new();
    for pod in pods.iter().copied().filter(|pod| !pod.is_finished()) {
        let matches = set.spec.selector.matches(&pod.metadata.labels);
        let owners = &pod.metadata.owner_references;
        match claim(
            &set.metadata.uid,
            set.metadata.is_terminating(),
            owners,
            matches,
            pod.is_terminating(),
        ) {
            Claim::Owned => mine.push(pod),
            Claim::Adopt => plan.adopt.push(identity(pod)),
            Claim::Release => plan.release.push(identity(pod)),
            Claim::Other => {}
        }
    }
    let (leaving, mut active): (Vec<&Pod>, Vec<&Pod>) =
        mine.into_iter().partition(|pod| pod.is_terminating());
    let have = active.len() + plan.adopt.len();
    let want = usize::try_from(set.spec.replicas).unwrap_or(0);
    let mut surplus = 0;
    if !set.metadata.is_terminating() {
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

/// Active pods per node, over all ReplicaSets of one owner.
pub fn count_by_node<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for pod in pods.into_iter().filter(|pod| pod.is_active()) {
        *counts
            .entry(pod.node_name.as_deref().unwrap_or("").to_owned())
            .or_default() += 1;
    }
    counts
}

/// Which of two pods is missed less: it is deleted first. Upstream's order, rule by rule.
pub fn deletion_order(a: &Pod, b: &Pod, siblings: &HashMap<String, usize>, now: Moment) -> Ordering {
    let crowd = |pod: &Pod| {
        siblings
            .get(pod.node_name.as_deref().unwrap_or(""))
            .copied()
            .unwrap_or(0)
    };
    let placed = |pod: &Pod| {
        (
            pod.node_name.as_deref().is_some(),
            pod.phase,
            pod.is_ready(),
            pod.deletion_cost(),
        )
    };
    placed(a)
        .cmp(&placed(b))
        .then_with(|| crowd(b).cmp(&crowd(a)))
        .then_with(|| {
            if a.is_ready() && b.is_ready() {
                by_age(a, b, a.ready_since(), b.ready_since(), now)
            } else {
                Ordering::Equal
            }
        })
        .then_with(|| b.restarts.cmp(&a.restarts))
        .then_with(|| by_age(a, b, a.metadata.created, b.metadata.created, now))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

/// Younger first, ages compared by powers of two: among pods of about the same age the choice is
/// arbitrary but fixed, so that not always the same failure domain is hit.
fn by_age(a: &Pod, b: &Pod, at: Option<Moment>, bt: Option<Moment>, now: Moment) -> Ordering {
    let (Some(at), Some(bt)) = (at, bt) else {
        return at.is_some().cmp(&bt.is_some());
    };
    if at == bt {
        return Ordering::Equal;
    }
    let rank = |at: Moment| {
        if at > now {
            0
        } else {
            now.since(at).as_nanos().max(1).ilog2()
        }
    };
    rank(at)
        .cmp(&rank(bt))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

fn status(
    set: &ReplicaSet,
    active: &[&Pod],
    leaving: usize,
    failure: Option<&str>,
    now: Moment,
) -> ReplicaSetStatus {
    let labels = set.spec.template.labels();
    let count = |test: &dyn Fn(&Pod) -> bool| active.iter().filter(|pod| test(pod)).count() as i32;
    let mut conditions = set.status.conditions.clone();
    let wrong_count = active.len() as i64 - i64::from(set.spec.replicas);
    match failure {
        Some(message)
            if conditions
                .iter()
                .all(|condition| condition.r#type != "ReplicaFailure") =>
        {
            conditions.push(StatusCondition {
                r#type: "ReplicaFailure".into(),
                status: "True".into(),
                reason: if wrong_count < 0 {
                    "FailedCreate"
                } else {
                    "FailedDelete"
                }
                .into(),
                message: message.into(),
                last_transition_time: Some(now.start_of_second()),
                last_update_time: None,
                observed_generation: None,
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
                .all(|(key, value)| pod.metadata.labels.get(key) == Some(value))
        }),
        ready_replicas: count(&|pod| pod.is_ready()),
        available_replicas: count(&|pod| pod.available_at(set.min_ready()).is_some_and(|at| at <= now)),
        // Servers without this field would drop it and we would write it again and again.
        terminating_replicas: set.status.terminating_replicas.map(|_| leaving as i32),
        observed_generation: set.metadata.generation,
        conditions,
    }
}

fn next_available(set: &ReplicaSet, active: &[&Pod], now: Moment) -> Option<Moment> {
    active
        .iter()
        .filter_map(|pod| pod.available_at(set.min_ready()))
        .filter(|at| *at > now)
        .min()
}

fn identity(pod: &Pod) -> (String, String) {
    (pod.metadata.name.to_string(), pod.metadata.uid.to_string())
}
