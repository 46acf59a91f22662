//! What holds for every packet?

use hickory_proto::op::{Edns, Message, MessageType, Query};
use hickory_proto::rr::{Name, RecordType};
use pointsman_dns::wire::{Received, Transport, read};
use pointsman_dns::{Step, answer};
use pointsman_names::Zone;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;

fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local");
    let endpoints: Vec<_> = (0..60)
        .map(|last| json!({"addresses": [format!("10.1.0.{last}")]}))
        .collect();
    let service = json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"clusterIP": "None"}});
    let slice = json!({
        "metadata": {"namespace": "n", "name": "s-1", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "p", "protocol": "TCP", "port": 80}],
    });
    zone.set_service("n", "s", Some(Arc::new(serde_json::from_value(service).unwrap())));
    zone.set_slice("n", "s-1", Some(Arc::new(serde_json::from_value(slice).unwrap())));
    zone
}

/// Whatever is answered can be read, is an answer to this packet, and fits.
fn check(packet: &[u8]) -> Result<(), TestCaseError> {
    let (reply, limit) = match read(packet) {
        Received::Ignored => return Ok(()),
        Received::Refused(_, reply) => (reply, 512),
        Received::Question(question) => match answer(&zone(), true, &question) {
            Step::Reply(reply) => (
                reply.encode(&question, Transport::Udp),
                question.limit(Transport::Udp),
            ),
            Step::Forward | Step::Follow(..) => return Ok(()),
        },
    };
    prop_assert!(reply.len() <= limit);
    prop_assert_eq!(&reply[..2], &packet[..2]);
    let message = Message::from_vec(&reply).unwrap();
    prop_assert_eq!(message.metadata.message_type, MessageType::Response);
    Ok(())
}

fn question() -> impl Strategy<Value = Vec<u8>> {
    let label = prop_oneof![
        Just(b"s".to_vec()),
        Just(b"N".to_vec()),
        Just(b"svc".to_vec()),
        Just(b"_p".to_vec()),
        Just(b"_tcp".to_vec()),
        vec(any::<u8>(), 1..63),
    ];
    (
        vec(label, 0..5),
        any::<u16>(),
        any::<bool>(),
        proptest::option::of(any::<u16>()),
    )
        .prop_filter_map("a name that is too long", |(mut labels, kind, below, size)| {
            if below {
                labels.extend([b"cluster".to_vec(), b"local".to_vec()]);
            }
            let name = Name::from_labels(labels.iter().map(Vec::as_slice)).ok()?;
            let mut message = Message::query();
            message.add_query(Query::query(name, RecordType::from(kind % 64)));
            if let Some(size) = size {
                let mut edns = Edns::new();
                edns.set_max_payload(size);
                message.set_edns(edns);
            }
            message.to_vec().ok()
        })
}

proptest! {
    #[test]
    fn any_bytes_are_read(packet in vec(any::<u8>(), 0..600)) {
        check(&packet)?;
    }

    #[test]
    fn any_question_is_answered(packet in question()) {
        check(&packet)?;
    }

    #[test]
    fn a_damaged_question_is_answered_or_not(mut packet in question(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let at = at.index(packet.len());
        packet[at] = byte;
        check(&packet)?;
        packet.truncate(cut.index(packet.len()));
        check(&packet)?;
    }
}
