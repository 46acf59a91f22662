//! The classic Endpoints object.

mod common;

use common::*;
use pointsman_model::Moment;
use pointsman_objects::endpoints::Endpoints;
use pointsman_objects::{Pod, Service};
use pointsman_slices::controller::{Controller, Event, Now};
use pointsman_slices::endpoints::{MAX_ADDRESSES, Planner, desired};
use pointsman_slices::queue::Pace;
use pointsman_slices::{Nodes, ServiceKey, Settings};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn of(service: &Service, pods: &[Pod]) -> Endpoints {
    desired(service, &pods.iter().collect::<Vec<_>>(), &Nodes::new()).expect("ours to write")
}

fn counts(endpoints: &Endpoints) -> Vec<(usize, usize)> {
    endpoints
        .subsets
        .iter()
        .map(|subset| (subset.addresses.len(), subset.not_ready.len()))
        .collect()
}

fn unready(index: usize) -> Pod {
    pod_with(index, |p| set_ready(p, false))
}

#[test]
fn ready_and_unready_addresses_are_kept_apart_and_terminating_ones_left_out() {
    let pods = [pod(0), unready(1), pod_with(2, set_deleted)];
    assert_eq!(counts(&of(&service(), &pods)), [(1, 1)]);
    let publishing = service_with(|s| s["spec"]["publishNotReadyAddresses"] = true.into());
    assert_eq!(counts(&of(&publishing, &pods)), [(3, 0)]);
}

#[test]
fn only_the_first_family_is_listed() {
    let dual = pod_with(0, |p| {
        p["status"]["podIPs"] = json!([{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }])
    });
    let service = service_with(|s| s["spec"]["ipFamilies"] = json!(["IPv6", "IPv4"]));
    let endpoints = of(&service, &[dual]);
    let ip = endpoints
        .subsets
        .first()
        .and_then(|subset| subset.addresses.first())
        .map(|address| address.ip.to_string());
    assert_eq!(ip.as_deref(), Some("fd00::1"));
}

#[test]
fn pods_are_grouped_by_the_ports_they_offer_and_those_without_any_are_left_out() {
    let named = service_with(|s| s["spec"]["ports"][0]["targetPort"] = "http".into());
    let other = pod_with(1, |p| {
        p["spec"]["containers"][0]["ports"][0]["containerPort"] = 9090.into()
    });
    let none = pod_with(2, |p| p["spec"]["containers"] = json!([{}]));
    assert_eq!(counts(&of(&named, &[pod(0), other, none])), [(1, 0), (1, 0)]);
    let portless = service_with(|s| s["spec"]["ports"] = Value::Null);
    assert_eq!(counts(&of(&portless, &[pod(0)])), []);
    let headless = service_with(|s| {
        s["spec"]["ports"] = Value::Null;
        s["spec"]["clusterIP"] = "None".into();
    });
    assert_eq!(counts(&of(&headless, &[pod(0)])), [(1, 0)]);
}

#[test]
fn at_most_a_thousand_addresses_are_listed_ready_ones_first() {
    let mut pods = pods(900);
    pods.extend((900..1200).map(unready));
    let endpoints = of(&service(), &pods);
    assert_eq!(
        (counts(&endpoints), endpoints.truncated),
        (vec![(900, 100)], true)
    );
    let all_ready: Vec<Pod> = (0..1500)
        .map(|i| {
            pod_with(i, |p| {
                p["spec"]["containers"][0]["ports"][0]["containerPort"] = (8080 + i % 3).into()
            })
        })
        .collect();
    let named = service_with(|s| s["spec"]["ports"][0]["targetPort"] = "http".into());
    let endpoints = of(&named, &all_ready);
    assert_eq!(
        counts(&endpoints).iter().map(|(ready, _)| ready).sum::<usize>(),
        MAX_ADDRESSES
    );
    assert!(
        counts(&endpoints)
            .iter()
            .all(|(ready, _)| (332..=334).contains(ready)),
        "{:?}",
        counts(&endpoints)
    );
    assert!(!of(&service(), &pods[..1000]).truncated);
}

#[test]
fn what_was_written_reads_back_as_the_same() {
    let service = service_with(|s| {
        s["metadata"]["labels"] = json!({ "team": "a", "endpoints.kubernetes.io/managed-by": "evil" });
        s["spec"]["clusterIP"] = "None".into();
    });
    let wanted = of(&service, &[pod(0), unready(1)]);
    let body = wanted.body("ns", "svc", None, Some(Moment::from_seconds(1)));
    let object: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(
        object["metadata"]["labels"],
        json!({
            "team": "a", "endpoints.kubernetes.io/managed-by": "endpoint-controller", "service.kubernetes.io/headless": "",
        })
    );
    let mut stored: Endpoints = serde_json::from_value(object).expect("endpoints");
    assert!(wanted.shown_by(&stored));
    assert!(stored.has_trigger_time);
    stored.resource_version = "7".into();
    let patch = of(&common::service(), &[pod(0)]).body("ns", "svc", Some(&stored), None);
    let patch: Value = serde_json::from_slice(&patch).expect("JSON");
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(patch["metadata"]["labels"]["team"], Value::Null);
    assert_eq!(
        patch["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"],
        Value::Null
    );
}

