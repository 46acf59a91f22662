//! How far is a rollout, in the words that `kubectl rollout` reads?

use std::time::Duration;

use pointsman_model::Moment;
use pointsman_objects::Deployment;
use pointsman_objects::workload::{DeploymentStatus, ReplicaSetStatus, StatusCondition};

use super::{DeploymentPlan, Sets};

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The numbers of the status; conditions are those there were.
pub(super) fn base(deployment: &Deployment, sets: &Sets<'_>) -> DeploymentStatus {
    let sum = |count: fn(&ReplicaSetStatus) -> i32| sets.all().map(|set| count(&set.status)).sum();
    let available: i32 = sum(|status| status.available_replicas);
    DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: sum(|status| status.replicas),
        updated_replicas: sets.new.map_or(0, |set| set.status.replicas),
        ready_replicas: sum(|status| status.ready_replicas),
        available_replicas: available,
        unavailable_replicas: (sets.wanted_pods() - available).max(0),
        collision_count: deployment.status.collision_count,
        conditions: deployment.status.conditions.clone(),
    }
}

/// Whether all pods are of the newest template and available.
pub(super) fn complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = deployment.replicas();
    status.updated_replicas == wanted
        && status.replicas == wanted
        && status.available_replicas == wanted
        && status.observed_generation >= deployment.metadata.generation
}

