//! How do DaemonSets get their pod onto every node?

use super::parents::{Parent, Step};
use super::pods::Written;
use super::store::{Change, Moved, Store};
use super::write::Family;
use super::{Edge, Now};
use pointsman_api_client::Resource;
use pointsman_objects::workload::LabelSelector;
use pointsman_objects::{DaemonSet, Node, Pod};
use pointsman_workloads::daemonset::{DaemonSetPlan, plan};
use std::sync::Arc;

impl Parent for DaemonSet {
    type Plan = DaemonSetPlan;
    const READS_NODES: bool = true;

    fn moved(change: &Change) -> Option<&Moved<Self>> {
        match change {
            Change::Daemon(moved) => Some(moved),
            _ => None,
        }
    }

    fn selector(&self) -> &LabelSelector {
        &self.spec.selector
    }

    fn plan(&self, store: &Store, pods: &[&Pod], _failure: Option<&str>, now: Now) -> Step<DaemonSetPlan> {
        let nodes: Vec<&Node> = store.nodes().collect();
        let plan = plan(self, pods, &nodes, now.wall);
        Step {
            look_again: plan.look_again,
            plan: (!plan.is_empty()).then_some(plan),
        }
    }

    async fn carry_out(self: Arc<Self>, edge: Edge, plan: DaemonSetPlan) -> Written {
        let family = Family {
            resource: Resource::DAEMON_SETS,
            kind: "DaemonSet",
            metadata: &self.metadata,
            children: Resource::PODS,
        };
        let create = plan.create.iter().map(|node| self.new_pod(node));
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
