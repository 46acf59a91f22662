//! `EndpointSliceTerminatingCondition` on, off and on again, as KEP-1672 tells it.

mod common;

use common::*;
use pointsman_objects::endpoint_slice::EndpointConditions as Conditions;

#[test]
fn turning_the_gate_off_waits_for_the_next_write_and_on_brings_everything_back() {
    let mut world = World::new(service(), pods(3));
    world.sync();
    let full = Conditions {
        ready: Some(true),
        serving: Some(true),
        terminating: Some(false),
    };
    let short = Conditions {
        ready: Some(true),
        serving: None,
        terminating: None,
    };
    assert!(
        world
            .endpoints()
            .iter()
            .all(|endpoint| endpoint.conditions == full)
    );

    world.settings.terminating_condition = false;
    assert_eq!(world.sync(), (0, 0, 0), "conditions written before stay");
    assert!(
        world
            .endpoints()
            .iter()
            .all(|endpoint| endpoint.conditions == full)
    );

    world.pods[0] = pod_with(0, set_deleted);
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(world.sizes(), [2], "the terminating endpoint is dropped");
    assert!(
        world
            .endpoints()
            .iter()
            .all(|endpoint| endpoint.conditions == short)
    );

    world.settings.terminating_condition = true;
    assert_eq!(world.sync(), (0, 1, 0));
    assert_eq!(world.sizes(), [3], "the terminating endpoint is back");
    let leaving = Conditions {
        ready: Some(false),
        serving: Some(true),
        terminating: Some(true),
    };
    assert_eq!(
        world
            .endpoints()
            .iter()
            .filter(|endpoint| endpoint.conditions == full)
            .count(),
        2
    );
    assert_eq!(
        world
            .endpoints()
            .iter()
            .filter(|endpoint| endpoint.conditions == leaving)
            .count(),
        1
    );
}

#[test]
fn without_the_gate_unready_services_still_publish_terminating_pods() {
    let service = service_with(|s| s["spec"]["publishNotReadyAddresses"] = true.into());
    let mut world = World::new(service, vec![pod_with(0, set_deleted)]);
    world.settings.terminating_condition = false;
    world.sync();
    assert_eq!(
        world.only_endpoint().conditions,
        Conditions {
            ready: Some(true),
            ..Conditions::default()
        }
    );
}

#[test]
fn readiness_during_termination_is_an_update_in_place() {
    let mut world = World::new(service(), vec![pod_with(0, set_deleted)]);
    world.sync();
    world.pods[0] = pod_with(0, |p| {
        set_deleted(p);
        set_ready(p, false);
    });
    let plan = world.plan();
    assert_eq!(plan.facts[0].updated.get("terminating"), Some(&1));
    assert_eq!(world.sync(), (0, 1, 0));
    world.pods.clear();
    assert_eq!(
        world.sync(),
        (0, 1, 0),
        "the pod is gone, the slice becomes the placeholder"
    );
}
