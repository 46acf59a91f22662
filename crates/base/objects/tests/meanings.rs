//! What does each field mean when it is odd or absent?

use pointsman_model::Moment;
use pointsman_objects::endpoint_slice::EndpointConditions;
use pointsman_objects::pod::Phase;
use pointsman_objects::taint::{Effect, Taint, Toleration};
use pointsman_objects::{ConditionStatus, EndpointSlice, Interner, Node, Pod, Service};
use serde_json::json;
use std::sync::Arc;

fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    // Through text, as the watch reads it.
    serde_json::from_str(&value.to_string()).expect("an object")
}

#[test]
fn an_unset_serving_condition_follows_ready() {
    for (ready, serving, expected) in [
        (None, None, true),
        (Some(true), None, true),
        (Some(false), None, false),
        (Some(false), Some(true), true),
        (Some(true), Some(false), false),
    ] {
        let conditions = EndpointConditions {
            ready,
            serving,
            terminating: None,
        };
        assert_eq!(conditions.is_serving(), expected, "{conditions:?}");
        assert!(!conditions.is_terminating());
    }
}

#[test]
fn the_exact_time_of_a_readiness_change_counts_only_within_the_same_second() {
    let pod = |annotation: &str| -> Pod {
        read(json!({
            "metadata": { "annotations": { "pointsman.io/last-change-time": annotation } },
            "status": { "conditions": [
                { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z" },
            ] },
        }))
    };
    let whole = Moment::parse("2026-01-01T00:00:05Z");
    let exact = "2026-01-01T00:00:05.123456Z";
    assert_eq!(pod(exact).ready_changed(), Moment::parse(exact));
    assert_eq!(pod("2026-01-01T00:00:06.5Z").ready_changed(), whole);
    assert_eq!(pod("2026-01-01T00:00:04.9Z").ready_changed(), whole);
    assert_eq!(pod("nonsense").ready_changed(), whole);
}

#[test]
fn a_pod_that_says_nothing_is_pending_and_not_ready() {
    for empty in [
        json!({ "metadata": {} }),
        json!({ "metadata": { "labels": null, "annotations": null, "ownerReferences": null },
                "spec": { "containers": null, "tolerations": null, "nodeName": "", "affinity": null },
                "status": { "podIPs": null, "conditions": null, "containerStatuses": null } }),
        json!({ "metadata": {}, "spec": null, "status": null }),
    ] {
        let pod: Pod = read(empty);
        assert_eq!((pod.phase, pod.node_name.as_deref()), (Phase::Pending, None));
        assert!(!pod.is_ready() && pod.is_active() && !pod.has_endpoint());
    }
}

#[test]
fn a_deletion_was_asked_for_before_its_grace_period_and_counts_even_if_its_time_is_unreadable() {
    let deleted: Pod = read(json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30 } }));
    assert_eq!(
        deleted.metadata.deletion_requested(),
        Moment::parse("2026-01-01T00:00:00Z")
    );
    let odd: Pod = read(json!({ "metadata": { "deletionTimestamp": "soon" } }));
    assert!(odd.is_terminating() && !odd.is_active());
}

#[test]
fn only_annotations_that_somebody_reads_are_kept() {
    let pod: Pod = read(json!({ "metadata": { "annotations": {
        "controller.kubernetes.io/pod-deletion-cost": "7", "pointsman.io/shutdown-gate": "off",
        "example.com/large": "x".repeat(10_000) } } }));
    assert_eq!(pod.deletion_cost(), 7);
    assert_eq!(pod.metadata.annotations.iter().count(), 2);
    assert_eq!(
        pod.metadata.annotations.get("pointsman.io/shutdown-gate"),
        Some("off")
    );
}

#[test]
fn ports_are_those_of_containers_and_sidecars() {
    let pod: Pod = read(json!({ "metadata": {}, "spec": {
        "initContainers": [
            { "ports": [{ "name": "once", "containerPort": 1 }] },
            { "restartPolicy": "Always", "ports": [{ "name": "side", "containerPort": 2, "protocol": "UDP" }] },
        ],
        "containers": [{ "ports": [{ "name": "web", "containerPort": 3 }, { "containerPort": 4 }] }],
    } }));
    let names: Vec<&str> = pod.common.named_ports.iter().map(|port| &*port.name).collect();
    assert_eq!(names, ["web", "side"]);
}

