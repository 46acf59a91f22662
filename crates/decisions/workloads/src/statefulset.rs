//! Which of a StatefulSet's pods comes, goes or is replaced next?
//!
//! One call is one step. Pods have numbers: with `OrderedReady` each waits until those before it are ready, and they go in the
//! opposite order; with `Parallel` nobody waits. Updates go from the last number to the first, one at a time, down to the
//! partition.
//!
//! Laws, tested in `tests/stateful.rs`: no two pods have one number; ordered pods come only when all before them are ready;
//! an update takes one pod at a time and leaves those below the partition alone.

use std::collections::BTreeMap;

use pointsman_model::Moment;
use pointsman_objects::pod::Phase;
use pointsman_objects::stateful_set::StatefulSetStatus;
use pointsman_objects::{Pod, StatefulSet};

use crate::ownership::{Claim, claim};

/// Most pods created or deleted in one pass.
const BURST: usize = 500;

/// What to do for a StatefulSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatefulSetPlan {
    /// Pods to adopt, by name and uid.
    pub adopt: Vec<(String, String)>,
    /// Pods to let go, by name and uid.
    pub release: Vec<(String, String)>,
    /// The name under which the present template has to be kept before anything else is written.
    pub keep_revision: Option<String>,
    /// Pods to create, by number, with the revision that each is of.
    pub create: Vec<(i32, String)>,
    /// Pods to delete, by name and uid.
    pub delete: Vec<(String, String)>,
    /// The status to write, if it differs from the one there is.
    pub status: Option<StatefulSetStatus>,
    /// When the answer may change without an event.
    pub look_again: Option<Moment>,
}

impl StatefulSetPlan {
    /// Whether there is nothing to do now.
    pub fn is_empty(&self) -> bool {
        *self
            == Self {
                look_again: self.look_again,
                ..Self::default()
            }
    }
}

/// Decides the next step for one StatefulSet. `pods` are those of its namespace that it controls or selects.
pub fn plan(set: &StatefulSet, pods: &[&Pod], now: Moment) -> StatefulSetPlan {
    let mut plan = StatefulSetPlan::default();
    let mut mine: BTreeMap<i32, &Pod> = BTreeMap::new();
    for pod in pods.iter().copied() {
        let ordinal = set.ordinal_of(&pod.metadata.name);
        let matches = ordinal.is_some() && set.spec.selector.matches(&pod.metadata.labels);
        let owners = &pod.metadata.owner_references;
        let deleting = set.metadata.is_terminating();
        match (
            claim(&set.metadata.uid, deleting, owners, matches, pod.is_terminating()),
            ordinal,
        ) {
            (Claim::Owned, Some(ordinal)) => drop(mine.insert(ordinal, pod)),
            (Claim::Adopt, _) => plan.adopt.push(identity(pod)),
            (Claim::Release, _) => plan.release.push(identity(pod)),
            _ => {}
        }
    }
    let newest = set.revision();
    let status = status(set, &mine, &newest, now);
    plan.keep_revision = (set.status.update_revision != newest).then(|| newest.clone());
    // A pod that is about to be adopted has its number already.
    if !set.metadata.is_terminating() && plan.adopt.is_empty() {
        let steps = Steps {
            set,
            mine: &mine,
            newest: &newest,
            current: &status.current_revision,
            now,
        };
        steps.take(&mut plan);
    }
    plan.create.truncate(BURST);
    plan.delete.truncate(BURST);
    plan.status = (status != set.status).then_some(status);
    plan
}

/// What the steps of one pass are decided from.
struct Steps<'a> {
    set: &'a StatefulSet,
    mine: &'a BTreeMap<i32, &'a Pod>,
    newest: &'a str,
    current: &'a str,
    now: Moment,
}

/// Whether the pass goes on, or waits for a pod.
#[derive(PartialEq)]
enum Go {
    On,
    Wait,
}

