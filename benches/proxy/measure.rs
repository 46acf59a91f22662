//! What is measured for one proxy and one size.

use crate::Limits;
use crate::cluster::Server;
use crate::contender::{Contender, Node, Watermark, metric};
use crate::report::{Row, Shares};
use pointsman_api_client::{Event, Resource, Scope, Watcher};
use serde::de::IgnoredAny;
use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
const PENDING: &str = "kubeproxy_sync_proxy_rules_endpoint_changes_pending";
const BYTES: &str = "pointsman_proxy_restore_bytes_total{ip_family=\"IPv4\"}";
const TRANSACTIONS: &str = "pointsman_proxy_transactions_total{ip_family=\"IPv4\"}";
const PEER_RULES: &str = "kubeproxy_sync_proxy_rules_iptables_last{ip_family=\"IPv4\",table=\"nat\"}";
/// What is counted only if a partial sync went wrong.
const OWN_FAULTS: [&str; 2] = [
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv4\"}",
    "pointsman_proxy_divergences_total{ip_family=\"IPv4\"}",
];
/// Changes at once.
const BURST: usize = 1000;
/// How long single changes of one kind are repeated at most.
const PATIENCE: Duration = Duration::from_secs(25);

/// Runs everything for one contender.
pub async fn run(server: &mut Server, contender: &Contender, changes: usize, limits: Limits) -> Row {
    let what = format!("{}: {} {}", server.size, contender.name, contender.mode.name());
    eprintln!("{what}: cold start");
    let mut node = Node::new(server, contender);
    let mut row = Row::new(contender, server.size);
    let kernel_before = kernel_memory();
    let deadline = Instant::now() + Duration::from_secs(limits.row);
    node.launch();
    let limit = limits.start.min(limits.row);
    row.cold_seconds = started(&node, limit);
    if row.cold_seconds.is_none() {
        eprintln!("{what}: not within {limit} s; {}", node.last_words());
        row.limit_seconds = Some(limit);
        row.cold_cpu_seconds = node.cpu();
        return row;
    }
    row.cold_cpu_seconds = node.cpu();
    row.kernel_bytes = kernel_memory().saturating_sub(kernel_before);
    settle(&node);
    (row.rss_bytes, row.peak_bytes) = node.memory();
    eprintln!(
        "{what}: {:.2} s, {} MiB; changes",
        row.cold_seconds.unwrap_or(0.0),
        row.rss_bytes >> 20
    );
    let mut clock = Clock::start(server, &node, contender, deadline).await;
    single_changes(server, &node, &mut clock, changes, &mut row).await;
    services(server, &node, &mut clock, &mut row).await;
    burst(server, &node, &mut clock, &mut row).await;
    row.rss_after_bytes = node.memory().0;
    drop(clock);
    let metrics = node.metrics();
    for series in OWN_FAULTS {
        let counted = metric(&metrics, series).unwrap_or(0.0);
        assert_eq!(counted, 0.0, "{what}: {series}");
    }
    let left = deadline.saturating_duration_since(Instant::now()).as_secs();
    if left > 0 {
        eprintln!("{what}: restart");
        node.halt();
        node.launch();
        row.restart_seconds = started(&node, limits.start.min(left));
        row.restart_writes = metric(&node.metrics(), TRANSACTIONS);
    }
    if row.restart_seconds.is_none() {
        eprintln!("{what}: not within {} s; {}", limits.row, node.last_words());
        row.row_limit_seconds = Some(limits.row);
    }
    row
}

/// Seconds from the start of the process to the end of its first sync.
pub fn started(node: &Node, limit: u64) -> Option<f64> {
    let began = Instant::now();
    let start = unix(node.started());
    while began.elapsed() < Duration::from_secs(limit) {
        if let Some(at) = metric(&node.metrics(), LAST_SYNC).filter(|at| *at > start) {
            return Some(at - start);
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    None
}

/// Waits until the proxy has nothing more to do after its start.
fn settle(node: &Node) {
    let mut cpu = node.cpu();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(500));
        let now = node.cpu();
        if now - cpu < 0.03 {
            return;
        }
        cpu = now;
    }
}

