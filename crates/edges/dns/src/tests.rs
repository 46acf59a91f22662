//! Do real packets over real sockets get the right answers?

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use pointsman_http::{Wildcard, bind};
use pointsman_names::Zone;
use pointsman_telemetry::Registry;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::listen::{self, Desk};
use crate::metrics::Metrics;
use crate::owner::Owner;
use crate::upstream::{Forwarder, framed};
use crate::wire;

const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn object<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Option<Arc<T>> {
    Some(Arc::new(serde_json::from_value(value).unwrap()))
}

fn fill(zone: &mut Zone) {
    let service = |name: &str, spec: serde_json::Value| {
        object(json!({"metadata": {"namespace": "ns", "name": name}, "spec": spec}))
    };
    zone.set_service(
        "ns",
        "web",
        service(
            "web",
            json!({"clusterIP": "10.3.0.1", "clusterIPs": ["10.3.0.1"]}),
        ),
    );
    zone.set_service("ns", "many", service("many", json!({"clusterIP": "None"})));
    let out = json!({"type": "ExternalName", "externalName": "example.org"});
    zone.set_service("ns", "out", service("out", out));
    let endpoints: Vec<_> = (0..200)
        .map(|last| json!({"addresses": [format!("10.1.0.{last}")]}))
        .collect();
    let slice = json!({
        "metadata": {"namespace": "ns", "name": "many-1", "labels": {"kubernetes.io/service-name": "many"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [],
    });
    zone.set_slice("ns", "many-1", object(slice));
    zone.set_service("ns", "crowd", service("crowd", json!({"clusterIP": "None"})));
    for part in 0..40 {
        let endpoint = |last| json!({"addresses": [format!("10.2.{part}.{last}")]});
        let endpoints: Vec<_> = (0..250).map(endpoint).collect();
        let name = format!("crowd-{part}");
        let slice = json!({
            "metadata": {"namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": "crowd"}},
            "addressType": "IPv4", "endpoints": endpoints, "ports": [],
        });
        zone.set_slice("ns", &name, object(slice));
    }
}

/// A server that knows a few names, and whom it asks.
async fn server(upstream: &[SocketAddr], complete: bool) -> SocketAddr {
    let metrics = Metrics::new(&Registry::new());
    let known = Owner::new("cluster.local", metrics.clone()).known();
    {
        let mut known = known.write();
        fill(&mut known.zone);
        known.complete = complete;
    }
    let (_servers, following) = watch::channel(upstream.into());
    let desk = Desk {
        known,
        forwarder: Forwarder::new(following, metrics.clone()),
        metrics,
    };
    let listener = bind(LOOPBACK.into(), Wildcard::OwnFamily).unwrap();
    let address = listener.local_addr().unwrap();
    let socket = listen::bind_udp(address).unwrap();
    tokio::spawn(listen::udp(socket, desk.clone()));
    tokio::spawn(listen::tcp(listener, desk));
    address
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(wire::name(name).unwrap(), kind));
    message
}

async fn over_udp(server: SocketAddr, packet: &[u8]) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
    socket.send_to(packet, server).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let received = timeout(Duration::from_secs(6), socket.recv(&mut buffer)).await;
    buffer.truncate(received.ok()?.unwrap());
    Some(buffer)
}