impl Steps<'_> {
    fn take(&self, plan: &mut StatefulSetPlan) {
        let parallel = self.set.spec.pod_management_policy == "Parallel";
        for ordinal in self.set.range().take(BURST * 2) {
            if self.fill(ordinal, plan) == Go::Wait && !parallel {
                return;
            }
        }
        let range = self.set.range();
        let surplus = self
            .mine
            .iter()
            .rev()
            .filter(|(ordinal, _)| !range.contains(ordinal));
        for (_, pod) in surplus {
            if !pod.is_terminating() {
                plan.delete.push(identity(pod));
            }
            if !parallel {
                return;
            }
        }
        let all_there = plan.create.is_empty() && plan.delete.is_empty();
        if all_there && self.set.spec.update_strategy.r#type != "OnDelete" {
            self.update(plan);
        }
    }

    /// Sees to one number.
    fn fill(&self, ordinal: i32, plan: &mut StatefulSetPlan) -> Go {
        let Some(pod) = self.mine.get(&ordinal) else {
            plan.create.push((ordinal, self.revision_for(ordinal).to_owned()));
            return Go::Wait;
        };
        if pod.is_terminating() {
            return Go::Wait;
        }
        if pod.is_finished() {
            plan.delete.push(identity(pod));
            return Go::Wait;
        }
        match pod
            .available_at(self.set.min_ready())
            .filter(|_| pod.phase == Phase::Running)
        {
            Some(at) if at <= self.now => Go::On,
            Some(at) => {
                plan.look_again = plan.look_again.into_iter().chain([at]).min();
                Go::Wait
            }
            None => Go::Wait,
        }
    }

    /// The last pod of another revision goes, once all after it are ready.
    fn update(&self, plan: &mut StatefulSetPlan) {
        let range = self.set.range();
        let first = range.start.saturating_add(self.partition());
        for pod in self
            .mine
            .range(first.min(range.end)..range.end)
            .rev()
            .map(|(_, pod)| pod)
        {
            if pod.is_terminating() {
                return;
            }
            if StatefulSet::revision_of(pod) != self.newest {
                plan.delete.push(identity(pod));
                return;
            }
            let available = pod.available_at(self.set.min_ready());
            if available.is_none_or(|at| at > self.now) {
                return;
            }
        }
    }

    fn revision_for(&self, ordinal: i32) -> &str {
        let below = ordinal < self.set.range().start.saturating_add(self.partition());
        if below && self.set.spec.update_strategy.r#type != "OnDelete" {
            self.current
        } else {
            self.newest
        }
    }

    fn partition(&self) -> i32 {
        self.set.spec.update_strategy.rolling_update.partition.max(0)
    }
}

fn status(set: &StatefulSet, mine: &BTreeMap<i32, &Pod>, newest: &str, now: Moment) -> StatefulSetStatus {
    let old = &set.status;
    let current = Some(old.current_revision.as_str())
        .filter(|known| !known.is_empty())
        .unwrap_or(newest);
    let count = |test: &dyn Fn(&Pod) -> bool| {
        i32::try_from(mine.values().filter(|pod| test(pod)).count()).unwrap_or(i32::MAX)
    };
    let runs = |pod: &Pod| pod.phase == Phase::Running && pod.is_ready();
    let of =
        |revision: &str| count(&|pod| !pod.is_terminating() && StatefulSet::revision_of(pod) == revision);
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(&|_| true),
        ready_replicas: count(&runs),
        available_replicas: count(&|pod| {
            runs(pod) && pod.available_at(set.min_ready()).is_some_and(|at| at <= now)
        }),
        current_replicas: of(current),
        updated_replicas: of(newest),
        current_revision: current.to_owned(),
        update_revision: newest.to_owned(),
        collision_count: old.collision_count,
        conditions: old.conditions.clone(),
    };
    let all = [status.updated_replicas, status.ready_replicas, status.replicas];
    if set.spec.update_strategy.r#type != "OnDelete" && all == [set.replicas(); 3] {
        status.current_revision.clone_from(&status.update_revision);
        status.current_replicas = status.updated_replicas;
    }
    status
}

fn identity(pod: &Pod) -> (String, String) {
    (pod.metadata.name.to_string(), pod.metadata.uid.to_string())
}
