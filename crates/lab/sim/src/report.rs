//! What did all runs show, and is that as it should be?

use crate::events::Millis;
use crate::scenario::{Heartbeats, Route, Scenario};
use crate::world::Outcome;
use std::fmt::{self, Write};

/// Failing seeds that are named for each scenario.
const NAMED: usize = 5;

/// The sums of all runs, by scenario.
#[derive(Clone, Debug)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    runs: u64,
    nodes: u64,
    harmed_runs: u64,
    false_unreachable: u64,
    false_evicting: u64,
    false_evicted: u64,
    detected: Vec<Millis>,
    evicted: Vec<Millis>,
    /// Runs in which a dead node was not found, or its pod not evicted.
    missed: u64,
    /// First seeds that are not as they should be.
    bad_seeds: Vec<u64>,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            rows: vec![Row::default(); Scenario::all().len()],
        }
    }
}

impl Report {
    /// Takes in one run.
    pub fn add(&mut self, seed: u64, outcome: &Outcome) {
        let scenario = Scenario::all()[outcome.scenario];
        let row = &mut self.rows[outcome.scenario];
        row.runs += 1;
        row.nodes += outcome.nodes as u64;
        row.harmed_runs += u64::from(outcome.harmed());
        row.false_unreachable += u64::from(outcome.false_unreachable);
        row.false_evicting += u64::from(outcome.false_evicting);
        row.false_evicted += u64::from(outcome.false_evicted);
        row.detected.extend(outcome.detected);
        row.evicted.extend(outcome.evicted);
        row.missed += u64::from(outcome.missed);
        if (scenario.must_be_clean() && outcome.harmed()) || outcome.missed {
            row.bad_seeds.push(seed);
        }
    }

    /// Joins the sums of two sets of runs.
    pub fn merge(&mut self, other: Self) {
        for (row, more) in self.rows.iter_mut().zip(other.rows) {
            row.runs += more.runs;
            row.nodes += more.nodes;
            row.harmed_runs += more.harmed_runs;
            row.false_unreachable += more.false_unreachable;
            row.false_evicting += more.false_evicting;
            row.false_evicted += more.false_evicted;
            row.missed += more.missed;
            row.detected.extend(more.detected);
            row.evicted.extend(more.evicted);
            row.bad_seeds.extend(more.bad_seeds);
        }
    }

    /// Everything that is not as it should be: harm where there must be none, and warnings of the tables
    /// that did not come true.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (scenario, row) in Scenario::all().iter().zip(&self.rows) {
            let name = format!("{} ({})", scenario.route, scenario.heartbeats);
            let mut seeds = row.bad_seeds.clone();
            seeds.sort_unstable();
            if !seeds.is_empty() {
                let first: Vec<String> = seeds.iter().take(NAMED).map(u64::to_string).collect();
                faults.push(format!(
                    "{name}: {} runs went wrong; replay with --seed {}",
                    seeds.len(),
                    first.join(", --seed ")
                ));
            }
            if !scenario.must_be_clean() && row.runs > 0 && row.harmed_runs == 0 {
                faults.push(format!("{name}: a state that the tables warn of harmed nobody"));
            }
        }
        faults
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = String::new();
        for heartbeats in [Heartbeats::Status, Heartbeats::Leases] {
            let title = match heartbeats {
                Heartbeats::Status => "Status reports only (the tables' verdict)",
                Heartbeats::Leases => "With leases renewed every 10 s (the lease-aware verdict)",
            };
            writeln!(table, "### {title}\n")?;
            writeln!(
                table,
                "| Route | runs | nodes | runs with a false unreachable taint | false taints: NoSchedule | NoExecute | \
                 pods evicted by mistake | dead node found after (p50, max) | its pod evicted after (p50, max) | sum |"
            )?;
            writeln!(table, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")?;
            let all = Scenario::all();
            for (scenario, row) in all.iter().zip(&self.rows) {
                if scenario.heartbeats == heartbeats {
                    write_row(&mut table, &scenario.route, row)?;
                }
            }
            table.push('\n');
        }
        f.write_str(table.trim_end())
    }
}

fn write_row(table: &mut String, route: &Route, row: &Row) -> fmt::Result {
    let share = 100.0 * row.harmed_runs as f64 / row.runs.max(1) as f64;
    let sum = match route {
        Route::Stay(profile) | Route::Planned(_, profile) => {
            format!("{} s", profile.values.time_to_evict().as_secs())
        }
        Route::Forbidden(..) => "–".into(),
    };
    writeln!(
        table,
        "| {route} | {} | {} | {} ({share:.1} %) | {} | {} | {} | {} | {} | {sum} |",
        row.runs,
        row.nodes,
        row.harmed_runs,
        row.false_unreachable,
        row.false_evicting,
        row.false_evicted,
        quantiles(&row.detected),
        quantiles(&row.evicted),
    )
}

fn quantiles(times: &[Millis]) -> String {
    let mut times = times.to_vec();
    times.sort_unstable();
    let text = |time: &Millis| format!("{:.1} s", *time as f64 / 1000.0);
    match (times.get(times.len() / 2), times.last()) {
        (Some(middle), Some(last)) => format!("{}, {}", text(middle), text(last)),
        _ => "–".into(),
    }
}
