//! The edge cases that upstream's own tests exercise, numbered as in our checklist.

mod common;

use common::*;
use pointsman_model::{Labels, Moment};
use pointsman_objects::endpoint_slice::AddressType;
use pointsman_objects::endpoint_slice::EndpointConditions as Conditions;
use pointsman_objects::{OwnerReference, Pod};
use serde_json::{Value, json};

fn conditions(ready: bool, serving: bool, terminating: bool) -> Conditions {
    Conditions {
        ready: Some(ready),
        serving: Some(serving),
        terminating: Some(terminating),
    }
}

fn one(edit: impl FnOnce(&mut Value)) -> World {
    let mut world = World::new(service(), vec![pod_with(0, edit)]);
    world.sync();
    world
}

fn named_target() -> Value {
    let mut value = service_json();
    value["spec"]["ports"][0]["targetPort"] = "http".into();
    value
}

fn with_named_target(pods: Vec<Pod>) -> World {
    let mut world = World::new(serde_json::from_value(named_target()).expect("a service"), pods);
    world.sync();
    world
}

fn port_numbers(world: &World) -> Vec<Option<i32>> {
    world
        .slices
        .iter()
        .flat_map(|slice| slice.ports.iter().map(|port| port.port))
        .collect()
}

#[test]
fn case_01_no_pods_make_one_placeholder_per_family() {
    let mut world = World::new(
        service_with(|s| s["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"])),
        vec![],
    );
    assert_eq!(world.sync(), (2, 0, 0));
    assert!(
        world
            .slices
            .iter()
            .all(|slice| slice.ports.is_empty() && slice.endpoints.is_empty())
    );
}

#[test]
fn case_02_a_placeholder_with_other_labels_is_updated() {
    let mut world = World::new(service(), vec![]);
    world.sync();
    assert!(world.plan().is_empty());
    world.slices[0].metadata.labels =
        Labels::new(world.slices[0].metadata.labels.iter().chain([("foreign", "x")]));
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(world.slices[0].metadata.labels.get("foreign"), None);
}

