//! What does a process use, and what machine is this?

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;

/// What a process has used so far, and holds now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time.
    pub cpu_seconds: f64,
    /// The same of its children that have ended.
    pub children_seconds: f64,
    /// Resident memory now.
    pub rss_bytes: f64,
    /// The most resident memory so far.
    pub peak_bytes: f64,
}

/// Reads the usage of a process from `/proc`.
pub fn usage(pid: u32) -> anyhow::Result<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} is gone"))?;
    // The name of the program is in parentheses and may hold anything; utime and stime are the 12th and
    // 13th fields after it, then those of children.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    let seconds =
        |first: usize| (ticks(first) + ticks(first + 1)) / rustix::param::clock_ticks_per_second() as f64;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(Usage {
        cpu_seconds: seconds(11),
        children_seconds: seconds(13),
        rss_bytes: kilobytes(&status, "VmRSS:"),
        peak_bytes: kilobytes(&status, "VmHWM:"),
    })
}

fn kilobytes(status: &str, field: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    number.unwrap_or(0.0) * 1024.0
}

/// Lets this process, and those it starts, open as many files as the machine allows it: a thousand
/// connections need more than the usual 1,024. Returns how many that are.
pub fn raise_file_limit() -> u64 {
    // What the kernel allows any process; root may have it.
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open");
    let most = most.ok().and_then(|text| text.trim().parse().ok());
    let raised = |limit| Rlimit {
        current: limit,
        maximum: limit,
    };
    // If both are refused, connecting says so.
    if setrlimit(Resource::Nofile, raised(most)).is_err() {
        let _ = setrlimit(Resource::Nofile, raised(getrlimit(Resource::Nofile).maximum));
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The name of the file system that `path` is on. Fails where nothing is durable.
pub fn disk_of(path: &Path) -> anyhow::Result<String> {
    let path = path.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let mut best = ("", "unknown");
    for line in mounts.lines() {
        let mut words = line.split_whitespace();
        let (Some(_), Some(target), Some(kind)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if path.starts_with(target) && target.len() >= best.0.len() {
            best = (target, kind);
        }
    }
    if matches!(best.1, "tmpfs" | "ramfs") {
        bail!(
            "{} is on {}, where fsync costs nothing; use --out with a directory on a disk",
            path.display(),
            best.1
        );
    }
    Ok(best.1.to_owned())
}

/// The load averages over 1, 5 and 15 minutes.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Resident memory of this process in bytes.
pub fn resident_bytes() -> u64 {
    usage(std::process::id()).map_or(0, |usage| usage.rss_bytes as u64)
}
