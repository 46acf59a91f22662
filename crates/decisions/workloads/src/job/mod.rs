//! Which pods does a Job need next, and is it done?
//!
//! One call is one step. Each pod is counted once, whoever removes it and whenever this program stops in between: a pod has
//! a finalizer until the status says that it ended (`uncountedTerminatedPods`), and is in the number once the finalizer
//! is seen to be gone.
//!
//! Laws, tested in `tests/jobs.rs`: never more pods than `parallelism`, every end is counted once, and a Job that is done
//! stays as it is.

mod count;
mod end;
mod indexes;

use std::collections::HashMap;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_objects::job::JobStatus;
use pointsman_objects::workload::StatusCondition;
use pointsman_objects::{Job, Pod};

use crate::replicaset::deletion_order;
use count::Count;
pub use indexes::Indexes;

/// Most pods created or deleted in one pass (upstream's).
const BURST: usize = 500;
/// Wait after the first failure, doubled by each further one (upstream's).
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LAST_WAIT: Duration = Duration::from_secs(600);

/// What to do for a Job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPlan {
    /// The status to write, if it differs from the one there is. It goes first.
    pub status: Option<JobStatus>,
    /// Pods that lose their finalizer once the status is written, by name and uid.
    pub count: Vec<(String, String)>,
    /// Pods to create: one for each index, or so many without one.
    pub create: Vec<Option<i32>>,
    /// Pods to delete that count as failed.
    pub fail: Vec<(String, String)>,
    /// Pods to delete that count as nothing: they lose their finalizer first.
    pub discard: Vec<(String, String)>,
    /// The Job itself has outlived its time to live.
    pub remove: bool,
    /// What to tell people: whether it is bad, the reason, a sentence.
    pub events: Vec<(bool, &'static str, String)>,
    /// When the answer may change without an event.
    pub look_again: Option<Moment>,
}

impl JobPlan {
    /// Whether there is nothing to do now.
    pub fn is_empty(&self) -> bool {
        *self
            == Self {
                look_again: self.look_again,
                ..Self::default()
            }
    }
}

/// Decides the next step for one Job. `pods` are those that it controls.
pub fn plan(job: &Job, pods: &[&Pod], now: Moment) -> JobPlan {
    let mut plan = JobPlan::default();
    if job.is_foreign() {
        return plan;
    }
    let mine = pods
        .iter()
        .copied()
        .filter(|pod| pod.controller_uid() == Some(&*job.metadata.uid));
    let mine: Vec<&Pod> = mine.collect();
    let deleting = job.metadata.is_terminating();
    if deleting || end::finished_at(job).is_some() {
        // Nobody counts any more; pods must not wait for it.
        plan.count = mine
            .iter()
            .filter(|pod| pod.metadata.counted_by_job && (deleting || !pod.is_active()))
            .map(|pod| identity(pod))
            .collect();
        if !deleting {
            end::expire(job, now, &mut plan);
        }
        return plan;
    }
    let mut status = job.status.clone();
    let count = Count::of(job, &mine, &mut status);
    plan.count = count.to_release.clone();
    let started = status.start_time.is_none() && !job.spec.suspend;
    if started {
        status.start_time = Some(now.start_of_second());
        let ignored = job.ignored_fields();
        if !ignored.is_empty() {
            let message = format!("These fields are not acted upon: {}", ignored.join(", "));
            plan.events.push((true, "NotSupported", message));
        }
    }
    end::decide(job, &count, &mut status, now, &mut plan);
    if end::is_decided(&status) {
        // Pods that run on are not missed where the Job succeeded, and failed with it where it did not.
        let going = count.active.iter().take(BURST).map(|pod| identity(pod)).collect();
        if end::has(&status, "FailureTarget") {
            plan.fail = going;
        } else {
            plan.discard = going;
        }
        end::finish(&count, &mut status, now, &mut plan);
    } else if job.spec.suspend {
        plan.discard = count.active.iter().take(BURST).map(|pod| identity(pod)).collect();
        end::suspend(&mut status, now, &mut plan);
    } else {
        end::resume(&mut status, now, &mut plan);
        run(job, &count, &status, &mine, now, &mut plan);
    }
    plan.status = (status != job.status).then_some(status);
    plan
}

