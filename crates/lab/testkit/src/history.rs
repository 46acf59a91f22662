//! How does a test live through a random past?
//!
//! Every number is an event of a small world with few names and addresses, so that Services collide,
//! come back and change while their slices do the same. Lists of numbers shrink well in property tests
//! and run long from a seed.

use pointsman_dataplane::{Index, convert};
use pointsman_model::{Interner, IpFamily, Moment, Revision, SliceName, Zone};
use pointsman_objects::endpoint_slice::EndpointConditions;
use pointsman_objects::{compact, names};

use crate::cluster::{Family, service_name};

/// A change of the cluster.
#[derive(Clone, Debug)]
pub enum Event {
    /// A Service was added or changed.
    Service(Box<compact::Service>),
    /// A Service is gone.
    ServiceGone(String),
    /// A slice was added or changed.
    Slice(Box<compact::EndpointSlice>),
    /// A slice is gone.
    SliceGone(String),
    /// The node moved.
    Zone(Option<&'static str>),
}

/// A source of numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The event a number stands for, in the addresses of one family.
pub fn event(number: u64, family: IpFamily) -> Event {
    let mut random = Random(number);
    match random.below(20) {
        0..6 => Event::Service(Box::new(service(&mut random, family))),
        6 | 7 => Event::ServiceGone(format!("ns/s{}", random.below(SERVICES))),
        8..17 => Event::Slice(Box::new(slice(&mut random, family))),
        17 | 18 => Event::SliceGone(format!("ns/slice{}", random.below(SLICES))),
        _ => Event::Zone([None, Some("z1"), Some("z2")][random.below(3) as usize]),
    }
}

/// Folds an event as a watch would, with the given resource version.
pub fn fold<A: Family>(index: &mut Index<A>, event: &Event, revision: u64) {
    let revision = Some(Revision(revision));
    let mut names = Interner::default();
    match event {
        Event::Service(object) => {
            let converted = convert::service(object, &mut names).expect("a valid name");
            let name = converted.name.clone();
            index.fold_service(&name, A::service(converted), revision);
        }
        Event::ServiceGone(name) => index.fold_service(&service_name(name), None, revision),
        Event::Slice(object) => {
            let converted = convert::slice(object, &mut names).expect("a valid name");
            let trigger = converted.trigger;
            if let Some(slice) = A::slice(converted) {
                index.fold_slice(slice, revision, trigger);
            }
        }
        Event::SliceGone(name) => {
            let (namespace, name) = name.split_once('/').expect("namespace/name");
            index.remove_slice(&SliceName::new(namespace, name).expect("a valid name"), revision);
        }
        Event::Zone(zone) => index.set_zone(zone.map(Zone::from)),
    }
}

const SERVICES: u64 = 6;
const SLICES: u64 = 8;

/// An address of one of a few networks.
fn address(family: IpFamily, network: u8, host: u64) -> String {
    match family {
        IpFamily::V4 => format!("10.{network}.0.{host}"),
        IpFamily::V6 => format!("fd00:{network}::{host:x}"),
    }
}

fn range(family: IpFamily, host: u64) -> String {
    match family {
        IpFamily::V4 => format!("10.9.{host}.0/24"),
        IpFamily::V6 => format!("fd00:9:{host}::/48"),
    }
}

fn service(random: &mut Random, family: IpFamily) -> compact::Service {
    let number = random.below(SERVICES);
    let mut object = compact::Service::default();
    object.metadata.namespace = "ns".to_owned();
    object.metadata.name = format!("s{number}");
    // Another time is that of a Service made anew.
    object.metadata.created = match random.below(4) {
        0 => None,
        seconds => Some(Moment::from_seconds(seconds as i64)),
    };
    let spec = &mut object.spec;
    // Two Services share the last byte of their address, and so a bucket.
    let cluster_ip = address(family, 96 + (number % 2) as u8, 1 + number / 2);
    spec.cluster_ips = vec![cluster_ip.clone()];
    spec.cluster_ip = cluster_ip;
    spec.ip_families = vec![family.as_str().to_owned()];
    spec.kind = if random.one_in(10) {
        "ExternalName"
    } else {
        "LoadBalancer"
    }
    .to_owned();
    let local = |random: &mut Random| random.one_in(2).then(|| "Local".to_owned());
    spec.internal_traffic_policy = local(random);
    spec.external_traffic_policy = local(random);
    if random.one_in(3) {
        spec.session_affinity = Some("ClientIP".to_owned());
    }
    spec.external_ips = (0..random.below(3))
        .map(|_| address(family, 20, 1 + random.below(3)))
        .collect();
    if random.one_in(6) {
        // Somebody else's cluster address.
        spec.external_ips.push(address(family, 96, 1 + random.below(3)));
    }
    if random.one_in(3) {
        // Somebody's load balancer address.
        spec.external_ips.push(address(family, 21, 1 + random.below(3)));
    }
    let vips = (0..random.below(3)).map(|_| address(family, 21, 1 + random.below(3)));
    object.status.load_balancer.ingress = vips.map(|ip| compact::Ingress { ip, ip_mode: None }).collect();
    spec.load_balancer_source_ranges = (0..random.below(3))
        .map(|_| match random.one_in(8) {
            true => "unreadable".to_owned(),
            false => range(family, random.below(3)),
        })
        .collect();
    spec.health_check_node_port = if random.one_in(2) {
        31_000 + random.below(3) as i64
    } else {
        0
    };
    for (name, protocol, port) in [("http", "TCP", 80), ("dns", "UDP", 53), ("", "SCTP", 90)] {
        if random.one_in(2) {
            let node_port = if random.one_in(2) {
                30_000 + random.below(4) as i64
            } else {
                0
            };
            let (name, protocol) = (name.to_owned(), Some(protocol.to_owned()));
            spec.ports.push(compact::ServicePort {
                name,
                protocol,
                port,
                node_port,
            });
        }
    }
    object
}

fn slice(random: &mut Random, family: IpFamily) -> compact::EndpointSlice {
    let mut object = compact::EndpointSlice::default();
    object.metadata.namespace = "ns".to_owned();
    object.metadata.name = format!("slice{}", random.below(SLICES));
    // One more Service than there are: slices without a Service do no harm.
    let service = format!("s{}", random.below(SERVICES + 1));
    object
        .metadata
        .labels
        .insert(names::SERVICE_NAME_LABEL.to_owned(), service);
    if random.one_in(2) {
        let time = Moment(1_700_000_000_000_000 + random.below(1_000_000_000) as i64);
        object
            .metadata
            .annotations
            .insert(names::TRIGGER_TIME_ANNOTATION.to_owned(), time.to_string());
    }
    object.address_type = family.as_str().to_owned();
    for (name, protocol, port) in [("http", "TCP", 8080), ("dns", "UDP", 5353), ("", "SCTP", 9090)] {
        if !random.one_in(3) {
            let port = Some(port + random.below(2) as i64);
            let (name, protocol) = (Some(name.to_owned()), Some(protocol.to_owned()));
            object.ports.push(compact::EndpointPort { name, protocol, port });
        }
    }
    for _ in 0..random.below(4) {
        object.endpoints.push(endpoint(random, family));
    }
    object
}

fn endpoint(random: &mut Random, family: IpFamily) -> compact::Endpoint {
    let hint = |random: &mut Random, names: [&str; 2]| {
        let name = names[random.below(2) as usize].to_owned();
        if random.one_in(3) {
            Vec::new()
        } else {
            vec![compact::NamedHint { name }]
        }
    };
    let flag = |random: &mut Random| (!random.one_in(3)).then(|| random.one_in(2));
    compact::Endpoint {
        addresses: vec![address(family, 1, 1 + random.below(6))],
        conditions: EndpointConditions {
            ready: flag(random),
            serving: flag(random),
            terminating: flag(random),
        },
        node_name: Some(["n1", "n2"][random.below(2) as usize].to_owned()),
        hints: Some(compact::EndpointHints {
            for_zones: hint(random, ["z1", "z2"]),
            for_nodes: if random.one_in(2) {
                hint(random, ["n1", "n2"])
            } else {
                Vec::new()
            },
        }),
    }
}
