//! How are the numbers told?

use crate::Size;
use crate::contender::{Contender, Mode};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Everything that was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    pub machine: String,
    pub rows: Vec<Row>,
    pub bare: Vec<Bare>,
    pub ours_only: Vec<OursOnly>,
    pub data_path: Vec<Connections>,
}

/// One proxy in one mode with one size.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    pub contender: String,
    pub mode: Mode,
    pub size: Size,
    pub cold_seconds: Option<f64>,
    pub limit_seconds: Option<u64>,
    /// The limit of the row, if it was reached before everything was measured.
    #[serde(default)]
    pub row_limit_seconds: Option<u64>,
    pub cold_cpu_seconds: f64,
    pub restart_seconds: Option<f64>,
    pub restart_writes: Option<f64>,
    pub changes: usize,
    pub change_p50_ms: Option<f64>,
    pub change_p99_ms: Option<f64>,
    pub change_cpu_ms: f64,
    /// Whose time a change takes.
    #[serde(default)]
    pub change_shares: Option<Shares>,
    pub change_bytes: Option<f64>,
    pub change_rules: Option<f64>,
    pub add_ms: Option<f64>,
    pub add_bytes: Option<f64>,
    pub remove_ms: Option<f64>,
    pub remove_bytes: Option<f64>,
    pub burst_accepted_ms: Option<f64>,
    pub burst_after_ms: Option<f64>,
    pub rss_bytes: u64,
    pub rss_after_bytes: u64,
    pub peak_bytes: u64,
    pub kernel_bytes: u64,
}

impl Row {
    pub fn new(contender: &Contender, size: Size) -> Self {
        Self {
            contender: contender.name.to_owned(),
            mode: contender.mode,
            size,
            cold_seconds: None,
            limit_seconds: None,
            row_limit_seconds: None,
            cold_cpu_seconds: 0.0,
            restart_seconds: None,
            restart_writes: None,
            changes: 0,
            change_p50_ms: None,
            change_p99_ms: None,
            change_cpu_ms: 0.0,
            change_shares: None,
            change_bytes: None,
            change_rules: None,
            add_ms: None,
            add_bytes: None,
            remove_ms: None,
            remove_bytes: None,
            burst_accepted_ms: None,
            burst_after_ms: None,
            rss_bytes: 0,
            rss_after_bytes: 0,
            peak_bytes: 0,
            kernel_bytes: 0,
        }
    }

    pub fn is_ours(&self) -> bool {
        self.contender == "pointsman"
    }
}

/// Milliseconds of CPU that one change costs.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Shares {
    /// In the proxy itself.
    pub proxy_ms: f64,
    /// In the programs it runs, outside the kernel.
    pub programs_ms: f64,
    /// In the kernel on behalf of those programs.
    pub kernel_ms: f64,
}

/// The bare loader.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bare {
    pub size: Size,
    pub elements: usize,
    pub seconds: f64,
    pub longest_ms: f64,
}

/// Our own share of one endpoint change.
#[derive(Debug, Serialize, Deserialize)]
pub struct OursOnly {
    pub services: usize,
    pub nftables_p50_us: f64,
    pub nftables_p99_us: f64,
    pub iptables_p50_us: f64,
    pub iptables_p99_us: f64,
    pub iptables_bytes: usize,
}

/// New connections through one cluster address.
#[derive(Debug, Serialize, Deserialize)]
pub struct Connections {
    pub contender: String,
    pub mode: Mode,
    pub services: usize,
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Connections whose first packet was lost somewhere.
    #[serde(default)]
    pub lost: usize,
    pub direct_per_second: f64,
}

impl Results {
    /// Reads earlier results; none if there are none.
    pub fn read(path: &str) -> Self {
        match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).expect("results of this program"),
            Err(_) => Self::default(),
        }
    }

    /// Takes in a row, in place of an earlier one of the same kind.
    pub fn put_row(&mut self, row: Row) {
        put(&mut self.rows, row, |one, other| {
            (&one.contender, one.mode, one.size) == (&other.contender, other.mode, other.size)
        });
    }

    pub fn put_bare(&mut self, bare: Bare) {
        put(&mut self.bare, bare, |one, other| one.size == other.size);
    }

    pub fn put_ours_only(&mut self, ours: OursOnly) {
        put(&mut self.ours_only, ours, |one, other| {
            one.services == other.services
        });
    }

    pub fn put_data_path(&mut self, connections: Connections) {
        put(&mut self.data_path, connections, |one, other| {
            (&one.contender, one.mode, one.services) == (&other.contender, other.mode, other.services)
        });
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values")
    }
}

fn put<T>(list: &mut Vec<T>, item: T, same: impl Fn(&T, &T) -> bool) {
    match list.iter_mut().find(|known| same(known, &item)) {
        Some(known) => *known = item,
        None => list.push(item),
    }
}

