//! What does the scenario print, and is it good enough?

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::gates::Opened;
use super::spread::{Spread, cells};

/// So many delays of a thread may add up in one comparison: the prober's, the proxy's, and the kernel's on both ways.
const DELAYS: u32 = 4;

/// Kinds of changes, in the order in which they are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ready,
    NotReady,
    RolledReady,
    RolledTerminating,
    ScaledUp,
    ServiceCreated,
    ServiceChanged,
    ServiceDeleted,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Ready,
        Self::NotReady,
        Self::RolledReady,
        Self::RolledTerminating,
        Self::ScaledUp,
        Self::ServiceCreated,
        Self::ServiceChanged,
        Self::ServiceDeleted,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady => "not ready",
            Self::RolledReady => "rolling update: new pod ready",
            Self::RolledTerminating => "rolling update: old pod terminating",
            Self::ScaledUp => "scale-up: first pod ready",
            Self::ServiceCreated => "Service created",
            Self::ServiceChanged => "Service port changed",
            Self::ServiceDeleted => "Service deleted",
        }
    }
}

/// One change on one node.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What packets showed; none if they showed nothing in time.
    pub truth: Option<Duration>,
    /// How exactly they showed it.
    pub width: Duration,
    /// What the collector says; none if it does not know.
    pub reported: Option<Duration>,
    /// How far the moments are apart at which the rules changed by the word of each.
    pub error: Option<Duration>,
}

#[derive(Debug)]
struct Change {
    kind: Kind,
    samples: Vec<Sample>,
    most: Option<Duration>,
}

/// What a run may not exceed.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The difference between truth and report, at the 99th percentile.
    pub error: Duration,
    /// The least share that is known.
    pub coverage: f64,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Figures {
    changes: Vec<Change>,
    /// The collector's own SLI.
    pub sli: Value,
    /// The SLI with hollow programmers besides, and their number.
    pub hollow: Option<(usize, Value)>,
    pub gates: Opened,
    /// The worst delay of a thread of this machine during the load.
    pub jitter: Duration,
    /// What was put on the cluster.
    pub load: Value,
}

/// A kind of change, or all of them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    change: &'static str,
    samples: usize,
    known: usize,
    truth: Option<Spread>,
    reported: Option<Spread>,
    error: Option<Spread>,
    until_99_percent_of_programmers: Option<Spread>,
}

impl Figures {
    /// Adds a change as every node saw it.
    pub fn add(&mut self, kind: Kind, samples: Vec<Sample>, most: Option<Duration>) {
        self.changes.push(Change { kind, samples, most });
    }

    /// Forgets the changes so far.
    pub fn forget(&mut self) {
        self.changes.clear();
    }

    /// Why the run is not good enough; nothing if it is.
    pub fn violations(&self, bounds: Bounds) -> Vec<String> {
        let all = self.row("all", None);
        let mut found = Vec::new();
        let most = (bounds.error + self.jitter * DELAYS).as_secs_f64() * 1e3;
        match all.error {
            Some(error) if error.p99_ms > most => found.push(format!(
                "report and packets differ by {:.2} ms at the 99th percentile; {most:.2} ms are allowed, as threads \
                 of this machine were up to {:.2} ms late",
                error.p99_ms,
                self.jitter.as_secs_f64() * 1e3
            )),
            Some(_) => {}
            None => found.push("nothing is known to both packets and report".to_owned()),
        }
        let known = all.known as f64 / all.samples.max(1) as f64;
        let pooled = coverage(&self.sli, "pooled");
        for (what, share) in [
            ("of the changes packets and report both know", known),
            ("of the programmers' time the SLI covers", pooled),
        ] {
            if share < bounds.coverage {
                found.push(format!("{what} {share:.3}; {:.3} is the least", bounds.coverage));
            }
        }
        found.extend(missed("the load's", &self.sli, "pooled"));
        found.extend(missed("the load's", &self.sli, "exact"));
        if let Some((_, sli)) = &self.hollow {
            found.extend(missed("with hollow programmers, the", sli, "exact"));
        }
        found
    }

    pub fn json(&self, bounds: Bounds) -> Value {
        let widths = self.samples(None).filter(|it| it.truth.is_some());
        json!({
            "load": self.load,
            "changes": self.rows(),
            "wholePath": self.whole_path(),
            "packetInterval": Spread::of(widths.map(|it| it.width)),
            "jitterMs": self.jitter.as_secs_f64() * 1e3,
            "sli": { "objectiveSeconds": self.sli["objectiveSeconds"], "pooled": self.sli["pooled"], "exact": self.sli["exact"] },
            "hollow": self.hollow.as_ref().map(|(count, sli)| json!({ "count": count, "exact": sli["exact"] })),
            "gates": {
                "outcomes": self.gates.outcomes,
                "afterDeletion": Spread::of(self.gates.after_deletion.iter().copied()),
                "waited": Spread::of(self.gates.waited.iter().copied()),
            },
            "violations": self.violations(bounds),
        })
    }

