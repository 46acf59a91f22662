//! ReplicaSets, the scheduler and garbage collection.

mod common;

use std::collections::{BTreeSet, HashMap, HashSet};

use common::at;
use pointsman_objects::{Node, Pod, ReplicaSet};
use pointsman_workloads::gc::{Quarantine, Reason, leftovers};
use pointsman_workloads::replicaset::{count_by_node, plan};
use pointsman_workloads::scheduler::{Load, is_pending, place};
use serde_json::{Value, json};

fn pod(name: &str, edit: impl FnOnce(&mut Value)) -> Pod {
    let mut value = json!({
        "metadata": {
            "namespace": "ns", "name": name, "uid": name, "labels": { "app": "web" },
            "creationTimestamp": at(0).to_string(),
            "ownerReferences": [{ "kind": "ReplicaSet", "uid": "rs", "controller": true }],
        },
        "spec": { "nodeName": "n1" },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": at(0).to_string() }],
        },
    });
    edit(&mut value);
    serde_json::from_value(value).expect("a pod")
}

fn set(replicas: i32) -> ReplicaSet {
    serde_json::from_value(json!({
        "metadata": { "namespace": "ns", "name": "web", "uid": "rs", "generation": 3 },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web", "tier": "x" } } },
        },
    }))
    .expect("a replica set")
}

/// The pods of `pods` that go, in order, when only `keep` stay.
fn deleted(pods: &[Pod], keep: i32) -> Vec<String> {
    let refs: Vec<&Pod> = pods.iter().collect();
    let plan = plan(&set(keep), &refs, &count_by_node(pods), None, at(100_000));
    plan.delete.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn missing_pods_are_created_in_bursts_and_finished_ones_replaced() {
    let done = pod("done", |p| p["status"]["phase"] = "Succeeded".into());
    let leaving = pod("leaving", |p| {
        p["metadata"]["deletionTimestamp"] = at(5).to_string().into()
    });
    let plan1 = plan(
        &set(3),
        &[&done, &leaving, &pod("a", |_| {})],
        &HashMap::new(),
        None,
        at(10),
    );
    assert_eq!((plan1.create, plan1.delete.len()), (2, 0));
    assert_eq!(plan(&set(2000), &[], &HashMap::new(), None, at(10)).create, 500);
}

#[test]
fn pods_that_are_missed_least_go_first() {
    let pods = [
        pod("keep", |_| {}),
        pod("unassigned", |p| p["spec"]["nodeName"] = Value::Null),
        pod("pending", |p| p["status"]["phase"] = "Pending".into()),
        pod("unready", |p| {
            p["status"]["conditions"][0]["status"] = "False".into()
        }),
        pod("cheap", |p| {
            p["metadata"]["annotations"] = json!({ "controller.kubernetes.io/pod-deletion-cost": "-5" })
        }),
        pod("restarted", |p| {
            p["status"]["containerStatuses"] = json!([{ "restartCount": 9 }])
        }),
        pod("young", |p| {
            p["status"]["conditions"][0]["lastTransitionTime"] = at(99_990).to_string().into()
        }),
    ];
    assert_eq!(
        deleted(&pods, 1),
        ["unassigned", "pending", "unready", "cheap", "young", "restarted"]
    );
}

#[test]
fn crowded_nodes_are_thinned_out() {
    let on = |name: &str, node: &str| pod(name, |p| p["spec"]["nodeName"] = node.into());
    assert_eq!(deleted(&[on("a", "n1"), on("b", "n2"), on("c", "n2")], 2), ["b"]);
}

#[test]
fn strangers_are_adopted_and_mismatches_released() {
    let orphan = pod("orphan", |p| p["metadata"]["ownerReferences"] = Value::Null);
    let other = pod("other", |p| {
        p["metadata"]["ownerReferences"][0]["uid"] = "x".into()
    });
    let relabelled = pod("relabelled", |p| p["metadata"]["labels"]["app"] = "debug".into());
    let plan = plan(
        &set(2),
        &[&orphan, &other, &relabelled],
        &HashMap::new(),
        None,
        at(10),
    );
    let names = |list: &[(String, String)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&plan.adopt), names(&plan.release), plan.create),
        (vec!["orphan".into()], vec!["relabelled".into()], 1)
    );
}

