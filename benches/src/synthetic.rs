//! Services and slices of a cluster that nobody runs.

use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{Index, LocalDetector, Settings};
use pointsman_model::{
    Conditions, Moment, NodeName, Port, PortName, Protocol, Service, ServiceName, ServicePort, Slice,
    SliceEndpoint, SliceName, SlicePort, TrafficPolicy,
};
use std::net::Ipv4Addr;

/// Addresses that a Service's endpoints have to themselves; the last few are for those that replace the first.
const ADDRESSES: u32 = 64;
const REPLACEMENTS: u32 = 8;

/// Settings of a proxy whose pods are these.
pub fn settings() -> Settings<Ipv4Addr> {
    Settings {
        local: LocalDetector::from_ranges(["11.0.0.0/8"]),
        ..Settings::default()
    }
}

/// What node `n1` knows of this many Services with this many endpoints each.
pub fn index(services: u32, endpoints: u32) -> Index<Ipv4Addr> {
    let mut index = Index::new(NodeName::from("n1"), ExternalIps::Honoured, Moment(0));
    for number in 0..services {
        index.fold_service(&name(number), Some(service(number)), None);
        index.fold_slice(slice(number, endpoints, 0), None, None);
    }
    index
}

/// The name of a Service.
pub fn name(number: u32) -> ServiceName {
    ServiceName::new("default", &format!("s{number}")).expect("a name")
}

/// A Service with one port.
pub fn service(number: u32) -> Service<Ipv4Addr> {
    Service {
        name: name(number),
        created: None,
        cluster_ip: Ipv4Addr::from_bits(0x0a60_0001 + number),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity: None,
        ports: [ServicePort {
            name: PortName::from("http"),
            protocol: Protocol::Tcp,
            port: Port::new(80).expect("a port"),
            node_port: None,
        }]
        .into(),
        external: None,
    }
}

/// The slice of a Service. Its first endpoint is another one in each `round`.
pub fn slice(number: u32, endpoints: u32, round: u32) -> Slice<Ipv4Addr> {
    let endpoint = |at: u32| {
        let own = match at {
            0 => ADDRESSES - REPLACEMENTS + round % REPLACEMENTS,
            _ => at,
        };
        let node = match at == 0 && number.is_multiple_of(400) {
            true => "n1",
            false => "n2",
        };
        SliceEndpoint {
            address: Ipv4Addr::from_bits(0x0b00_0000 + number * ADDRESSES + own),
            conditions: Conditions::READY,
            node: Some(NodeName::from(node)),
            hints: None,
        }
    };
    Slice {
        name: SliceName::new("default", &format!("s{number}-x")).expect("a name"),
        service: name(number),
        ports: [SlicePort {
            name: PortName::from("http"),
            protocol: Protocol::Tcp,
            port: Port::new(8080).expect("a port"),
        }]
        .into(),
        endpoints: (0..endpoints).map(endpoint).collect(),
    }
}
