//! How do Jobs run pods to their end, and count each once?

use super::parents::{Parent, Step};
use super::pods::Written;
use super::store::{Change, Moved, Store};
use super::work::{Done, Work};
use super::write::Family;
use super::{Edge, Now};
use pointsman_api_client::events::Severity;
use pointsman_api_client::{ApiError, DeleteOptions, Patch, Resource};
use pointsman_objects::job::TRACKING;
use pointsman_objects::workload::LabelSelector;
use pointsman_objects::{Job, Pod};
use pointsman_slices::queue::Outcome;
use pointsman_workloads::job::{JobPlan, plan};
use serde::de::IgnoredAny;
use serde_json::json;
use std::sync::Arc;

impl Parent for Job {
    type Plan = JobPlan;

    fn moved(change: &Change) -> Option<&Moved<Self>> {
        match change {
            Change::Job(moved) => Some(moved),
            _ => None,
        }
    }

    fn selector(&self) -> &LabelSelector {
        &self.spec.selector
    }

    fn plan(&self, _store: &Store, pods: &[&Pod], _failure: Option<&str>, now: Now) -> Step<JobPlan> {
        let plan = plan(self, pods, now.wall);
        Step {
            look_again: plan.look_again,
            plan: (!plan.is_empty()).then_some(plan),
        }
    }

    /// The status comes first: only what it names may lose its finalizer.
    async fn carry_out(self: Arc<Self>, edge: Edge, plan: JobPlan) -> Written {
        let metadata = &self.metadata;
        let family = Family {
            resource: Resource::JOBS,
            kind: "Job",
            metadata,
            children: Resource::PODS,
        };
        if let Err(error) = edge
            .write_status(&family, &self.status, plan.status.as_ref())
            .await
        {
            return Written::failed(error);
        }
        let about = family.subject();
        for (bad, reason, message) in plan.events {
            let severity = if bad { Severity::Warning } else { Severity::Normal };
            edge.tell(&about, severity, reason, message);
        }
        for (name, uid) in plan.count.iter().chain(&plan.discard) {
            if let Err(error) = edge.let_go(&metadata.namespace, name, uid).await {
                return Written::failed(error);
            }
        }
        if plan.remove {
            let options = DeleteOptions::of(&metadata.uid).in_foreground();
            let removed = edge.delete(Resource::JOBS, &metadata.namespace, &metadata.name, &options);
            if let Err(error) = removed.await {
                return Written::failed(error);
            }
        }
        let create = plan.create.iter().map(|index| self.new_pod(*index));
        let delete = [plan.fail, plan.discard].concat();
        edge.write_pods(&family, (&[], &[]), create, &delete).await
    }
}

impl Edge {
    /// Takes a Job's finalizer off a pod. One that is gone, or another by now, is no failure.
    async fn let_go(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "uid": uid, "$deleteFromPrimitiveList/finalizers": [TRACKING] } });
        let api = self.client.api(Resource::PODS, Some(namespace));
        let patch = Patch::Strategic(patch.to_string().into_bytes());
        match api.patch::<IgnoredAny>(name, patch).await {
            Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Pods that wait to be counted by a Job that is gone. Nobody else lets them go.
pub(super) struct Strays(pub Work);

impl Strays {
    pub fn observe(&mut self, store: &Store, change: &Change, now: Now) {
        match change {
            _ if !self.0.on => {}
            Change::Pod {
                key, new: Some(pod), ..
            } if pod.metadata.counted_by_job => self.0.queue.add(key, now.tick),
            Change::Job(Moved {
                old: Some(job),
                new: None,
                ..
            }) => {
                for pod in store
                    .pods_of(&job.metadata.uid)
                    .filter(|pod| pod.metadata.counted_by_job)
                {
                    self.0.queue.add(&super::store::key_of(&pod.metadata), now.tick);
                }
            }
            _ => {}
        }
    }

    pub fn start(&mut self, store: &Store, now: Now) {
        while self.0.writers.has_room()
            && let Some(key) = self.0.queue.next(now.tick)
        {
            let pod = store.pod(&key).filter(|pod| pod.metadata.counted_by_job);
            let owned = |pod: &&Arc<Pod>| {
                pod.controller_uid()
                    .is_some_and(|uid| store.jobs.key_of_uid(uid).is_some())
            };
            let Some(pod) = pod.filter(|pod| !owned(pod)).cloned() else {
                self.0.queue.finish(&key, Outcome::Done, now.tick);
                continue;
            };
            let edge = self.0.edge.clone();
            self.0.writers.start(async move {
                let metadata = &pod.metadata;
                let outcome = edge
                    .let_go(&metadata.namespace, &metadata.name, &metadata.uid)
                    .await;
                let failure = outcome.err();
                Done { key, failure }
            });
        }
    }
}
