//! What does the agent measure? The kubelet's names where it measures the same.

use pointsman_pod_lifecycle::{ContainerFact, Fact, Machine};
use pointsman_telemetry::{
    Counter, Definition, Family, Gauge, Histogram, Registry, Unit, exponential_buckets,
};
use std::time::Duration;

/// Go's default buckets, which the kubelet uses for most of these.
const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The agent's metrics. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    pub(crate) running_pods: Gauge,
    pub(crate) running_containers: Gauge,
    pub(crate) started_pods: Counter,
    pub(crate) restarts: Counter,
    pub(crate) pod_start: Histogram,
    pub(crate) status_sync: Histogram,
    pub(crate) probe_to_api: Histogram,
    pub(crate) gate_outcomes: Family<Counter>,
    pub(crate) gate_wait: Histogram,
    pub(crate) heartbeats: Family<Counter>,
    pub(crate) update_frequency: Gauge,
    operations: Operations,
    requests: Family<Counter>,
}

/// Requests to the runtime.
#[derive(Clone, Debug)]
struct Operations {
    total: Family<Counter>,
    errors: Family<Counter>,
    time: Family<Histogram>,
}

/// Registers the agent's metrics without an agent, for a reference of them.
pub fn describe(registry: &Registry) {
    Metrics::new(registry);
    pointsman_probe_io::describe_metrics(registry);
    pointsman_peers::Metrics::new(registry);
}

impl Operations {
    fn new(registry: &Registry) -> Self {
        let define = |name, help| Definition::new(name, help).labels(&["operation_type"]);
        Self {
            total: registry.counters(define(
                "kubelet_runtime_operations_total",
                "Requests to the runtime, by operation.",
            )),
            errors: registry.counters(define(
                "kubelet_runtime_operations_errors_total",
                "Requests that the runtime failed, by operation.",
            )),
            time: registry.histograms(
                define(
                    "kubelet_runtime_operations_duration_seconds",
                    "How long requests to the runtime took, by operation.",
                )
                .unit(Unit::Seconds)
                .buckets(DEFAULT_BUCKETS),
            ),
        }
    }
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let define = Definition::new;
        let seconds =
            |name, help, buckets: &[f64]| Definition::new(name, help).unit(Unit::Seconds).buckets(buckets);
        let fine = exponential_buckets(0.0005, 2.0, 14);
        Self {
            registry: registry.clone(),
            running_pods: registry.gauge(define("kubelet_running_pods", "Pods that have a network of their own on this node now.")),
            running_containers: registry.gauge(define("kubelet_running_containers", "Containers whose process runs now.")),
            started_pods: registry.counter(define("kubelet_started_pods_total", "Pods whose network was set up since the start.")),
            restarts: registry.counter(define("kubelet_restarted_containers_total", "Containers started again after they ended.")),
            pod_start: registry.histogram(seconds(
                "kubelet_pod_start_duration_seconds",
                "From the first sight of a pod to its first report of all containers running.",
                &exponential_buckets(0.01, 2.0, 14),
            )),
            status_sync: registry.histogram(seconds(
                "kubelet_pod_status_sync_duration_seconds",
                "From a change of a pod's status to the API server's answer.",
                &fine,
            )),
            probe_to_api: registry.histogram(seconds(
                "pointsman_node_probe_to_api_seconds",
                "From the probe's answer that changed a pod's readiness to the API server's answer to the patch.",
                &fine,
            )),
            gate_outcomes: registry.counters(
                define("pointsman_node_gate_total", "Pods that had to end, by what the shutdown gate said; `unreachable`: nobody answered.")
                    .labels(&["outcome"]),
            ),
            gate_wait: registry.histogram(seconds(
                "pointsman_node_gate_wait_seconds",
                "How long the shutdown gate held a pod's stop signal back.",
                &exponential_buckets(0.001, 2.0, 14),
            )),
            heartbeats: registry.counters(
                define("pointsman_node_heartbeats_total", "Heartbeats by kind (lease, status) and result.")
                    .labels(&["kind", "result"]),
            ),
            update_frequency: registry.gauge(
                define(
                    "pointsman_node_status_update_frequency_seconds",
                    "How often the node's status is computed, as in force now.",
                )
                .unit(Unit::Seconds),
            ),
            operations: Operations::new(registry),
            requests: registry.counters(
                define("kubelet_http_requests_total", "Requests to the agent's own server: logs, health, metrics.")
                    .labels(&["method", "path", "code"]),
            ),
        }
    }

    /// A request to the runtime is over.
    pub(crate) fn operation(&self, kind: &str, took: Duration, well: bool) {
        self.operations.total.with(&[kind]).inc();
        self.operations.time.with(&[kind]).observe_duration(took);
        if !well {
            self.operations.errors.with(&[kind]).inc();
        }
    }

    /// A request to our own server was answered.
    pub(crate) fn request(&self, method: &str, path: &str, code: u16) {
        self.requests.with(&[method, path, &code.to_string()]).inc();
    }
}

impl Metrics {
    /// Counts what an ended action means.
    pub(crate) fn count(&self, fact: &Fact) {
        match fact {
            Fact::SandboxUp { .. } => self.started_pods.inc(),
            Fact::Container {
                run,
                fact: ContainerFact::Started { .. },
                ..
            } if *run > 0 => self.restarts.inc(),
            _ => {}
        }
    }

    /// How much runs, of all pods.
    pub(crate) fn running<'a>(&self, machines: impl Iterator<Item = &'a Machine>) {
        let (mut pods, mut containers) = (0, 0);
        for machine in machines {
            pods += usize::from(!machine.ips().is_empty());
            containers += machine.probed().count();
        }
        self.running_pods.set(pods as f64);
        self.running_containers.set(containers as f64);
    }
}