/// Makes pods that are missing and removes those that are too many.
fn run(job: &Job, count: &Count<'_>, status: &JobStatus, mine: &[&Pod], now: Moment, plan: &mut JobPlan) {
    let mut active = count.active.clone();
    if job.is_indexed() {
        // Two pods of one index, or an index that is done or out of range: the younger goes.
        let mut seen = Indexes::parse(
            status.completed_indexes.as_deref().unwrap_or(""),
            job.spec.completions,
        );
        active.sort_by_key(|pod| pod.metadata.created);
        active.retain(|pod| {
            let index = count::index_of(pod);
            let first =
                index.is_some_and(|index| index < job.spec.completions.unwrap_or(0) && seen.insert(index));
            if !first {
                plan.discard.push(identity(pod));
            }
            first
        });
    }
    let have = active.len();
    let want = wanted(job, count);
    if have > want {
        let none = HashMap::new();
        active.sort_by(|a, b| deletion_order(a, b, &none, now));
        plan.discard
            .extend(active[..have - want].iter().map(|pod| identity(pod)));
    }
    plan.discard.truncate(BURST);
    let leaving = if job.spec.pod_replacement_policy == "Failed" {
        count.terminating
    } else {
        0
    };
    let missing = want.saturating_sub(have + leaving).min(BURST);
    if missing == 0 {
        return;
    }
    if let Some(at) = held_back(mine).filter(|at| *at > now) {
        plan.look_again = plan.look_again.into_iter().chain([at]).min();
        return;
    }
    plan.create = if job.is_indexed() {
        let mut taken = Indexes::parse(
            status.completed_indexes.as_deref().unwrap_or(""),
            job.spec.completions,
        );
        // An index whose pod is on its way out, or not counted yet, gets the next one after that where it has to wait.
        let holding = active.iter().filter_map(|pod| count::index_of(pod));
        for index in holding.collect::<Vec<_>>() {
            taken.insert(index);
        }
        taken.missing().take(missing).map(Some).collect()
    } else {
        vec![None; missing]
    };
}

fn wanted(job: &Job, count: &Count<'_>) -> usize {
    let most = usize::try_from(job.parallelism()).unwrap_or(0);
    match job.spec.completions {
        Some(completions) => {
            let left = completions.saturating_sub(count.succeeded);
            usize::try_from(left).unwrap_or(0).min(most)
        }
        // One that found no more work tells the others: nothing is started after it.
        None if count.succeeded > 0 => count.active.len().min(most),
        None => most,
    }
}

/// Until when failures since the last success hold the next pod back.
fn held_back(mine: &[&Pod]) -> Option<Moment> {
    let ended = |pod: &&Pod| {
        pod.ready_condition
            .and_then(|ready| ready.changed)
            .or(pod.metadata.created)
    };
    let (good, bad): (Vec<&Pod>, Vec<&Pod>) = mine
        .iter()
        .copied()
        .filter(|pod| pod.is_finished())
        .partition(|pod| pod.phase == pointsman_objects::pod::Phase::Succeeded);
    let last_good = good.iter().filter_map(ended).max();
    let since: Vec<Moment> = bad
        .iter()
        .filter_map(ended)
        .filter(|at| Some(*at) > last_good)
        .collect();
    let last = since.iter().max()?;
    let doublings = u32::try_from(since.len() - 1).unwrap_or(u32::MAX).min(16);
    Some(last.after(FIRST_WAIT.saturating_mul(1 << doublings).min(LAST_WAIT)))
}

fn identity(pod: &Pod) -> (String, String) {
    (pod.metadata.name.to_string(), pod.metadata.uid.to_string())
}

fn condition(r#type: &str, status: &str, reason: &str, message: &str, now: Moment) -> StatusCondition {
    StatusCondition {
        r#type: r#type.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Some(now.start_of_second()),
        ..StatusCondition::default()
    }
}
