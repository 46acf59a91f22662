//! The processes of the benchmark, and what is read from them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use pointsman_api_client::{Client, Patch, Resource};
use pointsman_benches::process::usage;
use pointsman_benches::server::{Server, free_address};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// How large a run is.
pub struct Sizes {
    pub programmers: u32,
    pub rate: u32,
    pub seconds: u32,
    pub warm_up: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            programmers: 5000,
            rate: 20,
            seconds: 30,
            warm_up: 15,
        }
    }
}

/// How the collector reaches the programmers.
#[derive(Clone, Copy)]
pub enum Mode {
    Direct,
    Relays(u32),
}

/// What was measured.
pub struct Figures {
    pub lines_per_second: f64,
    pub collector_cores: f64,
    pub collector_mib: f64,
    pub collector_peak_mib: f64,
    pub generator_cores: f64,
    pub delay_p50_ms: u64,
    pub delay_p99_ms: u64,
    pub delay_max_ms: u64,
    pub changes: f64,
    pub changes_per_second: f64,
    pub traces_per_second: f64,
    pub all_p99_ms: u64,
}

/// Everything that runs; it ends with the value.
pub struct Cluster {
    _server: Server,
    hollow: Child,
    collector: Child,
    address: String,
    writer: JoinHandle<()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl Cluster {
    /// With a receiver, every change becomes a trace.
    pub async fn start(program: &str, sizes: &Sizes, mode: Mode, receiver: Option<&str>) -> Self {
        let server = Server::start(program).await;
        let client = server.client.clone();
        create_objects(&client).await;
        let list = server.file("programmers");
        let (hollow_at, address) = (free_address().await, free_address().await);
        let kubeconfig = |role: &str| format!("--kubeconfig={}", server.kubeconfig_of(role).display());
        let (as_proxy, as_sli) = (kubeconfig("proxy"), kubeconfig("sli"));
        let count = format!("--count={}", sizes.programmers);
        let listen = format!("--listen={hollow_at}");
        let hollow = spawn(program, &["hollow", &as_proxy, &count, &listen, "--list"], &list);
        wait_for("the list of programmers", || list.exists()).await;
        let listen = format!("--listen={address}");
        let mut arguments = vec!["sli".to_owned(), as_sli, listen, "--discover=false".to_owned()];
        match mode {
            Mode::Direct => {
                arguments.push("--scrape-interval=60s".to_owned());
                arguments.push(format!("--programmers-file={}", list.display()));
            }
            Mode::Relays(of) => {
                let relay = |part| format!("--relay=http://{hollow_at}/watermarks?part={part}&of={of}");
                arguments.extend((0..of).map(relay));
            }
        }
        arguments.extend(receiver.map(|url| format!("--otlp={url}")));
        arguments.extend(receiver.map(|_| "--trace-share=1".to_owned()));
        arguments.push("--data-dir".to_owned());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let collector = spawn(program, &arguments, &server.file("sli"));
        let writer = tokio::spawn(change(client, sizes.rate));
        Self {
            _server: server,
            hollow,
            collector,
            address,
            writer,
        }
    }

    pub async fn measure(&self, sizes: &Sizes) -> Figures {
        let live = format!(
            "pointsman_sli_programmers{{state=\"live\"}} {}",
            sizes.programmers
        );
        let deadline = Instant::now() + Duration::from_secs(120);
        while !self.metrics().await.contains(&live) {
            assert!(Instant::now() < deadline, "not all programmers were found");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        tokio::time::sleep(Duration::from_secs(sizes.warm_up.into())).await;
        let (collector, hollow) = (self.collector.id(), self.hollow.id());
        let usage = |id: Option<u32>| usage(id.expect("it runs")).expect("it runs");
        let cpu = |id| usage(id).cpu_seconds;
        let (began, before) = (Instant::now(), self.metrics().await);
        let (collector_before, hollow_before) = (cpu(collector), cpu(hollow));
        tokio::time::sleep(Duration::from_secs(sizes.seconds.into())).await;
        let (collector_after, hollow_after) = (cpu(collector), cpu(hollow));
        let (took, after) = (began.elapsed().as_secs_f64(), self.metrics().await);
        let lines = "pointsman_sli_watermark_lines_total";
        let delay = Distribution::between(&before, &after, "pointsman_sli_fold_delay_seconds_bucket{");
        let all = Distribution::between(
            &before,
            &after,
            "pointsman_sli_change_reached_seconds_bucket{share=\"1\",",
        );
        let traces = "pointsman_sli_traces_total{result=\"sent\"}";
        let memory = usage(collector);
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        Figures {
            lines_per_second: (value(&after, lines) - value(&before, lines)) / took,
            collector_cores: (collector_after - collector_before) / took,
            collector_mib: mib(memory.rss_bytes),
            collector_peak_mib: mib(memory.peak_bytes),
            generator_cores: (hollow_after - hollow_before) / took,
            delay_p50_ms: delay.quantile(0.5),
            delay_p99_ms: delay.quantile(0.99),
            delay_max_ms: delay.quantile(1.0),
            changes: all.count() as f64,
            changes_per_second: all.count() as f64 / took,
            traces_per_second: (value(&after, traces) - value(&before, traces)) / took,
            all_p99_ms: all.quantile(0.99),
        }
    }

    async fn metrics(&self) -> String {
        get(&self.address, "/metrics").await.unwrap_or_default()
    }
}

/// A receiver of traces that throws them away; returns its URL.
pub async fn receiver() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(throw_away(BufReader::new(stream)));
        }
    });
    url
}

