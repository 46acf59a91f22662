//! Which pods of a Job ended, and are they in its numbers?

use std::collections::{HashMap, HashSet};

use pointsman_objects::job::{INDEX, JobStatus};
use pointsman_objects::pod::Phase;
use pointsman_objects::{Job, Pod};

use super::{Indexes, identity};

/// The pods of a Job as they are now.
pub(super) struct Count<'a> {
    /// Neither at their end nor on their way out.
    pub active: Vec<&'a Pod>,
    pub terminating: usize,
    /// Pods whose finalizer can go once the status is written.
    pub to_release: Vec<(String, String)>,
    /// Whether pods are still to be counted.
    pub pending: bool,
    /// All that succeeded and failed, in the numbers or not yet.
    pub succeeded: i32,
    pub failed: i32,
}

impl<'a> Count<'a> {
    /// Counts; writes the numbers into the status.
    pub fn of(job: &Job, mine: &[&'a Pod], status: &mut JobStatus) -> Self {
        let held: HashMap<&str, &Pod> = mine
            .iter()
            .filter(|pod| pod.metadata.counted_by_job)
            .map(|pod| (&*pod.metadata.uid, *pod))
            .collect();
        let uncounted = &mut status.uncounted_terminated_pods;
        // Those that lost their finalizer move from the list into the number.
        let settle = |list: &mut Vec<String>, number: &mut i32| {
            let before = list.len();
            list.retain(|uid| held.contains_key(uid.as_str()));
            *number = number.saturating_add(i32::try_from(before - list.len()).unwrap_or(0));
        };
        settle(&mut uncounted.succeeded, &mut status.succeeded);
        settle(&mut uncounted.failed, &mut status.failed);
        let listed: HashSet<String> = uncounted
            .succeeded
            .iter()
            .chain(&uncounted.failed)
            .cloned()
            .collect();
        let mut done = Indexes::parse(
            status.completed_indexes.as_deref().unwrap_or(""),
            job.spec.completions,
        );
        let only_failed = job.spec.pod_replacement_policy == "Failed";
        for pod in mine
            .iter()
            .filter(|pod| pod.metadata.counted_by_job && !listed.contains(&*pod.metadata.uid))
        {
            let uid = pod.metadata.uid.to_string();
            if pod.phase == Phase::Succeeded {
                match index_of(pod).filter(|_| job.is_indexed()) {
                    Some(index) => drop(done.insert(index)),
                    None if job.is_indexed() => {}
                    None => uncounted.succeeded.push(uid),
                }
            } else if pod.phase == Phase::Failed || (pod.is_terminating() && !only_failed) {
                uncounted.failed.push(uid);
            }
        }
        if job.is_indexed() {
            status.completed_indexes = Some(done.to_string());
            status.succeeded = done.len();
        }
        let counted = |pod: &&&Pod| {
            let uid = &*pod.metadata.uid;
            let lists = status.uncounted_terminated_pods.succeeded.iter();
            let mut lists = lists.chain(&status.uncounted_terminated_pods.failed);
            pod.metadata.counted_by_job
                && (lists.any(|listed| *listed == *uid)
                    || (job.is_indexed() && pod.phase == Phase::Succeeded))
        };
        let to_release: Vec<_> = mine.iter().filter(counted).map(|pod| identity(pod)).collect();
        let active: Vec<&Pod> = mine.iter().copied().filter(|pod| pod.is_active()).collect();
        let terminating = mine
            .iter()
            .filter(|pod| pod.is_terminating() && !pod.is_finished())
            .count();
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        status.active = number(active.len());
        status.ready = Some(number(active.iter().filter(|pod| pod.is_ready()).count()));
        status.terminating = Some(number(terminating));
        let uncounted = &status.uncounted_terminated_pods;
        Self {
            pending: !to_release.is_empty()
                || !uncounted.succeeded.is_empty()
                || !uncounted.failed.is_empty(),
            succeeded: status.succeeded.saturating_add(number(uncounted.succeeded.len())),
            failed: status.failed.saturating_add(number(uncounted.failed.len())),
            active,
            terminating,
            to_release,
        }
    }
}

/// The index that a pod is for.
pub(super) fn index_of(pod: &Pod) -> Option<i32> {
    pod.metadata
        .labels
        .get(INDEX)?
        .parse()
        .ok()
        .filter(|index| *index >= 0)
}
