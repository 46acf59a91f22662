//! What do the heartbeats of many nodes cost the node lifecycle loop?
//!
//! ```sh
//! bench_nodes PROGRAM [--nodes 5000] [--seconds 40]
//! ```
//!
//! Starts the real API server and the real loops as processes. Nodes are objects; this program renews
//! their leases and reports their status as kubelets would.

#![expect(clippy::print_stdout, reason = "its output is the product")]

mod load;

use load::Load;
use pointsman_api_client::connect::connect;
use pointsman_api_client::{ApiError, Client, Source};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How often a node renews its lease; also how often it reports, where reports are heartbeats.
const PERIOD: Duration = Duration::from_secs(10);
/// How often a node reports if leases are its heartbeats.
const SELDOM: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let program = arguments
        .next()
        .expect("usage: bench_nodes PROGRAM [--nodes N] [--seconds N]");
    let (mut nodes, mut seconds) = (5_000, 40);
    while let (Some(flag), Some(value)) = (arguments.next(), arguments.next()) {
        let value: usize = value.parse().expect("a number");
        match flag.as_str() {
            "--nodes" => nodes = value,
            "--seconds" => seconds = value,
            _ => panic!("unknown flag {flag}"),
        }
    }
    let bench = Bench::start(&program).await;
    let load = Load::new(bench.client.clone(), nodes);
    load.create().await;
    let (loops, metrics) = bench.launch(&program).await;
    println!("| {nodes} nodes | target | measured |\n|---|---|--:|");
    for (name, reports) in [
        ("leases every 10 s, status every 5 min", SELDOM),
        ("leases every 10 s, status every 10 s", PERIOD),
    ] {
        // What was started before must not be measured.
        load.beat(PERIOD, reports, Duration::from_secs(5)).await;
        let (cpu, begin) = (cpu_seconds(&loops), Instant::now());
        let sent = load
            .beat(PERIOD, reports, Duration::from_secs(seconds as u64))
            .await;
        let elapsed = begin.elapsed().as_secs_f64();
        let share = 100.0 * (cpu_seconds(&loops) - cpu) / elapsed;
        let rate = sent as f64 / elapsed;
        println!("| {name}: heartbeats | | {rate:.0}/s |");
        println!("| {name}: CPU of the loops | ≤ 2 % of a core | {share:.2} % |");
    }
    let (passes, total) = passes(&metrics).await;
    let mean = 1000.0 * total / passes;
    println!("| one look at all nodes (mean of {passes}) | ≤ 20 ms | {mean:.2} ms |");
    println!(
        "| resident memory of the loops | | {} MB |",
        resident(&loops) >> 20
    );
}

struct Bench {
    home: TempDir,
    _server: Child,
    client: Client,
}

impl Bench {
    async fn start(program: &str) -> Self {
        std::fs::create_dir_all("target/bench").unwrap();
        let home = tempfile::tempdir_in("target/bench").unwrap();
        let data = home.path().join("data");
        let server = quiet(Command::new(program).args([
            "apiserver",
            "--log=warn",
            "--listen",
            &free_address().await,
            "--data-dir",
            data.to_str().unwrap(),
        ]));
        let admin = data.join("admin.kubeconfig");
        let client = loop {
            if let Ok(client) = connect(&Source::Kubeconfig(admin.clone()), "bench").await
                && let Err(ApiError::Unreadable(_)) = client.get_path::<Value>("/readyz").await
            {
                break client;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        Self {
            home,
            _server: server,
            client,
        }
    }

    /// Starts the loops; returns them and where their metrics are.
    async fn launch(&self, program: &str) -> (Child, String) {
        let metrics = free_address().await;
        let kubeconfig = self.kubeconfig();
        let process = quiet(Command::new(program).args([
            "controllers",
            "--controllers=nodelifecycle,tainteviction",
            "--leader-elect=false",
            "--log=warn",
            "--metrics-listen",
            &metrics,
            "--kubeconfig",
            &kubeconfig,
        ]));
        (process, metrics)
    }

    fn kubeconfig(&self) -> String {
        let path = Path::new("data/kubeconfigs/controllers.kubeconfig");
        self.home.path().join(path).to_str().unwrap().to_owned()
    }
}

fn quiet(command: &mut Command) -> Child {
    command
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
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

fn cpu_seconds(process: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id().unwrap())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

fn resident(process: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id().unwrap())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
