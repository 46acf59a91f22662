//! Which flows go and which stay.

use std::net::Ipv4Addr;
use std::sync::Arc;

use pointsman_model::{Backend, NodePort, Service, ServiceName, ServicePort, TrafficPolicy};

use super::*;
use crate::select::Selection;
use crate::state::{PortState, ServiceState};

fn at(text: &str) -> Backend<Ipv4Addr> {
    let (address, port) = text.split_once(':').unwrap();
    Backend {
        address: address.parse().unwrap(),
        port: Port::new(port.parse().unwrap()).unwrap(),
    }
}

fn change(protocol: Protocol, answering: &[&str]) -> Change<Ipv4Addr> {
    let name = ServiceName::new("ns", "dns").unwrap();
    let external = pointsman_model::External {
        external_ips: ["1.1.1.1".parse().unwrap()].into(),
        load_balancer_vips: ["2.2.2.2".parse().unwrap()].into(),
        ..Default::default()
    };
    let port = |number| Port::new(number).unwrap();
    let service = Service {
        name: name.clone(),
        created: None,
        cluster_ip: "172.30.0.10".parse().unwrap(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity: None,
        ports: [ServicePort {
            name: "".into(),
            protocol,
            port: port(53),
            node_port: Some(NodePort(port(30_053))),
        }]
        .into(),
        external: Some(Box::new(external)),
    };
    let state = ServiceState {
        service: Arc::new(service),
        ports: [PortState::new(
            Selection::default(),
            Box::default(),
            answering.iter().map(|text| at(text)).collect(),
        )]
        .into_iter()
        .collect(),
        endpoints: 0,
        local_ready: 0,
    };
    Change {
        name,
        before: None,
        after: Some(Arc::new(state)),
    }
}

fn is_stale(changes: &[Change<Ipv4Addr>], to: &str, answered_by: &str) -> bool {
    let flow = UdpFlow {
        original_destination: at(to),
        reply_source: at(answered_by),
    };
    UdpReview::of(changes).is_stale(&flow)
}

#[test]
fn flows_to_endpoints_that_no_longer_answer_are_stale_on_every_way_in() {
    let changes = [change(Protocol::Udp, &["10.0.0.1:5353"])];
    for to in ["172.30.0.10:53", "1.1.1.1:53", "2.2.2.2:53", "192.168.0.1:30053"] {
        assert!(!is_stale(&changes, to, "10.0.0.1:5353"), "{to}");
        assert!(is_stale(&changes, to, "10.0.0.2:5353"), "{to}");
        assert!(
            is_stale(&changes, to, "10.0.0.1:9999"),
            "{to}: the endpoint's port changed"
        );
    }
    assert!(
        is_stale(&changes, "172.30.0.10:53", "172.30.0.10:53"),
        "it was never translated"
    );
}

#[test]
fn flows_of_others_stay() {
    let changes = [change(Protocol::Udp, &["10.0.0.1:5353"])];
    assert!(
        !is_stale(&changes, "172.30.0.10:54", "10.0.0.2:5353"),
        "another port"
    );
    assert!(!is_stale(&changes, "8.8.8.8:53", "8.8.8.8:53"), "another address");
    assert!(
        UdpReview::of(&[change(Protocol::Tcp, &[])]).is_empty(),
        "TCP is left alone"
    );
}

#[test]
fn translated_flows_of_a_destination_that_is_gone_are_stale() {
    let Change { name, after, .. } = change(Protocol::Udp, &["10.0.0.1:5353"]);
    let gone = [Change {
        name,
        before: after,
        after: None,
    }];
    for to in ["172.30.0.10:53", "1.1.1.1:53", "2.2.2.2:53", "192.168.0.1:30053"] {
        assert!(is_stale(&gone, to, "10.0.0.1:5353"), "{to}");
        assert!(
            !is_stale(&gone, to, to),
            "{to}: the address may be somebody's own"
        );
    }
    assert!(
        !is_stale(&gone, "192.168.0.1:30053", "10.9.9.9:5353"),
        "not one of its endpoints"
    );
    let taken_over = [gone[0].clone(), change(Protocol::Udp, &["10.0.0.1:5353"])];
    assert!(!is_stale(&taken_over, "172.30.0.10:53", "10.0.0.1:5353"));
}

#[test]
fn the_kernel_is_asked_for_one_destination_if_there_is_but_one() {
    let mut review = UdpReview::of(&[change(Protocol::Udp, &["10.0.0.1:5353"])]);
    assert_eq!(review.common(), (None, None));
    review.node_ports.clear();
    assert_eq!(
        review.common(),
        (None, Port::new(53)),
        "three addresses with one port"
    );
    review.addresses.retain(|at, _| *at == at_53("1.1.1.1"));
    assert_eq!(review.common(), (Some("1.1.1.1".parse().unwrap()), Port::new(53)));
}

fn at_53(address: &str) -> Backend<Ipv4Addr> {
    at(&format!("{address}:53"))
}

#[test]
fn without_endpoints_service_addresses_are_cleared_and_node_ports_are_not() {
    let changes = [change(Protocol::Udp, &[])];
    assert!(is_stale(&changes, "172.30.0.10:53", "10.0.0.1:5353"));
    assert!(!is_stale(&changes, "192.168.0.1:30053", "10.0.0.1:5353"));
}
