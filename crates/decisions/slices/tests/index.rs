//! The index finds what a full search would find, and keeps pods small.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;
use pointsman_model::{Labels, Moment};
use pointsman_objects::{Pod, Service};
use pointsman_slices::ServiceKey;
use pointsman_slices::index::{Index, ServiceChange};
use proptest::prelude::*;
use serde_json::json;

const NOW: Moment = Moment::from_seconds(1000);

#[derive(Clone, Debug)]
enum Op {
    Pod {
        index: usize,
        labels: BTreeMap<String, String>,
        ready: bool,
    },
    PodGone(usize),
    Service {
        index: usize,
        selector: BTreeMap<String, String>,
        external: bool,
    },
    ServiceGone(usize),
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[abc]", "[xy]", 0..3)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..6, labels(), any::<bool>()).prop_map(|(index, labels, ready)| Op::Pod { index, labels, ready }),
        1 => (0usize..6).prop_map(Op::PodGone),
        3 => (0usize..4, labels(), prop::bool::weighted(0.1))
            .prop_map(|(index, selector, external)| Op::Service { index, selector, external }),
        1 => (0usize..4).prop_map(Op::ServiceGone),
    ]
}

fn make_pod(index: usize, revision: usize, labels: &BTreeMap<String, String>, ready: bool) -> Pod {
    pod_with(index, |p| {
        p["metadata"]["labels"] = json!(labels);
        p["metadata"]["resourceVersion"] = (revision + 10).to_string().into();
        set_ready(p, ready);
    })
}

fn make_service(index: usize, selector: &BTreeMap<String, String>, external: bool) -> Service {
    service_with(|s| {
        s["metadata"]["name"] = format!("svc{index}").into();
        s["spec"]["selector"] = json!(selector);
        if external {
            s["spec"]["type"] = "ExternalName".into();
        }
    })
}

