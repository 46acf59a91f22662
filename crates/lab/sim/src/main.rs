//! `sim-profiles`: runs many seeds and prints the table, or one seed and tells its story.

use anyhow::bail;
use clap::Parser;
use pointsman_sim::{Report, run};
use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Seeds that a thread takes at a time.
const BATCH: u64 = 64;

/// Simulates latency profiles and the ways between them.
#[derive(Parser)]
struct Flags {
    /// How many seeds to run.
    #[arg(long, value_name = "N", default_value_t = 120_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// Run this seed alone and tell what happens.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let mut out = std::io::stdout();
    if let Some(seed) = flags.seed {
        let outcome = run(seed, true);
        for line in &outcome.trace {
            writeln!(out, "{line}")?;
        }
        writeln!(
            out,
            "false unreachable taints: {} NoSchedule, {} NoExecute; pods evicted by mistake: {}",
            outcome.false_unreachable, outcome.false_evicting, outcome.false_evicted
        )?;
        return Ok(());
    }
    let begin = Instant::now();
    let report = run_all(flags.first, flags.seeds);
    writeln!(out, "{report}")?;
    writeln!(
        out,
        "\n{} seeds in {:.1} s on {} threads",
        flags.seeds,
        begin.elapsed().as_secs_f64(),
        threads()
    )?;
    let faults = report.faults();
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    writeln!(
        out,
        "every warning of the tables came true; no profile and no planned way harmed a node"
    )?;
    Ok(())
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

fn run_all(first: u64, seeds: u64) -> Report {
    let next = AtomicU64::new(0);
    let work = |shows: bool| {
        let mut report = Report::default();
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= seeds {
                return report;
            }
            for seed in first + from..first + (from + BATCH).min(seeds) {
                report.add(seed, &run(seed, false));
            }
            if shows {
                let _ = write!(std::io::stderr(), "\r{from} of {seeds} seeds ");
            }
        }
    };
    let shows = std::io::stderr().is_terminal();
    let mut total = Report::default();
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads())
            .map(|index| {
                let work = &work;
                scope.spawn(move || work(shows && index == 0))
            })
            .collect();
        for handle in handles {
            total.merge(handle.join().expect("runs do not panic"));
        }
    });
    if shows {
        let _ = write!(std::io::stderr(), "\r");
    }
    total
}
