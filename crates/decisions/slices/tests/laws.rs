//! What holds whatever the history?

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;
use pointsman_objects::Pod;
use pointsman_objects::endpoint_slice::{AddressType, EndpointPort};
use proptest::prelude::*;
use serde_json::json;

/// Something that happens to the world.
#[derive(Clone, Debug)]
enum Event {
    Pod {
        index: usize,
        ready: bool,
        leaving: bool,
        port: u16,
        zone: usize,
        finished: bool,
    },
    Gone(usize),
    Port(u16),
    Named,
    Label(u8),
    Traffic(usize),
    Families(usize),
    PublishNotReady(bool),
    Gate(bool),
    Sync,
    LoseSlice(usize),
    CopyEndpoint(usize, usize),
}

fn event(pods: usize) -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..pods, any::<bool>(), prop::bool::weighted(0.2), 1u16..3, 0usize..3, prop::bool::weighted(0.1)).prop_map(
            |(index, ready, leaving, port, zone, finished)| Event::Pod { index, ready, leaving, port, zone, finished }
        ),
        4 => (0..pods).prop_map(Event::Gone),
        1 => (1u16..4).prop_map(Event::Port),
        1 => Just(Event::Named),
        1 => (0u8..3).prop_map(Event::Label),
        1 => (0usize..4).prop_map(Event::Traffic),
        1 => (0usize..3).prop_map(Event::Families),
        1 => any::<bool>().prop_map(Event::PublishNotReady),
        1 => any::<bool>().prop_map(Event::Gate),
        6 => Just(Event::Sync),
        1 => (0usize..8).prop_map(Event::LoseSlice),
        1 => (0usize..8, 0usize..8).prop_map(|(from, to)| Event::CopyEndpoint(from, to)),
    ]
}

fn step(world: &mut World, spec: &mut serde_json::Value, event: &Event) {
    match event {
        Event::Pod {
            index,
            ready,
            leaving,
            port,
            zone,
            finished,
        } => {
            let pod = pod_with(*index, |p| {
                set_ready(p, *ready);
                if *leaving {
                    set_deleted(p);
                }
                if *finished {
                    p["status"]["phase"] = "Failed".into();
                }
                p["spec"]["nodeName"] = ["node-a", "node-b", "node-c"][*zone].into();
                p["spec"]["containers"][0]["ports"][0]["containerPort"] = (*port).into();
                p["status"]["podIPs"] =
                    json!([{ "ip": format!("10.0.0.{}", index + 1) }, { "ip": format!("fd00::{index:x}") }]);
            });
            world
                .pods
                .retain(|other| other.metadata.name != pod.metadata.name);
            world.pods.push(pod);
        }
        Event::Gone(index) => world
            .pods
            .retain(|pod| *pod.metadata.name != format!("pod{index:04}")),
        Event::Port(number) => spec["spec"]["ports"][0]["targetPort"] = (*number).into(),
        Event::Named => spec["spec"]["ports"][0]["targetPort"] = "http".into(),
        Event::Label(value) => spec["metadata"]["labels"] = json!({ "l": value.to_string() }),
        Event::Traffic(which) => {
            let modes = ["", "PreferSameZone", "PreferSameNode", "PreferClose"];
            spec["spec"]["trafficDistribution"] = modes[*which].into();
        }
        Event::Families(which) => {
            spec["spec"]["ipFamilies"] =
                [json!(["IPv4"]), json!(["IPv6"]), json!(["IPv6", "IPv4"])][*which].clone();
        }
        Event::PublishNotReady(yes) => spec["spec"]["publishNotReadyAddresses"] = (*yes).into(),
        Event::Gate(on) => world.settings.terminating_condition = *on,
        Event::Sync => {
            let plan = world.plan();
            world.apply(&plan);
        }
        Event::LoseSlice(index) => {
            if *index < world.slices.len() {
                world.slices.remove(*index);
            }
        }
        Event::CopyEndpoint(from, to) => {
            if *from < world.slices.len() && *to < world.slices.len() {
                let copies = world.slices[*from].endpoints.clone();
                world.slices[*to].endpoints.extend(copies.into_iter().take(1));
            }
        }
    }
    world.service = serde_json::from_value(spec.clone()).expect("a service");
}

type Shown = BTreeMap<(AddressType, String), (Vec<EndpointPort>, String, Option<bool>)>;

/// What a reader of all slices learns; fails on an endpoint that is there twice.
fn shown(world: &World) -> Shown {
    let mut shown = Shown::new();
    for slice in &world.slices {
        for endpoint in &slice.endpoints {
            let name = endpoint.target.as_ref().expect("a pod").name.to_string();
            let value = (
                slice.ports.to_vec(),
                endpoint.addresses[0].to_string(),
                endpoint.conditions.ready,
            );
            assert!(
                shown.insert((slice.address_type, name), value).is_none(),
                "an endpoint is there twice"
            );
        }
    }
    shown
}

