//! Questions to the cluster's DNS.

use pointsman_dns::wire::{Received, Transport, read};
use pointsman_dns::{Step, answer};
use pointsman_names::Zone;
use serde_json::json;
use std::sync::{Arc, OnceLock};

/// Every answer can be told from a question, belongs to the packet, and fits where it has to.
pub(crate) fn run(input: &[u8]) {
    static ZONE: OnceLock<Zone> = OnceLock::new();
    let zone = ZONE.get_or_init(zone);
    match read(input) {
        Received::Ignored => {}
        Received::Refused(_, packet) => check(input, &packet, 512),
        Received::Question(question) => {
            for transport in [Transport::Udp, Transport::Tcp] {
                if let Step::Reply(reply) | Step::Follow(reply, _) = answer(zone, true, &question) {
                    check(
                        input,
                        &reply.encode(&question, transport),
                        question.limit(transport),
                    );
                }
            }
        }
    }
}

fn check(asked: &[u8], packet: &[u8], limit: usize) {
    assert!((12..=limit).contains(&packet.len()), "{} bytes", packet.len());
    assert_eq!(packet[..2], asked[..2], "an answer to another packet");
    assert!(
        matches!(read(packet), Received::Ignored),
        "an answer to an answer"
    );
}

/// A headless Service whose addresses are too many for a datagram, and one that leads elsewhere.
fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local");
    let mut add = |name: &str, spec: serde_json::Value| {
        let object = json!({"metadata": {"namespace": "n", "name": name}, "spec": spec});
        let object = serde_json::from_value(object).expect("a Service");
        zone.set_service("n", name, Some(Arc::new(object)));
    };
    add("s", json!({"clusterIP": "None"}));
    add(
        "x",
        json!({"type": "ExternalName", "externalName": "example.org"}),
    );
    add(
        "c",
        json!({"clusterIP": "10.3.0.1", "clusterIPs": ["10.3.0.1", "fd00::1"],
        "ports": [{"name": "p", "port": 80}]}),
    );
    let endpoints: Vec<_> = (0..60)
        .map(|last| json!({"addresses": [format!("10.1.0.{last}")]}))
        .collect();
    let slice = json!({
        "metadata": {"namespace": "n", "name": "s-1", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "p", "protocol": "TCP", "port": 80}],
    });
    let slice = serde_json::from_value(slice).expect("an EndpointSlice");
    zone.set_slice("n", "s-1", Some(Arc::new(slice)));
    zone
}
