//! What does the process itself cost?
//!
//! The `process_*` families that every Prometheus client exports, read from `/proc` at each scrape.
//! A file that cannot be read leaves its families out.

use crate::registry::Registry;
use crate::text::{Encoder, Kind};
use std::fs;

/// Ticks per second in `/proc`; Linux fixes it at 100 for user space on every architecture it
/// shares with this program.
const TICKS_PER_SECOND: f64 = 100.0;

/// Which build is running.
#[derive(Clone, Copy, Debug)]
pub struct BuildInfo {
    /// The version, such as `0.1.0`.
    pub version: &'static str,
    /// The commit it was built from; empty when unknown.
    pub revision: &'static str,
    /// Which role the process plays, such as `apiserver`.
    pub role: &'static str,
}

/// Adds the `process_*` families, `pointsman_build_info` and its form for Kubernetes' dashboards to `registry`.
pub fn register_process(registry: &Registry, build: BuildInfo) {
    registry.count_overflows();
    registry.collector(move |encoder: &mut Encoder| {
        encoder
            .family(
                "pointsman_build_info",
                "Which build is running; always 1.",
                Kind::Gauge,
            )
            .sample(
                &[
                    ("revision", build.revision),
                    ("role", build.role),
                    ("version", build.version),
                ],
                1.0,
            );
        let mut numbers = build.version.split('.');
        let (major, minor) = (numbers.next().unwrap_or(""), numbers.next().unwrap_or(""));
        let platform = match std::env::consts::ARCH {
            "x86_64" => "linux/amd64",
            "aarch64" => "linux/arm64",
            _ => "linux",
        };
        encoder
            .family(
                "kubernetes_build_info",
                "Which build is running, in the labels that components of Kubernetes have; always 1.",
                Kind::Gauge,
            )
            .sample(
                &[
                    ("major", major),
                    ("minor", minor),
                    ("git_version", &format!("v{}", build.version)),
                    ("git_commit", build.revision),
                    ("git_tree_state", ""),
                    ("build_date", ""),
                    ("go_version", ""),
                    ("compiler", "rustc"),
                    ("platform", platform),
                ],
                1.0,
            );
        collect_process(encoder);
    });
}

fn collect_process(encoder: &mut Encoder) {
    let mut gauge = |name, help, value: Option<f64>| {
        if let Some(value) = value {
            encoder.family(name, help, Kind::Gauge).sample(&[], value);
        }
    };
    let status = read("/proc/self/status");
    let resident = status
        .as_deref()
        .and_then(|status| status_bytes(status, "VmRSS:"));
    let virtual_memory = status
        .as_deref()
        .and_then(|status| status_bytes(status, "VmSize:"));
    gauge(
        "process_resident_memory_bytes",
        "Resident memory size in bytes.",
        resident,
    );
    gauge(
        "process_virtual_memory_bytes",
        "Virtual memory size in bytes.",
        virtual_memory,
    );
    let open = fs::read_dir("/proc/self/fd")
        .ok()
        .map(|list| list.count() as f64 - 1.0);
    gauge("process_open_fds", "Number of open file descriptors.", open);
    let limit = read("/proc/self/limits").and_then(|limits| open_files_limit(&limits));
    gauge(
        "process_max_fds",
        "Maximum number of open file descriptors.",
        limit,
    );
    let stat = read("/proc/self/stat").and_then(|stat| Stat::parse(&stat));
    let boot = read("/proc/stat").and_then(|stat| boot_time(&stat));
    let start = stat
        .as_ref()
        .zip(boot)
        .map(|(stat, boot)| boot + stat.start_ticks / TICKS_PER_SECOND);
    gauge(
        "process_start_time_seconds",
        "Start time of the process since the Unix epoch in seconds.",
        start,
    );
    if let Some(stat) = stat {
        encoder
            .family(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
                Kind::Counter,
            )
            .sample(&[], stat.cpu_ticks / TICKS_PER_SECOND);
        encoder
            .family(
                "process_threads",
                "Number of threads of the process.",
                Kind::Gauge,
            )
            .sample(&[], stat.threads);
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: f64,
    threads: f64,
    start_ticks: f64,
}

impl Stat {
    fn parse(stat: &str) -> Option<Self> {
        // The program's name may hold spaces and parentheses, so fields count from the last one.
        let fields: Vec<&str> = stat
            .get(stat.rfind(')')? + 1..)?
            .split_ascii_whitespace()
            .collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
        })
    }
}

fn status_bytes(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

fn open_files_limit(limits: &str) -> Option<f64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn boot_time(stat: &str) -> Option<f64> {
    stat.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20";
        let parsed = Stat::parse(stat).unwrap();
        assert_eq!(
            parsed,
            Stat {
                cpu_ticks: 23.0,
                threads: 17.0,
                start_ticks: 19.0
            }
        );
        assert_eq!(Stat::parse("12 (a"), None);
        assert_eq!(Stat::parse("12 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_memory_files_and_a_start_in_the_past() {
        let registry = Registry::new();
        register_process(
            &registry,
            BuildInfo {
                version: "0.0.1",
                revision: "",
                role: "test",
            },
        );
        let families = parse(&registry.render()).unwrap();
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name == name).expect(name);
            family.samples[0].value
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_start_time_seconds") > 1_500_000_000.0);
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert_eq!(value("pointsman_build_info"), 1.0);
        assert_eq!(value("kubernetes_build_info"), 1.0);
    }
}
