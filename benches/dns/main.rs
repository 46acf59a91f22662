//! How many questions does the DNS answer on one core, and how soon after a change?
//!
//! ```sh
//! cargo bench -p pointsman-benches --bench dns -- PROGRAM [--services 1000] [--seconds 10] [--changes 500]
//! ```
//!
//! Starts the real API server and the real `pointsman dns`, which is kept on the first core; questions come from the others,
//! from as many sockets as there would be pods asking at a time.

#![expect(clippy::print_stdout, reason = "its output is the product")]

use pointsman_api_client::client::Patch;
use pointsman_api_client::{Api, Resource};
use pointsman_benches::latency::{Latencies, Quantiles};
use pointsman_benches::process;
use pointsman_benches::server::{Server, free_address, quiet};
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Clients that each wait for their answer before they ask again.
const CLIENTS: usize = 64;
/// Types of records, as in packets.
const A: u16 = 1;
const SRV: u16 = 33;

#[tokio::main]
async fn main() {
    let mut arguments = pointsman_benches::arguments().into_iter();
    let program = arguments
        .next()
        .expect("usage: dns PROGRAM [--services N] [--seconds N] [--changes N]");
    let (mut services, mut seconds, mut changes) = (1_000, 10, 500);
    while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
        let value: u64 = value.parse().expect("a number");
        match flag.as_str() {
            "--services" => services = value,
            "--seconds" => seconds = value,
            "--changes" => changes = value,
            _ => panic!("unknown flag {flag}"),
        }
    }
    let server = Server::start(&program).await;
    create(&server, services).await;
    let address = free_address().await;
    let (metrics, kubeconfig) = (free_address().await, server.kubeconfig_of("dns"));
    let dns = quiet(
        tokio::process::Command::new("taskset")
            .args([
                "--cpu-list",
                "0",
                &program,
                "dns",
                "--upstream=none",
                "--bind-address",
                &address,
            ])
            .args(["--metrics-listen", &metrics, "--kubeconfig"])
            .arg(kubeconfig),
    );
    let pid = dns.id().expect("it runs");
    let last = question(&format!("s{}.default.svc.cluster.local", services - 1), A);
    let asking = client(&address);
    while answer(&asking, &last).is_none_or(|reply| reply[7] == 0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    println!("| {services} Services | target | measured |\n|---|---|--:|");
    for (name, target, kind) in [
        ("address of a Service", "≥ 20,000/s on one core", A),
        ("SRV of a headless Service's port", "", SRV),
    ] {
        let before = process::usage(pid).expect("it runs").cpu_seconds;
        let began = Instant::now();
        let (count, times) = tokio::task::block_in_place(|| load(&address, services, seconds, kind));
        let elapsed = began.elapsed().as_secs_f64();
        let cpu = process::usage(pid).expect("it runs").cpu_seconds - before;
        println!(
            "| {name}: questions | {target} | {:.0}/s |",
            count as f64 / elapsed
        );
        println!("| {name}: per second of its core | | {:.0} |", count as f64 / cpu);
        println!("| {name}: p50 / p99 | | {} |", quantiles(&times));
    }
    let (answered, sent) = follow(&server, &asking, changes).await;
    println!(
        "| slice written (answered) to answer, {changes} changes, p50 / p99 | p99 ≤ 10 ms | {} |",
        quantiles(&answered)
    );
    println!(
        "| the same from the request's first byte | | {} |",
        quantiles(&sent)
    );
    let memory = process::usage(pid).expect("it runs").rss_bytes / f64::from(1 << 20);
    println!("| resident memory | | {memory:.0} MiB |");
}

