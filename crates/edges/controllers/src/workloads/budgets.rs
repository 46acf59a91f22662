//! How do PodDisruptionBudgets say how many pods may be evicted?

use super::store::{Change, Kept, Moved, Store};
use super::work::{Done, Work};
use super::write::{Family, subject};
use super::{Edge, Now};
use pointsman_api_client::events::Severity;
use pointsman_api_client::{ObjectKey, Resource};
use pointsman_objects::{OwnerReference, Pod, PodDisruptionBudget};
use pointsman_slices::queue::Outcome;
use pointsman_workloads::disruption::{BudgetPlan, plan};
use std::sync::Arc;

const UNMANAGED: &str = "Some pods that this budget selects have no controller, so how many there should be is not known. \
    To count them, set \".spec.minAvailable\" of the budget to a number.";

/// The disruption loop's state.
pub(super) struct Budgets(pub Work);

impl Budgets {
    /// Finds out which budgets an event is about.
    pub fn observe(&mut self, store: &Store, change: &Change, now: Now) {
        if !self.0.on {
            return;
        }
        match change {
            Change::Budget(moved) => self.0.queue.add(&moved.key, now.tick),
            Change::Pod { key, old, new } => {
                for (budget, object) in store.budgets.of_namespace(key.namespace()) {
                    let covers = |pod: &Arc<Pod>| object.covers(&pod.metadata.labels);
                    if old.iter().chain(new).any(covers) {
                        self.0.queue.add(budget, now.tick);
                    }
                }
            }
            Change::Set(moved) => self.scaled(store, moved, now),
            Change::Deployment(moved) => self.scaled(store, moved, now),
            Change::Stateful(moved) => self.scaled(store, moved, now),
            _ => {}
        }
    }

    /// The number of pods there should be may have changed.
    fn scaled<T: Kept>(&mut self, store: &Store, moved: &Moved<T>, now: Now) {
        let replicas = |object: &Option<Arc<T>>| object.as_ref().map(|object| object.replicas());
        if replicas(&moved.old) != replicas(&moved.new) {
            for (key, _) in store.budgets.of_namespace(moved.key.namespace()) {
                self.0.queue.add(key, now.tick);
            }
        }
    }

    /// Starts as many writes as there is room for.
    pub fn start(&mut self, store: &Store, now: Now) {
        while self.0.writers.has_room()
            && let Some(key) = self.0.queue.next(now.tick)
        {
            let Some(budget) = store.budgets.get(&key) else {
                self.0.queue.finish(&key, Outcome::Done, now.tick);
                continue;
            };
            let pods = store.pods_in(&budget.metadata.namespace);
            let pods: Vec<&Pod> = pods.filter(|pod| budget.covers(&pod.metadata.labels)).collect();
            let plan = plan(budget, &pods, |owner| scale(store, owner), now.wall);
            let look_again = plan.look_again;
            self.tell(budget, &plan);
            match &plan.status {
                None => self.0.queue.finish(&key, Outcome::Done, now.tick),
                Some(_) => {
                    self.0
                        .writers
                        .start(write(self.0.edge.clone(), key.clone(), budget.clone(), plan))
                }
            }
            if let Some(at) = look_again {
                self.0.queue.add_at(&key, now.tick_at(at), now.tick);
            }
        }
    }

    fn tell(&self, budget: &PodDisruptionBudget, plan: &BudgetPlan) {
        let about = subject("policy/v1", "PodDisruptionBudget", &budget.metadata);
        let edge = &self.0.edge;
        if plan.no_pods && plan.status.is_some() {
            edge.tell(
                &about,
                Severity::Normal,
                "NoPods",
                "No matching pods found".into(),
            );
        }
        if plan.unmanaged && plan.status.is_some() {
            edge.tell(&about, Severity::Warning, "UnmanagedPods", UNMANAGED.into());
        }
        if let Some(failure) = &plan.failure {
            let message = format!("Failed to calculate the number of expected pods: {failure}");
            edge.tell(
                &about,
                Severity::Warning,
                "CalculateExpectedPodCountFailed",
                message,
            );
        }
    }
}

/// How many pods a pod's controller is to have: a Deployment speaks for its ReplicaSets.
fn scale(store: &Store, owner: &OwnerReference) -> Option<(String, i32)> {
    if let Some(set) = store.stateful.with_uid(&owner.uid) {
        return Some((owner.uid.to_string(), set.replicas()));
    }
    let set = store.sets.with_uid(&owner.uid)?;
    let above = set
        .metadata
        .controller()
        .and_then(|above| store.deployments.with_uid(&above.uid));
    Some(match above {
        Some(deployment) => (deployment.metadata.uid.to_string(), deployment.replicas()),
        None => (owner.uid.to_string(), set.spec.replicas),
    })
}

async fn write(edge: Edge, key: ObjectKey, budget: Arc<PodDisruptionBudget>, plan: BudgetPlan) -> Done {
    let family = Family {
        resource: Resource::POD_DISRUPTION_BUDGETS,
        kind: "PodDisruptionBudget",
        metadata: &budget.metadata,
        children: Resource::PODS,
    };
    let written = edge
        .write_status(&family, &budget.status, plan.status.as_ref())
        .await;
    Done {
        key,
        failure: written.err(),
    }
}
