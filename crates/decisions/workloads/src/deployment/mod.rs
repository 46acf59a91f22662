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

use std::collections::HashMap;

use pointsman_model::Moment;
use pointsman_objects::template::{NewReplicaSet, ReplicaSetPatch};
use pointsman_objects::workload::DeploymentStatus;
use pointsman_objects::{Deployment, ReplicaSet};

use crate::ownership::{Claim, claim};

pub use revision::{DESIRED_ANNOTATION, HISTORY_ANNOTATION, MAX_ANNOTATION, REVISION_ANNOTATION};

/// What to do for a Deployment in this step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeploymentPlan {
    /// ReplicaSets to adopt, by name and uid.
    pub adopt: Vec<(String, String)>,
    /// ReplicaSets to let go, by name and uid.
    pub release: Vec<(String, String)>,
    /// The ReplicaSet to create. If its name is taken by another one, write [`Deployment::collided`].
    pub create: Option<NewReplicaSet>,
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
    pub look_again: Option<Moment>,
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
    now: Moment,
) -> DeploymentPlan {
    let mut plan = DeploymentPlan::default();
    let mut owned: Vec<&ReplicaSet> = Vec::new();
    let metadata = &deployment.metadata;
    for set in sets {
        let matches = deployment.spec.selector.matches(&set.metadata.labels);
        let owners = &set.metadata.owner_references;
        let identity = || (set.metadata.name.to_string(), set.metadata.uid.to_string());
        match claim(
            &metadata.uid,
            metadata.is_terminating(),
            owners,
            matches,
            set.metadata.is_terminating(),
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
    if !metadata.is_terminating() {
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
