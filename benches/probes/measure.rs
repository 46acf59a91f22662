//! What did this process use, and what do its histograms say?

use pointsman_telemetry::Registry;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time of this process, without its children.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of the processes that this one started and that have ended.
pub fn children_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Their user and system time are the 14th and 15th fields after the name, which is in parentheses.
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let ticks: u64 = fields
        .skip(13)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32
}

/// Resident memory of this process in MiB.
pub fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// The counters of a registry that matter here.
pub struct Counts {
    /// Upper bounds of lateness in seconds with cumulative counts.
    buckets: Vec<(f64, f64)>,
    successful: f64,
    failed: f64,
    /// The factor by which periods are stretched.
    pub stretch: f64,
}

impl Counts {
    pub fn read(registry: &Registry) -> Self {
        let mut counts = Self {
            buckets: Vec::new(),
            successful: 0.0,
            failed: 0.0,
            stretch: 1.0,
        };
        for line in registry.render().lines() {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            if let Some(rest) = series.strip_prefix("pointsman_probe_schedule_jitter_seconds_bucket{le=\"") {
                let bound = rest.trim_end_matches("\"}");
                counts
                    .buckets
                    .push((bound.parse().unwrap_or(f64::INFINITY), value));
            } else if series.starts_with("prober_probe_total") {
                if series.contains("result=\"successful\"") {
                    counts.successful += value;
                } else {
                    counts.failed += value;
                }
            } else if series == "pointsman_probe_budget_stretch_ratio" {
                counts.stretch = value;
            }
        }
        counts
    }

    /// Successful and failed checks since `before`.
    pub fn checks_since(&self, before: &Counts) -> (f64, f64) {
        (self.successful - before.successful, self.failed - before.failed)
    }

    /// The lateness in milliseconds below which this part of all checks since `before` began: the
    /// upper bound of the bucket, so rather too much than too little.
    pub fn late_since(&self, before: &Counts, part: f64) -> f64 {
        let begun = |at: usize| self.buckets[at].1 - before.buckets[at].1;
        let total = begun(self.buckets.len() - 1);
        let place = (0..self.buckets.len()).find(|at| begun(*at) >= total * part);
        place.map_or(f64::NAN, |at| self.buckets[at].0 * 1000.0)
    }
}
