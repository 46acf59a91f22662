//! What is the next safe step of a rollout?

use std::collections::HashMap;

use pointsman_objects::{Deployment, ReplicaSet};

use super::{DeploymentPlan, Sets, revision, scale};

pub(super) fn roll(
    deployment: &Deployment,
    sets: &Sets<'_>,
    pods: &HashMap<String, usize>,
    plan: &mut DeploymentPlan,
) {
    if deployment.recreates() {
        recreate(deployment, sets, pods, plan);
    } else {
        rolling_update(deployment, sets, plan);
    }
}

/// Old pods go first, and only when the last of them is gone do new ones come.
fn recreate(
    deployment: &Deployment,
    sets: &Sets<'_>,
    pods: &HashMap<String, usize>,
    plan: &mut DeploymentPlan,
) {
    let active: Vec<&ReplicaSet> = sets
        .old
        .iter()
        .copied()
        .filter(|set| set.spec.replicas > 0)
        .collect();
    if !active.is_empty() {
        active
            .iter()
            .for_each(|set| scale::resize(deployment, set, 0, plan));
        return;
    }
    if sets
        .old
        .iter()
        .any(|set| pods.get(&*set.metadata.uid).is_some_and(|count| *count > 0))
    {
        return;
    }
    match sets.new {
        None => revision::create(deployment, sets, deployment.replicas(), plan),
        Some(new) => {
            revision::refresh(deployment, sets, new, plan);
            scale::resize(deployment, new, deployment.replicas(), plan);
        }
    }
}

fn rolling_update(deployment: &Deployment, sets: &Sets<'_>, plan: &mut DeploymentPlan) {
    let size = next_size(deployment, sets);
    let Some(new) = sets.new else {
        revision::create(deployment, sets, size, plan);
        return;
    };
    revision::refresh(deployment, sets, new, plan);
    if size == new.spec.replicas {
        shrink_old(deployment, sets, new, plan);
    } else {
        scale::resize(deployment, new, size, plan);
    }
}

/// How large the new ReplicaSet may be now: the surge is shared with what the old ones still want.
fn next_size(deployment: &Deployment, sets: &Sets<'_>) -> i32 {
    let present = sets.new.map_or(0, |set| set.spec.replicas);
    let wanted = deployment.replicas();
    if present >= wanted {
        return wanted;
    }
    let (surge, _) = deployment.bounds();
    let room = wanted.saturating_add(surge).saturating_sub(sets.wanted_pods());
    present + room.clamp(0, wanted - present)
}

/// Takes pods from old ReplicaSets: first those that serve nobody, then as many as may be missing.
fn shrink_old(deployment: &Deployment, sets: &Sets<'_>, new: &ReplicaSet, plan: &mut DeploymentPlan) {
    let (_, unavailable) = deployment.bounds();
    let least = deployment.replicas() - unavailable;
    let mut budget = sets.wanted_pods() - least - (new.spec.replicas - available(new));
    let mut spare = sets.all().map(available).sum::<i32>() - least;
    for set in &sets.old {
        let useless = (set.spec.replicas - available(set)).min(budget).max(0);
        let useful = available(set).min(spare).min(budget - useless).max(0);
        budget -= useless + useful;
        spare -= useful;
        if useless + useful > 0 {
            scale::resize(deployment, set, set.spec.replicas - useless - useful, plan);
        }
    }
}

/// Available pods that stay available: a status from before a scale-down may tell of more pods than
/// the ReplicaSet still wants.
fn available(set: &ReplicaSet) -> i32 {
    set.status.available_replicas.min(set.spec.replicas).max(0)
}
