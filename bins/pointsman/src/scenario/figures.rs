//! What does the scenario print?

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

/// One change on one node.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What packets showed; none if they showed nothing in time.
    pub truth: Option<Duration>,
    /// How exactly they showed it.
    pub width: Duration,
    /// What the collector says; none if it does not know.
    pub reported: Option<Duration>,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Figures {
    pub samples: Vec<Sample>,
    /// For each change, the time until 99 % of the nodes had it, as reported.
    pub everywhere: Vec<Duration>,
    /// The collector's own SLI.
    pub sli: Value,
}

impl Figures {
    /// A table in Markdown.
    pub fn table(&self) -> String {
        let truth: Vec<Duration> = self.samples.iter().filter_map(|sample| sample.truth).collect();
        let reported: Vec<Duration> = self.samples.iter().filter_map(|sample| sample.reported).collect();
        let widths: Vec<Duration> = self
            .samples
            .iter()
            .filter(|it| it.truth.is_some())
            .map(|it| it.width)
            .collect();
        let errors = self
            .samples
            .iter()
            .filter_map(|it| Some(it.truth?.abs_diff(it.reported?)));
        let errors: Vec<Duration> = errors.collect();
        let mut out = String::from(
            "| time from readiness to rules | p50 | p90 | p99 | slowest |\n|---|--:|--:|--:|--:|\n",
        );
        for (name, values) in [
            ("ground truth: packets, every change on every node", &truth),
            ("reported: the same changes and nodes", &reported),
            (
                "reported: until 99 % of the nodes have a change",
                &self.everywhere,
            ),
            ("difference between truth and report", &errors),
            ("how exactly packets tell (interval between two probes)", &widths),
        ] {
            let cells = [0.5, 0.9, 0.99, 1.0].map(|quantile| millis(ranked(values, quantile)));
            let _ = writeln!(out, "| {name} | {} |", cells.join(" | "));
        }
        for (name, form) in [
            ("SLI, pooled (5 minutes, churn included)", "pooled"),
            ("SLI, exact form", "exact"),
        ] {
            let of = |quantile: &str| {
                self.sli[form][quantile]["highSeconds"]
                    .as_f64()
                    .map(Duration::from_secs_f64)
            };
            let cells = ["p50", "p90", "p99"].map(|quantile| millis(of(quantile)));
            let _ = writeln!(out, "| {name} | {} | – |", cells.join(" | "));
        }
        let error = ranked(&truth, 0.99)
            .zip(ranked(&reported, 0.99))
            .map(|(truth, told)| truth.abs_diff(told));
        let known = self
            .samples
            .iter()
            .filter(|it| it.truth.is_some() && it.reported.is_some())
            .count();
        let coverage = self.sli["pooled"]["coverage"].as_f64().unwrap_or(0.0);
        let _ = write!(
            out,
            "\n{} samples, of which packets and collector both tell {known}; error of the p99 {}; coverage {:.3}; \
             {} samples in the SLI's window.\n",
            self.samples.len(),
            millis(error),
            coverage,
            self.sli["pooled"]["samples"],
        );
        out
    }
}

fn ranked(values: &[Duration], quantile: f64) -> Option<Duration> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

fn millis(value: Option<Duration>) -> String {
    value.map_or("–".to_owned(), |value| {
        format!("{:.2} ms", value.as_secs_f64() * 1e3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_truth_report_and_what_is_missing() {
        let sample = |truth, reported| Sample {
            truth: Some(Duration::from_millis(truth)),
            width: Duration::from_micros(400),
            reported,
        };
        let figures = Figures {
            samples: vec![sample(5, Some(Duration::from_millis(4))), sample(9, None)],
            ..Figures::default()
        };
        let table = figures.table();
        assert!(
            table.contains("on every node | 5.00 ms | 9.00 ms | 9.00 ms | 9.00 ms |"),
            "{table}"
        );
        assert!(table.contains("truth and report | 1.00 ms |"), "{table}");
        assert!(
            table.contains("2 samples, of which packets and collector both tell 1"),
            "{table}"
        );
        assert!(table.contains("| – | – | – | – |"), "{table}");
    }
}
