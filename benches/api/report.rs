//! How are the numbers shown, to people and to programs?

use crate::server::Usages;
use pointsman_benches::process::load_average;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    /// Things per second.
    PerSecond,
    Millis,
    CpuSeconds,
    /// Bytes, shown as kilobytes.
    Kilobytes,
    /// Bytes, shown as megabytes.
    Megabytes,
    Times,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::Count => format!("{value:.0}"),
            Unit::PerSecond => format!("{value:.0}/s"),
            Unit::Millis if value < 10.0 => format!("{value:.2} ms"),
            Unit::Millis => format!("{value:.0} ms"),
            Unit::CpuSeconds => format!("{value:.1} s"),
            Unit::Kilobytes => format!("{:.1} KB", value / 1e3),
            Unit::Megabytes => format!("{:.0} MB", value / 1e6),
            Unit::Times => format!("{value:.2}x"),
        }
    }
}

/// What a number should be.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// Not less than this.
    AtLeast(f64),
    /// Not more than this.
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
        }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Bound::AtLeast(bound) => format!("≥ {}", unit.show(bound)),
            Bound::AtMost(bound) if bound == 0.0 => unit.show(bound),
            Bound::AtMost(bound) if unit == Unit::Millis => format!("≤ {bound:.0} ms"),
            Bound::AtMost(bound) => format!("≤ {}", unit.show(bound)),
        }
    }
}

/// What the numbers were measured on.
pub struct Machine {
    cores: usize,
    kernel: String,
    file_system: String,
    load_before: String,
    load_after: String,
}

impl Machine {
    /// Looks before the measurements.
    pub fn look(file_system: String) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: kernel.trim().to_owned(),
            file_system,
            load_before: load_average(),
            load_after: String::new(),
        }
    }

    /// Looks again after them.
    pub fn look_again(&mut self) {
        self.load_after = load_average();
    }
}

struct Row {
    id: String,
    title: String,
    unit: Unit,
    bound: Option<Bound>,
    section: usize,
    values: Vec<Option<f64>>,
}

/// All numbers: a row each, a column per engine.
pub struct Report {
    /// What they were measured on.
    pub machine: Machine,
    quick: bool,
    engines: Vec<&'static str>,
    sections: Vec<(String, String)>,
    section: usize,
    rows: Vec<Row>,
}

impl Report {
    /// Without any number.
    pub fn new(machine: Machine, quick: bool) -> Self {
        Self {
            machine,
            quick,
            engines: Vec::new(),
            sections: Vec::new(),
            section: 0,
            rows: Vec::new(),
        }
    }

    /// Starts a column.
    pub fn begin(&mut self, engine: &'static str) {
        self.engines.push(engine);
    }

    /// Starts or goes on with a group of rows.
    pub fn section(&mut self, id: &str, title: &str) {
        let found = self.sections.iter().position(|(known, _)| known == id);
        self.section = found.unwrap_or_else(|| {
            self.sections.push((id.to_owned(), title.to_owned()));
            self.sections.len() - 1
        });
    }

    /// Adds a number to the present column.
    pub fn add(
        &mut self,
        id: impl Into<String>,
        title: impl Into<String>,
        unit: Unit,
        value: f64,
        bound: Option<Bound>,
    ) {
        self.cell(id.into(), title.into(), unit, bound).replace(value);
    }

    /// The cell of this row in the present column, made where it is missing.
    fn cell(&mut self, id: String, title: String, unit: Unit, bound: Option<Bound>) -> &mut Option<f64> {
        let column = self.engines.len() - 1;
        let at = self.rows.iter().position(|row| row.id == id).unwrap_or_else(|| {
            self.rows.push(Row {
                id,
                title,
                unit,
                bound,
                section: self.section,
                values: Vec::new(),
            });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.values.resize(column + 1, None);
        &mut row.values[column]
    }

    /// Adds what a phase has cost. Engines that are one process leave the rows of the second one empty.
    pub fn cost(&mut self, id: &str, what: &str, before: &Usages, after: &Usages) {
        let etcd = before.etcd.zip(after.etcd);
        let etcd_cpu = etcd.map(|(before, after)| after.cpu_seconds - before.cpu_seconds);
        let etcd_rss = after.etcd.map(|etcd| etcd.rss_bytes);
        let server_cpu = after.server.cpu_seconds - before.server.cpu_seconds;
        let client_cpu = after.client.cpu_seconds - before.client.cpu_seconds;
        let (seconds, megabytes) = (Unit::CpuSeconds, Unit::Megabytes);
        for (name, title, unit, value) in [
            ("cpu_seconds", "server CPU", seconds, Some(server_cpu)),
            ("etcd_cpu_seconds", "etcd CPU", seconds, etcd_cpu),
            (
                "client_cpu_seconds",
                "load generator CPU",
                seconds,
                Some(client_cpu),
            ),
            ("rss_bytes", "server RSS", megabytes, Some(after.server.rss_bytes)),
            (
                "peak_bytes",
                "server peak RSS",
                megabytes,
                Some(after.server.peak_bytes),
            ),
            ("etcd_rss_bytes", "etcd RSS", megabytes, etcd_rss),
        ] {
            *self.cell(format!("{id}_{name}"), format!("{what}: {title}"), unit, None) = value;
        }
    }

    pub fn json(&self) -> Value {
        let machine = &self.machine;
        let engines: Map<String, Value> = self
            .engines
            .iter()
            .enumerate()
            .map(|(at, engine)| {
                let values = self.rows.iter().filter_map(|row| {
                    let value = row.values.get(at).copied().flatten()?;
                    Some((row.id.clone(), json!((value * 1e3).round() / 1e3)))
                });
                ((*engine).to_owned(), values.collect::<Map<_, _>>().into())
            })
            .collect();
        json!({
            "quick": self.quick,
            "machine": {
                "cores": machine.cores,
                "kernel": machine.kernel,
                "fileSystem": machine.file_system,
                "loadBefore": machine.load_before,
                "loadAfter": machine.load_after,
            },
            "engines": engines,
        })
    }

    pub fn markdown(&self) -> String {
        let machine = &self.machine;
        let mut out = format!(
            "{} cores, Linux {}, {}; load average {} before, {} after{}.\n",
            machine.cores,
            machine.kernel,
            machine.file_system,
            machine.load_before,
            machine.load_after,
            if self.quick {
                "; a quick run, whose numbers mean nothing"
            } else {
                ""
            },
        );
        for (at, (_, title)) in self.sections.iter().enumerate() {
            let _ = write!(
                out,
                "\n| {title} | target | {} |\n|---|---|",
                self.engines.join(" | ")
            );
            out.push_str(&"--:|".repeat(self.engines.len()));
            out.push('\n');
            for row in self.rows.iter().filter(|row| row.section == at) {
                let bound = row.bound.map(|bound| bound.show(row.unit)).unwrap_or_default();
                let _ = write!(out, "| {} | {bound} |", row.title);
                for engine in 0..self.engines.len() {
                    let _ = write!(out, " {} |", row.show(engine));
                }
                out.push('\n');
            }
        }
        out
    }
}

impl Row {
    fn show(&self, engine: usize) -> String {
        let Some(value) = self.values.get(engine).copied().flatten() else {
            return "–".to_owned();
        };
        match self.bound {
            Some(bound) if !bound.holds(value) => format!("**{}**", self.unit.show(value)),
            _ => self.unit.show(value),
        }
    }
}