#[test]
fn external_and_selectorless_services_have_no_endpoints_of_ours() {
    for field in ["type", "selector"] {
        let service = service_with(|s| {
            s["spec"][field] = if field == "type" {
                "ExternalName".into()
            } else {
                Value::Null
            }
        });
        assert_eq!(desired(&service, &[], &Nodes::new()), None);
    }
}

/// Something happens to one pod of a large Service, or to all of them.
#[derive(Clone, Copy, Debug)]
enum Change {
    Ready(usize, bool),
    Terminating(usize),
    Gone(usize),
    /// It offers the port under another number.
    Port(usize, u16),
    Address(usize),
    /// It moves to another node.
    Node(usize, bool),
    Selected(usize, bool),
    Withdrawn(bool),
    Published(bool),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    // Pods of the first thousand and pods behind it.
    let pod = || prop_oneof![0..8_usize, 995..1020_usize];
    let change = prop_oneof![
        6 => (pod(), any::<bool>()).prop_map(|(pod, ready)| Change::Ready(pod, ready)),
        1 => pod().prop_map(Change::Terminating),
        2 => pod().prop_map(Change::Gone),
        2 => (pod(), 8080..8082_u16).prop_map(|(pod, port)| Change::Port(pod, port)),
        1 => pod().prop_map(Change::Address),
        1 => (pod(), any::<bool>()).prop_map(|(pod, other)| Change::Node(pod, other)),
        1 => (pod(), any::<bool>()).prop_map(|(pod, selected)| Change::Selected(pod, selected)),
        1 => any::<bool>().prop_map(Change::Withdrawn),
        1 => any::<bool>().prop_map(Change::Published),
    ];
    prop::collection::vec(change, 1..40)
}

fn event(change: Change, version: usize) -> Event {
    let pod = |index: usize, edit: &dyn Fn(&mut Value)| {
        let pod = pod_with(index, |pod| {
            pod["metadata"]["resourceVersion"] = version.to_string().into();
            edit(pod);
        });
        Event::Pod(Arc::new(pod))
    };
    match change {
        Change::Ready(index, ready) => pod(index, &|pod| set_ready(pod, ready)),
        Change::Terminating(index) => pod(index, &set_deleted),
        Change::Gone(index) => Event::PodGone("ns".into(), format!("pod{index:04}").into()),
        Change::Port(index, port) => pod(index, &|pod| {
            pod["spec"]["containers"][0]["ports"][0]["containerPort"] = port.into();
        }),
        Change::Address(index) => pod(index, &|pod| pod["status"]["podIPs"][0]["ip"] = "10.9.9.9".into()),
        Change::Node(index, other) => pod(index, &|pod| {
            pod["spec"]["nodeName"] = if other { "n2" } else { "n1" }.into()
        }),
        Change::Selected(index, selected) => pod(index, &|pod| {
            pod["metadata"]["labels"]["app"] = if selected { "web" } else { "other" }.into();
        }),
        Change::Withdrawn(withdrawn) => Event::Withdrawn(vec![("n2".into(), withdrawn)]),
        Change::Published(published) => Event::Service(Arc::new(named(published))),
    }
}

fn named(published: bool) -> Service {
    service_with(|service| {
        service["spec"]["ports"][0]["targetPort"] = "http".into();
        service["spec"]["publishNotReadyAddresses"] = published.into();
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_large_service_says_after_any_history_what_a_look_at_every_pod_gives(changes in changes()) {
        let now = Now { moment: Moment::from_seconds(2_000_000_000), tick: Duration::ZERO };
        let mut controller = Controller::new(Settings::default(), Pace::default(), None);
        controller.keep_touched();
        for name in ["n1", "n2"] {
            controller.observe(Event::Node(Arc::new(node(name, "z", "4"))), now);
        }
        controller.observe(Event::Service(Arc::new(named(false))), now);
        for index in 0..1010 {
            controller.observe(Event::Pod(Arc::new(pod(index))), now);
        }
        controller.observe(Event::Listed, now);
        let (mut planner, key) = (Planner::default(), ServiceKey::new("ns", "svc"));
        for (step, change) in changes.into_iter().enumerate() {
            controller.observe(event(change, step + 2), now);
            controller.take_touched().iter().for_each(|touched| planner.touched(touched));
            // Several changes may come before the next look.
            if step % 3 == 2 {
                continue;
            }
            let inputs = controller.index().inputs(&key).expect("it is there");
            let whole = desired(inputs.service, &inputs.pods, controller.index().nodes());
            prop_assert!(planner.desired(controller.index(), &key) == whole, "after {:?}", change);
        }
    }
}
