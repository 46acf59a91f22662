//! What does the collector measure?

use std::time::Duration;

use pointsman_model::Moment;
use pointsman_protocol::gate::Outcome;
use pointsman_sli::fold::{Change, NewChange};
use pointsman_sli::history::parts;
use pointsman_telemetry::{Counter, Definition, Family, FineHistogram, Gauge, Registry, Unit};

use crate::gates::Past;
use crate::traces::TraceId;

/// All metrics of the process.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// About shutdown gates.
    pub gates: GateMetrics,
    /// About what programmers tell.
    pub streams: StreamMetrics,
    /// About changes and the SLI that is made of them.
    pub sli: SliMetrics,
}

/// What is measured about shutdown gates.
#[derive(Clone, Debug)]
pub(crate) struct GateMetrics {
    opened: Family<Counter>,
    wait: Family<FineHistogram>,
    /// Gates that wait.
    pub waiting: Gauge,
}

/// What is measured about programmers and their streams.
#[derive(Clone, Debug)]
pub(crate) struct StreamMetrics {
    /// Programmers by state.
    pub programmers: Family<Gauge>,
    /// Programmers that lack a change for too long.
    pub lagging: Gauge,
    /// Lines that were believed.
    pub lines: Counter,
    /// Lines that were not believed, by reason.
    pub faults: Family<Counter>,
    /// The lowest mark, by collection.
    pub lowest: Family<Gauge>,
    /// The mark that 99 % have reached, by collection.
    pub most: Family<Gauge>,
    fold_delay: FineHistogram,
    /// Readings of metrics, by result.
    pub scrapes: Family<Counter>,
    /// The largest distance between a programmer's clock and ours.
    pub clock_ahead: Gauge,
    /// The residual error of that.
    pub clock_error: Gauge,
}

/// What is measured about changes, and the SLI.
#[derive(Clone, Debug)]
pub(crate) struct SliMetrics {
    /// Changes by kind.
    changes: Family<Counter>,
    /// Changes that are not everywhere.
    pub open: Gauge,
    /// Changes that became too old before they were everywhere.
    pub evicted: Gauge,
    reached: Family<FineHistogram>,
    stages: Family<FineHistogram>,
    /// Traces, by what became of them.
    pub traces: Family<Counter>,
    /// The SLI, by form and quantile.
    pub latency: Family<Gauge>,
    /// How much of it was measured, by form.
    pub coverage: Family<Gauge>,
    /// Samples in the window, by form.
    pub window_samples: Family<Gauge>,
    /// What is promised.
    pub objective: Gauge,
    /// The figure of the day so far.
    pub day_figure: Gauge,
    /// How much of the day was measured.
    pub day_coverage: Gauge,
    /// Whether the day meets the objective so far.
    pub day_verdict: Family<Gauge>,
}

impl GateMetrics {
    fn new(registry: &Registry) -> Self {
        let opened = count(
            "pointsman_gate_opened_total",
            "Shutdown gates that opened, by what was asked for (form: pod, service) and outcome. `everywhere` is the \
             good one; `bound` means that a node was behind, or no slice written, for so long that the pod was \
             stopped all the same.",
        );
        let wait = seconds(
            "pointsman_gate_wait_seconds",
            "How long shutdown gates stayed closed after they were asked, by outcome.",
        );
        let waiting = count("pointsman_gate_waiting", "Shutdown gates that are closed now.");
        Self {
            opened: registry.counters(opened.labels(&["form", "outcome"])),
            wait: registry.fine_histograms(wait.labels(&["outcome"])),
            waiting: registry.gauge(waiting),
        }
    }
}

impl StreamMetrics {
    fn new(registry: &Registry) -> Self {
        let programmers = count(
            "pointsman_sli_programmers",
            "Programmers by state: live ones report watermarks; silent ones do not although their node is \
             reachable, stalled ones do and have lacked changes for 30 s without progress, and both are behind; \
             unreachable ones are silent like their node and do not count; plain ones (such as kube-proxy) have no \
             watermarks and are only scraped.",
        );
        let lagging = count(
            "pointsman_sli_programmers_lagging",
            "Programmers that have lacked a change for more than 250 ms, or are silent although their node is reachable.",
        );
        let lines = count(
            "pointsman_sli_watermark_lines_total",
            "Lines of watermark streams that were taken in.",
        );
        let faults = count(
            "pointsman_sli_watermark_faults_total",
            "Lines of watermark streams that were not believed, by reason: malformed, or marks that go back.",
        );
        let lowest = count(
            "pointsman_sli_watermark_lowest_resource_version",
            "All changes of the resource up to this version are in the kernel of every programmer but unreachable ones.",
        );
        let most = count(
            "pointsman_sli_watermark_p1_resource_version",
            "All changes of the resource up to this version are in the kernel of 99 % of the programmers but unreachable ones.",
        );
        let fold_delay = seconds(
            "pointsman_sli_fold_delay_seconds",
            "Time from a programmer's commit, as it reports it, to its line being folded. One line in many is measured.",
        );
        let scrapes = count(
            "pointsman_sli_scrapes_total",
            "Readings of programmers' metrics, by result: read, failed.",
        );
        let clock_ahead = seconds(
            "pointsman_sli_clock_offset_seconds",
            "The largest distance between a programmer's clock and the collector's. It is corrected for.",
        );
        let clock_error = seconds(
            "pointsman_sli_clock_error_seconds",
            "The largest error that remains after correction: half of the quickest round trip.",
        );
        Self {
            programmers: registry.gauges(programmers.labels(&["state"])),
            lagging: registry.gauge(lagging),
            lines: registry.counter(lines),
            faults: registry.counters(faults.labels(&["reason"])),
            lowest: registry.gauges(lowest.labels(&["resource"])),
            most: registry.gauges(most.labels(&["resource"])),
            fold_delay: registry.fine_histogram(fold_delay),
            scrapes: registry.counters(scrapes.labels(&["result"])),
            clock_ahead: registry.gauge(clock_ahead),
            clock_error: registry.gauge(clock_error),
        }
    }
}

