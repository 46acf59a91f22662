//! What does the prober measure?
//!
//! `prober_*` keep the kubelet's names, labels and buckets; the others are ours.

use crate::target::{Check, ProbeTarget};
use pointsman_objects::probe::Handler;
use pointsman_probe::Outcome;
use pointsman_telemetry::{
    Counter, Definition, Family, Gauge, Histogram, Registry, Unit, exponential_buckets,
};
use std::time::Duration;

/// Three results of three probes for a node with far more containers than a node has.
const MAX_SERIES: usize = 100_000;

/// All metrics of the prober.
#[derive(Clone, Debug)]
pub struct Metrics {
    total: Family<Counter>,
    duration: Family<Histogram>,
    /// How much later than due checks begin.
    pub jitter: Histogram,
    /// The factor by which periods are stretched.
    pub stretch: Gauge,
    /// Windows in which the budget was exceeded.
    pub throttled: Counter,
    /// CPU share of the probing thread in the last window.
    pub cpu_share: Gauge,
    /// Checks per second that the probes ask for.
    pub demand: Gauge,
    workers: Family<Gauge>,
    pub connections: Gauge,
}

/// The series of one probe, resolved once. The probe is counted among the workers as long as this lives.
#[derive(Debug)]
pub struct ProbeMetrics {
    worker: Gauge,
    labels: [String; 5],
    successful: Option<Counter>,
    failed: Option<Counter>,
    duration: Option<Histogram>,
}

/// Registers the prober's metrics without a prober, for a reference of them.
pub fn describe(registry: &Registry) {
    Metrics::new(registry);
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        Self {
            total: registry.counters(
                Definition::new(
                    "prober_probe_total",
                    "Checks by probe and result (successful, failed). Checks that could not be made are not counted.",
                )
                .labels(&["probe_type", "result", "container", "pod", "namespace", "pod_uid"])
                .max_series(MAX_SERIES),
            ),
            duration: registry.histograms(
                Definition::new(
                    "prober_probe_duration_seconds",
                    "Duration of successful checks, from beginning to connect to the complete answer.",
                )
                .unit(Unit::Seconds)
                .labels(&["probe_type", "container", "pod", "namespace"])
                .max_series(MAX_SERIES)
                .buckets([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            ),
            jitter: registry.histogram(
                Definition::new(
                    "pointsman_probe_schedule_jitter_seconds",
                    "How much later than due checks begin. Waiting for a slow check of the same probe does not count.",
                )
                .unit(Unit::Seconds)
                .buckets(exponential_buckets(0.000_05, 1.25, 60)),
            ),
            stretch: registry.gauge(Definition::new(
                "pointsman_probe_budget_stretch_ratio",
                "The factor by which all probe periods are stretched because the node-wide budget is used up; 1 if it is not.",
            ).unit(Unit::Ratio)),
            throttled: registry.counter(Definition::new(
                "pointsman_probe_budget_exceeded_total",
                "Seconds in which probe periods were stretched because the node-wide budget was used up.",
            )),
            cpu_share: registry.gauge(Definition::new(
                "pointsman_probe_cpu_share_ratio",
                "CPU seconds per second of the probing thread. Commands of exec probes are not included.",
            ).unit(Unit::Ratio)),
            demand: registry.gauge(Definition::new(
                "pointsman_probe_demand_per_second",
                "Checks per second that all probes ask for, before any stretching.",
            )),
            workers: registry.gauges(
                Definition::new(
                    "pointsman_probe_workers",
                    "Probes of all containers of the node, by what they decide (probe_type), how they check (handler: exec, httpGet, \
                     tcpSocket, grpc, or invalid if the check cannot be made), and whether they ask for a period below a second \
                     (sub_second), which a policy may have slowed down since.",
                )
                .labels(&["probe_type", "handler", "sub_second"]),
            ),
            connections: registry.gauge(Definition::new(
                "pointsman_probe_connections",
                "Connections of checks under way, and those that servers have not closed yet.",
            )),
        }
    }

    /// The series of one probe. They appear with the first check that needs them.
    pub fn probe(
        &self,
        probe: &ProbeTarget,
        container: &str,
        pod: &str,
        namespace: &str,
        uid: &str,
    ) -> ProbeMetrics {
        let kind = probe.kind.to_string();
        let sub_second = if probe.timing.is_sub_second() {
            "true"
        } else {
            "false"
        };
        let worker = self.workers.with(&[&kind, handler(&probe.check), sub_second]);
        worker.inc();
        ProbeMetrics {
            worker,
            labels: [
                kind,
                container.to_owned(),
                pod.to_owned(),
                namespace.to_owned(),
                uid.to_owned(),
            ],
            successful: None,
            failed: None,
            duration: None,
        }
    }

    /// Counts one check.
    pub fn observe(&self, probe: &mut ProbeMetrics, outcome: Outcome, took: Duration) {
        let [kind, container, pod, namespace, uid] = &probe.labels;
        let total = |result: &str| self.total.with(&[kind, result, container, pod, namespace, uid]);
        match outcome {
            Outcome::Success | Outcome::Warning => {
                probe.successful.get_or_insert_with(|| total("successful")).inc();
                let duration = || self.duration.with(&[kind, container, pod, namespace]);
                probe.duration.get_or_insert_with(duration).observe_duration(took);
            }
            Outcome::Failure => probe.failed.get_or_insert_with(|| total("failed")).inc(),
            Outcome::Errored | Outcome::Abandoned => {}
        }
    }

    /// Forgets the series of a probe that is gone.
    pub fn forget(&self, probe: &ProbeMetrics) {
        let [kind, container, pod, namespace, uid] = &probe.labels;
        for result in ["successful", "failed"] {
            self.total.remove(&[kind, result, container, pod, namespace, uid]);
        }
        self.duration.remove(&[kind, container, pod, namespace]);
    }
}

impl Drop for ProbeMetrics {
    fn drop(&mut self) {
        self.worker.dec();
    }
}

/// How a check is made, by the name of the probe's field.
fn handler(check: &Check) -> &'static str {
    match check {
        Check::Http(_) => Handler::HttpGet.field(),
        Check::Tcp { .. } => Handler::TcpSocket.field(),
        Check::Grpc { .. } => Handler::Grpc.field(),
        Check::Exec { .. } => Handler::Exec.field(),
        Check::Impossible(_) => "invalid",
    }
}