    /// Tables in Markdown, for people.
    pub fn table(&self) -> String {
        let mut out = String::from(
            "| change to rules, ms | samples | truth p50 | p99 | slowest | reported p50 | p99 | slowest \
             | error p50 | p99 | slowest |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        );
        for row in self.rows() {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} |",
                row.change,
                row.samples,
                cells(row.truth),
                cells(row.reported),
                cells(row.error),
            );
        }
        out += "\n| ms | count | p50 | p99 | slowest |\n|---|--:|--:|--:|--:|\n";
        let widths = self.samples(None).filter(|it| it.truth.is_some());
        let most = self.changes.iter().filter_map(|change| change.most);
        for (name, spread) in [
            (
                "probe's result to every kernel, by packets (targets: p50 10, p99 50)",
                self.whole_path(),
            ),
            (
                "reported: until 99 % of the programmers had a change",
                Spread::of(most),
            ),
            (
                "deletion of a pod to its open gate (target: p99 100)",
                Spread::of(self.gates.after_deletion.iter().copied()),
            ),
            (
                "of that, the wait at the gate",
                Spread::of(self.gates.waited.iter().copied()),
            ),
            (
                "resolution of the packets: between two attempts",
                Spread::of(widths.map(|it| it.width)),
            ),
        ] {
            let count = spread.map_or(0, |it| it.count);
            let _ = writeln!(out, "| {name} | {count} | {} |", cells(spread));
        }
        self.sli_table(&mut out);
        let all = self.row("all", None);
        let _ = writeln!(
            out,
            "\n{} samples, {} of them both in packets and in the report; gates: {}. X: {:.0} ms at p99, {}. \
             Threads of this machine were up to {:.2} ms late.",
            all.samples,
            all.known,
            outcomes(&self.gates),
            self.sli["objectiveSeconds"].as_f64().unwrap_or(0.0) * 1e3,
            match missed("", &self.sli, "pooled").or(missed("", &self.sli, "exact")) {
                Some(_) => "missed",
                None => "met",
            },
            self.jitter.as_secs_f64() * 1e3,
        );
        out
    }

    fn sli_table(&self, out: &mut String) {
        *out += "\n| SLI over the last 5 minutes of the load, churn included | samples | p50 ms | p90 ms | p99 ms \
                 | coverage |\n|---|--:|--:|--:|--:|--:|\n";
        sli_row(out, "pooled: all samples of all programmers", &self.sli, "pooled");
        sli_row(
            out,
            "exact: until 99 % of the programmers have a change",
            &self.sli,
            "exact",
        );
        if let Some((count, sli)) = &self.hollow {
            sli_row(
                out,
                &format!("exact, with {count} hollow programmers"),
                sli,
                "exact",
            );
        }
    }

    fn rows(&self) -> Vec<Row> {
        let kinds = Kind::ALL.map(|kind| self.row(kind.as_str(), Some(kind)));
        let some = kinds.into_iter().filter(|row| row.samples > 0);
        some.chain([self.row("all", None)]).collect()
    }

    fn row(&self, change: &'static str, kind: Option<Kind>) -> Row {
        let most = self.of(kind).filter_map(|change| change.most);
        Row {
            change,
            samples: self.samples(kind).count(),
            known: self.samples(kind).filter(|it| it.error.is_some()).count(),
            truth: Spread::of(self.samples(kind).filter_map(|it| it.truth)),
            reported: Spread::of(self.samples(kind).filter_map(|it| it.reported)),
            error: Spread::of(self.samples(kind).filter_map(|it| it.error)),
            until_99_percent_of_programmers: Spread::of(most),
        }
    }

    /// Of readiness that a probe found out, the time until the last node's packets showed it.
    fn whole_path(&self) -> Option<Spread> {
        let flips = [Kind::Ready, Kind::NotReady]
            .into_iter()
            .flat_map(|kind| self.of(Some(kind)));
        let last = |change: &Change| {
            let truths: Option<Vec<Duration>> = change.samples.iter().map(|it| it.truth).collect();
            truths?.into_iter().max()
        };
        Spread::of(flips.filter_map(last))
    }

    fn of(&self, kind: Option<Kind>) -> impl Iterator<Item = &Change> {
        let wanted = move |change: &&Change| kind.is_none_or(|kind| change.kind == kind);
        self.changes.iter().filter(wanted)
    }

    fn samples(&self, kind: Option<Kind>) -> impl Iterator<Item = &Sample> {
        self.of(kind).flat_map(|change| &change.samples)
    }
}