#[test]
fn case_03_a_deleting_service_without_slices_gets_none() {
    let mut world = World::new(
        service_with(|s| s["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()),
        pods(3),
    );
    assert_eq!(world.sync(), (0, 0, 0));
}

#[test]
fn case_05_and_06_external_name_and_selectorless_services_are_left_alone() {
    let edits: [fn(&mut Value); 3] = [
        |s| s["spec"]["type"] = "ExternalName".into(),
        |s| s["spec"]["selector"] = Value::Null,
        |s| s["spec"]["selector"] = json!({}),
    ];
    for edit in edits {
        let mut world = World::new(service(), pods(3));
        world.sync();
        world.service = service_with(edit);
        assert!(world.plan().is_empty());
    }
}

#[test]
fn case_08_slices_of_others_are_ignored() {
    let mut world = World::new(service(), vec![]);
    world.put_slice(0..3);
    let mut foreign = world.slices[0].clone();
    foreign.metadata.labels = Labels::new([
        ("kubernetes.io/service-name", "svc"),
        ("endpointslice.kubernetes.io/managed-by", "me"),
    ]);
    let mut other = world.slices[0].clone();
    other.metadata.labels = Labels::new(
        other
            .metadata
            .labels
            .iter()
            .map(|(k, v)| (k, if v == "svc" { "other" } else { v })),
    );
    world.slices = vec![foreign, other];
    let plan = world.plan();
    assert_eq!(
        (plan.create.len(), plan.update.len(), plan.delete.len()),
        (1, 0, 0)
    );
}

#[test]
fn case_09_of_two_owned_slices_without_pods_one_becomes_the_placeholder() {
    let mut world = World::new(service(), vec![]);
    world.put_slice(0..3);
    world.put_slice(3..6);
    assert_eq!(world.sync(), (0, 1, 1));
    assert_eq!(world.sizes(), [0]);
}

#[test]
fn case_10_a_slice_pending_deletion_is_not_used() {
    let mut world = World::new(service(), pods(3));
    world.sync();
    world.slices[0].metadata.deletion = Some(Moment::from_seconds(1));
    assert_eq!(world.plan().create.len(), 1);
    assert_eq!(world.plan().update.len() + world.plan().delete.len(), 0);
}

#[test]
fn case_13_to_15_addresses_follow_the_families_of_the_service() {
    let dual =
        |p: &mut Value| p["status"]["podIPs"] = json!([{ "ip": "10.0.0.1" }, { "ip": "2001:db8:0:0::0001" }]);
    for (families, addresses) in [
        (json!(["IPv4"]), vec!["10.0.0.1"]),
        (json!(["IPv6"]), vec!["2001:db8::1"]),
        (json!(["IPv4", "IPv6"]), vec!["10.0.0.1", "2001:db8::1"]),
    ] {
        let mut world = World::new(
            service_with(|s| s["spec"]["ipFamilies"] = families),
            vec![pod_with(0, dual)],
        );
        world.sync();
        let mut seen: Vec<String> = world
            .endpoints()
            .iter()
            .map(|e| e.addresses[0].to_string())
            .collect();
        seen.sort();
        assert_eq!(seen, addresses);
    }
    let mut world = World::new(
        service_with(|s| s["spec"]["ipFamilies"] = json!(["IPv6"])),
        pods(3),
    );
    world.sync();
    assert_eq!(world.sizes(), [0], "IPv4 pods are not in an IPv6 service");
}

#[test]
fn case_16_without_families_the_cluster_address_decides() {
    for (cluster_ip, families) in [
        ("10.0.0.1", vec![AddressType::IPv4]),
        ("fd00::1", vec![AddressType::IPv6]),
        ("None", vec![AddressType::IPv4, AddressType::IPv6]),
    ] {
        let service = service_with(|s| {
            s["spec"]["ipFamilies"] = Value::Null;
            s["spec"]["clusterIP"] = cluster_ip.into();
        });
        assert_eq!(*service.families, *families, "{cluster_ip}");
    }
}

#[test]
fn case_17_to_19_conditions_tell_readiness_and_termination_apart() {
    let ready_and_leaving = one(set_deleted);
    assert_eq!(
        ready_and_leaving.only_endpoint().conditions,
        conditions(false, true, true)
    );
    let unready_and_leaving = one(|p| {
        set_ready(p, false);
        set_deleted(p);
    });
    assert_eq!(
        unready_and_leaving.only_endpoint().conditions,
        conditions(false, false, true)
    );
    assert_eq!(
        one(|_| {}).only_endpoint().conditions,
        conditions(true, true, false)
    );
    let mut world = World::new(
        service_with(|s| s["spec"]["publishNotReadyAddresses"] = true.into()),
        vec![pod_with(0, |p| set_ready(p, false))],
    );
    world.sync();
    assert_eq!(world.only_endpoint().conditions, conditions(true, false, false));
}

#[test]
fn case_20_to_22_finished_pods_are_out_and_equal_addresses_are_fine() {
    for phase in ["Failed", "Succeeded"] {
        let finished = pod_with(0, |p| p["status"]["phase"] = phase.into());
        let same_ip = pod_with(1, |p| p["status"]["podIPs"] = json!([{ "ip": "10.0.0.1" }]));
        let mut world = World::new(service(), vec![finished, same_ip]);
        world.sync();
        assert_eq!(
            &*world.only_endpoint().target.as_ref().expect("a pod").name,
            "pod0001"
        );
    }
    let mut world = World::new(
        service(),
        vec![
            pod(0),
            pod_with(1, |p| p["status"]["podIPs"] = json!([{ "ip": "10.0.0.1" }])),
        ],
    );
    world.sync();
    assert_eq!(world.sizes(), [2]);
    for phase in ["Pending", "Unknown", ""] {
        assert_eq!(
            one(|p| p["status"]["phase"] = phase.into()).sizes(),
            [1],
            "{phase}"
        );
    }
}

#[test]
fn pods_without_a_usable_address_are_no_endpoints() {
    let edits: [fn(&mut Value); 4] = [
        |p| p["status"]["podIPs"] = Value::Null,
        |p| p["status"] = json!({ "podIP": "10.0.0.1", "phase": "Running" }),
        |p| p["status"]["podIPs"] = json!([{ "ip": "nonsense" }]),
        |p| p["status"]["podIPs"] = json!([{ "ip": "fd00::1" }]),
    ];
    for edit in edits {
        assert_eq!(one(edit).sizes(), [0]);
    }
    let lenient = one(|p| p["status"]["podIPs"] = json!([{ "ip": "010.000.0.01" }]));
    assert_eq!(lenient.only_endpoint().addresses[0].to_string(), "10.0.0.1");
}

#[test]
fn case_23_a_hostname_needs_the_services_own_subdomain() {
    let host = |subdomain: &str| {
        let subdomain = subdomain.to_owned();
        one(|p| {
            p["spec"]["hostname"] = "db-0".into();
            p["spec"]["subdomain"] = subdomain.into();
        })
        .only_endpoint()
        .hostname
        .clone()
    };
    assert_eq!(host("svc").as_deref(), Some("db-0"));
    assert_eq!(host("other"), None);
}

#[test]
fn case_24_250_pods_need_three_slices() {
    let mut world = World::new(service(), pods(250));
    assert_eq!(world.sync(), (3, 0, 0));
    assert_eq!(world.sizes(), [100, 100, 50]);
}

#[test]
fn case_25_leftovers_go_to_the_slice_that_ends_up_fullest() {
    let mut world = World::new(service(), pods(250));
    world.put_slice(0..62);
    world.put_slice(62..123);
    assert_eq!(world.sync(), (1, 1, 0));
    assert_eq!(world.sizes(), [100, 89, 61]);
}

#[test]
fn case_26_untouched_slices_that_cannot_take_all_stay_untouched() {
    let mut world = World::new(service(), pods(300));
    world.put_slice(0..74);
    world.put_slice(74..148);
    assert_eq!(world.sync(), (2, 0, 0));
    assert_eq!(world.sizes(), [100, 74, 74, 52]);
}

#[test]
fn case_27_and_28_small_slices_are_merged_only_when_all_are_rewritten() {
    let mut world = World::new(service(), pods(300));
    for index in 0..10 {
        world.put_slice(index * 30..(index + 1) * 30);
    }
    assert_eq!(world.sync(), (0, 0, 0));
    world.service = service_with(|s| s["spec"]["ports"][0]["targetPort"] = 9090.into());
    assert_eq!(world.sync(), (0, 3, 7));
    assert_eq!(world.sizes(), [100, 100, 100]);
}

#[test]
fn case_29_slices_that_are_written_anyway_take_new_endpoints_fullest_first() {
    let mut world = World::new(service(), pods(115));
    world.put_slice(0..80);
    world.put_slice(80..100);
    world.pods[0] = pod_with(0, |p| set_ready(p, false));
    world.pods[80] = pod_with(80, |p| set_ready(p, false));
    assert_eq!(world.sync(), (0, 2, 0));
    assert_eq!(world.sizes(), [95, 20]);
}

#[test]
fn case_30_a_port_change_reuses_every_slice() {
    let mut world = World::new(service(), pods(250));
    world.sync();
    world.service = service_with(|s| s["spec"]["ports"][0]["targetPort"] = 9090.into());
    assert_eq!(world.sync(), (0, 3, 0));
    assert_eq!(port_numbers(&world), [Some(9090); 3]);
}

#[test]
fn case_31_and_32_labels_are_mirrored_except_reserved_ones() {
    let mut world = World::new(service(), pods(250));
    world.sync();
    world.service = service_with(|s| s["metadata"]["labels"] = json!({ "team": "a" }));
    assert_eq!(world.sync(), (0, 3, 0));
    assert!(
        world
            .slices
            .iter()
            .all(|slice| slice.metadata.labels.get("team") == Some("a"))
    );
    world.service = service_with(|s| {
        s["metadata"]["labels"] = json!({
            "team": "a", "kubernetes.io/service-name": "evil", "service.kubernetes.io/headless": "",
            "endpointslice.kubernetes.io/managed-by": "evil",
        });
    });
    assert_eq!(world.sync(), (0, 0, 0));
    world.service = service();
    assert_eq!(world.sync(), (0, 3, 0));
    assert!(
        world
            .slices
            .iter()
            .all(|slice| slice.metadata.labels.get("team").is_none())
    );
}

#[test]
fn case_33_the_headless_label_follows_the_service() {
    let mut world = World::new(service_with(|s| s["spec"]["clusterIP"] = "None".into()), pods(2));
    world.sync();
    assert_eq!(
        world.slices[0]
            .metadata
            .labels
            .get("service.kubernetes.io/headless"),
        Some("")
    );
    world.service = service();
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(
        world.slices[0]
            .metadata
            .labels
            .get("service.kubernetes.io/headless"),
        None
    );
}

#[test]
fn case_34_slices_of_unsupported_address_types_are_replaced() {
    let mut world = World::new(service(), pods(60));
    for index in 0..2 {
        world.put_slice(index * 30..(index + 1) * 30);
    }
    for slice in &mut world.slices {
        slice.address_type = AddressType::Other;
    }
    assert_eq!(world.sync(), (1, 0, 2));
    assert_eq!(world.sizes(), [60]);
}

#[test]
fn case_35_a_slice_of_a_former_service_is_deleted_not_reused() {
    let mut world = World::new(service(), pods(3));
    world.put_slice(0..3);
    world.slices[0].metadata.owner_references = Box::new([OwnerReference {
        api_version: "v1".into(),
        kind: "Service".into(),
        uid: "old-uid".into(),
        ..OwnerReference::default()
    }]);
    assert_eq!(world.sync(), (1, 0, 1));
}

#[test]
fn case_36_a_named_port_with_five_numbers_makes_five_slices() {
    let pods = (0..300)
        .map(|i| {
            pod_with(i, |p| {
                p["spec"]["containers"][0]["ports"][0]["containerPort"] = (8080 + i % 5).into()
            })
        })
        .collect();
    assert_eq!(with_named_target(pods).sizes(), [60; 5]);
}

#[test]
fn case_37_the_limit_is_kept_whatever_it_is() {
    for (max, slices) in [(50, 5), (80, 4), (150, 2), (250, 1), (500, 1)] {
        let mut world = World::new(service(), pods(250));
        world.settings.max_endpoints_per_slice = max;
        assert_eq!(world.sync(), (slices, 0, 0), "at most {max}");
    }
}

#[test]
fn a_lowered_limit_moves_only_what_does_not_fit() {
    let mut world = World::new(service(), pods(120));
    world.settings.max_endpoints_per_slice = 120;
    world.sync();
    world.settings.max_endpoints_per_slice = 100;
    assert_eq!(world.sync(), (1, 1, 0));
    assert_eq!(world.sizes(), [100, 20]);
}

#[test]
fn case_38_named_ports_are_found_by_name_and_protocol() {
    let with = |ports: Value| with_named_target(vec![pod_with(0, |p| p["spec"]["containers"] = ports)]);
    let missing = with(json!([{ "ports": [{ "name": "other", "containerPort": 1 }] }]));
    assert_eq!(
        (port_numbers(&missing), missing.sizes()),
        (vec![], vec![1]),
        "the endpoint stays, without the port"
    );
    let protocol = with(json!([{ "ports": [{ "name": "http", "protocol": "UDP", "containerPort": 1 }] }]));
    assert_eq!(port_numbers(&protocol), []);
    let second = with(json!([{}, { "ports": [{ "name": "http", "containerPort": 2 }] }]));
    assert_eq!(port_numbers(&second), [Some(2)]);
    let twice = with(
        json!([{ "ports": [{ "name": "http", "containerPort": 1 }, { "name": "http", "containerPort": 2 }] }]),
    );
    assert_eq!(port_numbers(&twice), [Some(1)]);
}

#[test]
fn case_39_sidecars_count_after_containers_and_plain_init_containers_do_not() {
    let sidecar = |policy: Value| json!([{ "restartPolicy": policy, "ports": [{ "name": "http", "containerPort": 9 }] }]);
    let with = |containers: Value, init: Value| {
        port_numbers(&with_named_target(vec![pod_with(0, |p| {
            p["spec"]["containers"] = containers;
            p["spec"]["initContainers"] = init;
        })]))
    };
    assert_eq!(with(json!([{}]), sidecar("Always".into())), [Some(9)]);
    assert_eq!(with(json!([{}]), sidecar(Value::Null)), []);
    let app = json!([{ "ports": [{ "name": "http", "containerPort": 1 }] }]);
    assert_eq!(with(app, sidecar("Always".into())), [Some(1)]);
}

#[test]
fn case_40_and_41_numeric_ports_need_no_declaration_and_app_protocol_is_copied() {
    let service = service_with(|s| s["spec"]["ports"][0]["appProtocol"] = "example.com/custom".into());
    let mut world = World::new(
        service,
        vec![pod_with(0, |p| p["spec"]["containers"] = Value::Null)],
    );
    world.sync();
    assert_eq!(port_numbers(&world), [Some(8080)]);
    assert_eq!(
        world.slices[0].ports[0].app_protocol.as_deref(),
        Some("example.com/custom")
    );
}

#[test]
fn case_42_a_headless_service_without_ports_is_quiet_after_null_comes_back() {
    let service = service_with(|s| {
        s["spec"]["clusterIP"] = "None".into();
        s["spec"]["ports"] = Value::Null;
    });
    let mut world = World::new(service, pods(2));
    assert_eq!(world.sync(), (1, 0, 0));
    assert_eq!((world.sizes(), world.slices[0].ports.len()), (vec![2], 0));
}

#[test]
fn case_43_pods_on_unknown_nodes_wait_unless_unready_is_published() {
    let mut world = World::new(
        service(),
        vec![pod(0), pod_with(1, |p| p["spec"]["nodeName"] = "n9".into())],
    );
    let plan = world.plan();
    assert_eq!(
        plan.skipped_pods.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["pod0001"]
    );
    world.sync();
    assert_eq!(world.sizes(), [1]);
    world.set_nodes([]);
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(world.sizes(), [0]);
    world.service = service_with(|s| s["spec"]["publishNotReadyAddresses"] = true.into());
    world.sync();
    assert_eq!(world.sizes(), [2]);
}

#[test]
fn case_44_a_deleting_service_still_updates_and_deletes() {
    let mut world = World::new(service(), pods(150));
    world.sync();
    world.service.metadata.deletion = Some(Moment::from_seconds(1));
    world.pods.truncate(100);
    assert_eq!(world.sync(), (0, 0, 1), "the slice of fifty is empty");
    world.pods[3] = pod_with(3, |p| set_ready(p, false));
    assert_eq!(world.sync(), (0, 1, 0));
    world.service.ports[0].name = "other".into();
    assert_eq!(world.sync(), (0, 1, 0), "the slice is reused for the new ports");
}

#[test]
fn case_61_a_new_uid_is_an_update_in_place_and_a_new_name_another_endpoint() {
    let mut world = World::new(service(), pods(3));
    world.sync();
    world.pods[1] = pod_with(1, |p| p["metadata"]["resourceVersion"] = "77".into());
    assert_eq!(world.sync(), (0, 0, 0));
    world.pods[1] = pod_with(1, |p| p["metadata"]["uid"] = "new".into());
    let plan = world.plan();
    assert_eq!(plan.update[0].in_place.as_deref(), Some(&[1][..]));
    world.sync();
    world.pods[1] = pod_with(1, |p| p["metadata"]["name"] = "renamed".into());
    let facts = &world.plan().facts[0];
    assert_eq!(
        (
            facts.added.values().sum::<usize>(),
            facts.removed.values().sum::<usize>()
        ),
        (1, 1)
    );
}

#[test]
fn a_recreated_slice_edit_by_hand_is_repaired_in_one_write() {
    let mut world = World::new(service(), pods(3));
    world.sync();
    world.slices[0].endpoints[0].conditions.ready = None;
    let copy = world.slices[0].endpoints[1].clone();
    world.slices[0].endpoints.push(copy);
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(world.sizes(), [3]);
}

#[test]
fn a_service_that_changes_its_family_moves_its_endpoints() {
    let dual = |p: &mut Value| p["status"]["podIPs"] = json!([{ "ip": "10.0.0.1" }, { "ip": "2001:db8::1" }]);
    let mut world = World::new(service(), vec![pod_with(0, dual)]);
    world.sync();
    world.service = service_with(|s| s["spec"]["ipFamilies"] = json!(["IPv6"]));
    assert_eq!(world.sync(), (1, 0, 1));
    assert_eq!(world.slices[0].address_type, AddressType::IPv6);
}
