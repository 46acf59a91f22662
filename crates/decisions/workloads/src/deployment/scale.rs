//! How is a change of size shared between ReplicaSets in the middle of a rollout?

use super::revision::{DESIRED_ANNOTATION, MAX_ANNOTATION, sizes};
use super::{DeploymentPlan, Sets};
use pointsman_objects::template::ReplicaSetPatch;
use pointsman_objects::{Deployment, ReplicaSet};

/// Whether the Deployment's size changed since its ReplicaSets were last scaled.
pub(super) fn is_wanted(deployment: &Deployment, sets: &Sets<'_>) -> bool {
    let active = sets.all().filter(|set| set.spec.replicas > 0);
    let mut desired = active.filter_map(|set| number(set, DESIRED_ANNOTATION));
    desired.any(|desired| desired != deployment.replicas())
}

/// Scales without rolling: the one active ReplicaSet, or all of them by their share.
pub(super) fn scale(deployment: &Deployment, sets: &Sets<'_>, plan: &mut DeploymentPlan) {
    let active: Vec<&ReplicaSet> = sets.all().filter(|set| set.spec.replicas > 0).collect();
    match active.as_slice() {
        [] => {
            let latest = sets.new.or_else(|| sets.old.last().copied());
            if let Some(set) = latest {
                resize(deployment, set, deployment.replicas(), plan);
            }
        }
        [only] => resize(deployment, only, deployment.replicas(), plan),
        _ if sets.new.is_some_and(|new| saturated(deployment, new)) => {
            for set in sets.old.iter().filter(|set| set.spec.replicas > 0) {
                resize(deployment, set, 0, plan);
            }
        }
        _ if !deployment.recreates() => share(deployment, active, plan),
        _ => {}
    }
}

/// Sets a ReplicaSet's size and size annotations, where they differ.
pub(super) fn resize(deployment: &Deployment, set: &ReplicaSet, replicas: i32, plan: &mut DeploymentPlan) {
    let known = plan
        .patch
        .iter()
        .position(|patch| patch.name == set.metadata.name);
    let mut patch = known.map_or_else(|| ReplicaSetPatch::of(set), |index| plan.patch.remove(index));
    if set.spec.replicas != replicas {
        patch.replicas = Some(replicas);
        let direction = if replicas > set.spec.replicas {
            "up"
        } else {
            "down"
        };
        plan.scaling_events.push(format!(
            "Scaled {direction} replica set {} from {} to {replicas}",
            set.metadata.name, set.spec.replicas
        ));
    }
    let sizes = sizes(deployment);
    patch.annotations.extend(
        sizes
            .into_iter()
            .filter(|(key, value)| set.metadata.annotations.get(key) != Some(value.as_str())),
    );
    if !patch.is_empty() {
        plan.patch.push(patch);
    }
}

/// Shares the difference by size, largest first; what rounding leaves goes to the largest.
fn share(deployment: &Deployment, mut active: Vec<&ReplicaSet>, plan: &mut DeploymentPlan) {
    let (surge, _) = deployment.bounds();
    let total: i32 = active.iter().map(|set| set.spec.replicas).sum();
    let allowed = if deployment.replicas() > 0 {
        deployment.replicas().saturating_add(surge)
    } else {
        0
    };
    let difference = allowed - total;
    // Of equal sizes, newer ones grow first and older ones shrink first; `active` is oldest first.
    if difference > 0 {
        active.reverse();
    }
    active.sort_by_key(|set| std::cmp::Reverse(set.spec.replicas));
    let mut left = difference;
    let mut targets = Vec::with_capacity(active.len());
    for set in &active {
        let fraction = fraction(deployment, set, allowed);
        let part = if difference > 0 {
            fraction.clamp(0, left)
        } else {
            fraction.clamp(left, 0)
        };
        left -= part;
        targets.push(set.spec.replicas + part);
    }
    if let Some(first) = targets.first_mut() {
        *first = (*first + left).max(0);
    }
    for (set, target) in active.into_iter().zip(targets) {
        resize(deployment, set, target, plan);
    }
}

/// How much a ReplicaSet changes if it keeps its share of the whole.
fn fraction(deployment: &Deployment, set: &ReplicaSet, allowed: i32) -> i32 {
    if deployment.replicas() == 0 {
        return -set.spec.replicas;
    }
    let before = number(set, MAX_ANNOTATION)
        .filter(|max| *max > 0)
        .unwrap_or(deployment.status.replicas);
    if before <= 0 {
        return 0;
    }
    let size = f64::from(set.spec.replicas) * f64::from(allowed) / f64::from(before);
    size.round() as i32 - set.spec.replicas
}

fn saturated(deployment: &Deployment, set: &ReplicaSet) -> bool {
    set.spec.replicas == deployment.replicas()
        && number(set, DESIRED_ANNOTATION) == Some(deployment.replicas())
        && set.status.available_replicas == deployment.replicas()
}

fn number(set: &ReplicaSet, annotation: &str) -> Option<i32> {
    set.metadata
        .annotations
        .get(annotation)?
        .parse()
        .ok()
        .filter(|number| *number >= 0)
}