/// Answers the requests of a connection until it ends.
async fn throw_away(mut stream: BufReader<TcpStream>) -> std::io::Result<()> {
    let mut length = 0;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        if line == "\r\n" {
            tokio::io::copy(&mut (&mut stream).take(length), &mut tokio::io::sink()).await?;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .await?;
        }
        line.clear();
    }
    Ok(())
}

/// Changes one slice so many times a second.
async fn change(client: Client, rate: u32) {
    let api = client.api(Resource::ENDPOINT_SLICES, Some("default"));
    let mut turns = tokio::time::interval(Duration::from_secs(1) / rate);
    let mut ready = false;
    loop {
        turns.tick().await;
        ready = !ready;
        let now = jiff::Timestamp::now();
        let patch = json!({
            "metadata": { "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": format!("{now:.6}") } },
            "endpoints": [{ "addresses": ["10.0.0.5"], "conditions": { "ready": ready } }],
        });
        let patch = Patch::Merge(patch.to_string().into_bytes());
        if let Err(error) = api.patch::<Value>("web-1", patch).await {
            eprintln!("a change failed: {error}");
        }
    }
}

async fn create_objects(client: &Client) {
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4", "ports": [], "endpoints": [] });
    let api = client.api(Resource::ENDPOINT_SLICES, Some("default"));
    let deadline = Instant::now() + Duration::from_secs(60);
    // A server that answers may still be making its namespaces.
    while let Err(error) = api.create::<Value>(slice.to_string().into_bytes()).await {
        assert!(Instant::now() < deadline, "no slice: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn spawn(program: &str, arguments: &[&str], last: &Path) -> Child {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(last)
        .env_remove("KUBECONFIG")
        .kill_on_drop(true);
    command.args(["--log", "warn"]);
    command.spawn().expect("the program starts")
}

async fn wait_for(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn value(metrics: &str, series: &str) -> f64 {
    let mut lines = metrics.lines();
    let found = lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    found.unwrap_or(0.0)
}

/// Samples by upper bound in milliseconds.
struct Distribution(BTreeMap<u64, u64>);

impl Distribution {
    fn between(before: &str, after: &str, series: &str) -> Self {
        let (before, mut after) = (Self::read(before, series), Self::read(after, series));
        for (bound, count) in before.0 {
            if let Some(known) = after.0.get_mut(&bound) {
                *known -= count;
            }
        }
        after
    }

    fn read(metrics: &str, series: &str) -> Self {
        let mut counts = BTreeMap::new();
        let mut below = 0;
        for line in metrics.lines().filter_map(|line| line.strip_prefix(series)) {
            let Some((bound, count)) = line
                .strip_prefix("le=\"")
                .and_then(|rest| rest.split_once("\"} "))
            else {
                continue;
            };
            let count: u64 = count.parse().unwrap_or(0);
            let millis = bound
                .parse::<f64>()
                .map_or(u64::MAX, |seconds| (seconds * 1e3).round() as u64);
            counts.insert(millis, count - below);
            below = count;
        }
        Self(counts)
    }

    fn count(&self) -> u64 {
        self.0.values().sum()
    }

    fn quantile(&self, quantile: f64) -> u64 {
        let rank = ((self.count() as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for (bound, count) in &self.0 {
            seen += count;
            if seen >= rank {
                return *bound;
            }
        }
        0
    }
}
