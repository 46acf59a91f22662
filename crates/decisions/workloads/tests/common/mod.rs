//! A cluster with one Deployment: every part takes a step when told to.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::HashMap;

use pointsman_model::{Labels, Moment};
use pointsman_objects::metadata::{All, Annotations};
use pointsman_objects::{Condition, ConditionStatus, Deployment, Pod, ReplicaSet};
use pointsman_workloads::{deployment, replicaset};
use serde_json::{Value, json};

pub fn at(second: i64) -> Moment {
    Moment::from_seconds(1_800_000_000 + second)
}

pub fn deployment(replicas: i32, surge: Value, unavailable: Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": { "namespace": "ns", "name": "web", "uid": "d", "generation": 1, "annotations": { "team": "a" } },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "image": "v1" }] } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } },
        },
    }))
    .expect("a deployment")
}

pub fn extend(annotations: &mut Annotations<All>, more: impl IntoIterator<Item = (String, String)>) {
    let known: Vec<(String, String)> = annotations
        .iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    *annotations = Annotations::new(Labels::new(known.into_iter().chain(more)));
}

pub struct Cluster {
    pub deployment: Deployment,
    pub sets: Vec<ReplicaSet>,
    /// Pods with the JSON they were made of.
    pub pods: Vec<Pod>,
    pub second: i64,
    serial: usize,
}

impl Cluster {
    pub fn new(deployment: Deployment) -> Self {
        Self {
            deployment,
            sets: Vec::new(),
            pods: Vec::new(),
            second: 0,
            serial: 0,
        }
    }

    pub fn now(&self) -> Moment {
        at(self.second)
    }

    pub fn set_image(&mut self, image: &str) {
        self.deployment.spec.template.0["spec"]["containers"][0]["image"] = image.into();
        self.deployment.metadata.generation += 1;
    }

    pub fn pause(&mut self, paused: bool) {
        self.deployment.spec.paused = paused;
        self.deployment.metadata.generation += 1;
    }

    pub fn resize(&mut self, replicas: i32) {
        self.deployment.spec.replicas = replicas;
        self.deployment.metadata.generation += 1;
    }

    pub fn plan(&self) -> deployment::DeploymentPlan {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for pod in self.pods.iter().filter(|pod| !pod.is_finished()) {
            *counts
                .entry(pod.controller_uid().unwrap_or("").to_owned())
                .or_default() += 1;
        }
        deployment::plan(
            &self.deployment,
            &self.sets.iter().collect::<Vec<_>>(),
            &counts,
            self.now(),
        )
    }

    /// One step of the Deployment controller; false when there was nothing to do.
    pub fn deployment_step(&mut self) -> bool {
        let plan = self.plan();
        let quiet = plan.is_empty();
        if let Some(new) = plan.create {
            let mut object = self.deployment.new_replica_set(&new);
            self.serial += 1;
            object["metadata"]["uid"] = format!("rs{}", self.serial).into();
            object["metadata"]["generation"] = 1.into();
            object["metadata"]["creationTimestamp"] = self.now().to_string().into();
            self.sets
                .push(serde_json::from_value(object).expect("a replica set"));
        }
        for patch in plan.patch {
            let set = self
                .sets
                .iter_mut()
                .find(|set| set.metadata.name == patch.name)
                .expect("a known set");
            extend(&mut set.metadata.annotations, patch.annotations);
            if let Some(replicas) = patch.replicas {
                assert!(replicas >= 0);
                set.spec.replicas = replicas;
                set.metadata.generation += 1;
            }
            set.spec.min_ready_seconds = patch.min_ready_seconds.unwrap_or(set.spec.min_ready_seconds);
        }
        for (name, _) in plan.delete {
            self.sets.retain(|set| *set.metadata.name != *name);
        }
        if let Some(revision) = plan.revision {
            let annotation = [(deployment::REVISION_ANNOTATION.into(), revision)];
            extend(&mut self.deployment.metadata.annotations, annotation);
        }
        if let Some(status) = plan.status {
            self.deployment.status = status;
        }
        !quiet
    }

