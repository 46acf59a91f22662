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
    pub cold_cpu_seconds: f64,
    pub restart_seconds: Option<f64>,
    pub restart_writes: Option<f64>,
    pub changes: usize,
    pub change_p50_ms: Option<f64>,
    pub change_p99_ms: Option<f64>,
    pub change_cpu_ms: f64,
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
            cold_cpu_seconds: 0.0,
            restart_seconds: None,
            restart_writes: None,
            changes: 0,
            change_p50_ms: None,
            change_p99_ms: None,
            change_cpu_ms: 0.0,
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

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values")
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

/// All tables.
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
        out.push_str("\n| new connections | mode | Services | per second | p50 | p99 | without a Service, per second |\n|---|---|--:|--:|--:|--:|--:|\n");
    }
    for it in &results.data_path {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.0} | {:.0} µs | {:.0} µs | {:.0} |",
            it.contender,
            it.mode.name(),
            it.services,
            it.per_second,
            it.p50_us,
            it.p99_us,
            it.direct_per_second
        );
    }
    out
}

fn rows(out: &mut String, results: &Results, mode: Mode) {
    let mine: Vec<&Row> = results.rows.iter().filter(|row| row.mode == mode).collect();
    if mine.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n### {}\n\n| size | proxy | cold start (CPU) | bare loader | restart (writes) | endpoint change p50 / p99 (CPU) | input | Service added | removed | 1,000 changes: accepted + after | RSS (peak) | kernel |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        mode.name()
    );
    for row in mine {
        let bare = results
            .bare
            .iter()
            .find(|bare| bare.size == row.size && row.is_ours() && mode == Mode::Nftables);
        let _ = writeln!(
            out,
            "| {} | {} | {} ({:.1} s) | {} | {}{} | {} / {} ({:.1} ms) | {} | {}{} | {}{} | {} + {} | {} ({}) | {} |",
            row.size,
            row.contender,
            cold(row),
            row.cold_cpu_seconds,
            bare.map_or("–".to_owned(), |bare| seconds(Some(bare.seconds))),
            seconds(row.restart_seconds),
            row.restart_writes
                .map_or(String::new(), |writes| format!(" ({writes})")),
            millis(row.change_p50_ms),
            millis(row.change_p99_ms),
            row.change_cpu_ms,
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

fn cold(row: &Row) -> String {
    match (row.cold_seconds, row.limit_seconds) {
        (None, Some(limit)) => format!("> {limit} s"),
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