#[test]
fn the_status_counts_ready_available_and_labelled_pods_and_failures() {
    let mut set = set(3);
    set.spec.min_ready_seconds = 30;
    let full = pod("full", |p| p["metadata"]["labels"]["tier"] = "x".into());
    let fresh = pod("fresh", |p| {
        p["status"]["conditions"][0]["lastTransitionTime"] = at(90).to_string().into()
    });
    let first = plan(&set, &[&full, &fresh], &HashMap::new(), Some("quota"), at(100));
    let status = first.status.expect("a status");
    assert_eq!(
        (
            status.replicas,
            status.ready_replicas,
            status.available_replicas,
            status.fully_labeled_replicas
        ),
        (2, 2, 1, 1)
    );
    assert_eq!(
        (status.observed_generation, status.conditions[0].reason.as_str()),
        (3, "FailedCreate")
    );
    assert_eq!(first.look_again, Some(at(120)));
    set.status = status;
    assert_eq!(
        plan(&set, &[&full, &fresh], &HashMap::new(), Some("quota"), at(101)).status,
        None,
        "no news"
    );
    let later = plan(&set, &[&full, &fresh], &HashMap::new(), None, at(121))
        .status
        .expect("a status");
    assert_eq!((later.available_replicas, later.conditions.len()), (2, 0));
}

fn node(name: &str, edit: impl FnOnce(&mut Value)) -> Node {
    let mut value = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    edit(&mut value);
    serde_json::from_value(value).expect("a node")
}

fn pending(edit: impl FnOnce(&mut Value)) -> Pod {
    pod("new", |p| {
        p["spec"] = json!({});
        p["status"] = json!({ "phase": "Pending" });
        edit(p);
    })
}

#[test]
fn pods_are_spread_by_owner_then_by_load() {
    let nodes = [node("n1", |_| {}), node("n2", |_| {}), node("n3", |_| {})];
    let strangers = (0..5).map(|index| {
        pod(&format!("s{index}"), |p| {
            p["spec"]["nodeName"] = "n2".into();
            p["metadata"]["ownerReferences"][0]["uid"] = "other".into();
        })
    });
    let mut pods: Vec<Pod> = strangers.collect();
    pods.push(pod("a", |p| p["spec"]["nodeName"] = "n1".into()));
    let mut load = Load::of(&pods);
    let new = pending(|_| {});
    assert!(is_pending(&new));
    let mut places = Vec::new();
    for _ in 0..3 {
        let place = place(&new, &nodes, &load).expect("a node").to_owned();
        load.add(&new, &place);
        places.push(place.to_string());
    }
    assert_eq!(places, ["n3", "n2", "n1"]);
}

#[test]
fn nodes_refuse_with_a_reason() {
    let taints = |taint: Value| move |n: &mut Value| n["spec"] = json!({ "taints": [taint] });
    let dedicated = json!({ "key": "team", "value": "a", "effect": "NoSchedule" });
    let soft = json!({ "key": "old", "effect": "PreferNoSchedule" });
    let nodes = [
        node("unready", |n| {
            n["status"]["conditions"][0]["status"] = "Unknown".into()
        }),
        node("cordoned", |n| n["spec"] = json!({ "unschedulable": true })),
        node("dedicated", taints(dedicated)),
        node("full", |n| n["status"]["allocatable"] = json!({ "pods": "0" })),
    ];
    let error = place(&pending(|_| {}), &nodes, &Load::default()).expect_err("nothing fits");
    assert_eq!(
        error,
        "0/4 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint {team: a}, \
         1 node(s) were not ready, 1 node(s) were unschedulable."
    );
    let tolerant = pending(|p| p["spec"]["tolerations"] = json!([{ "key": "team", "value": "a" }]));
    assert_eq!(
        place(&tolerant, &nodes, &Load::default()),
        Ok(&"dedicated".into())
    );
    let nodes = [node("a", taints(soft)), node("b", |_| {})];
    let mut load = Load::default();
    (0..50).for_each(|_| load.add(&pod("x", |_| {}), &"b".into()));
    assert_eq!(
        place(&pending(|_| {}), &nodes, &load),
        Ok(&"b".into()),
        "better crowded than avoided"
    );
    assert_eq!(
        place(&pending(|_| {}), &[], &load),
        Err("0/0 nodes are available: no nodes.".into())
    );
}

