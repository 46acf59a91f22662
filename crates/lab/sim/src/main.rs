//! `sim-profiles`: runs many seeds and prints the table, or one seed and tells its story.

use anyhow::bail;
use clap::Parser;
use pointsman_sim::sweep::{sweep, threads};
use pointsman_sim::{Report, run};
use std::io::Write;
use std::time::Instant;

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
    let seeds = flags.first..flags.first + flags.seeds;
    let report = sweep(
        seeds,
        |report: &mut Report, seed| report.add(seed, &run(seed, false)),
        Report::merge,
    );
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