async fn over_tcp(server: SocketAddr, packet: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(&framed(packet)).await.unwrap();
    let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

async fn ask(server: SocketAddr, message: &Message) -> Message {
    let packet = over_udp(server, &message.to_vec().unwrap()).await.unwrap();
    let answer = Message::from_vec(&packet).unwrap();
    assert_eq!((answer.id, &answer.queries), (message.id, &message.queries));
    answer
}

/// A name server outside that knows one name, in its own time.
async fn outside(delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(address).await.unwrap();
    let reply = |packet: &[u8], records: u8| {
        let mut message = Message::from_vec(packet).unwrap().into_response();
        for last in 0..records {
            let name = message.queries[0].name.clone();
            message.add_answer(Record::from_rdata(
                name,
                60,
                RData::A(Ipv4Addr::new(192, 0, 2, last).into()),
            ));
        }
        message.metadata.truncation = records == 0;
        message.to_vec().unwrap()
    };
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            tokio::time::sleep(delay).await;
            // Somebody who guesses is faster, but wrong.
            let mut guess = reply(&buffer[..length], 9);
            guess[1] ^= 1;
            socket.send_to(&guess, from).await.unwrap();
            // Of many records there are too many for a datagram.
            let is_many = buffer[12..length].starts_with(b"\x04many");
            let answer = reply(&buffer[..length], u8::from(!is_many));
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut packet = vec![0; stream.read_u16().await.unwrap().into()];
            stream.read_exact(&mut packet).await.unwrap();
            stream.write_all(&framed(&reply(&packet, 200))).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn both_transports_answer_and_repeat_the_letters_of_the_question() {
    let server = server(&[], true).await;
    let message = question("WeB.ns.SVC.cluster.Local", RecordType::A);
    for packet in [
        over_udp(server, &message.to_vec().unwrap()).await.unwrap(),
        over_tcp(server, &message.to_vec().unwrap()).await,
    ] {
        let answer = Message::from_vec(&packet).unwrap();
        assert!(answer.metadata.authoritative && answer.metadata.recursion_available);
        let [record] = &answer.answers[..] else {
            panic!("{answer}")
        };
        assert_eq!(record.data, RData::A(Ipv4Addr::new(10, 3, 0, 1).into()));
        assert!(record.name.eq_case(&message.queries[0].name));
    }
}

#[tokio::test]
async fn what_is_not_there_comes_with_the_zones_own_record() {
    let server = server(&[], true).await;
    for (name, code) in [
        ("none.ns.svc.cluster.local", ResponseCode::NXDomain),
        ("web.ns.svc.cluster.local", ResponseCode::NoError),
    ] {
        let answer = ask(server, &question(name, RecordType::AAAA)).await;
        assert_eq!((answer.metadata.response_code, answer.answers.len()), (code, 0));
        assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
    }
}

#[tokio::test]
async fn nothing_is_denied_before_everything_is_known() {
    let server = server(&[], false).await;
    let answer = ask(server, &question("none.ns.svc.cluster.local", RecordType::A)).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn nobody_else_is_asked_whose_address_it_is_before_everything_is_known() {
    let server = server(&[outside(Duration::ZERO).await], false).await;
    let code = async |name: &str, kind| ask(server, &question(name, kind)).await.metadata.response_code;
    let address = code("1.0.3.10.in-addr.arpa", RecordType::PTR).await;
    assert_eq!(address, ResponseCode::ServFail);
    assert_eq!(code("example.org", RecordType::A).await, ResponseCode::NoError);
}

#[tokio::test]
async fn answers_that_are_too_long_for_a_datagram_come_whole_over_tcp() {
    let server = server(&[], true).await;
    let mut message = question("many.ns.svc.cluster.local", RecordType::A);
    let plain = over_udp(server, &message.to_vec().unwrap()).await.unwrap();
    let mut edns = Edns::new();
    // More than gets through everywhere.
    edns.set_max_payload(4096);
    message.set_edns(edns);
    let extended = over_udp(server, &message.to_vec().unwrap()).await.unwrap();
    for (packet, limit) in [(&plain, 512), (&extended, 1232)] {
        assert!(
            packet.len() <= limit && packet.len() > limit - 32,
            "{}",
            packet.len()
        );
        let answer = Message::from_vec(packet).unwrap();
        assert!(answer.metadata.truncation && !answer.answers.is_empty());
        assert_eq!(answer.edns.is_some(), limit == 1232);
    }
    let whole = over_tcp(server, &message.to_vec().unwrap()).await;
    let answer = Message::from_vec(&whole).unwrap();
    assert!(!answer.metadata.truncation);
    assert_eq!(answer.answers.len(), 200);
}

#[tokio::test]
async fn what_fits_into_no_message_is_cut_even_over_tcp() {
    let server = server(&[], true).await;
    let message = question("crowd.ns.svc.cluster.local", RecordType::A);
    let packet = over_tcp(server, &message.to_vec().unwrap()).await;
    let answer = Message::from_vec(&packet).unwrap();
    assert!(answer.metadata.truncation);
    assert!(answer.answers.len() > 1_500, "{}", answer.answers.len());
}

#[tokio::test]
async fn other_names_are_asked_for_outside() {
    let silent = UdpSocket::bind(LOOPBACK).await.unwrap();
    let upstream = [
        silent.local_addr().unwrap(),
        outside(Duration::from_millis(10)).await,
    ];
    let server = server(&upstream, true).await;
    let began = std::time::Instant::now();
    let answer = ask(server, &question("example.org", RecordType::A)).await;
    assert_eq!(
        answer.answers[0].data,
        RData::A(Ipv4Addr::new(192, 0, 2, 0).into())
    );
    assert!(began.elapsed() >= Duration::from_secs(2), "the first is silent");
    let began = std::time::Instant::now();
    let answer = ask(server, &question("out.ns.svc.cluster.local", RecordType::A)).await;
    assert!(began.elapsed() < Duration::from_secs(2), "it is asked no more");
    let kinds: Vec<RecordType> = answer.answers.iter().map(Record::record_type).collect();
    assert_eq!(kinds, [RecordType::CNAME, RecordType::A]);
    let many = question("many.example.org", RecordType::A);
    assert!(ask(server, &many).await.metadata.truncation);
    let whole = over_tcp(server, &many.to_vec().unwrap()).await;
    assert_eq!(Message::from_vec(&whole).unwrap().answers.len(), 200);
}

#[tokio::test]
async fn without_anybody_to_ask_the_answer_is_a_failure() {
    let nobody = UdpSocket::bind(LOOPBACK).await.unwrap().local_addr().unwrap();
    for upstream in [&[][..], &[nobody]] {
        let server = server(upstream, true).await;
        for name in ["example.org", "out.ns.svc.cluster.local"] {
            let answer = ask(server, &question(name, RecordType::A)).await;
            assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
        }
    }
}

#[tokio::test]
async fn packets_that_are_no_questions_do_no_harm() {
    let server = server(&[], true).await;
    let good = question("web.ns.svc.cluster.local", RecordType::A)
        .to_vec()
        .unwrap();
    let mut answer = good.clone();
    answer[2] |= 0x80;
    for ignored in [&good[..11], &answer] {
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        socket.send_to(ignored, server).await.unwrap();
        let received = timeout(Duration::from_millis(100), socket.recv(&mut [0; 64])).await;
        assert!(received.is_err(), "an answer to {ignored:?}");
    }
    let mut many = good.clone();
    many[4..6].copy_from_slice(&[0xff, 0xff]);
    let mut update = good.clone();
    update[2] = 5 << 3;
    for (packet, code) in [(&good[..20], 1), (&many, 1), (&update, 4)] {
        let refusal = over_udp(server, packet).await.unwrap();
        assert_eq!((refusal.len(), refusal[3] & 0xf), (12, code));
        assert_eq!(refusal[..2], packet[..2]);
    }
    let mut version = question("web.ns.svc.cluster.local", RecordType::A);
    let mut edns = Edns::new();
    edns.set_version(1);
    version.set_edns(edns);
    let refusal = ask(server, &version).await;
    assert_eq!(u16::from(refusal.metadata.response_code), 16);
}
