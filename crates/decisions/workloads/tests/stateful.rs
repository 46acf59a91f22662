//! StatefulSets: numbered pods that come, go and are replaced in order.

mod common;

use common::at;
use pointsman_objects::{Pod, StatefulSet};
use pointsman_workloads::statefulset::{StatefulSetPlan, plan};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

struct Cluster {
    set: StatefulSet,
    pods: Vec<Value>,
    /// Templates by revision.
    kept: BTreeMap<String, pointsman_objects::template::Template>,
    second: i64,
    serial: usize,
}

fn stateful_set(replicas: i32, policy: &str) -> StatefulSet {
    serde_json::from_value(json!({
        "metadata": { "namespace": "ns", "name": "db", "uid": "sts", "generation": 1 },
        "spec": {
            "replicas": replicas, "serviceName": "db", "podManagementPolicy": policy,
            "selector": { "matchLabels": { "app": "db" } },
            "template": {
                "metadata": { "labels": { "app": "db" } },
                "spec": { "containers": [{ "image": "v1" }], "volumes": [{ "name": "data", "emptyDir": {} }] },
            },
            "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"] } }],
        },
    }))
    .unwrap()
}

impl Cluster {
    fn new(set: StatefulSet) -> Self {
        Self {
            set,
            pods: Vec::new(),
            kept: BTreeMap::new(),
            second: 0,
            serial: 0,
        }
    }

    fn read(&self) -> Vec<Pod> {
        self.pods
            .iter()
            .map(|pod| serde_json::from_value(pod.clone()).unwrap())
            .collect()
    }

    fn plan(&self) -> StatefulSetPlan {
        let pods = self.read();
        plan(&self.set, &pods.iter().collect::<Vec<_>>(), at(self.second))
    }

    fn step(&mut self) -> StatefulSetPlan {
        self.second += 1;
        let plan = self.plan();
        if let Some(name) = &plan.keep_revision {
            self.kept.insert(name.clone(), self.set.spec.template.clone());
        }
        for (ordinal, revision) in &plan.create {
            self.serial += 1;
            let mut pod = self.set.new_pod(*ordinal, &self.kept[revision], revision);
            pod["metadata"]["uid"] = format!("u{}", self.serial).into();
            let name = &pod["metadata"]["name"];
            assert!(
                self.pods.iter().all(|other| other["metadata"]["name"] != *name),
                "{name} is there"
            );
            self.pods.push(pod);
        }
        for (_, uid) in &plan.delete {
            let pod = self
                .pods
                .iter_mut()
                .find(|pod| pod["metadata"]["uid"] == **uid)
                .unwrap();
            assert!(pod["metadata"]["deletionTimestamp"].is_null());
            pod["metadata"]["deletionTimestamp"] = at(self.second).to_string().into();
        }
        if let Some(status) = &plan.status {
            self.set.status = status.clone();
        }
        plan
    }

    /// A pod gets ready, or, if it is on its way out, goes.
    fn advance(&mut self, index: usize) {
        let now = at(self.second).to_string();
        let pod = &mut self.pods[index];
        if pod["metadata"]["deletionTimestamp"].is_null() {
            let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": now });
            pod["status"] = json!({ "phase": "Running", "conditions": [ready] });
        } else {
            self.pods.remove(index);
        }
    }

    fn settle(&mut self) {
        for _ in 0..300 {
            let quiet = self.step().is_empty();
            if quiet
                && self
                    .read()
                    .iter()
                    .all(|pod| pod.is_ready() && !pod.is_terminating())
            {
                return;
            }
            for index in (0..self.pods.len()).rev() {
                self.advance(index);
            }
        }
        panic!("no end: {:?}", self.plan());
    }

    /// Images by number.
    fn images(&self) -> Vec<String> {
        let image = |pod: &Value| pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
        let by_name: BTreeMap<String, String> = self
            .pods
            .iter()
            .map(|pod| (pod["metadata"]["name"].to_string(), image(pod)))
            .collect();
        by_name.into_values().collect()
    }

    fn set_image(&mut self, image: &str) {
        self.set.spec.template.0["spec"]["containers"][0]["image"] = image.into();
        self.set.metadata.generation += 1;
    }
}

