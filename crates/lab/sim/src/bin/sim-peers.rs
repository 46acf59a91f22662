//! `sim-peers`: runs many seeds and prints the tables, or one seed and tells its story.

use anyhow::bail;
use clap::Parser;
use pointsman_model::Text;
use pointsman_node_health::peers::{Limits, Reachability, Rings};
use pointsman_sim::peers::{Outcome, Plan, Report, run_plan};
use pointsman_sim::sweep::{sweep, threads};
use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

/// The longest that opinions about 500 nodes may take to fold.
const FOLD: Duration = Duration::from_millis(50);

/// Simulates nodes that ask each other whether they are there.
#[derive(Parser)]
struct Flags {
    /// How many seeds to run.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// Run this seed alone and tell what happens.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// How long every run is, unless the seed says it.
    #[arg(long, value_name = "SECONDS")]
    length: Option<u64>,
}

impl Flags {
    fn run(&self, seed: u64, told: bool) -> Outcome {
        let mut plan = Plan::draw(seed);
        plan.length = self.length.map_or(plan.length, Duration::from_secs);
        run_plan(plan, seed, told)
    }
}

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let mut out = std::io::stdout();
    if let Some(seed) = flags.seed {
        let outcome = flags.run(seed, true);
        writeln!(out, "{:?}", outcome.plan)?;
        for line in &outcome.trace {
            writeln!(out, "{line}")?;
        }
        writeln!(
            out,
            "found after {:?} ms; {} not found; restored after {:?} ms; {} wrong withdrawals",
            outcome.found, outcome.missed, outcome.restored, outcome.wrong
        )?;
        return Ok(());
    }
    let begin = Instant::now();
    let seeds = flags.first..flags.first + flags.seeds;
    let report = sweep(
        seeds,
        |report: &mut Report, seed| report.add(seed, &flags.run(seed, false)),
        Report::merge,
    );
    writeln!(out, "{report}")?;
    writeln!(
        out,
        "{} seeds in {:.1} s on {} threads",
        flags.seeds,
        begin.elapsed().as_secs_f64(),
        threads()
    )?;
    let (fold, found) = time_of_fold();
    writeln!(
        out,
        "500 of 5,000 nodes lost at once: {found} withdrawn, all opinions folded in {:.1} ms",
        fold.as_secs_f64() * 1e3
    )?;
    let mut faults = report.faults();
    if fold > FOLD {
        faults.push(format!("the fold took {:.1} ms", fold.as_secs_f64() * 1e3));
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

/// How long the controller takes to fold the opinions of all who lost one of 500 nodes of 5,000.
fn time_of_fold() -> (Duration, usize) {
    let names: Vec<Text> = (0..5000).map(|index| format!("node-{index}").into()).collect();
    let (mut rings, mut fold) = (Rings::default(), Reachability::new(Limits::default()));
    for (index, name) in names.iter().enumerate() {
        rings.insert(name);
        fold.observe_node(name, &format!("zone-{}", index % 3).into());
    }
    for name in &names {
        fold.observe_opinions(name, [], Duration::ZERO);
    }
    let dead: BTreeSet<&Text> = names.iter().step_by(3).take(500).collect();
    let mut leases = Vec::new();
    for name in names.iter().filter(|name| !dead.contains(name)) {
        let mut lost = rings.peers(name);
        lost.retain(|peer| dead.contains(peer));
        if !lost.is_empty() {
            leases.push((name, lost));
        }
    }
    let begin = Instant::now();
    let mut found = 0;
    // As they come from the watch: some hundred at a time.
    for batch in leases.chunks(256) {
        for (name, lost) in batch {
            fold.observe_opinions(name, lost.iter().map(|peer| &**peer), Duration::from_secs(1));
        }
        found += fold.decide(Duration::from_secs(1)).len();
    }
    (begin.elapsed(), found)
}