#[test]
fn selectors_and_required_affinity_are_obeyed() {
    let nodes = [node("n1", |_| {}), node("n2", |_| {})];
    let selecting = pending(|p| p["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": "n2" }));
    assert_eq!(place(&selecting, &nodes, &Load::default()), Ok(&"n2".into()));
    let affine = |terms: Value| {
        pending(|p| {
            p["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] =
                terms;
        })
    };
    let not_n1 = affine(
        json!([{ "matchFields": [{ "key": "metadata.name", "operator": "NotIn", "values": ["n1"] }] }]),
    );
    assert_eq!(place(&not_n1, &nodes, &Load::default()), Ok(&"n2".into()));
    assert!(
        place(&affine(json!([{}])), &nodes, &Load::default()).is_err(),
        "an empty term matches nothing"
    );
}

#[test]
fn pods_for_another_scheduler_or_behind_a_gate_are_left_alone() {
    assert!(!is_pending(&pending(
        |p| p["spec"]["schedulerName"] = "other".into()
    )));
    assert!(!is_pending(&pending(
        |p| p["spec"]["schedulingGates"] = json!([{ "name": "g" }])
    )));
    assert!(!is_pending(&pod("placed", |_| {})));
    assert!(!is_pending(&pending(
        |p| p["metadata"]["deletionTimestamp"] = at(1).to_string().into()
    )));
}

#[test]
fn orphans_wait_out_their_quarantine() {
    let pods = [
        pod("a", |_| {}),
        pod("b", |p| p["spec"]["nodeName"] = "gone".into()),
    ];
    let nodes = HashSet::from(["n1"]);
    let mut quarantine = Quarantine::default();
    assert!(quarantine.observe(&pods, &nodes, at(0)).is_empty());
    assert!(quarantine.observe(&pods, &nodes, at(39)).is_empty());
    let back = HashSet::from(["n1", "gone"]);
    assert!(quarantine.observe(&pods, &back, at(40)).is_empty());
    assert!(
        quarantine.observe(&pods, &nodes, at(50)).is_empty(),
        "it starts over"
    );
    let gone = quarantine.observe(&pods, &nodes, at(90));
    let found = leftovers(&pods.iter().collect::<Vec<_>>(), &gone, 10);
    assert_eq!(
        found
            .iter()
            .map(|l| (l.name.as_str(), l.reason, l.mark_failed))
            .collect::<Vec<_>>(),
        [("b", Reason::Orphaned, true)]
    );
}

#[test]
fn terminating_pods_without_a_node_and_too_many_finished_ones_go() {
    let unscheduled = pod("unscheduled", |p| {
        p["spec"] = json!({});
        p["metadata"]["deletionTimestamp"] = at(1).to_string().into();
    });
    let finished: Vec<Pod> = (0..5)
        .map(|index| {
            pod(&format!("f{index}"), |p| {
                p["status"]["phase"] = "Failed".into();
                p["metadata"]["creationTimestamp"] = at(100 - index).to_string().into();
            })
        })
        .collect();
    let pods: Vec<&Pod> = finished.iter().chain([&unscheduled]).collect();
    let names = |threshold| {
        leftovers(&pods, &BTreeSet::new(), threshold)
            .iter()
            .map(|l| l.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(3), ["unscheduled", "f4", "f3"]);
    assert_eq!(names(0), ["unscheduled"], "0 keeps them all");
}
