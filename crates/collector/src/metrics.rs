//! What does the collector measure?

use std::time::Duration;

use pointsman_sli::gate::Outcome;
use pointsman_telemetry::{Counter, Definition, Family, FineHistogram, Gauge, Registry, Unit};

use crate::gates::Past;

/// All metrics of the process.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    gates: Family<Counter>,
    gate_wait: Family<FineHistogram>,
    /// Gates that wait.
    pub gates_waiting: Gauge,
    /// Programmers by state.
    pub programmers: Family<Gauge>,
    /// Lines that were believed.
    pub lines: Counter,
    /// Lines that were not believed, by reason.
    pub faults: Family<Counter>,
    /// The lowest mark, by collection.
    pub lowest: Family<Gauge>,
    /// The mark that 99 % have reached, by collection.
    pub most: Family<Gauge>,
    fold_delay: FineHistogram,
    /// Time until 99 % (exact form) and all programmers have a change.
    reached: Family<FineHistogram>,
    /// The SLI, by form and quantile.
    pub latency: Family<Gauge>,
    /// How much of it was measured, by form.
    pub coverage: Family<Gauge>,
    /// Samples in the window, by form.
    pub window_samples: Family<Gauge>,
    /// The figure of the day so far.
    pub day_figure: Gauge,
    /// How much of the day was measured.
    pub day_coverage: Gauge,
    /// Whether the day meets the objective so far.
    pub day_verdict: Family<Gauge>,
    /// The objective.
    pub objective: Gauge,
    /// Programmers that lack a change for too long.
    pub lagging: Gauge,
    /// Readings of metrics, by result.
    pub scrapes: Family<Counter>,
    /// Changes that became too old before they were everywhere.
    pub evicted: Gauge,
    /// Changes by kind.
    pub changes: Family<Counter>,
    /// The largest distance between a programmer's clock and ours.
    pub clock_ahead: Gauge,
    /// The residual error of that.
    pub clock_error: Gauge,
}

impl Metrics {
    /// Registers everything.
    pub fn new(registry: &Registry) -> Self {
        let gauge = |name, help| registry.gauge(Definition::new(name, help));
        let seconds = |name, help| Definition::new(name, help).unit(Unit::Seconds);
        Self {
            gates: registry.counters(
                Definition::new(
                    "pointsman_gate_opened_total",
                    "Shutdown gates that opened, by outcome: everywhere is the good one, bound means that \
                     somebody was behind for too long.",
                )
                .labels(&["form", "outcome"]),
            ),
            gate_wait: registry.fine_histograms(
                seconds(
                    "pointsman_gate_wait_seconds",
                    "How long shutdown gates stayed closed after they were asked.",
                )
                .labels(&["outcome"]),
            ),
            gates_waiting: gauge("pointsman_gate_waiting", "Shutdown gates that are closed now."),
            programmers: registry.gauges(
                Definition::new(
                    "pointsman_sli_programmers",
                    "Programmers: live ones tell watermarks, silent ones have stopped to, plain ones never did.",
                )
                .labels(&["state"]),
            ),
            lines: registry.counter(Definition::new(
                "pointsman_sli_watermark_lines_total",
                "Lines of watermark streams that were taken in.",
            )),
            faults: registry.counters(
                Definition::new(
                    "pointsman_sli_watermark_faults_total",
                    "Lines of watermark streams that were not believed.",
                )
                .labels(&["reason"]),
            ),
            lowest: registry.gauges(
                Definition::new(
                    "pointsman_sli_watermark_lowest_resource_version",
                    "All changes of the resource up to this version are in the kernel of every live programmer.",
                )
                .labels(&["resource"]),
            ),
            most: registry.gauges(
                Definition::new(
                    "pointsman_sli_watermark_p1_resource_version",
                    "All changes of the resource up to this version are in the kernel of 99 % of live programmers.",
                )
                .labels(&["resource"]),
            ),
            fold_delay: registry.fine_histogram(seconds(
                "pointsman_sli_fold_delay_seconds",
                "Time from a programmer's commit, as it tells it, to its line being folded. Sampled.",
            )),
            reached: registry.fine_histograms(
                seconds(
                    "pointsman_sli_change_reached_seconds",
                    "Time from a change to its being in the kernels of 99 % or of all programmers.",
                )
                .labels(&["share"]),
            ),
            latency: registry.gauges(
                seconds(
                    "pointsman_sli_network_programming_seconds",
                    "The SLI over the last five minutes, as an upper bound: pooled is the seed's form, exact \
                     the time until 99 % of programmers have a change. Not a number without samples.",
                )
                .labels(&["form", "quantile"]),
            ),
            coverage: registry.gauges(
                Definition::new(
                    "pointsman_sli_coverage_ratio",
                    "How much of the programmers was measured in the last five minutes.",
                )
                .unit(Unit::Ratio)
                .labels(&["form"]),
            ),
            window_samples: registry.gauges(
                Definition::new("pointsman_sli_window_samples", "Samples in the last five minutes.")
                    .labels(&["form"]),
            ),
            day_figure: registry.gauge(seconds(
                "pointsman_sli_day_seconds",
                "The 99th percentile of today's values of the SLI.",
            )),
            day_coverage: registry.gauge(
                Definition::new("pointsman_sli_day_coverage_ratio", "How much of today was measured.")
                    .unit(Unit::Ratio),
            ),
            day_verdict: registry.gauges(
                Definition::new("pointsman_sli_day_verdict", "1 for what is true of today so far.")
                    .labels(&["verdict"]),
            ),
            objective: registry.gauge(seconds(
                "pointsman_sli_objective_seconds",
                "What is promised for this size of cluster.",
            )),
            lagging: gauge(
                "pointsman_sli_programmers_lagging",
                "Programmers that have lacked a change for more than 250 ms, or are silent.",
            ),
            scrapes: registry.counters(
                Definition::new("pointsman_sli_scrapes_total", "Readings of programmers' metrics.")
                    .labels(&["result"]),
            ),
            evicted: gauge(
                "pointsman_sli_changes_evicted",
                "Changes that had to be forgotten before they were everywhere.",
            ),
            changes: registry.counters(
                Definition::new("pointsman_sli_changes_total", "Changes seen, by kind.").labels(&["kind"]),
            ),
            clock_ahead: registry.gauge(seconds(
                "pointsman_sli_clock_offset_seconds",
                "The largest distance between a programmer's clock and the collector's. It is corrected for.",
            )),
            clock_error: registry.gauge(seconds(
                "pointsman_sli_clock_error_seconds",
                "The largest error that remains after correction: half of the quickest round trip.",
            )),
        }
    }

    /// A gate opened.
    pub fn gate(&self, past: &Past) {
        let outcome = past.opened.outcome.as_str();
        self.gates.with(&[past.gate.form(), outcome]).inc();
        self.gate_wait.with(&[outcome]).observe(past.opened.waited);
    }

    /// A line was folded so long after the commit it tells of.
    pub fn folded(&self, delay: Duration) {
        self.fold_delay.observe(delay);
    }

    /// A change reached 99 % of the programmers, and perhaps all.
    pub fn reached(&self, most: Duration, all: Option<Duration>) {
        self.reached.with(&["0.99"]).observe(most);
        if let Some(all) = all {
            self.reached.with(&["1"]).observe(all);
        }
    }

    /// Makes every series of outcomes visible from the start.
    pub fn prepare(&self) {
        for form in ["pod", "service"] {
            for outcome in Outcome::ALL {
                self.gates.with(&[form, outcome.as_str()]);
            }
        }
    }
}
