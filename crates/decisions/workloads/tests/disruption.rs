//! PodDisruptionBudgets: how many pods may go.

mod common;

use common::at;
use pointsman_objects::{OwnerReference, Pod, PodDisruptionBudget};
use pointsman_workloads::disruption::{BudgetPlan, plan};
use proptest::prelude::*;
use serde_json::{Value, json};

fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
    let mut spec = spec;
    spec["selector"] = json!({ "matchLabels": { "app": "web" } });
    let metadata = json!({ "namespace": "ns", "name": "b", "generation": 3 });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap()
}

fn pod(number: usize, owner: &str, ready: bool) -> Pod {
    let owners = match owner {
        "" => json!([]),
        uid => json!([{ "uid": uid, "controller": true, "kind": "ReplicaSet" }]),
    };
    let ready = if ready { "True" } else { "False" };
    serde_json::from_value(json!({
        "metadata": { "name": format!("p{number}"), "labels": { "app": "web" }, "ownerReferences": owners },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] },
    }))
    .unwrap()
}

fn decide(budget: &PodDisruptionBudget, pods: &[Pod], scale: i32) -> BudgetPlan {
    let pods: Vec<&Pod> = pods.iter().collect();
    let known = |owner: &OwnerReference| (&*owner.uid != "lost").then(|| (owner.uid.to_string(), scale));
    plan(budget, &pods, known, at(1000))
}

fn numbers(plan: &BudgetPlan) -> (i32, i32, i32, i32) {
    let status = plan.status.as_ref().unwrap();
    let (current, desired) = (status.current_healthy, status.desired_healthy);
    (status.disruptions_allowed, current, desired, status.expected_pods)
}

#[test]
fn numbers_and_shares_mean_what_upstream_documents() {
    let pods: Vec<Pod> = (0..4).map(|number| pod(number, "rs", number != 0)).collect();
    // Allowed, currently healthy, desired healthy, expected; the controller is to have 5 pods.
    for (spec, expected) in [
        (json!({ "minAvailable": 2 }), (1, 3, 2, 4)),
        (json!({ "minAvailable": 7 }), (0, 3, 7, 4)),
        (json!({ "minAvailable": "50%" }), (0, 3, 3, 5)),
        (json!({ "maxUnavailable": 3 }), (1, 3, 2, 5)),
        (json!({ "maxUnavailable": "30%" }), (0, 3, 3, 5)),
        (json!({ "maxUnavailable": 9 }), (3, 3, 0, 5)),
        (json!({}), (0, 3, 0, 0)),
    ] {
        let plan = decide(&budget(spec.clone(), json!({})), &pods, 5);
        assert_eq!(numbers(&plan), expected, "{spec}");
        let status = plan.status.unwrap();
        assert_eq!(status.observed_generation, 3);
        let condition = &status.conditions[0];
        let allowed = expected.0 > 0;
        assert_eq!(condition.status == "True", allowed, "{condition:?}");
        assert_eq!(
            condition.reason,
            if allowed {
                "SufficientPods"
            } else {
                "InsufficientPods"
            }
        );
    }
}

#[test]
fn a_granted_eviction_counts_until_the_pod_goes_or_for_two_minutes() {
    let pods: Vec<Pod> = (0..3).map(|number| pod(number, "rs", true)).collect();
    let granted = |second: i64| json!({ "disruptedPods": { "p0": at(second).to_string(), "gone": at(second).to_string() } });
    let fresh = decide(&budget(json!({ "minAvailable": 1 }), granted(990)), &pods, 3);
    assert_eq!(numbers(&fresh), (1, 2, 1, 3));
    assert_eq!(fresh.look_again, Some(at(990 + 121)));
    let status = fresh.status.unwrap();
    assert_eq!(
        status.disrupted_pods.keys().collect::<Vec<_>>(),
        ["p0"],
        "a pod that went is forgotten"
    );
    let old = decide(&budget(json!({ "minAvailable": 1 }), granted(800)), &pods, 3);
    assert_eq!(numbers(&old), (2, 3, 1, 3));
    let mut going = pods.clone();
    going[0].metadata.deletion = Some(at(1));
    let going = decide(&budget(json!({ "minAvailable": 1 }), granted(990)), &going, 3);
    assert_eq!(numbers(&going), (1, 2, 1, 3));
    assert!(going.status.unwrap().disrupted_pods.is_empty());
}

#[test]
fn what_cannot_be_counted_allows_nothing_or_is_reported() {
    let lost = decide(
        &budget(json!({ "maxUnavailable": 1 }), json!({ "disruptionsAllowed": 2 })),
        &[pod(0, "lost", true)],
        1,
    );
    let status = lost.status.unwrap();
    assert_eq!(status.disruptions_allowed, 0);
    assert_eq!(status.conditions[0].reason, "SyncFailed");
    assert!(lost.failure.unwrap().contains("p0"));
    let naked = decide(
        &budget(json!({ "maxUnavailable": 1 }), json!({})),
        &[pod(0, "", true)],
        1,
    );
    assert!(naked.unmanaged);
    assert_eq!(numbers(&naked), (0, 1, 0, 0));
    let none = decide(&budget(json!({ "minAvailable": 0 }), json!({})), &[], 1);
    assert!(none.no_pods);
    assert_eq!(numbers(&none), (0, 0, 0, 0));
}

proptest! {
    #[test]
    fn what_is_allowed_never_goes_below_what_is_desired_and_a_second_look_changes_nothing(
        ready in proptest::collection::vec(any::<bool>(), 0..8), bound in 0i32..10, percent in any::<bool>(), minimum in any::<bool>(),
    ) {
        let bound = if percent { json!(format!("{}%", bound * 10)) } else { json!(bound) };
        let field = if minimum { "minAvailable" } else { "maxUnavailable" };
        let pods: Vec<Pod> = ready.iter().enumerate().map(|(number, ready)| pod(number, "rs", *ready)).collect();
        let mut budget = budget(json!({ field: bound }), json!({}));
        let plan = decide(&budget, &pods, 8);
        let (allowed, current, desired, _) = numbers(&plan);
        prop_assert!(allowed == 0 || current - allowed >= desired);
        budget.status = plan.status.unwrap();
        prop_assert_eq!(decide(&budget, &pods, 8).status, None);
    }
}
