//! Endpoints on nodes that others do not reach.

mod common;

use common::*;
use pointsman_objects::Pod;
use pointsman_slices::endpoints;
use serde_json::json;

fn on(index: usize, node: &str) -> Pod {
    pod_with(index, |pod| pod["spec"]["nodeName"] = node.into())
}

/// Two pods on `n1` and one on `n2`, with `n1` withdrawn or not.
fn world(withdrawn: &[&str]) -> World {
    let mut world = World::new(service(), vec![on(0, "n1"), on(1, "n1"), on(2, "n2")]);
    world.nodes.insert("n2".into(), facts(&node("n2", "b", "4")));
    for name in withdrawn {
        world.nodes.get_mut(*name).expect("a node").withdrawn = true;
    }
    world
}

/// Ready and serving of all endpoints, by pod.
fn shown(world: &World) -> Vec<(Option<bool>, Option<bool>)> {
    let mut endpoints = world.endpoints();
    endpoints.sort_by_key(|endpoint| endpoint.target.as_ref().map(|target| target.name.clone()));
    endpoints
        .iter()
        .map(|endpoint| (endpoint.conditions.ready, endpoint.conditions.serving))
        .collect()
}

const IN_USE: (Option<bool>, Option<bool>) = (Some(true), Some(true));
const OUT: (Option<bool>, Option<bool>) = (Some(false), Some(false));

#[test]
fn endpoints_on_a_withdrawn_node_are_neither_ready_nor_serving_until_it_is_back() {
    let mut world = world(&["n1"]);
    world.sync();
    assert_eq!(shown(&world), [OUT, OUT, IN_USE]);
    world.nodes.get_mut("n1").expect("a node").withdrawn = false;
    assert_eq!(world.sync(), (0, 1, 0), "one write brings them back");
    assert_eq!(shown(&world), [IN_USE; 3]);
}

#[test]
fn if_all_that_is_ready_is_on_withdrawn_nodes_it_stays() {
    let mut all = world(&["n1", "n2"]);
    all.sync();
    assert_eq!(shown(&all), [IN_USE; 3]);
    let mut rest = world(&["n1"]);
    rest.pods[2] = pod_with(2, |pod| {
        pod["spec"]["nodeName"] = "n2".into();
        set_ready(pod, false);
    });
    rest.sync();
    assert_eq!(
        shown(&rest),
        [IN_USE, IN_USE, OUT],
        "the one that is left is not ready itself"
    );
}

#[test]
fn who_asks_for_endpoints_that_are_not_ready_gets_these_too() {
    let mut world = world(&["n1"]);
    world.service = service_with(|service| service["spec"]["publishNotReadyAddresses"] = json!(true));
    world.sync();
    assert_eq!(shown(&world), [IN_USE; 3]);
}

#[test]
fn the_classic_endpoints_say_the_same() {
    for (withdrawn, ready) in [(&["n1"][..], 1), (&["n1", "n2"], 3), (&[], 3)] {
        let world = world(withdrawn);
        let pods: Vec<&Pod> = world.pods.iter().collect();
        let classic = endpoints::desired(&world.service, &pods, &world.nodes).expect("ours to write");
        let count: usize = classic.subsets.iter().map(|subset| subset.addresses.len()).sum();
        assert_eq!(count, ready, "{withdrawn:?}");
    }
}
