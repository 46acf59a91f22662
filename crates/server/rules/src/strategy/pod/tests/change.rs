//! What may happen to a pod after it was created?

use super::super::{Part, PodStrategy, probe};
use super::{create, stored, update, web};
use crate::strategy::Strategy as _;
use serde_json::{Value, json};

#[test]
fn a_created_pod_changes_only_where_the_node_can_follow() {
    let old = stored();
    for (path, value) in [
        ("/spec/containers/0/image", json!("nginx:1.26")),
        ("/spec/initContainers/0/image", json!("setup:2")),
        ("/spec/activeDeadlineSeconds", json!(60)),
        ("/metadata/labels/app", json!("other")),
        ("/spec/containers/0/resources/limits/cpu", json!("1000m")),
        ("/spec/hostNetwork", json!(false)),
    ] {
        let mut new = old.clone();
        let (parent, field) = path.rsplit_once('/').unwrap();
        new.pointer_mut(parent).unwrap()[field] = value;
        assert_eq!(update(&old, new, Part::Main, true).1, [""; 0], "{path}");
    }
    for (path, value, complaint) in [
        ("/spec/nodeName", json!("n1"), "changed: spec.nodeName"),
        (
            "/spec/containers/0/command",
            json!(["x"]),
            "changed: spec.containers",
        ),
        (
            "/spec/terminationGracePeriodSeconds",
            json!(60),
            "changed: spec.terminationGracePeriodSeconds",
        ),
        (
            "/spec/tolerations",
            json!([]),
            "existing toleration can not be modified",
        ),
        (
            "/spec/schedulingGates",
            json!([{"name": "late"}]),
            "only deletion is allowed",
        ),
        (
            "/spec/initContainers",
            json!([]),
            "may not add or remove containers",
        ),
        (
            "/spec/nodeSelector",
            json!({"zone": "a", "disk": "ssd"}),
            "changed: spec.nodeSelector",
        ),
    ] {
        let mut new = old.clone();
        let (parent, field) = path.rsplit_once('/').unwrap();
        new.pointer_mut(parent).unwrap()[field] = value;
        let errors = update(&old, new, Part::Main, true).1;
        assert!(
            errors.iter().any(|error| error.contains(complaint)),
            "{path}: {errors:?}"
        );
    }
}

