//! Hints in both topology modes.

mod common;

use common::*;
use pointsman_objects::{Node, Pod, Service};
use pointsman_slices::{NodeFacts, ZoneCapacity};
use serde_json::json;

fn in_zone(index: usize, zone: &str) -> Pod {
    pod_with(index, |p| p["spec"]["nodeName"] = format!("node-{zone}").into())
}

fn zone_nodes(zones: &[(&str, &str)]) -> Vec<Node> {
    zones
        .iter()
        .map(|(zone, cpu)| node(&format!("node-{zone}"), zone, cpu))
        .collect()
}

fn zone_facts(zones: &[(&str, &str)]) -> Vec<NodeFacts> {
    zone_nodes(zones).iter().map(facts).collect()
}

fn distribution(mode: &str) -> Service {
    service_with(|s| s["spec"]["trafficDistribution"] = mode.into())
}

fn auto() -> Service {
    service_with(|s| s["metadata"]["annotations"] = json!({ "service.kubernetes.io/topology-mode": "Auto" }))
}

fn spread(service: Service, zones: &[(&str, &str)], pods: &[&str]) -> World {
    let pods = pods
        .iter()
        .enumerate()
        .map(|(index, zone)| in_zone(index, zone))
        .collect();
    let mut world = World::new(service, pods);
    world.set_nodes(zone_nodes(zones));
    world.sync();
    world
}

/// Zones hinted to, in the order of the pods' names; `-` without a hint.
fn hinted(world: &World) -> String {
    let mut endpoints = world.endpoints();
    endpoints.sort_by_key(|endpoint| endpoint.target.as_ref().map(|target| target.name.clone()));
    let hint = |e: &&pointsman_objects::endpoint_slice::Endpoint| match e.hints.as_deref() {
        Some(hints) => hints.zones.join("+"),
        None => "-".to_owned(),
    };
    endpoints.iter().map(hint).collect::<Vec<_>>().join(" ")
}

#[test]
fn same_zone_and_same_node_hint_the_endpoints_own_place() {
    for mode in ["PreferClose", "PreferSameZone", "PreferSameNode"] {
        let world = spread(distribution(mode), &[("a", "1"), ("b", "1")], &["a", "b"]);
        assert_eq!(hinted(&world), "a b", "{mode}");
        let nodes: Vec<usize> = world
            .endpoints()
            .iter()
            .map(|e| e.hints.as_ref().map_or(9, |hints| hints.nodes.len()))
            .collect();
        assert_eq!(nodes, [usize::from(mode == "PreferSameNode"); 2], "{mode}");
    }
}

#[test]
fn case_58_without_zones_only_node_hints_remain_and_unknown_modes_have_none() {
    let world = spread(distribution("PreferSameNode"), &[("", "1")], &[""]);
    let hints = world.only_endpoint().hints.as_ref().expect("a node hint");
    assert_eq!((hints.zones.len(), hints.nodes.len()), (0, 1));
    let mut world = spread(distribution("PreferSameZone"), &[("a", "1")], &["a"]);
    world.service = distribution("Sideways");
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(hinted(&world), "-");
}

#[test]
fn case_59_wrong_hints_of_unready_endpoints_cause_no_write() {
    let mut world = spread(distribution("PreferSameZone"), &[("a", "1")], &["a", "a"]);
    let wrong = world.slices[0].endpoints[0].hints.clone();
    world.pods[0] = pod_with(0, |p| {
        p["spec"]["nodeName"] = "node-a".into();
        set_ready(p, false);
    });
    world.sync();
    world.slices[0].endpoints[0].hints = wrong;
    assert_eq!(world.sync(), (0, 0, 0));
    world.slices[0].endpoints[1].hints = None;
    assert_eq!(world.sync(), (0, 1, 0));
}