/// Services with an address each, and a headless one with ten endpoints behind the name of each.
async fn create(server: &Server, services: u64) {
    let (of_services, of_slices) = collections(server);
    for number in 0..services {
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": format!("s{number}") },
            "spec": { "ports": [{ "name": "http", "port": 80 }] } });
        of_services
            .create::<Value>(service.to_string())
            .await
            .expect("created");
    }
    for number in 0..services / 10 {
        let name = format!("h{number}");
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "clusterIP": "None", "ports": [{ "name": "http", "port": 80 }] } });
        of_services
            .create::<Value>(service.to_string())
            .await
            .expect("created");
        let endpoints: Vec<Value> = (1..=10)
            .map(|last| json!({ "addresses": [format!("192.0.2.{last}")] }))
            .collect();
        let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name } },
            "ports": [{ "name": "http", "port": 80 }], "endpoints": endpoints });
        of_slices
            .create::<Value>(slice.to_string())
            .await
            .expect("created");
    }
}

fn collections(server: &Server) -> (Api, Api) {
    let of = |resource| server.client.api(resource, Some("default"));
    (of(Resource::SERVICES), of(Resource::ENDPOINT_SLICES))
}

/// Asks from threads of their own, on the other cores, as fast as answers come.
fn load(address: &str, services: u64, seconds: u64, kind: u16) -> (u64, Quantiles) {
    let (count, mut all) = (AtomicU64::new(0), Latencies::default());
    let end = Instant::now() + Duration::from_secs(seconds);
    let ask = |begin: usize| {
        let (socket, mut times) = (client(address), Latencies::default());
        let mut number = begin as u64 * 7919;
        while Instant::now() < end {
            number += 1;
            let name = match kind {
                SRV => format!(
                    "_http._tcp.h{}.default.svc.cluster.local",
                    number % (services / 10)
                ),
                _ => format!("s{}.default.svc.cluster.local", number % services),
            };
            let since = Instant::now();
            let reply = answer(&socket, &question(&name, kind)).expect("an answer");
            assert!(reply[7] > 0, "{name} has no record");
            times.record(since.elapsed());
            count.fetch_add(1, Ordering::Relaxed);
        }
        times
    };
    std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = (0..CLIENTS)
            .map(|begin| scope.spawn(move || ask(begin)))
            .collect();
        for thread in threads {
            all.merge(thread.join().expect("no client fails"));
        }
    });
    (count.into_inner(), all.sorted())
}

/// Changes the one endpoint of a headless Service again and again, and asks until the answer says so.
async fn follow(server: &Server, asking: &UdpSocket, changes: u64) -> (Quantiles, Quantiles) {
    let (_, slices) = collections(server);
    let (mut answered, mut sent) = (Latencies::default(), Latencies::default());
    let question = question("h0.default.svc.cluster.local", A);
    for change in 0..changes {
        let last = 20 + (change % 200) as u8;
        let patch = json!({ "endpoints": [{ "addresses": [format!("192.0.2.{last}")] }] }).to_string();
        let begun = Instant::now();
        let written = slices.patch::<Value>("h0", Patch::Merge(patch.into_bytes()));
        written.await.expect("written");
        let written = Instant::now();
        // The address is the end of an answer without options.
        while !answer(asking, &question).is_some_and(|reply| reply.ends_with(&[192, 0, 2, last])) {
            assert!(
                written.elapsed() < Duration::from_secs(10),
                "the change never came"
            );
            tokio::task::yield_now().await;
        }
        answered.record(written.elapsed());
        sent.record(begun.elapsed());
    }
    (answered.sorted(), sent.sorted())
}

fn client(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(address).expect("an address");
    socket
        .set_read_timeout(Some(Duration::from_secs(1)))
        .expect("a time");
    socket
}

/// Asks once; a lost packet has no answer.
fn answer(socket: &UdpSocket, question: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = [0; 1500];
    socket.send(question).ok()?;
    let length = socket.recv(&mut buffer).ok()?;
    Some(buffer[..length].to_vec())
}

/// A packet with one question, written here so that the load costs little.
fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).expect("a short label"));
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    packet.extend(kind.to_be_bytes());
    packet.extend(1_u16.to_be_bytes());
    packet
}

fn quantiles(times: &Quantiles) -> String {
    format!("{:.2} / {:.2} ms", times.millis(0.5), times.millis(0.99))
}
