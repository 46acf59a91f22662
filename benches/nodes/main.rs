//! What do the heartbeats of many nodes cost the node lifecycle loop?
//!
//! ```sh
//! cargo bench -p pointsman-benches --bench nodes -- PROGRAM [--nodes 5000] [--seconds 40]
//! ```
//!
//! Starts the real API server and the real loops as processes. Nodes are hollow: objects whose
//! leases this program renews and whose status it reports, as kubelets would.

#![expect(clippy::print_stdout, reason = "its output is the product")]

use pointsman_benches::nodes::are_settled;
use pointsman_benches::process::{self, Usage};
use pointsman_benches::server::{Server, free_address, quiet};
use pointsman_hollow::nodes::{Heartbeats, Nodes};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How often a node renews its lease; also how often it reports, where reports are heartbeats.
const PERIOD: Duration = Duration::from_secs(10);
/// How often a node reports if leases are its heartbeats.
const SELDOM: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() {
    let mut arguments = pointsman_benches::arguments().into_iter();
    let program = arguments
        .next()
        .expect("usage: nodes PROGRAM [--nodes N] [--seconds N]");
    let (mut nodes, mut seconds) = (5_000, 40);
    while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
        let value: usize = value.parse().expect("a number");
        match flag.as_str() {
            "--nodes" => nodes = value,
            "--seconds" => seconds = value,
            _ => panic!("unknown flag {flag}"),
        }
    }
    let server = Server::start(&program).await;
    let known = Nodes::try_new(nodes).expect("fewer nodes");
    let load = Heartbeats::new(server.client.clone(), known);
    load.create().await.unwrap();
    let (loops, metrics) = launch(&server, &program).await;
    while !are_settled(&server.client, nodes).await {
        load.beat(PERIOD, SELDOM, Duration::from_secs(5)).await;
    }
    println!("| {nodes} nodes | target | measured |\n|---|---|--:|");
    for (name, reports) in [
        ("leases every 10 s, status every 5 min", SELDOM),
        ("leases every 10 s, status every 10 s", PERIOD),
    ] {
        // What was started before must not be measured.
        load.beat(PERIOD, reports, Duration::from_secs(5)).await;
        let (cpu, begin) = (usage(&loops).cpu_seconds, Instant::now());
        let sent = load
            .beat(PERIOD, reports, Duration::from_secs(seconds as u64))
            .await;
        let elapsed = begin.elapsed().as_secs_f64();
        let share = 100.0 * (usage(&loops).cpu_seconds - cpu) / elapsed;
        let rate = sent as f64 / elapsed;
        println!("| {name}: heartbeats | | {rate:.0}/s |");
        println!("| {name}: CPU of the loops | ≤ 2 % of a core | {share:.2} % |");
    }
    let (passes, total) = passes(&metrics).await;
    let mean = 1000.0 * total / passes;
    println!("| one look at all nodes (mean of {passes}) | ≤ 20 ms | {mean:.2} ms |");
    println!(
        "| resident memory of the loops | | {:.0} MB |",
        usage(&loops).rss_bytes / f64::from(1 << 20)
    );
}

/// Starts the loops; returns them and where their metrics are.
async fn launch(server: &Server, program: &str) -> (Child, String) {
    let metrics = free_address().await;
    let process = quiet(
        Command::new(program)
            .args([
                "controllers",
                "--controllers=nodelifecycle,tainteviction",
                "--leader-elect=false",
                "--log=warn",
                "--metrics-listen",
                &metrics,
                "--kubeconfig",
            ])
            .arg(server.kubeconfig_of("controllers")),
    );
    (process, metrics)
}

fn usage(process: &Child) -> Usage {
    process::usage(process.id().unwrap()).unwrap()
}

/// How often all nodes were looked at, and how long that took together.
async fn passes(address: &str) -> (f64, f64) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let value = |name: &str| {
        let name = format!("node_collector_update_all_nodes_health_duration_seconds_{name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name)).unwrap();
        line.trim().parse::<f64>().unwrap()
    };
    (value("count"), value("sum"))
}
