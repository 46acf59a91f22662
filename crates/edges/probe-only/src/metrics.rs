//! What is measured beside what the prober measures itself?

use pointsman_telemetry::{Counter, Definition, FineHistogram, Registry, Unit};

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// From the answer that changed a verdict to the answer of the API server that has it.
    pub to_api: FineHistogram,
    /// Patches that failed.
    pub failed: Counter,
}

/// Registers the metrics of probing beside a kubelet, for a reference of them.
pub fn describe(registry: &Registry) {
    Metrics::new(registry);
    pointsman_probe_io::describe_metrics(registry);
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        Self {
            to_api: registry.fine_histogram(
                Definition::new(
                    "pointsman_probe_to_api_seconds",
                    "From the answer that changed a readiness verdict to the API server's answer that it is stored.",
                )
                .unit(Unit::Seconds),
            ),
            failed: registry.counter(Definition::new(
                "pointsman_probe_condition_patch_failures_total",
                "Patches of readiness gate conditions that failed and were tried again.",
            )),
        }
    }
}