/// Tells when a change was seen by watchers, and when it was in the kernel.
struct Clock {
    seen: Arc<Mutex<HashMap<u64, (Instant, SystemTime)>>>,
    watermarks: Option<Receiver<(Watermark, Instant)>>,
    /// After this, nothing is waited for.
    deadline: Instant,
    _watches: JoinSet<()>,
}

impl Clock {
    async fn start(server: &Server, node: &Node, contender: &Contender, deadline: Instant) -> Self {
        let seen = Arc::new(Mutex::new(HashMap::new()));
        let mut watches = JoinSet::new();
        for resource in [Resource::SERVICES, Resource::ENDPOINT_SLICES] {
            let mut watcher = Watcher::<IgnoredAny>::new(server.client.clone(), Scope::all(resource));
            let (seen, (ready, is_ready)) = (Arc::clone(&seen), tokio::sync::oneshot::channel());
            let mut ready = Some(ready);
            watches.spawn(async move {
                loop {
                    let version = match watcher.next().await {
                        Event::Applied { resource_version, .. } => Some(resource_version),
                        Event::Deleted { resource_version, .. } => resource_version,
                        Event::Synced(_) => {
                            let _ = ready.take().map(|ready| ready.send(()));
                            None
                        }
                        Event::Init => None,
                    };
                    if let Some(version) = version.and_then(|version| version.parse::<u64>().ok()) {
                        seen.lock()
                            .unwrap()
                            .insert(version, (Instant::now(), SystemTime::now()));
                    }
                }
            });
            let _ = is_ready.await;
        }
        seen.lock().unwrap().clear();
        Self {
            seen,
            watermarks: contender.is_ours().then(|| node.watermarks()),
            deadline,
            _watches: watches,
        }
    }

