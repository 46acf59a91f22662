//! What came of many runs?

use super::Outcome;
use super::plan::{Kind, LOSSES, PAUSES};
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, Default)]
struct Row {
    runs: u64,
    nodes: u64,
    found: BTreeMap<u64, u64>,
    missed: u64,
    restored: BTreeMap<u64, u64>,
    wrong: u64,
    /// Seeds of the runs in which that happened.
    wrong_seeds: Vec<u64>,
    lasted: BTreeMap<u64, u64>,
    over_limit: u64,
    writes: u64,
    opinions: u64,
    asks: f64,
}

impl Row {
    fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.runs += 1;
        self.nodes += outcome.plan.nodes as u64;
        let times = [
            (&mut self.found, &outcome.found),
            (&mut self.restored, &outcome.restored),
            (&mut self.lasted, &outcome.lasted),
        ];
        for (counted, new) in times {
            for time in new {
                *counted.entry(*time).or_default() += 1;
            }
        }
        self.missed += u64::from(outcome.missed);
        self.wrong += u64::from(outcome.wrong);
        self.wrong_seeds.extend((outcome.wrong > 0).then_some(seed));
        self.over_limit += u64::from(outcome.over_limit);
        self.writes += outcome.writes;
        self.opinions += outcome.opinions;
        self.asks += outcome.asks;
    }

    fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.nodes += other.nodes;
        let times = [
            (&mut self.found, other.found),
            (&mut self.restored, other.restored),
            (&mut self.lasted, other.lasted),
        ];
        for (counted, more) in times {
            for (time, count) in more {
                *counted.entry(time).or_default() += count;
            }
        }
        self.missed += other.missed;
        self.wrong += other.wrong;
        self.wrong_seeds.extend(other.wrong_seeds);
        self.over_limit += other.over_limit;
        self.writes += other.writes;
        self.opinions += other.opinions;
        self.asks += other.asks;
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |times: &BTreeMap<u64, u64>| match (quantile(times, 0.5), quantile(times, 0.99)) {
            (Some(half), Some(most)) => {
                let longest = times.last_key_value().map_or(0, |(time, _)| *time);
                format!("{half} / {most} / {longest} ms")
            }
            _ => "–".into(),
        };
        writeln!(
            f,
            " {} | {} | {} | {} | {} | {} | {} ({}) | {} | {} | {:.1} |",
            self.runs,
            self.nodes,
            self.found.values().sum::<u64>(),
            times(&self.found),
            self.missed,
            times(&self.restored),
            self.wrong,
            self.wrong_seeds.len(),
            times(&self.lasted),
            self.over_limit,
            self.asks / self.runs.max(1) as f64,
        )
    }
}

/// The value below which this share lies.
fn quantile(values: &BTreeMap<u64, u64>, share: f64) -> Option<u64> {
    let all: u64 = values.values().sum();
    let mut left = (all as f64 * share).ceil() as u64;
    values.iter().find_map(|(value, count)| {
        left = left.saturating_sub(*count);
        (left == 0).then_some(*value)
    })
}

/// The outcomes of many runs, by what went wrong and by loss and pauses.
#[derive(Clone, Debug, Default)]
pub struct Report {
    kinds: BTreeMap<Kind, Row>,
    links: BTreeMap<(u32, u64), Row>,
}

const COLUMNS: &str = "| runs | nodes | found | cut to withdrawn, p50 / p99 / most | not found | back to restored | wrong withdrawals (runs) | these lasted | over the limit | asks per node and second |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

impl Report {
    pub fn add(&mut self, seed: u64, outcome: &Outcome) {
        let plan = &outcome.plan;
        self.kinds.entry(plan.kind).or_default().add(seed, outcome);
        let link = (plan.loss, plan.pause.as_millis() as u64);
        self.links.entry(link).or_default().add(seed, outcome);
    }

    pub fn merge(&mut self, other: Self) {
        for (kind, row) in other.kinds {
            self.kinds.entry(kind).or_default().merge(row);
        }
        for (link, row) in other.links {
            self.links.entry(link).or_default().merge(row);
        }
    }

    /// What must not be.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (kind, row) in &self.kinds {
            if row.over_limit > 0 {
                faults.push(format!(
                    "{}: more withdrawn than the limit, {} times",
                    kind.name(),
                    row.over_limit
                ));
            }
            if row.writes > row.opinions {
                let (writes, opinions) = (row.writes, row.opinions);
                faults.push(format!(
                    "{}: {writes} writes for {opinions} opinions",
                    kind.name()
                ));
            }
        }
        for ((loss, pause), row) in &self.links {
            if *loss <= 5 && *pause <= 500 && row.wrong > 0 {
                faults.push(format!(
                    "{loss} % loss and pauses of {pause} ms: {} living nodes withdrawn, in the seeds {:?}",
                    row.wrong, row.wrong_seeds
                ));
            }
        }
        faults
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| What happens {COLUMNS}")?;
        for (kind, row) in &self.kinds {
            write!(f, "| {} |", kind.name())?;
            row.write(f)?;
        }
        writeln!(f, "\n| Loss each way, pauses up to {COLUMNS}")?;
        for loss in LOSSES {
            for pause in PAUSES {
                if let Some(row) = self.links.get(&(loss, pause)) {
                    write!(f, "| {loss} %, {pause} ms |")?;
                    row.write(f)?;
                }
            }
        }
        Ok(())
    }
}