/// Brings the conditions up to date; returns when the progress deadline strikes.
pub(super) fn conditions(
    deployment: &Deployment,
    sets: &Sets<'_>,
    plan: &DeploymentPlan,
    status: &mut DeploymentStatus,
    now: Moment,
) -> Option<Moment> {
    let now = now.start_of_second();
    availability(deployment, status, now);
    failures(sets, status, now);
    let Some(deadline) = deployment
        .spec
        .progress_deadline_seconds
        .filter(|seconds| *seconds < i32::MAX)
    else {
        status
            .conditions
            .retain(|condition| condition.r#type != PROGRESSING);
        return None;
    };
    progress(
        deployment,
        sets,
        plan,
        status,
        Duration::from_secs(u64::try_from(deadline).unwrap_or(0)),
        now,
    )
}

/// Says whether enough pods are available.
fn availability(deployment: &Deployment, status: &mut DeploymentStatus, now: Moment) {
    let (_, unavailable) = deployment.bounds();
    let enough = status.available_replicas >= deployment.replicas() - unavailable;
    let (value, reason, message) = if enough {
        (
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        )
    } else {
        (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    set(status, AVAILABLE, value, reason, message.into(), now);
}

/// Takes over what a ReplicaSet says about pods that could not be made or removed.
fn failures(sets: &Sets<'_>, status: &mut DeploymentStatus, now: Moment) {
    let failure = sets
        .all()
        .flat_map(|set| &set.status.conditions)
        .find(|condition| condition.r#type == REPLICA_FAILURE);
    match failure {
        Some(failure) => set(
            status,
            REPLICA_FAILURE,
            &failure.status,
            &failure.reason,
            failure.message.clone(),
            now,
        ),
        None => status
            .conditions
            .retain(|condition| condition.r#type != REPLICA_FAILURE),
    }
}

/// How a rollout goes.
enum Progress {
    /// Nothing new: finished before, paused before, timed out before.
    AsBefore,
    Paused,
    Resumed,
    /// A ReplicaSet of this name is being created.
    Created(String),
    Complete,
    Advancing,
    TimedOut,
    /// Standing still; the deadline strikes then.
    Waiting(Option<Moment>),
}

fn judge(
    deployment: &Deployment,
    plan: &DeploymentPlan,
    status: &DeploymentStatus,
    deadline: Duration,
    now: Moment,
) -> Progress {
    let current = get(status, PROGRESSING);
    let reason = current.map_or("", |condition| condition.reason.as_str());
    if deployment.spec.paused {
        let settled = matches!(reason, "DeploymentPaused" | "ProgressDeadlineExceeded");
        return if settled {
            Progress::AsBefore
        } else {
            Progress::Paused
        };
    }
    if reason == "DeploymentPaused" {
        return Progress::Resumed;
    }
    if let Some(created) = &plan.create {
        return Progress::Created(created.name.clone());
    }
    // A finished rollout stays finished, whatever happens to its pods later.
    if status.replicas == status.updated_replicas && reason == "NewReplicaSetAvailable" {
        return Progress::AsBefore;
    }
    if complete(deployment, status) {
        return Progress::Complete;
    }
    if advanced(&deployment.status, status) || current.is_none() || reason == "NewReplicaSetAvailable" {
        return Progress::Advancing;
    }
    if reason == "ProgressDeadlineExceeded" {
        return Progress::AsBefore;
    }
    let strikes = current.and_then(|condition| Some(condition.last_update_time?.after(deadline)));
    if strikes.is_some_and(|strikes| strikes < now) {
        return Progress::TimedOut;
    }
    // One second later, since the deadline has to be over.
    Progress::Waiting(strikes.map(|strikes| strikes.after(Duration::from_secs(1))))
}

/// Writes the Progressing condition; returns when the deadline strikes.
fn progress(
    deployment: &Deployment,
    sets: &Sets<'_>,
    plan: &DeploymentPlan,
    status: &mut DeploymentStatus,
    deadline: Duration,
    now: Moment,
) -> Option<Moment> {
    let subject = match sets.new {
        Some(set) => format!("ReplicaSet {:?}", set.metadata.name),
        None => format!("Deployment {:?}", deployment.metadata.name),
    };
    let progress = judge(deployment, plan, status, deadline, now);
    let (value, reason, message) = match &progress {
        Progress::AsBefore => return None,
        Progress::Waiting(strikes) => return *strikes,
        Progress::Paused => ("Unknown", "DeploymentPaused", "Deployment is paused".into()),
        Progress::Resumed => ("Unknown", "DeploymentResumed", "Deployment is resumed".into()),
        Progress::Created(name) => (
            "True",
            "NewReplicaSetCreated",
            format!("Created new replica set {name:?}"),
        ),
        Progress::Complete => (
            "True",
            "NewReplicaSetAvailable",
            format!("{subject} has successfully progressed."),
        ),
        Progress::Advancing => ("True", "ReplicaSetUpdated", format!("{subject} is progressing.")),
        Progress::TimedOut => (
            "False",
            "ProgressDeadlineExceeded",
            format!("{subject} has timed out progressing."),
        ),
    };
    if matches!(progress, Progress::Advancing) {
        // Every advance counts for the deadline, also under a reason that stays the same.
        if let Some(condition) = status
            .conditions
            .iter_mut()
            .find(|condition| condition.r#type == PROGRESSING)
        {
            condition.last_update_time = Some(now);
        }
    }
    set(status, PROGRESSING, value, reason, message, now);
    let clock_runs = matches!(
        progress,
        Progress::Resumed | Progress::Created(_) | Progress::Advancing
    );
    clock_runs.then(|| now.after(deadline))
}

/// Whether more new pods, fewer old pods, or more ready or available ones are there than before.
fn advanced(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    after.updated_replicas > before.updated_replicas
        || after.replicas - after.updated_replicas < before.replicas - before.updated_replicas
        || after.ready_replicas > before.ready_replicas
        || after.available_replicas > before.available_replicas
}

fn get<'a>(status: &'a DeploymentStatus, r#type: &str) -> Option<&'a StatusCondition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.r#type == r#type)
}

/// Sets a condition, unless it says the same already; its transition time changes with its status only.
fn set(status: &mut DeploymentStatus, r#type: &str, value: &str, reason: &str, message: String, now: Moment) {
    let old = status
        .conditions
        .iter()
        .position(|condition| condition.r#type == r#type);
    let mut condition = StatusCondition {
        r#type: r#type.into(),
        status: value.into(),
        reason: reason.into(),
        message,
        observed_generation: None,
        last_update_time: Some(now),
        last_transition_time: Some(now),
    };
    match old {
        None => status.conditions.push(condition),
        Some(index) => {
            let old = &mut status.conditions[index];
            if old.status == condition.status && old.reason == condition.reason {
                return;
            }
            if old.status == condition.status {
                condition.last_transition_time = old.last_transition_time;
            }
            *old = condition;
        }
    }
}