    fn seen_at(&self, version: u64) -> (Instant, SystemTime) {
        loop {
            if let Some(at) = self.seen.lock().unwrap().get(&version) {
                return *at;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// The version of the newest change that was seen.
    fn newest(&self) -> u64 {
        self.seen.lock().unwrap().keys().copied().max().unwrap_or(0)
    }

    /// Milliseconds from the watch event of a change to its commit; `None` if it takes too long.
    fn latency(&mut self, node: &Node, version: u64, of_service: bool) -> Option<f64> {
        let (seen, seen_clock) = self.seen_at(version);
        let Some(watermarks) = &self.watermarks else {
            return peer_latency(node, seen_clock, self.deadline);
        };
        loop {
            let patience = self.deadline.saturating_duration_since(Instant::now());
            let (watermark, at) = watermarks.recv_timeout(patience).ok()?;
            let reached = if of_service {
                watermark.services
            } else {
                watermark.endpoint_slices
            };
            if reached >= Some(version) {
                return Some(at.saturating_duration_since(seen).as_secs_f64() * 1e3);
            }
        }
    }
}

fn peer_latency(node: &Node, seen: SystemTime, deadline: Instant) -> Option<f64> {
    let seen = unix(seen);
    while Instant::now() < deadline {
        let text = node.metrics();
        let pending = metric(&text, PENDING).unwrap_or(0.0);
        if let Some(at) = metric(&text, LAST_SYNC).filter(|at| *at > seen && pending == 0.0) {
            return Some((at - seen) * 1e3);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

async fn single_changes(server: &Server, node: &Node, clock: &mut Clock, changes: usize, row: &mut Row) {
    let (bytes, cpu, began) = (counted(node, BYTES), node.cpu_shares(), Instant::now());
    let mut latencies = Vec::new();
    for round in 1..=changes {
        if clock.is_late() || began.elapsed() > PATIENCE && latencies.len() >= 3 {
            break;
        }
        let number = round * 7919 % server.size.services;
        let version = server.change_endpoint(number).await;
        match tokio::task::block_in_place(|| clock.latency(node, version, false)) {
            Some(latency) => latencies.push(latency),
            None => break,
        }
    }
    let count = latencies.len().max(1) as f64;
    row.changes = latencies.len();
    let after = node.cpu_shares();
    let [proxy_ms, programs_ms, kernel_ms] = [0, 1, 2].map(|at| (after[at] - cpu[at]) / count * 1e3);
    row.change_cpu_ms = proxy_ms + programs_ms + kernel_ms;
    row.change_shares = Some(Shares {
        proxy_ms,
        programs_ms,
        kernel_ms,
    });
    row.change_bytes = bytes
        .zip(counted(node, BYTES))
        .map(|(before, after)| (after - before) / count);
    row.change_rules = (!row.is_ours())
        .then(|| metric(&node.metrics(), PEER_RULES))
        .flatten();
    latencies.sort_by(f64::total_cmp);
    row.change_p50_ms = quantile(&latencies, 0.5);
    row.change_p99_ms = quantile(&latencies, 0.99);
}

/// Adds and removes Services, a few times.
async fn services(server: &Server, node: &Node, clock: &mut Clock, row: &mut Row) {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    let (mut add_bytes, mut remove_bytes) = (Vec::new(), Vec::new());
    let began = Instant::now();
    for round in 0..20 {
        if clock.is_late() || began.elapsed() > PATIENCE && !removed.is_empty() {
            break;
        }
        let number = server.size.services + 10 + round;
        let before = counted(node, BYTES);
        let version = server.add_service(number).await;
        added.extend(tokio::task::block_in_place(|| clock.latency(node, version, true)));
        let between = counted(node, BYTES);
        let newest = clock.newest();
        server.remove_service(number).await;
        let version = tokio::task::block_in_place(|| {
            // The deletion is the only thing that happens.
            loop {
                let version = clock.newest();
                if version > newest {
                    return version;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        removed.extend(tokio::task::block_in_place(|| clock.latency(node, version, true)));
        add_bytes.extend(before.zip(between).map(|(before, after)| after - before));
        remove_bytes.extend(
            between
                .zip(counted(node, BYTES))
                .map(|(before, after)| after - before),
        );
    }
    for list in [&mut added, &mut removed, &mut add_bytes, &mut remove_bytes] {
        list.sort_by(f64::total_cmp);
    }
    row.add_ms = quantile(&added, 0.5);
    row.remove_ms = quantile(&removed, 0.5);
    row.add_bytes = quantile(&add_bytes, 0.5);
    row.remove_bytes = quantile(&remove_bytes, 0.5);
}

/// Many changes at once: how long the server takes to accept them, and how much longer until all are in the
/// kernel.
async fn burst(server: &Server, node: &Node, clock: &mut Clock, row: &mut Row) {
    if clock.is_late() {
        return;
    }
    let count = BURST.min(server.size.services);
    let (began, mut newest) = (Instant::now(), 0);
    let mut start = 0;
    while start < count {
        let end = (start + 64).min(count);
        let wave = (start..end).map(|number| server.change_endpoint(number));
        newest = futures::future::join_all(wave)
            .await
            .into_iter()
            .max()
            .unwrap_or(newest);
        start = end;
    }
    let accepted = began.elapsed();
    let after = tokio::task::block_in_place(|| clock.latency(node, newest, false));
    row.burst_accepted_ms = Some(accepted.as_secs_f64() * 1e3);
    row.burst_after_ms = after;
}

fn counted(node: &Node, series: &str) -> Option<f64> {
    metric(&node.metrics(), series)
}

/// The smallest value that at least this share does not exceed.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// Memory of the kernel's own, in bytes.
fn kernel_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        number.unwrap_or(0) * 1024
    };
    field("SUnreclaim:") + field("VmallocUsed:") + field("Percpu:")
}
