//! When is a Job done, failed, suspended or forgotten?
//!
//! The decision is written first (`SuccessCriteriaMet`, `FailureTarget`), the end (`Complete`, `Failed`) when no pod is
//! left and all are counted.

use std::time::Duration;

use pointsman_model::Moment;
use pointsman_objects::Job;
use pointsman_objects::job::JobStatus;
use pointsman_objects::workload::StatusCondition;

use super::count::Count;
use super::{JobPlan, condition};

const MET: &str = "SuccessCriteriaMet";
const FAILING: &str = "FailureTarget";
const SUSPENDED: &str = "Suspended";

/// Since when a Job is at its end.
pub(super) fn finished_at(job: &Job) -> Option<Option<Moment>> {
    let end = job.condition("Complete").or_else(|| job.condition("Failed"))?;
    Some(end.last_transition_time)
}

pub(super) fn has(status: &JobStatus, r#type: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.r#type == r#type && condition.status == "True")
}

/// Whether it is known how the Job ends.
pub(super) fn is_decided(status: &JobStatus) -> bool {
    has(status, MET) || has(status, FAILING)
}

/// Finds out whether it is known now.
pub(super) fn decide(job: &Job, count: &Count<'_>, status: &mut JobStatus, now: Moment, plan: &mut JobPlan) {
    if is_decided(status) {
        return;
    }
    let limit = job.spec.backoff_limit;
    let restarts = || {
        count
            .active
            .iter()
            .fold(0_u64, |sum, pod| sum + u64::from(pod.restarts))
    };
    let allowed = u64::try_from(limit).unwrap_or(0);
    let restarted_too_often = job.restarts_in_place() && restarts() > 0 && restarts() >= allowed;
    let done = match job.spec.completions {
        Some(completions) => count.succeeded >= completions,
        None => count.succeeded > 0 && count.active.is_empty() && count.terminating == 0,
    };
    let deadline = job.spec.active_deadline_seconds.zip(status.start_time);
    let deadline = deadline
        .filter(|_| !job.spec.suspend)
        .map(|(seconds, start)| start.after(seconds_of(seconds)));
    let failing = if count.failed > limit || restarted_too_often {
        Some((
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
        ))
    } else if deadline.is_some_and(|deadline| deadline <= now) {
        Some((
            "DeadlineExceeded",
            "Job was active longer than specified deadline",
        ))
    } else {
        None
    };
    if let Some((reason, message)) = failing {
        status
            .conditions
            .push(condition(FAILING, "True", reason, message, now));
    } else if done {
        let message = "Reached expected number of succeeded pods";
        status
            .conditions
            .push(condition(MET, "True", "CompletionsReached", message, now));
    } else {
        plan.look_again = plan.look_again.into_iter().chain(deadline).min();
    }
}

/// Writes the end of a Job whose end is decided, once nothing of it is left.
pub(super) fn finish(count: &Count<'_>, status: &mut JobStatus, now: Moment, plan: &mut JobPlan) {
    if !count.active.is_empty() || count.terminating > 0 || count.pending {
        return;
    }
    let why = status
        .conditions
        .iter()
        .find(|condition| [MET, FAILING].contains(&&*condition.r#type));
    let Some(StatusCondition {
        r#type,
        reason,
        message,
        ..
    }) = why.cloned()
    else {
        return;
    };
    if r#type == FAILING {
        plan.events.push((
            true,
            if reason == "DeadlineExceeded" {
                "DeadlineExceeded"
            } else {
                "BackoffLimitExceeded"
            },
            message.clone(),
        ));
        status
            .conditions
            .push(condition("Failed", "True", &reason, &message, now));
    } else {
        plan.events.push((false, "Completed", "Job completed".into()));
        status.completion_time = Some(now.start_of_second());
        status
            .conditions
            .push(condition("Complete", "True", &reason, &message, now));
    }
}

/// Writes down that the Job waits.
pub(super) fn suspend(status: &mut JobStatus, now: Moment, plan: &mut JobPlan) {
    status.start_time = None;
    if !has(status, SUSPENDED) {
        put(
            status,
            condition(SUSPENDED, "True", "JobSuspended", "Job suspended", now),
        );
        plan.events.push((false, "Suspended", "Job suspended".into()));
    }
}

/// Writes down that the Job goes on.
pub(super) fn resume(status: &mut JobStatus, now: Moment, plan: &mut JobPlan) {
    if has(status, SUSPENDED) {
        put(
            status,
            condition(SUSPENDED, "False", "JobResumed", "Job resumed", now),
        );
        plan.events.push((false, "Resumed", "Job resumed".into()));
        status.start_time = Some(now.start_of_second());
    }
}

fn put(status: &mut JobStatus, condition: StatusCondition) {
    status.conditions.retain(|known| known.r#type != condition.r#type);
    status.conditions.push(condition);
}

/// Removes a Job whose time to live after its end is over.
pub(super) fn expire(job: &Job, now: Moment, plan: &mut JobPlan) {
    let (Some(seconds), Some(at)) = (job.spec.ttl_seconds_after_finished, finished_at(job).flatten()) else {
        return;
    };
    let due = at.after(seconds_of(seconds));
    if due <= now {
        plan.remove = true;
    } else {
        plan.look_again = Some(due);
    }
}

fn seconds_of(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or(0))
}