/// The names and readiness of the pods that a Service selects, found by looking at all of them.
fn search(service: &Service, pods: &BTreeMap<usize, Pod>) -> BTreeSet<(String, bool)> {
    let selects = |pod: &&Pod| {
        service.wants_slices()
            && service
                .selector
                .as_ref()
                .is_some_and(|selector| selector.selects(&pod.metadata.labels))
    };
    pods.values()
        .filter(selects)
        .map(|pod| (pod.metadata.name.to_string(), pod.is_ready()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn selection_and_touched_services_equal_a_full_search(ops in prop::collection::vec(op(), 0..60)) {
        let mut index = Index::default();
        let mut pods: BTreeMap<usize, Pod> = BTreeMap::new();
        let mut services: BTreeMap<usize, Service> = BTreeMap::new();
        for (revision, op) in ops.iter().enumerate() {
            let before: BTreeMap<usize, _> = services.iter().map(|(i, s)| (*i, search(s, &pods))).collect();
            let touched = match op {
                Op::Pod { index: i, labels, ready } => {
                    let pod = make_pod(*i, revision, labels, *ready);
                    pods.insert(*i, pod.clone());
                    Some(index.apply_pod(pod.into(), NOW))
                }
                Op::PodGone(i) => {
                    pods.remove(i);
                    Some(index.remove_pod("ns", &format!("pod{i:04}"), NOW))
                }
                Op::Service { index: i, selector, external } => {
                    let service = make_service(*i, selector, *external);
                    index.apply_service(service.clone().into());
                    services.insert(*i, service);
                    None
                }
                Op::ServiceGone(i) => {
                    prop_assert_eq!(index.remove_service(&ServiceKey::new("ns", format!("svc{i}"))), services.remove(i).is_some());
                    None
                }
            };
            for service in services.values() {
                let found = index.inputs(&ServiceKey::of(service)).expect("a known service");
                let found: BTreeSet<_> = found.pods.iter().map(|pod| (pod.metadata.name.to_string(), pod.is_ready())).collect();
                prop_assert_eq!(found, search(service, &pods));
            }
            if let Some(touched) = touched {
                let touched: Vec<_> = touched.into_iter().map(|touched| touched.key).collect();
                let expected: Vec<_> = services
                    .iter()
                    .filter(|(i, service)| before.get(i) != Some(&search(service, &pods)))
                    .map(|(_, service)| ServiceKey::of(service))
                    .collect();
                prop_assert_eq!(touched, expected);
            }
        }
    }
}

#[test]
fn case_49_label_changes_touch_only_the_services_that_differ() {
    let mut index = Index::default();
    for (i, label) in ["a", "b", "c"].into_iter().enumerate() {
        index.apply_service(make_service(i, &BTreeMap::from([(label.into(), "x".into())]), false).into());
    }
    let labels = |names: &[&str]| {
        names
            .iter()
            .map(|name| ((*name).into(), "x".into()))
            .collect::<BTreeMap<_, _>>()
    };
    let names = |touched: Vec<pointsman_slices::index::Touched>| {
        touched
            .into_iter()
            .map(|t| t.key.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(index.apply_pod(make_pod(0, 1, &labels(&["a", "b"]), true).into(), NOW)),
        ["svc0", "svc1"]
    );
    assert_eq!(
        names(index.apply_pod(make_pod(0, 2, &labels(&["b", "c"]), true).into(), NOW)),
        ["svc0", "svc2"]
    );
    assert_eq!(
        names(index.apply_pod(make_pod(0, 3, &labels(&["a", "b"]), false).into(), NOW)),
        ["svc0", "svc1", "svc2"]
    );
    assert_eq!(
        names(index.apply_pod(make_pod(0, 3, &labels(&["a"]), true).into(), NOW)),
        Vec::<String>::new(),
        "a resync"
    );
}

#[test]
fn case_50_and_51_only_changes_that_endpoints_show_touch_a_service() {
    let mut index = Index::default();
    index.apply_service(service().into());
    let with = |revision: u32, ips: &[&str]| {
        pod_with(0, |p| {
            p["metadata"]["resourceVersion"] = revision.to_string().into();
            p["status"]["podIPs"] = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        })
    };
    assert_eq!(index.apply_pod(with(1, &["10.0.0.1"]).into(), NOW).len(), 1);
    assert_eq!(
        index.apply_pod(with(2, &["10.0.0.1"]).into(), NOW).len(),
        0,
        "another resource version alone"
    );
    assert_eq!(
        index
            .apply_pod(with(3, &["10.0.0.1", "fd00::1"]).into(), NOW)
            .len(),
        1
    );
    assert_eq!(
        index
            .apply_pod(with(4, &["10.0.0.1", "fd00::2"]).into(), NOW)
            .len(),
        1
    );
    assert_eq!(index.apply_pod(with(5, &["10.0.0.1"]).into(), NOW).len(), 1);
}

#[test]
fn services_are_compared_by_what_slices_show() {
    let mut index = Index::default();
    assert_eq!(index.apply_service(service().into()), ServiceChange::New);
    let bumped = service_with(|s| s["metadata"]["resourceVersion"] = "2".into());
    assert_eq!(index.apply_service(bumped.into()), ServiceChange::Same);
    let relabelled = service_with(|s| s["metadata"]["labels"] = json!({ "a": "b" }));
    assert_eq!(index.apply_service(relabelled.into()), ServiceChange::Changed);
}

#[test]
fn nodes_that_come_or_move_concern_the_services_with_pods_there() {
    let mut index = Index::default();
    index.apply_service(service().into());
    index.apply_pod(pod(0).into(), NOW);
    assert_eq!(index.apply_node(&node("n1", "a", "4")).services.len(), 1);
    assert!(
        !index.apply_node(&node("n1", "a", "4")).capacity,
        "nothing changed"
    );
    assert_eq!(
        index.apply_node(&node("n1", "a", "8")).services.len(),
        0,
        "only the capacity changed"
    );
    assert_eq!(index.apply_node(&node("n1", "b", "8")).services.len(), 1);
    assert_eq!(index.apply_node(&node("n2", "b", "8")).services.len(), 0);
    assert_eq!(index.remove_node("n1").services.len(), 1);
}

#[test]
fn a_pod_and_its_endpoint_take_less_than_half_a_kibibyte_each() {
    let pod = pod_with(7, |p| {
        p["metadata"]["name"] = "frontend-deployment-7d4b9c6f5d-x2v9q".into();
        p["metadata"]["uid"] = "0b3a9c1e-5f0e-4a53-9b5b-3c1f7f3d2e11".into();
        p["metadata"]["labels"] =
            json!({ "app": "frontend", "pod-template-hash": "7d4b9c6f5d", "tier": "web" });
        p["status"]["podIPs"] = json!([{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }]);
    });
    assert!(
        size_of::<Pod>() + pod.own_heap_bytes() < 512,
        "{} + {}",
        size_of::<Pod>(),
        pod.own_heap_bytes()
    );
    assert!(size_of::<pointsman_objects::endpoint_slice::Endpoint>() < 192);
    assert_eq!(size_of::<Labels>(), 16);
}
