//! Do connections that are of no use to anybody hurt those that are?

use pointsman_harness::flood::Flood;
use pointsman_harness::wire::message;
use pointsman_harness::{SOON, Server, config_map, eventually};
use serde_json::json;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Of 1,000 descriptors three quarters are for connections, and of these a quarter for those that say nothing.
const DESCRIPTORS: u32 = 1_000;
const SILENT: usize = 187;
const ATTACKERS: usize = 2_000;

/// The times of renewals of a lease, each over a connection of its own.
async fn renew(server: &Server, times: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for turn in 0..times {
        let began = Instant::now();
        let renewal = json!({ "spec": { "leaseTransitions": turn } });
        let renewed = async {
            server
                .admin()
                .await
                .patch(&format!("{LEASES}/n1"), "merge", &renewal)
                .await
        };
        let renewed = tokio::time::timeout(SOON, renewed).await;
        renewed.expect("a heartbeat gets through").expect(200);
        took.push(began.elapsed());
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_silent_connections_leave_room_for_heartbeats_and_watches() {
    let server = Server::start_with_descriptors(DESCRIPTORS).await;
    let admin = server.admin().await;
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "n1" },
        "spec": { "holderIdentity": "n1", "leaseDurationSeconds": 40 } });
    admin.post(LEASES, &lease).await.expect(201);
    let mut watch = admin.watch(&format!("{MAPS}?watch=1")).await;
    let calm = renew(&server, 50).await;

    let address = server.address().parse().unwrap();
    let flood = Flood::start(address, Ipv4Addr::new(127, 0, 0, 2), ATTACKERS);
    eventually("the attack is at its height", async || {
        (flood.open() + flood.closed() >= ATTACKERS).then_some(())
    })
    .await;
    let attacked = renew(&server, 50).await;
    // Who was there before goes on, and so does somebody without a certificate from elsewhere.
    admin.post(MAPS, &config_map("during", "1")).await.expect(201);
    while watch.expect().await.name() != "during" {}
    let anonymous = server.with_token(None).await.get("/healthz").await;
    assert_eq!((anonymous.code, anonymous.text.as_str()), (200, "ok"));
    let metrics = admin.get("/metrics").await.text;
    let value = |series: &str| -> usize {
        let line = metrics.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("there is no {series}"))
            .trim()
            .parse()
            .unwrap()
    };
    let silent = value(r#"pointsman_http_connections{listener="https",state="silent"}"#);
    assert!(silent <= SILENT, "{silent} silent connections are open");
    let closed = value(r#"pointsman_http_connections_closed_total{listener="https",reason="source_limit"}"#);
    assert!(closed > ATTACKERS / 4, "only {closed} made room for others");
    let middle = |times: &[Duration]| times[times.len() / 2];
    eprintln!(
        "renewals with {ATTACKERS} silent connections: p50 {:?}, most {:?}; calm: p50 {:?}, most {:?}",
        middle(&attacked),
        attacked.last().unwrap(),
        middle(&calm),
        calm.last().unwrap(),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_without_a_certificate_have_a_share_per_address_and_those_with_one_are_let_in() {
    // 375 connections at once, of which half are kept for certificates.
    let server = Server::start_with_descriptors(500).await;
    let mut open = Vec::new();
    let refused = loop {
        assert!(open.len() < 375, "nobody is refused");
        let http = server.with_token(None).await;
        let answer = http.get("/healthz").await;
        if answer.code != 200 {
            break answer;
        }
        // The client keeps its connection for as long as it lives.
        open.push(http);
    };
    assert_eq!((refused.code, refused.header("retry-after")), (429, "1"));
    assert!(refused.text.contains("too many connections"), "{}", refused.text);
    for _ in 0..20 {
        let http = server.admin().await;
        let answer = http.get(MAPS).await;
        assert_eq!(answer.code, 200, "{}", message(&answer.json()));
        open.push(http);
    }
}