/// The same, straight from the pods.
fn wanted(world: &World) -> Shown {
    let mut wanted = Shown::new();
    let publish = world.service.publish_not_ready;
    let in_service = |pod: &&Pod| {
        !pod.is_finished() && (world.settings.terminating_condition || publish || !pod.is_terminating())
    };
    for pod in world.pods.iter().filter(in_service) {
        for family in &world.service.families {
            let Some(ip) = pod.ips.iter().find(|ip| AddressType::of(**ip) == *family) else {
                continue;
            };
            let mut port = EndpointPort {
                name: "web".into(),
                protocol: world.service.ports[0].protocol,
                port: None,
                app_protocol: None,
            };
            port.port = match &world.service.ports[0].target {
                pointsman_objects::service::TargetPort::Number(number) => Some(*number),
                pointsman_objects::service::TargetPort::Name(_) => Some(pod.common.named_ports[0].port),
            };
            let ready = publish || (pod.is_ready() && !pod.is_terminating());
            wanted.insert(
                (*family, pod.metadata.name.to_string()),
                (vec![port], ip.to_string(), Some(ready)),
            );
        }
    }
    wanted
}

fn zoned_world(max: usize) -> World {
    let mut world = World::new(service(), vec![]);
    world.set_nodes([
        node("node-a", "a", "2"),
        node("node-b", "b", "2"),
        node("node-c", "c", "1"),
    ]);
    world.settings.max_endpoints_per_slice = max;
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn slices_always_say_what_the_pods_say_and_then_are_quiet(
        max in 1usize..7,
        events in prop::collection::vec(event(24), 0..60),
    ) {
        let mut world = zoned_world(max);
        let mut spec = service_json();
        for event in &events {
            step(&mut world, &mut spec, event);
        }
        let plan = world.plan();
        world.apply(&plan);
        prop_assert_eq!(shown(&world), wanted(&world));
        prop_assert!(world.slices.iter().all(|slice| slice.endpoints.len() <= max));
        prop_assert!(world.plan().is_empty(), "planning again gives {:?}", world.plan());
        for family in &world.service.families {
            prop_assert!(world.slices.iter().any(|slice| slice.address_type == *family));
        }
    }

    #[test]
    fn a_change_writes_no_more_slices_than_it_touches(
        max in 2usize..7,
        count in 1usize..24,
        flips in prop::collection::btree_set(0usize..24, 0..6),
        gone in prop::collection::btree_set(0usize..24, 0..4),
        new in 0usize..8,
    ) {
        let mut world = World::new(service(), pods(count));
        world.settings.max_endpoints_per_slice = max;
        world.sync();
        let touched: BTreeSet<_> = world.slices.iter().filter(|slice| slice.endpoints.iter().any(|endpoint| {
            let name = &endpoint.target.as_ref().expect("a pod").name;
            flips.iter().chain(&gone).any(|index| **name == *format!("pod{index:04}"))
        })).map(|slice| slice.metadata.name.clone()).collect();
        let names: Vec<String> = gone.iter().map(|index| format!("pod{index:04}")).collect();
        for index in flips.iter().filter(|index| **index < count) {
            world.pods[*index] = pod_with(*index, |p| set_ready(p, false));
        }
        world.pods.retain(|pod| !names.contains(&pod.metadata.name.to_string()));
        world.pods.extend((100..100 + new).map(pod));
        let plan = world.plan();
        prop_assert!(plan.writes() <= touched.len() + new.div_ceil(max), "{} touched, {new} new: {plan:?}", touched.len());
        prop_assert!(plan.writes() >= touched.len());
    }

    #[test]
    fn topology_hints_settle_and_respect_every_zones_share(
        max in 1usize..9,
        cpus in (1u32..5, 1u32..5, 1u32..5),
        places in prop::collection::vec((0usize..3, prop::bool::weighted(0.9)), 0..30),
        later in prop::collection::vec((0usize..30, 0usize..3), 0..6),
    ) {
        let mut world = zoned_world(max);
        let nodes = [("a", cpus.0), ("b", cpus.1), ("c", cpus.2)];
        world.set_nodes(nodes.map(|(zone, cpu)| node(&format!("node-{zone}"), zone, &cpu.to_string())));
        world.service = service_with(|s| {
            s["metadata"]["annotations"] = json!({ "service.kubernetes.io/topology-mode": "Auto" });
        });
        let place = |index: usize, zone: usize, ready: bool| pod_with(index, |p| {
            p["spec"]["nodeName"] = ["node-a", "node-b", "node-c"][zone].into();
            set_ready(p, ready);
        });
        world.pods = places.iter().enumerate().map(|(index, (zone, ready))| place(index, *zone, *ready)).collect();
        let plan = world.plan();
        world.apply(&plan);
        for (index, zone) in later.iter().filter(|(index, _)| *index < places.len()) {
            world.pods[*index] = place(*index, *zone, true);
        }
        let mut rounds = 0;
        loop {
            let plan = world.plan();
            if plan.is_empty() {
                break;
            }
            world.apply(&plan);
            rounds += 1;
            prop_assert!(rounds <= 2, "hints do not settle: {:?}", world.plan());
        }
        let hints: Vec<bool> = world.endpoints().iter()
            .filter(|endpoint| endpoint.conditions.ready == Some(true))
            .map(|endpoint| endpoint.hints.is_some())
            .collect();
        prop_assert!(hints.iter().all(|hint| *hint) || hints.iter().all(|hint| !*hint), "all or nothing");
    }
}