/// What machine this is.
pub fn machine() -> String {
    let read = |path: &str| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let load = read("/proc/loadavg");
    let load = load.split_whitespace().next().unwrap_or("?");
    format!(
        "{cores} cores, Linux {}, load average {load}",
        read("/proc/sys/kernel/osrelease")
    )
}

pub fn markdown(results: &Results) -> String {
    let mut out = format!("{}\n", results.machine);
    for mode in Mode::ALL {
        rows(&mut out, results, mode);
    }
    if !results.ours_only.is_empty() {
        out.push_str("\n| our own share of one endpoint change (5 endpoints) | nftables p50 / p99 | iptables p50 / p99 | iptables input |\n|---|--:|--:|--:|\n");
    }
    for it in &results.ours_only {
        let _ = writeln!(
            out,
            "| {} Services | {:.0} / {:.0} µs | {:.0} / {:.0} µs | {} B |",
            it.services,
            it.nftables_p50_us,
            it.nftables_p99_us,
            it.iptables_p50_us,
            it.iptables_p99_us,
            it.iptables_bytes
        );
    }
    if !results.data_path.is_empty() {
        out.push_str("\n| new connections | mode | Services | per second | p50 | p99 | lost | without a Service, per second |\n|---|---|--:|--:|--:|--:|--:|--:|\n");
    }
    for it in &results.data_path {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.0} | {:.0} µs | {:.0} µs | {} | {:.0} |",
            it.contender,
            it.mode.name(),
            it.services,
            it.per_second,
            it.p50_us,
            it.p99_us,
            it.lost,
            it.direct_per_second
        );
    }
    out
}

fn rows(out: &mut String, results: &Results, mode: Mode) {
    let mut mine: Vec<&Row> = results.rows.iter().filter(|row| row.mode == mode).collect();
    mine.sort_by_key(|row| (!row.is_ours(), row.size.services, row.size.endpoints));
    if mine.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n### {}\n\n| size | proxy | cold start (CPU) | bare loader | restart (writes) | endpoint change p50 / p99 (CPU: proxy, programs, kernel) | input | Service added | removed | 1,000 changes: accepted + after | RSS (peak) | kernel |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        mode.name()
    );
    for row in mine {
        let bare = results
            .bare
            .iter()
            .find(|bare| bare.size == row.size && row.is_ours() && mode == Mode::Nftables);
        let _ = writeln!(
            out,
            "| {} | {} | {} ({:.1} s) | {} | {}{} | {} / {}{} | {} | {}{} | {}{} | {} + {} | {} ({}) | {} |",
            row.size,
            row.contender,
            cold(row),
            row.cold_cpu_seconds,
            bare.map_or("–".to_owned(), |bare| seconds(Some(bare.seconds))),
            or_limit(row, row.restart_seconds.map(|value| format!("{value:.2} s"))),
            row.restart_writes
                .map_or(String::new(), |writes| format!(" ({writes})")),
            or_limit(row, row.change_p50_ms.map(|value| millis(Some(value)))),
            millis(row.change_p99_ms),
            shares(row),
            input(row),
            millis(row.add_ms),
            bytes(row.add_bytes),
            millis(row.remove_ms),
            bytes(row.remove_bytes),
            millis(row.burst_accepted_ms),
            millis(row.burst_after_ms),
            mebibytes(row.rss_bytes),
            mebibytes(row.peak_bytes),
            mebibytes(row.kernel_bytes),
        );
    }
}

/// A value, or why there is none.
fn or_limit(row: &Row, value: Option<String>) -> String {
    match (value, row.row_limit_seconds) {
        (Some(value), _) => value,
        (None, Some(limit)) => format!("not within {limit} s"),
        (None, None) => "–".to_owned(),
    }
}

fn shares(row: &Row) -> String {
    match row.change_shares {
        None => String::new(),
        Some(it) => format!(
            " ({:.1}, {:.1}, {:.1} ms)",
            it.proxy_ms, it.programs_ms, it.kernel_ms
        ),
    }
}

fn cold(row: &Row) -> String {
    match (row.cold_seconds, row.limit_seconds) {
        (None, Some(limit)) => format!("not within {limit} s"),
        (time, _) => seconds(time),
    }
}

fn seconds(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.2} s"))
}

fn millis(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0} ms"),
        Some(value) => format!("{value:.2} ms"),
    }
}

fn bytes(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!(", {value:.0} B"))
}

fn input(row: &Row) -> String {
    match (row.change_bytes, row.change_rules) {
        (Some(bytes), _) => format!("{bytes:.0} B"),
        (None, Some(rules)) => format!("{rules:.0} rules"),
        (None, None) => "–".to_owned(),
    }
}

fn mebibytes(bytes: u64) -> String {
    match bytes {
        0 => "–".to_owned(),
        bytes => format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}