#[test]
fn case_53_and_60_the_annotation_decides_first() {
    let mode = |annotations: serde_json::Value| {
        let service = service_with(|s| {
            s["metadata"]["annotations"] = annotations;
            s["spec"]["trafficDistribution"] = "PreferClose".into();
        });
        service.traffic.topology_label()
    };
    let hints = "service.kubernetes.io/topology-aware-hints";
    let newer = "service.kubernetes.io/topology-mode";
    for (annotations, expected) in [
        (json!({ newer: "Auto" }), "Auto"),
        (json!({ newer: "auto" }), "Auto"),
        (json!({ newer: "aUto" }), "Disabled"),
        (json!({ newer: "enabled" }), "Disabled"),
        (json!({ newer: "" }), "Disabled"),
        (json!({ hints: "auto", newer: "disabled" }), "Auto"),
        (json!({ hints: "disabled", newer: "auto" }), "Disabled"),
    ] {
        assert_eq!(mode(annotations.clone()), expected, "{annotations}");
    }
}

#[test]
fn case_54_hints_need_as_many_ready_endpoints_as_zones() {
    let three = [("a", "1"), ("b", "1"), ("c", "1")];
    let world = spread(auto(), &three, &["a", "b"]);
    assert_eq!(hinted(&world), "- -");
    assert_eq!(world.plan().events[0].reason(), "TopologyAwareHintsDisabled");
    let mut world = spread(auto(), &three[..2], &["a", "b"]);
    assert_eq!(hinted(&world), "a b");
    assert_eq!(world.plan().events[0].reason(), "TopologyAwareHintsEnabled");
    world.pods[1] = pod_with(1, |p| {
        p["spec"]["nodeName"] = "node-b".into();
        set_ready(p, false);
    });
    world.sync();
    assert_eq!(hinted(&world), "- -");
}

#[test]
fn case_55_hints_go_when_the_zones_or_the_annotation_change() {
    let mut world = spread(auto(), &[("a", "1"), ("b", "1")], &["a", "b"]);
    world.service = service();
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(hinted(&world), "- -");
    let mut world = spread(auto(), &[("a", "1"), ("b", "1")], &["a", "b"]);
    world.set_nodes(zone_nodes(&[("a", "9"), ("b", "1")]));
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(
        hinted(&world),
        "- -",
        "two endpoints cannot be shared nine to one"
    );
}

#[test]
fn endpoints_move_to_the_zones_that_lack_them() {
    let world = spread(auto(), &[("a", "1"), ("b", "1")], &["a", "a", "a", "a"]);
    assert_eq!(hinted(&world).matches('a').count(), 2);
    let world = spread(auto(), &[("a", "2"), ("b", "1")], &["a", "a", "b", "b", "b", "b"]);
    assert_eq!(hinted(&world).matches('a').count(), 4);
    assert_eq!(
        world.plan().facts[0]
            .hinted_zones
            .values()
            .copied()
            .collect::<Vec<_>>(),
        [4, 2]
    );
}

#[test]
fn an_endpoint_without_a_zone_switches_topology_hints_off() {
    let mut world = spread(auto(), &[("a", "1"), ("b", "1")], &["a", "b", "a"]);
    let mut homeless = facts(&node("node-a", "a", "1"));
    homeless.zone = None;
    homeless.ready = false;
    world.nodes.insert("node-a".into(), homeless);
    world.zones = ZoneCapacity::from_nodes(&zone_facts(&[("a", "1"), ("b", "1")]));
    world.sync();
    assert_eq!(hinted(&world), "- - -");
}

#[test]
fn case_56_and_57_capacity_counts_ready_workers_and_finds_overload() {
    let mut nodes = zone_facts(&[("a", "1"), ("b", "1"), ("c", "1")]);
    nodes[2].ready = false;
    let equal = ZoneCapacity::from_nodes(&nodes);
    let hinted = |a: usize, b: usize| [("a".into(), a), ("b".into(), b)].into_iter().collect();
    assert!(equal.overloads(&hinted(6, 4)));
    assert!(!equal.overloads(&hinted(5, 4)));
    nodes[1].control_plane = true;
    assert_eq!(
        ZoneCapacity::from_nodes(&nodes),
        ZoneCapacity::default(),
        "one zone is not enough"
    );
    nodes[1].control_plane = false;
    nodes[0].cpu_millis = 0;
    let unknown = ZoneCapacity::from_nodes(&nodes);
    assert_eq!(unknown, ZoneCapacity::default());
    assert!(
        unknown.overloads(&hinted(1, 1)),
        "services with hints have to lose them"
    );
    assert!(!unknown.overloads(&Default::default()));
}
