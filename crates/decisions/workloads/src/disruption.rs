//! How many pods may be evicted now without breaking a PodDisruptionBudget?
//!
//! The API server asks the status that is decided here, and takes each eviction off it. What it granted is kept by name
//! until the pod is seen to go, so that a status from a cache that lags behind does not grant it again.

use std::collections::BTreeMap;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_objects::disruption::{BudgetStatus, Time};
use pointsman_objects::workload::{Amount, StatusCondition};
use pointsman_objects::{OwnerReference, Pod, PodDisruptionBudget};

/// How long a granted eviction may take until it is believed not to happen (upstream's).
const GRANTED: Duration = Duration::from_secs(120);
const ALLOWED: &str = "DisruptionAllowed";

/// What to do for a budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetPlan {
    /// The status to write, if it differs from the one there is.
    pub status: Option<BudgetStatus>,
    /// Whether it covers no pod.
    pub no_pods: bool,
    /// Whether some pods have no controller, so that a share of them means nothing.
    pub unmanaged: bool,
    /// Why the numbers cannot be known.
    pub failure: Option<String>,
    /// When the answer may change without an event.
    pub look_again: Option<Moment>,
}

/// Decides about one budget. `pods` are those that it covers; `scale` says how many pods the controller of a pod is to have,
/// and by which uid it is counted once.
pub fn plan(
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
    scale: impl Fn(&OwnerReference) -> Option<(String, i32)>,
    now: Moment,
) -> BudgetPlan {
    let mut plan = BudgetPlan {
        no_pods: pods.is_empty(),
        ..BudgetPlan::default()
    };
    let (expected, desired) = match numbers(budget, pods, scale, &mut plan.unmanaged) {
        Ok(numbers) => numbers,
        Err(failure) => {
            let mut status = budget.status.clone();
            status.disruptions_allowed = 0;
            put(budget, &mut status, ("False", "SyncFailed", &failure), now);
            plan.failure = Some(failure);
            plan.status = Some(status).filter(|status| *status != budget.status);
            return plan;
        }
    };
    let staying = || pods.iter().filter(|pod| !pod.is_terminating());
    let granted = staying().filter_map(|pod| {
        let name = &*pod.metadata.name;
        let at = *budget.status.disrupted_pods.get(name)?;
        (now <= at.0.after(GRANTED)).then(|| (name.to_owned(), at))
    });
    let granted: BTreeMap<String, Time> = granted.collect();
    plan.look_again = granted
        .values()
        .map(|at| at.0.after(GRANTED).after(Duration::from_secs(1)))
        .min();
    let healthy = staying().filter(|pod| pod.is_ready() && !granted.contains_key(&*pod.metadata.name));
    let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
    // A budget that covers nothing yet allows nothing: its first pods may be there before its status is.
    let allowed = if expected > 0 {
        (healthy - desired).max(0)
    } else {
        0
    };
    let mut status = BudgetStatus {
        observed_generation: budget.metadata.generation,
        disruptions_allowed: allowed,
        current_healthy: healthy,
        desired_healthy: desired,
        expected_pods: expected,
        disrupted_pods: granted,
        conditions: budget.status.conditions.clone(),
    };
    let word = if allowed > 0 {
        ("True", "SufficientPods", "")
    } else {
        ("False", "InsufficientPods", "")
    };
    put(budget, &mut status, word, now);
    plan.status = Some(status).filter(|status| *status != budget.status);
    plan
}

/// How many pods there should be, and how many of them have to be healthy.
fn numbers(
    budget: &PodDisruptionBudget,
    pods: &[&Pod],
    scale: impl Fn(&OwnerReference) -> Option<(String, i32)>,
    unmanaged: &mut bool,
) -> Result<(i32, i32), String> {
    let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
    let mut total = || {
        let mut scales = BTreeMap::new();
        for pod in pods {
            let Some(owner) = pod.metadata.controller() else {
                *unmanaged = true;
                continue;
            };
            let found = scale(owner);
            let (uid, replicas) =
                found.ok_or_else(|| format!("found no controllers for pod {:?}", &*pod.metadata.name))?;
            scales.insert(uid, replicas);
        }
        Ok::<_, String>(
            scales
                .values()
                .fold(0_i32, |sum, replicas| sum.saturating_add(*replicas)),
        )
    };
    match (&budget.spec.max_unavailable, &budget.spec.min_available) {
        (Some(bound), _) => {
            let expected = total()?;
            Ok((expected, (expected - bound.resolve(expected, true)).max(0)))
        }
        (None, Some(Amount::Number(bound))) => Ok((count, *bound)),
        (None, Some(share)) => {
            let expected = total()?;
            Ok((expected, share.resolve(expected, true)))
        }
        (None, None) => Ok((0, 0)),
    }
}

fn put(budget: &PodDisruptionBudget, status: &mut BudgetStatus, word: (&str, &str, &str), now: Moment) {
    let (value, reason, message) = word;
    let old = status
        .conditions
        .iter()
        .find(|condition| condition.r#type == ALLOWED);
    let since = old
        .filter(|old| old.status == value)
        .and_then(|old| old.last_transition_time);
    let condition = StatusCondition {
        r#type: ALLOWED.into(),
        status: value.into(),
        observed_generation: Some(budget.metadata.generation),
        last_transition_time: since.or(Some(now.start_of_second())),
        reason: reason.into(),
        message: message.into(),
        last_update_time: None,
    };
    status.conditions.retain(|condition| condition.r#type != ALLOWED);
    status.conditions.push(condition);
}