#[test]
fn tolerations_may_be_added_and_their_seconds_changed() {
    let mut old = stored();
    old["spec"]["tolerations"] =
        json!([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
    let mut new = old.clone();
    new["spec"]["tolerations"] = json!([
        {"key": "b", "operator": "Exists"},
        {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
    ]);
    assert_eq!(update(&old, new, Part::Main, true).1, [""; 0]);
}

#[test]
fn a_gated_pod_may_lose_gates_and_be_narrowed() {
    let mut old = stored();
    old["spec"]["schedulingGates"] = json!([{"name": "a"}, {"name": "b"}]);
    let mut new = old.clone();
    new["spec"]["schedulingGates"] = json!([{"name": "b"}]);
    new["spec"]["nodeSelector"] = json!({"zone": "a", "disk": "ssd"});
    assert_eq!(update(&old, new.clone(), Part::Main, true).1, [""; 0]);
    new["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    assert!(update(&old, new, Part::Main, true).1[0].starts_with("spec.nodeSelector: Invalid"));
}

#[test]
fn a_deadline_only_shrinks_and_a_negative_grace_may_become_one() {
    let mut old = stored();
    old["spec"]["activeDeadlineSeconds"] = json!(60);
    let mut new = old.clone();
    new["spec"]["activeDeadlineSeconds"] = json!(61);
    assert!(update(&old, new.clone(), Part::Main, true).1[0].contains("less than or equal to previous"));
    new["spec"]["activeDeadlineSeconds"] = json!(null);
    assert!(update(&old, new, Part::Main, true).1[0].contains("to nil value"));
    let mut old = stored();
    old["spec"]["terminationGracePeriodSeconds"] = json!(-1);
    old["spec"]["containers"][0]["lifecycle"] = json!(null);
    let mut new = old.clone();
    new["spec"]["terminationGracePeriodSeconds"] = json!(1);
    assert_eq!(update(&old, new, Part::Main, true).1, [""; 0]);
}

#[test]
fn a_closed_gate_drops_offsets_unless_the_stored_pod_has_them() {
    let probe = |pod: &Value| pod["spec"]["containers"][0]["readinessProbe"].clone();
    let (created, errors) = create(web(), false);
    assert_eq!(errors, [""; 0]);
    assert_eq!(probe(&created).get("periodMilliseconds"), None);
    assert_eq!(probe(&created)["periodSeconds"], 1);

    // Stored while the gate was open, updated while it is closed, and open again.
    let old = stored();
    let mut relabelled = old.clone();
    relabelled["metadata"]["labels"]["app"] = json!("other");
    let (kept, errors) = update(&old, relabelled, Part::Main, false);
    assert_eq!(errors, [""; 0]);
    assert_eq!(probe(&kept)["periodMilliseconds"], -500);
    let (again, errors) = update(&kept, kept.clone(), Part::Main, true);
    assert_eq!(errors, [""; 0]);
    assert_eq!(again, kept);

    // Stored without offsets, so a closed gate lets none in.
    let (fresh, errors) = update(&created, stored(), Part::Main, false);
    assert_eq!(errors, [""; 0]);
    assert_eq!(probe(&fresh).get("periodMilliseconds"), None);
}

#[test]
fn a_client_that_does_not_know_the_offsets_does_not_lose_them() {
    let old = stored();
    for gate in [true, false] {
        let mut returned = old.clone();
        probe::drop_milliseconds(&mut returned["spec"]);
        returned["metadata"]["labels"]["app"] = json!("other");
        let (new, errors) = update(&old, returned, Part::Main, gate);
        assert_eq!(errors, [""; 0]);
        assert_eq!(new["spec"], old["spec"]);
        assert!(!PodStrategy.bumps_generation(&new, &old));
    }
}

#[test]
fn the_status_subresource_changes_status_and_keeps_what_the_server_decided() {
    let mut old = stored();
    old["metadata"]["ownerReferences"] = json!([{"uid": "u"}]);
    old["status"]["observedGeneration"] = json!(3);
    old["status"]["conditions"] = json!([{"type": "Ready", "status": "False", "observedGeneration": 3}]);
    let mut new = old.clone();
    new["spec"] = json!({"containers": []});
    new["metadata"]["ownerReferences"] = json!([]);
    new["metadata"]["labels"]["app"] = json!("other");
    new["status"] = json!({
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    let (written, errors) = update(&old, new, Part::Status, true);
    assert_eq!(errors, [""; 0]);
    assert_eq!(written["spec"], old["spec"]);
    assert_eq!(written["metadata"]["ownerReferences"], json!([{"uid": "u"}]));
    assert_eq!(written["metadata"]["labels"]["app"], "other");
    assert_eq!(
        written["status"],
        json!({
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "qosClass": "Burstable",
            "observedGeneration": 3,
            "conditions": [{"type": "Ready", "status": "True", "observedGeneration": 3}],
        })
    );
    let mut main = written.clone();
    main["status"] = json!({"phase": "Failed"});
    assert_eq!(
        update(&written, main, Part::Main, true).0["status"],
        written["status"]
    );
}

#[test]
fn a_status_may_not_lie_about_class_addresses_or_the_dead() {
    let mut old = stored();
    old["spec"]["restartPolicy"] = json!("Never");
    old["status"]["containerStatuses"] = json!([{"name": "web", "state": {"terminated": {"exitCode": 1}}}]);
    for (status, field) in [
        (json!({"qosClass": "Guaranteed"}), "status.qosClass"),
        (json!({"podIPs": [{"ip": "x"}], "podIP": "x"}), "status.podIPs[0]"),
        (
            json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "podIP": "10.0.0.1"}),
            "status.podIPs",
        ),
        (json!({"hostIPs": [{"ip": "10.0.0.1"}]}), "status.hostIPs[0].ip"),
        (json!({"observedGeneration": -1}), "status.observedGeneration"),
        (
            json!({"conditions": [{"type": "a b"}]}),
            "status.conditions[0].type",
        ),
        (
            json!({"containerStatuses": [{"name": "web", "state": {"running": {}}}]}),
            "status.containerStatuses[0].state",
        ),
    ] {
        let mut new = old.clone();
        new["status"] = status.clone();
        let errors = update(&old, new, Part::Status, true).1;
        assert!(
            errors.iter().any(|error| error.starts_with(field)),
            "{status}: {errors:?}"
        );
    }
    // A container that may restart may live again.
    old["spec"]["restartPolicy"] = json!("OnFailure");
    let mut new = old.clone();
    new["status"]["containerStatuses"][0]["state"] = json!({"running": {}});
    assert_eq!(update(&old, new, Part::Status, true).1, [""; 0]);
}

#[test]
fn generation_counts_changes_of_meaning() {
    let old = stored();
    let mut new = old.clone();
    new["metadata"]["labels"]["app"] = json!("other");
    new["status"]["phase"] = json!("Running");
    assert!(!PodStrategy.bumps_generation(&new, &old));
    new["spec"]["containers"][0]["image"] = json!("nginx:2");
    assert!(PodStrategy.bumps_generation(&new, &old));
}
