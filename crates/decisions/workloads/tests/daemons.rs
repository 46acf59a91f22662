//! DaemonSets: a pod on every node that fits, and updates that take few away at once.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::at;
use pointsman_model::{Labels, Moment};
use pointsman_objects::template::{DAEMON_HASH_LABEL as HASH_LABEL, Template};
use pointsman_objects::{DaemonSet, Node, Pod};
use pointsman_workloads::daemonset::{DaemonSetPlan, plan, target};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A cluster that carries plans out: pods get ready and go in their own time.
struct Cluster {
    set: DaemonSet,
    nodes: Vec<Node>,
    /// Pods as JSON, so that every step reads them as a loop would.
    pods: Vec<Value>,
    second: i64,
    serial: usize,
}

fn daemon_set(bounds: Value) -> DaemonSet {
    serde_json::from_value(json!({
        "metadata": { "namespace": "ns", "name": "agent", "uid": "ds", "generation": 2 },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": {
                "metadata": { "labels": { "app": "agent" } },
                "spec": { "nodeSelector": { "os": "linux" }, "containers": [{ "image": "v1" }] },
            },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": bounds },
        },
    }))
    .unwrap()
}

fn node(name: &str, taints: Value) -> Node {
    let node = json!({
        "metadata": { "name": name, "labels": { "os": "linux" } }, "spec": { "taints": taints },
    });
    serde_json::from_value(node).unwrap()
}

fn nodes(count: usize) -> Vec<Node> {
    (1..=count)
        .map(|number| node(&format!("n{number}"), json!([])))
        .collect()
}

impl Cluster {
    fn new(count: usize, bounds: Value) -> Self {
        Self {
            set: daemon_set(bounds),
            nodes: nodes(count),
            pods: Vec::new(),
            second: 0,
            serial: 0,
        }
    }

    fn plan(&self) -> DaemonSetPlan {
        let pods = self.read();
        let pods: Vec<&Pod> = pods.iter().collect();
        let nodes: Vec<&Node> = self.nodes.iter().collect();
        plan(&self.set, &pods, &nodes, at(self.second))
    }

    fn read(&self) -> Vec<Pod> {
        let pods = self.pods.iter().cloned();
        pods.map(|pod| serde_json::from_value(pod).unwrap()).collect()
    }

    /// Carries a plan out; returns it.
    fn step(&mut self) -> DaemonSetPlan {
        self.second += 1;
        let plan = self.plan();
        for node in &plan.create {
            self.serial += 1;
            let mut pod = self.set.new_pod(node);
            let name = format!("p{}", self.serial);
            pod["metadata"]["name"] = name.as_str().into();
            pod["metadata"]["uid"] = name.into();
            pod["metadata"]["creationTimestamp"] = at(self.second).to_string().into();
            self.pods.push(pod);
        }
        for (name, uid) in &plan.delete {
            let pod = self.pods.iter_mut().find(|pod| pod["metadata"]["uid"] == **uid);
            let pod = pod.unwrap_or_else(|| panic!("{name} is deleted twice"));
            assert_eq!(pod["metadata"]["deletionTimestamp"], Value::Null);
            pod["metadata"]["deletionTimestamp"] = at(self.second).to_string().into();
        }
        if let Some(status) = &plan.status {
            self.set.status = status.clone();
        }
        plan
    }

    /// A pod goes on: to its node, then ready; or, if it is on its way out, away.
    fn advance(&mut self, index: usize) {
        let now = at(self.second).to_string();
        let pod = &mut self.pods[index];
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            self.pods.remove(index);
        } else if pod["spec"]["nodeName"].is_null() {
            let parsed: Pod = serde_json::from_value(pod.clone()).unwrap();
            pod["spec"]["nodeName"] = target(&parsed).unwrap().into();
        } else {
            let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": now });
            pod["status"] = json!({ "phase": "Running", "conditions": [ready] });
        }
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            let plan = self.step();
            if plan.is_empty()
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

    fn served(&self) -> BTreeSet<String> {
        let pods = self.read();
        let ready = pods.iter().filter(|pod| pod.is_ready() && !pod.is_terminating());
        ready
            .filter_map(|pod| pod.node_name.as_deref().map(str::to_owned))
            .collect()
    }
}