#[test]
fn pods_have_their_name_number_revision_and_claims() {
    let mut cluster = Cluster::new(stateful_set(1, ""));
    cluster.set.spec.ordinals.start = 5;
    cluster.settle();
    let pod = &cluster.pods[0];
    let labels = &pod["metadata"]["labels"];
    assert_eq!(pod["metadata"]["name"], "db-5");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "5");
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "db-5");
    assert_eq!(
        labels["controller-revision-hash"],
        cluster.set.status.update_revision
    );
    assert_eq!(
        (&pod["spec"]["hostname"], &pod["spec"]["subdomain"]),
        (&json!("db-5"), &json!("db"))
    );
    let volume = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data-db-5" } }]);
    assert_eq!(pod["spec"]["volumes"], volume);
    let (_, claim) = cluster.set.claims(5).next().unwrap();
    assert_eq!(
        (&claim["metadata"]["name"], &claim["metadata"]["labels"]),
        (&json!("data-db-5"), &json!({ "app": "db" }))
    );
    let revision = cluster.set.new_revision("r", 3);
    let read: pointsman_objects::ControllerRevision = serde_json::from_value(revision).unwrap();
    assert!(read.template().same(&cluster.set.spec.template));
}

#[test]
fn ordered_pods_wait_for_those_before_them_and_parallel_ones_do_not() {
    let mut ordered = Cluster::new(stateful_set(3, "OrderedReady"));
    ordered.step();
    ordered.step();
    assert_eq!(ordered.pods.len(), 1, "the second waits for the first");
    ordered.settle();
    assert_eq!(ordered.pods.len(), 3);
    ordered.set.spec.replicas = 1;
    assert_eq!(ordered.step().delete[0].0, "db-2");
    assert!(ordered.step().delete.is_empty(), "db-1 waits until db-2 is gone");
    ordered.settle();
    assert_eq!(ordered.pods.len(), 1);

    let mut parallel = Cluster::new(stateful_set(3, "Parallel"));
    parallel.step();
    assert_eq!(parallel.pods.len(), 3);
    parallel.settle();
    parallel.set.spec.replicas = 0;
    assert_eq!(parallel.step().delete.len(), 3);
}

#[test]
fn a_partition_keeps_its_revision_also_for_pods_made_anew() {
    let mut cluster = Cluster::new(stateful_set(4, ""));
    cluster.settle();
    let first = cluster.set.status.current_revision.clone();
    cluster.set.spec.update_strategy.rolling_update.partition = 2;
    cluster.set_image("v2");
    cluster.settle();
    assert_eq!(cluster.images(), ["v1", "v1", "v2", "v2"]);
    let status = &cluster.set.status;
    assert_eq!((status.current_replicas, status.updated_replicas), (2, 2));
    assert_eq!(status.current_revision, first);
    assert_ne!(status.update_revision, first);
    cluster.pods.remove(0);
    cluster.settle();
    assert_eq!(
        cluster.images(),
        ["v1", "v1", "v2", "v2"],
        "db-0 is of the old template"
    );
    cluster.set.spec.update_strategy.rolling_update.partition = 0;
    cluster.settle();
    assert_eq!(cluster.images(), ["v2"; 4]);
    assert_eq!(
        cluster.set.status.current_revision,
        cluster.set.status.update_revision
    );
    cluster.set.spec.update_strategy.r#type = "OnDelete".into();
    cluster.set_image("v3");
    cluster.settle();
    assert_eq!(cluster.images(), ["v2"; 4]);
}

#[test]
fn pods_that_ended_are_replaced_and_strangers_are_left_alone() {
    let mut cluster = Cluster::new(stateful_set(1, ""));
    cluster.settle();
    cluster.pods[0]["status"] = json!({ "phase": "Failed" });
    assert_eq!(cluster.step().delete.len(), 1);
    cluster.settle();
    for name in ["db-01", "db-x", "db--1", "other-0"] {
        let mut stranger = cluster.pods[0].clone();
        stranger["metadata"]["name"] = name.into();
        stranger["metadata"]["ownerReferences"] = json!([]);
        cluster.pods.push(stranger);
    }
    let plan = cluster.plan();
    assert!(plan.is_empty(), "{plan:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn order_and_partition_are_kept_in_any_history(
        replicas in 1i32..5,
        partition in 0i32..5,
        moves in proptest::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let mut cluster = Cluster::new(stateful_set(replicas, "OrderedReady"));
        cluster.settle();
        cluster.set.spec.update_strategy.rolling_update.partition = partition;
        cluster.set_image("v2");
        for chosen in moves {
            let plan = cluster.step();
            prop_assert!(plan.delete.len() <= 1 && plan.create.len() <= 1);
            if !cluster.pods.is_empty() {
                let index = chosen.index(cluster.pods.len());
                cluster.advance(index);
            }
            let away = usize::try_from(replicas).unwrap() - cluster.read().iter().filter(|pod| pod.is_ready() && !pod.is_terminating()).count();
            prop_assert!(away <= 1, "{} are away", away);
        }
        cluster.settle();
        for (ordinal, image) in cluster.images().iter().enumerate() {
            let below = i32::try_from(ordinal).unwrap() < partition;
            prop_assert_eq!(image, if below { "v1" } else { "v2" });
        }
        prop_assert!(cluster.plan().is_empty());
    }
}