impl SliMetrics {
    fn new(registry: &Registry) -> Self {
        let changes = count(
            "pointsman_sli_changes_total",
            "Changes of Services and EndpointSlices that reached 99 % of the kernels, by kind and by how well their \
             beginning is known (dated): exact to the microsecond, by the second, or only by the collector's \
             watch, which makes them look shorter than they were.",
        );
        let open = count(
            "pointsman_sli_changes_open",
            "Changes of Services and EndpointSlices that are not in every kernel yet.",
        );
        let evicted = count(
            "pointsman_sli_changes_evicted",
            "Changes that had to be forgotten before they were everywhere, since the start.",
        );
        let reached = seconds(
            "pointsman_sli_change_reached_seconds",
            "Time from a change to its being in the kernels of a share of the programmers: 0.99, or 1 for all.",
        );
        let stages = seconds(
            "pointsman_sli_change_stage_seconds",
            "Where the time of changes that are everywhere went: `api` from the change to the API, `slice` to the slice that \
             says so, `half` until half of the kernels had it, `all` to the last one. Their sum is the change's time.",
        );
        let traces = count(
            "pointsman_sli_traces_total",
            "Traces of changes, by what became of them: `sent`, `failed` (the receiver did not take them) or `dropped` \
             (the receiver is too slow). None without --otlp.",
        );
        let latency = seconds(
            "pointsman_sli_network_programming_seconds",
            "The SLI over the last five minutes by quantile, as an upper bound: `pooled` over all programmers' samples, \
             `exact` over the times until 99 % of programmers had each change. Changes that take longer than 250 ms \
             count before they end, as if they ended now. NaN without samples.",
        );
        let coverage = ratio(
            "pointsman_sli_coverage_ratio",
            "Which part of the programmers was measured in the last five minutes.",
        );
        let samples = count(
            "pointsman_sli_window_samples",
            "Samples in the last five minutes, unfinished ones included.",
        );
        let objective = seconds(
            "pointsman_sli_objective_seconds",
            "The objective for this size of cluster.",
        );
        let day_figure = seconds(
            "pointsman_sli_day_seconds",
            "The 99th percentile of today's values of the SLI: what the objective is compared with.",
        );
        let day_coverage = ratio(
            "pointsman_sli_day_coverage_ratio",
            "Which part of today was measured.",
        );
        let day_verdict = count(
            "pointsman_sli_day_verdict",
            "1 for the verdict that holds for today so far, 0 for the others.",
        );
        Self {
            changes: registry.counters(changes.labels(&["kind", "dated"])),
            open: registry.gauge(open),
            evicted: registry.gauge(evicted),
            reached: registry.fine_histograms(reached.labels(&["share"])),
            traces: registry.counters(traces.labels(&["result"])),
            stages: registry.fine_histograms(stages.labels(&["stage"])),
            latency: registry.gauges(latency.labels(&["form", "quantile"])),
            coverage: registry.gauges(coverage.labels(&["form"])),
            window_samples: registry.gauges(samples.labels(&["form"])),
            objective: registry.gauge(objective),
            day_figure: registry.gauge(day_figure),
            day_coverage: registry.gauge(day_coverage),
            day_verdict: registry.gauges(day_verdict.labels(&["verdict"])),
        }
    }
}

impl SliMetrics {
    /// A change is in most kernels.
    pub fn change(&self, change: &NewChange) {
        let labels = [change.kind.as_str(), change.dated.as_str()];
        self.changes.with(&labels).inc();
    }
}

fn count(name: &'static str, help: &'static str) -> Definition {
    Definition::new(name, help)
}

fn seconds(name: &'static str, help: &'static str) -> Definition {
    Definition::new(name, help).unit(Unit::Seconds)
}

fn ratio(name: &'static str, help: &'static str) -> Definition {
    Definition::new(name, help).unit(Unit::Ratio)
}

/// Registers the collector's metrics without a collector, for a reference of them.
pub fn describe(registry: &Registry) {
    Metrics::new(registry);
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        Self {
            gates: GateMetrics::new(registry),
            streams: StreamMetrics::new(registry),
            sli: SliMetrics::new(registry),
        }
    }

    /// A gate opened.
    pub fn gate(&self, past: &Past) {
        let outcome = past.opened.outcome.as_str();
        self.gates.opened.with(&[past.gate.form(), outcome]).inc();
        self.gates.wait.with(&[outcome]).observe(past.opened.waited);
    }

    /// A line was folded so long after its commit.
    pub fn folded(&self, delay: Duration) {
        self.streams.fold_delay.observe(delay);
    }

    /// A change reached a share of the programmers, and perhaps has a trace.
    pub fn reached(&self, share: &str, latency: Duration, trace: Option<(TraceId, Moment)>) {
        let histogram = self.sli.reached.with(&[share]);
        match trace {
            Some((trace, at)) => histogram.observe_traced(latency, &trace.to_string(), at.0 as f64 / 1e6),
            None => histogram.observe(latency),
        }
    }

    /// A change is everywhere.
    pub fn everywhere(&self, change: &Change) {
        for (part, took) in parts(change).into_iter().flatten() {
            self.sli.stages.with(&[part.as_str()]).observe(took);
        }
    }

    /// Makes every series of outcomes visible from the start.
    pub fn prepare(&self) {
        for form in ["pod", "service"] {
            for outcome in Outcome::ALL {
                self.gates.opened.with(&[form, outcome.as_str()]);
            }
        }
    }
}