#[test]
fn every_node_that_fits_gets_one_pod_and_others_none() {
    let mut cluster = Cluster::new(3, json!({}));
    let closed = json!([{ "key": "own", "effect": "NoSchedule" }]);
    cluster.nodes.push(node("closed", closed));
    let silent = json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" }]);
    cluster.nodes.push(node("silent", silent));
    let mut other = node("windows", json!([]));
    other.metadata.labels = Labels::new([("os", "windows")]);
    cluster.nodes.push(other);
    cluster.settle();
    let expected = ["n1", "n2", "n3", "silent"].map(str::to_owned);
    assert_eq!(cluster.served(), BTreeSet::from(expected));
    let status = &cluster.set.status;
    assert_eq!((status.desired_number_scheduled, status.number_available), (4, 4));
    assert_eq!((status.number_unavailable, status.observed_generation), (0, 2));

    // A taint that only keeps new ones away lets the pod stay; one that drives out does not.
    cluster.nodes[0] = node("n1", json!([{ "key": "own", "effect": "NoSchedule" }]));
    cluster.nodes[1] = node("n2", json!([{ "key": "own", "effect": "NoExecute" }]));
    cluster.settle();
    let expected = ["n1", "n3", "silent"].map(str::to_owned);
    assert_eq!(cluster.served(), BTreeSet::from(expected));
    assert_eq!(cluster.set.status.number_misscheduled, 1);
}

#[test]
fn a_pod_that_ended_is_replaced_after_a_pause_and_a_double_is_removed() {
    let mut cluster = Cluster::new(1, json!({}));
    cluster.settle();
    cluster.pods[0]["status"] = json!({ "phase": "Failed" });
    let created = cluster.pods[0]["metadata"]["creationTimestamp"].as_str();
    let created = Moment::parse(created.unwrap()).unwrap();
    let plan = cluster.plan();
    assert!(plan.delete.is_empty() && plan.create.is_empty(), "{plan:?}");
    assert_eq!(plan.look_again, Some(created.after(Duration::from_secs(10))));
    cluster.second += 10;
    assert_eq!(cluster.plan().delete.len(), 1);
    cluster.settle();

    let mut double = cluster.pods[0].clone();
    double["metadata"]["name"] = "younger".into();
    double["metadata"]["uid"] = "younger".into();
    double["metadata"]["creationTimestamp"] = at(cluster.second).to_string().into();
    cluster.pods.push(double);
    assert_eq!(
        cluster.plan().delete,
        [("younger".to_owned(), "younger".to_owned())]
    );
}

#[test]
fn pods_for_a_node_that_is_gone_are_removed_while_nobody_runs_them() {
    let mut cluster = Cluster::new(2, json!({}));
    cluster.step();
    cluster.nodes.pop();
    assert_eq!(cluster.plan().delete.len(), 1);
    cluster.settle();
    assert_eq!(cluster.served().len(), 1);
}

#[test]
fn a_set_that_is_deleted_or_waits_for_the_user_replaces_nothing() {
    let mut cluster = Cluster::new(2, json!({}));
    cluster.settle();
    cluster.set.spec.template.0["spec"]["containers"][0]["image"] = "v2".into();
    cluster.set.spec.update_strategy.r#type = "OnDelete".into();
    let plan = cluster.plan();
    assert!(plan.delete.is_empty() && plan.create.is_empty(), "{plan:?}");
    assert_eq!(plan.status.unwrap().updated_number_scheduled, 0);
    cluster.set.spec.update_strategy.r#type = "RollingUpdate".into();
    assert_eq!(cluster.plan().delete.len(), 1);
    cluster.set.metadata.deletion = Some(at(0));
    cluster.nodes.extend([node("n9", json!([]))]);
    let plan = cluster.plan();
    assert!(plan.delete.is_empty() && plan.create.is_empty(), "{plan:?}");
}

#[test]
fn odd_templates_are_no_reason_to_panic() {
    for odd in [
        json!(null),
        json!([]),
        json!({ "spec": 3 }),
        json!({ "metadata": { "labels": [] } }),
    ] {
        let mut set = daemon_set(json!({}));
        set.spec.template = Template(odd);
        let node = node("n1", json!([]));
        let plan = plan(&set, &[], &[&node], at(0));
        assert_eq!(plan.create, ["n1"]);
        assert!(set.new_pod("n1")["metadata"]["labels"][HASH_LABEL].is_string());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn updates_end_and_never_take_more_away_than_they_may(
        count in 1usize..6,
        bound in 1usize..4,
        surges in any::<bool>(),
        moves in proptest::collection::vec(any::<prop::sample::Index>(), 0..80),
    ) {
        let (surge, unavailable) = if surges { (bound, 0) } else { (0, bound) };
        let mut cluster = Cluster::new(count, json!({ "maxSurge": surge, "maxUnavailable": unavailable }));
        cluster.settle();
        cluster.set.spec.template.0["spec"]["containers"][0]["image"] = "v2".into();
        for chosen in moves {
            cluster.step();
            if !cluster.pods.is_empty() {
                let index = chosen.index(cluster.pods.len());
                cluster.advance(index);
            }
            let missing = count - cluster.served().len();
            prop_assert!(missing <= unavailable, "{} of {} nodes are without", missing, count);
            prop_assert!(cluster.pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count() <= count + surge);
        }
        cluster.settle();
        let plan = cluster.plan();
        prop_assert!(plan.is_empty(), "{:?}", plan);
        prop_assert_eq!(cluster.set.status.updated_number_scheduled, count as i32);
        prop_assert_eq!(cluster.pods.len(), count);
    }
}
