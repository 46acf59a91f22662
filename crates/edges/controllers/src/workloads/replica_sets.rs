//! How do ReplicaSets keep their number of pods?

use super::parents::{Parent, Step};
use super::pods::Written;
use super::store::{Change, Moved, Store};
use super::write::Family;
use super::{Edge, Now};
use pointsman_api_client::Resource;
use pointsman_objects::workload::LabelSelector;
use pointsman_objects::{Pod, ReplicaSet};
use pointsman_workloads::replicaset::{ReplicaSetPlan, count_by_node, plan};
use std::sync::Arc;

impl Parent for ReplicaSet {
    type Plan = ReplicaSetPlan;

    fn moved(change: &Change) -> Option<&Moved<Self>> {
        match change {
            Change::Set(moved) => Some(moved),
            _ => None,
        }
    }

    fn selector(&self) -> &LabelSelector {
        &self.spec.selector
    }

    fn plan(&self, store: &Store, pods: &[&Pod], failure: Option<&str>, now: Now) -> Step<ReplicaSetPlan> {
        let metadata = &self.metadata;
        let siblings = match metadata.controller() {
            Some(owner) => {
                let same = |other: &ReplicaSet| {
                    let other = other.metadata.controller();
                    other.is_some_and(|other| other.uid == owner.uid)
                };
                let sets = store.sets.of_namespace(&metadata.namespace);
                let sets = sets.filter(|(_, other)| same(other));
                count_by_node(sets.flat_map(|(_, other)| store.pods_of(&other.metadata.uid)))
            }
            None => count_by_node(store.pods_of(&metadata.uid)),
        };
        let plan = plan(self, pods, &siblings, failure, now.wall);
        let look_again = plan.look_again;
        let nothing = ReplicaSetPlan {
            look_again,
            ..ReplicaSetPlan::default()
        };
        Step {
            plan: (plan != nothing).then_some(plan),
            look_again,
        }
    }

    async fn carry_out(self: Arc<Self>, edge: Edge, plan: ReplicaSetPlan) -> Written {
        let family = Family {
            resource: Resource::REPLICA_SETS,
            kind: "ReplicaSet",
            metadata: &self.metadata,
            children: Resource::PODS,
        };
        let create = (0..plan.create).map(|_| self.new_pod());
        let mut written = edge
            .write_pods(&family, (&plan.adopt, &plan.release), create, &plan.delete)
            .await;
        written.status(
            edge.write_status(&family, &self.status, plan.status.as_ref())
                .await,
        );
        written
    }
}