    /// One step of the ReplicaSet controller for one set; false when there was nothing to do.
    pub fn set_step(&mut self, index: usize) -> bool {
        let Some(set) = self.sets.get(index).cloned() else {
            return false;
        };
        let siblings = replicaset::count_by_node(&self.pods);
        let plan = replicaset::plan(
            &set,
            &self.pods.iter().collect::<Vec<_>>(),
            &siblings,
            None,
            self.now(),
        );
        let quiet = plan
            == replicaset::ReplicaSetPlan {
                look_again: plan.look_again,
                ..Default::default()
            };
        for _ in 0..plan.create {
            let mut object = set.new_pod();
            self.serial += 1;
            let name = format!(
                "{}{:04}",
                object["metadata"]["generateName"].as_str().expect("a base"),
                self.serial
            );
            object["metadata"]["name"] = name.into();
            object["metadata"]["uid"] = format!("p{}", self.serial).into();
            object["metadata"]["creationTimestamp"] = self.now().to_string().into();
            object["spec"]["nodeName"] = format!("n{}", self.serial % 3).into();
            self.pods.push(serde_json::from_value(object).expect("a pod"));
        }
        let now = self.now();
        for (name, _) in &plan.delete {
            let pod = self
                .pods
                .iter_mut()
                .find(|pod| &*pod.metadata.name == name)
                .expect("a known pod");
            pod.metadata.deletion = Some(now);
        }
        if let Some(status) = plan.status {
            self.sets[index].status = status;
        }
        !quiet
    }

    /// A pod becomes ready, or is gone if it was being deleted.
    pub fn kubelet_step(&mut self, index: usize) -> bool {
        let now = self.now();
        let Some(pod) = self.pods.get_mut(index) else {
            return false;
        };
        if pod.is_terminating() {
            self.pods.remove(index);
            return true;
        }
        if pod.is_ready() {
            return false;
        }
        pod.phase = pointsman_objects::pod::Phase::Running;
        pod.ready_condition = Some(Condition {
            status: ConditionStatus::True,
            changed: Some(now),
        });
        true
    }

    /// Everybody takes steps until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            self.second += 1;
            let mut busy = self.deployment_step();
            for index in 0..self.sets.len() {
                busy |= self.set_step(index);
            }
            for index in (0..self.pods.len()).rev() {
                busy |= self.kubelet_step(index);
            }
            if !busy {
                return;
            }
        }
        panic!("does not settle: {:?}", self.plan());
    }

    pub fn available(&self) -> i32 {
        self.pods
            .iter()
            .filter(|pod| pod.is_active() && pod.is_ready())
            .count() as i32
    }

    pub fn wanted(&self) -> i32 {
        self.sets.iter().map(|set| set.spec.replicas).sum()
    }

    /// Sizes by revision, zeroes left out.
    pub fn sizes(&self) -> Vec<(String, i32)> {
        let mut sizes: Vec<(String, i32)> = self
            .sets
            .iter()
            .filter(|set| set.spec.replicas > 0)
            .map(|set| {
                (
                    set.metadata
                        .annotations
                        .get(deployment::REVISION_ANNOTATION)
                        .expect("a revision")
                        .to_owned(),
                    set.spec.replicas,
                )
            })
            .collect();
        sizes.sort();
        sizes
    }

    pub fn progress(&self) -> (&str, &str) {
        let condition = self
            .deployment
            .status
            .conditions
            .iter()
            .find(|c| c.r#type == "Progressing");
        condition.map_or(("", ""), |c| (c.status.as_str(), c.reason.as_str()))
    }

    /// What `kubectl rollout status` concludes from the status: done or not.
    pub fn rollout_done(&self) -> bool {
        let (status, wanted) = (&self.deployment.status, self.deployment.spec.replicas);
        status.observed_generation >= self.deployment.metadata.generation
            && status.updated_replicas >= wanted
            && status.replicas <= status.updated_replicas
            && status.available_replicas >= status.updated_replicas
    }
}