#[test]
fn pods_of_one_template_share_what_they_have_in_common() {
    let pod = || -> Pod {
        read(
            json!({ "metadata": { "namespace": "ns", "labels": { "app": "web" } }, "spec": {
            "nodeName": "n1", "tolerations": [{ "key": "a", "operator": "Exists" }],
            "containers": [{ "ports": [{ "name": "web", "containerPort": 80 }] }] } }),
        )
    };
    let (mut a, mut b) = (pod(), pod());
    let mut interner = Interner::default();
    a.intern(&mut interner);
    b.intern(&mut interner);
    assert!(Arc::ptr_eq(&a.common, &b.common));
    assert!(Arc::ptr_eq(&a.metadata.namespace, &b.metadata.namespace));
    assert_eq!(a, b);
    drop((a, b));
    interner.sweep();
    assert!(interner.is_empty());
}

#[test]
fn a_node_is_ready_only_if_it_says_so() {
    let node = |status: &str| -> Node {
        read(json!({ "metadata": { "name": "n" },
            "status": { "conditions": [{ "type": "Ready", "status": status }] } }))
    };
    assert!(node("True").is_ready());
    assert_eq!(node("Unknown").ready(), Some(ConditionStatus::Unknown));
    assert_eq!(node("what").ready(), Some(ConditionStatus::Unknown));
    assert_eq!(read::<Node>(json!({ "metadata": {} })).ready(), None);
}

#[test]
fn a_node_has_its_ranges_from_either_field() {
    let many: Node = read(
        json!({ "metadata": {}, "spec": { "podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.1.0/24", "fd00::/64"] } }),
    );
    assert_eq!(many.pod_cidrs.len(), 2);
    let one: Node = read(json!({ "metadata": {}, "spec": { "podCIDR": "10.0.0.0/24" } }));
    assert_eq!(&*one.pod_cidrs[0], "10.0.0.0/24");
}

#[test]
fn tolerations_cover_taints_as_upstream_decides() {
    let toleration = |value| -> Toleration { read(value) };
    let taint = Taint {
        value: "v".into(),
        ..Taint::new("k", Effect::NoExecute)
    };
    for (value, expected) in [
        (json!({ "key": "k", "value": "v" }), true),
        (
            json!({ "key": "k", "operator": "Equal", "value": "other" }),
            false,
        ),
        (json!({ "key": "k", "operator": "Exists" }), true),
        (json!({ "operator": "Exists" }), true),
        (json!({ "operator": "Exists", "effect": "NoSchedule" }), false),
        (json!({ "operator": "Exists", "effect": "" }), true),
        (json!({ "key": "k", "operator": "Gt", "value": "v" }), false),
        (json!({ "key": "other", "operator": "Exists" }), false),
    ] {
        assert_eq!(toleration(value.clone()).covers(&taint), expected, "{value}");
    }
}

#[test]
fn a_service_without_a_cluster_address_or_of_another_proxy_is_not_programmed() {
    let service = |labels: serde_json::Value, spec: serde_json::Value| -> Service {
        read(json!({ "metadata": { "labels": labels }, "spec": spec }))
    };
    assert!(service(json!({}), json!({ "clusterIP": "10.0.0.1" })).is_programmed());
    assert!(!service(json!({}), json!({ "clusterIP": "None" })).is_programmed());
    assert!(!service(json!({}), json!(null)).is_programmed());
    assert!(
        !service(
            json!({}),
            json!({ "type": "ExternalName", "clusterIP": "10.0.0.1" })
        )
        .is_programmed()
    );
    let foreign = json!({ "service.kubernetes.io/service-proxy-name": "x" });
    assert!(!service(foreign, json!({ "clusterIP": "10.0.0.1" })).is_programmed());
}

#[test]
fn a_slice_names_its_service_its_owners_and_its_trigger() {
    let slice: EndpointSlice = read(json!({
        "metadata": { "labels": { "kubernetes.io/service-name": "web" },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00.5Z" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Service", "uid": "u" },
                                { "apiVersion": "apps/v1", "kind": "Deployment", "uid": "other" }] },
        "addressType": "IPv4", "endpoints": null,
        "ports": [{ "name": "b", "port": 2 }, { "name": "a", "port": 1 }],
    }));
    assert_eq!(slice.service_name(), Some("web"));
    assert_eq!(slice.trigger(), Moment::parse("2026-01-01T00:00:00.5Z"));
    assert_eq!(slice.owners().map(|uid| &**uid).collect::<Vec<_>>(), ["u"]);
    assert_eq!(&*slice.ports[0].name, "a");
}