/// How many gates there were, in words.
pub fn outcomes(gates: &Opened) -> String {
    let words: Vec<String> = gates
        .outcomes
        .iter()
        .map(|(outcome, count)| format!("{count} {outcome}"))
        .collect();
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(", ")
    }
}

/// A row of the table of SLIs.
pub fn sli_row(out: &mut String, name: &str, sli: &Value, form: &str) {
    let of = |quantile: &str| {
        let seconds = sli[form][quantile]["highSeconds"].as_f64();
        seconds.map_or("–".to_owned(), |seconds| format!("{:.1}", seconds * 1e3))
    };
    let _ = writeln!(
        out,
        "| {name} | {} | {} | {} | {} | {:.3} |",
        sli[form]["samples"].as_u64().unwrap_or(0),
        of("p50"),
        of("p90"),
        of("p99"),
        coverage(sli, form),
    );
}

/// Whether a form of the SLI exceeds X, in words. Nothing where nothing was measured: coverage says so.
fn missed(whose: &str, sli: &Value, form: &str) -> Option<String> {
    let (objective, p99) = (sli["objectiveSeconds"].as_f64()?, &sli[form]["p99"]);
    // A percentile above every bucket has no upper end.
    let high = p99["highSeconds"]
        .as_f64()
        .or(p99.is_object().then_some(f64::INFINITY))?;
    (high > objective).then(|| {
        let (high, objective) = (high * 1e3, objective * 1e3);
        format!("{whose} SLI misses X: {form} p99 {high:.1} ms, X {objective:.1} ms")
    })
}

fn coverage(sli: &Value, form: &str) -> f64 {
    sli[form]["coverage"].as_f64().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        error: Duration::from_millis(2),
        coverage: 0.9,
    };

    fn sample(truth: u64, reported: Option<u64>) -> Sample {
        Sample {
            truth: Some(Duration::from_millis(truth)),
            width: Duration::from_micros(400),
            reported: reported.map(Duration::from_millis),
            error: reported.map(|reported| Duration::from_millis(truth.abs_diff(reported))),
        }
    }

    fn figures() -> Figures {
        let mut figures = Figures {
            sli: json!({ "pooled": { "samples": 4, "coverage": 0.99, "p99": { "highSeconds": 0.009 } } }),
            ..Figures::default()
        };
        figures.add(Kind::Ready, vec![sample(5, Some(4)), sample(9, Some(9))], None);
        figures
    }

    #[test]
    fn a_run_within_its_bounds_has_no_violations() {
        let figures = figures();
        assert_eq!(figures.violations(BOUNDS), Vec::<String>::new());
        assert_eq!(figures.json(BOUNDS)["wholePath"]["maxMs"], 9.0);
        let table = figures.table();
        let row = "| ready | 2 | 5.00 | 9.00 | 9.00 | 4.00 | 9.00 | 9.00 | 0.00 | 1.00 | 1.00 |";
        assert!(table.contains(row), "{table}");
        assert!(
            table.contains("all programmers | 4 | – | – | 9.0 | 0.990 |"),
            "{table}"
        );
    }

    #[test]
    fn a_load_that_misses_x_is_a_violation() {
        let mut slow = figures();
        slow.sli["objectiveSeconds"] = json!(0.1);
        assert_eq!(slow.violations(BOUNDS), Vec::<String>::new());
        assert!(
            slow.table().contains("X: 100 ms at p99, met."),
            "{}",
            slow.table()
        );
        slow.sli["exact"] = json!({ "p99": { "highSeconds": 0.1004 } });
        let found = slow.violations(BOUNDS);
        assert_eq!(found, ["the load's SLI misses X: exact p99 100.4 ms, X 100.0 ms"]);
        assert!(slow.table().contains("missed"), "{}", slow.table());
        slow.sli["exact"]["p99"] = json!({ "highSeconds": null });
        assert_eq!(slow.violations(BOUNDS).len(), 1);
    }

    #[test]
    fn what_the_machine_adds_is_allowed_besides() {
        let mut late = figures();
        late.add(Kind::Ready, vec![sample(20, Some(4))], None);
        late.jitter = Duration::from_millis(3);
        assert!(late.violations(BOUNDS)[0].contains("14.00 ms are allowed"));
        late.jitter = Duration::from_millis(4);
        assert_eq!(late.violations(BOUNDS), Vec::<String>::new());
    }

    #[test]
    fn a_report_that_is_wrong_or_missing_is_a_violation() {
        let mut wrong = figures();
        wrong.add(Kind::ServiceDeleted, vec![sample(20, Some(4))], None);
        assert!(wrong.violations(BOUNDS)[0].contains("differ by 16.00 ms"));
        let mut missing = figures();
        missing.add(Kind::ScaledUp, vec![sample(20, None)], None);
        assert!(missing.violations(BOUNDS)[0].contains("0.667"));
        assert_eq!(Figures::default().violations(BOUNDS).len(), 3);
    }
}
