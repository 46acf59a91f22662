//! The table.

use crate::probe::{Handler, Sample};

/// Prints all samples as a Markdown table.
pub fn print(samples: &[Sample]) {
    println!(
        "| Probes | Asked for | Kept | Failed | Jitter p50 | Jitter p99 | CPU | CPU per 1,000/s | RSS |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for sample in samples {
        let load = &sample.load;
        let asked = load.count as f64 * 1000.0 / load.period_ms as f64;
        let limited = match load.limit.is_finite() {
            true if load.cpu_share < 1.0 => " (default budget)".to_owned(),
            true => format!(" (budget {}/s)", load.limit),
            false => String::new(),
        };
        let per_thousand = sample.cpu_share / sample.checks_per_second * 1000.0;
        let cost = match load.handler {
            Handler::Exec => format!("{:.2} ms each", per_thousand),
            _ => format!("{:.1} %", per_thousand * 100.0),
        };
        println!(
            "| {} {} at {} ms{limited} | {asked:.0}/s | {:.0}/s | {:.0} | {:.2} ms | {:.2} ms | {:.1} % | {cost} | {:.0} MiB |",
            load.count,
            load.handler.name(),
            load.period_ms,
            sample.checks_per_second,
            sample.failed,
            sample.jitter_p50_ms,
            sample.jitter_p99_ms,
            sample.cpu_share * 100.0,
            sample.rss_mib,
        );
    }
}
