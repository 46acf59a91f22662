//! Which ReplicaSet is the present one, which revision is it, and which old ones are kept?

use std::collections::BTreeMap;

use pointsman_objects::template::{NewReplicaSet, ReplicaSetPatch};
use pointsman_objects::{Deployment, ReplicaSet};

use super::{DeploymentPlan, Sets};

/// Annotation with a rollout's number.
pub const REVISION_ANNOTATION: &str = "deployment.kubernetes.io/revision";
/// Annotation with the numbers a ReplicaSet had before.
pub const HISTORY_ANNOTATION: &str = "deployment.kubernetes.io/revision-history";
/// Annotation with the Deployment's size when the ReplicaSet was last scaled.
pub const DESIRED_ANNOTATION: &str = "deployment.kubernetes.io/desired-replicas";
/// Annotation with the Deployment's size plus surge when the ReplicaSet was last scaled.
pub const MAX_ANNOTATION: &str = "deployment.kubernetes.io/max-replicas";

/// Annotations of a Deployment that its ReplicaSets do not take over.
const OWN_ANNOTATIONS: [&str; 5] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION_ANNOTATION,
    HISTORY_ANNOTATION,
    DESIRED_ANNOTATION,
    MAX_ANNOTATION,
];

/// Finds the ReplicaSet of the present template: the oldest, should there be several.
pub(super) fn sort<'a>(deployment: &Deployment, mut owned: Vec<&'a ReplicaSet>) -> Sets<'a> {
    owned.sort_by(|a, b| {
        let age = |set: &ReplicaSet| (set.metadata.created, set.metadata.name.clone());
        age(a).cmp(&age(b))
    });
    let new = owned
        .iter()
        .position(|set| set.spec.template.same(&deployment.spec.template));
    let new = new.map(|index| owned.remove(index));
    Sets { new, old: owned }
}

/// The revision the present template has or should have: one more than all others.
fn next_revision(sets: &Sets<'_>) -> i64 {
    sets.old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1
}

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    set.metadata
        .annotations
        .get(REVISION_ANNOTATION)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// The ReplicaSet for a template that has none.
pub(super) fn create(deployment: &Deployment, sets: &Sets<'_>, replicas: i32, plan: &mut DeploymentPlan) {
    let metadata = &deployment.metadata;
    let collisions = deployment.status.collision_count.unwrap_or(0);
    let hash = deployment.spec.template.hash(collisions);
    let revision = next_revision(sets).to_string();
    let mut annotations: BTreeMap<String, String> = inherited(deployment).collect();
    annotations.insert(REVISION_ANNOTATION.into(), revision.clone());
    annotations.extend(sizes(deployment));
    let name = format!("{}-{hash}", metadata.name);
    if replicas > 0 {
        plan.scaling_events
            .push(format!("Scaled up replica set {name} from 0 to {replicas}"));
    }
    plan.create = Some(NewReplicaSet {
        name,
        hash,
        replicas,
        annotations,
    });
    set_revision(deployment, revision, plan);
}

/// Brings the present ReplicaSet's annotations up to date: after an undo an old one is the newest again.
pub(super) fn refresh(deployment: &Deployment, sets: &Sets<'_>, set: &ReplicaSet, plan: &mut DeploymentPlan) {
    let mut patch = ReplicaSetPatch::of(set);
    let (present, wanted) = (revision(set), next_revision(sets));
    let number = if present < wanted {
        if present > 0 {
            let history = set.metadata.annotations.get(HISTORY_ANNOTATION);
            let history = history.map_or(present.to_string(), |history| format!("{history},{present}"));
            patch.annotations.insert(HISTORY_ANNOTATION.into(), history);
        }
        patch
            .annotations
            .insert(REVISION_ANNOTATION.into(), wanted.to_string());
        wanted
    } else {
        present
    };
    let changed = inherited(deployment)
        .filter(|(key, value)| set.metadata.annotations.get(key) != Some(value.as_str()));
    patch.annotations.extend(changed);
    if set.spec.min_ready_seconds != deployment.spec.min_ready_seconds {
        patch.min_ready_seconds = Some(deployment.spec.min_ready_seconds);
    }
    if !patch.is_empty() {
        plan.patch.push(patch);
    }
    set_revision(deployment, number.to_string(), plan);
}

/// Deletes old ReplicaSets beyond the history limit, those of the lowest revision first.
pub(super) fn clean_up(deployment: &Deployment, sets: &Sets<'_>, plan: &mut DeploymentPlan) {
    let unused = |set: &&&ReplicaSet| {
        set.spec.replicas == 0
            && set.status.replicas == 0
            && set.status.observed_generation >= set.metadata.generation
            && !set.metadata.is_terminating()
    };
    let mut unused: Vec<&ReplicaSet> = sets.old.iter().filter(unused).copied().collect();
    unused.sort_by_key(|set| revision(set));
    let limit = usize::try_from(deployment.spec.revision_history_limit).unwrap_or(usize::MAX);
    let surplus = unused.len().saturating_sub(limit);
    plan.delete.extend(
        unused[..surplus]
            .iter()
            .map(|set| (set.metadata.name.to_string(), set.metadata.uid.to_string())),
    );
}

/// The size annotations that a ReplicaSet of this Deployment should carry.
pub(super) fn sizes(deployment: &Deployment) -> [(String, String); 2] {
    let (surge, _) = deployment.bounds();
    let most = deployment.replicas().saturating_add(surge);
    [
        (DESIRED_ANNOTATION.into(), deployment.replicas().to_string()),
        (MAX_ANNOTATION.into(), most.to_string()),
    ]
}

fn inherited(deployment: &Deployment) -> impl Iterator<Item = (String, String)> + '_ {
    let annotations = deployment.metadata.annotations.iter();
    annotations
        .filter(|(key, _)| !OWN_ANNOTATIONS.contains(key))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
}

fn set_revision(deployment: &Deployment, revision: String, plan: &mut DeploymentPlan) {
    if deployment.metadata.annotations.get(REVISION_ANNOTATION) != Some(revision.as_str()) {
        plan.revision = Some(revision);
    }
}
