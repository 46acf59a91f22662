//! How do requests to the API server fare?
//!
//! Names, labels and buckets are client-go's. What it has besides does not exist here: no client-side rate limit,
//! no retries below the caller's, no exec plugins, one transport.

use pointsman_telemetry::{Counter, Definition, Family, Histogram, Registry, Unit};
use std::sync::Arc;
use std::time::Duration;

const DURATIONS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const SIZES: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
const BY_VERB: &[&str] = &["verb", "host"];

/// What is counted about requests.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    total: Family<Counter>,
    durations: Family<Histogram>,
    requests: Family<Histogram>,
    responses: Family<Histogram>,
}

/// The metrics of one client.
#[derive(Clone)]
pub(crate) struct Measured {
    pub metrics: RequestMetrics,
    pub host: Arc<str>,
}

impl RequestMetrics {
    pub fn new(registry: &Registry) -> Self {
        let sizes = |name: &'static str, help: &'static str| {
            let definition = Definition::new(name, help).unit(Unit::Bytes).labels(BY_VERB);
            registry.histograms(definition.buckets(SIZES.to_vec()))
        };
        Self {
            total: registry.counters(
                Definition::new(
                    "rest_client_requests_total",
                    "Requests to the API server by the answer's code, `<error>` if there was none.",
                )
                .labels(&["code", "method", "host"]),
            ),
            durations: registry.histograms(
                Definition::new(
                    "rest_client_request_duration_seconds",
                    "Time from a request to the head of its answer.",
                )
                .unit(Unit::Seconds)
                .labels(BY_VERB)
                .buckets(DURATIONS.to_vec()),
            ),
            requests: sizes(
                "rest_client_request_size_bytes",
                "Size of the bodies of requests to the API server.",
            ),
            responses: sizes(
                "rest_client_response_size_bytes",
                "Size of the bodies of answers that were read whole, which those to watches are not.",
            ),
        }
    }
}

impl Measured {
    /// A request was answered, or not.
    pub fn answered(&self, method: &str, code: Option<u16>, took: Duration, sent: usize) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.metrics.total.with(&[&code, method, &self.host]).inc();
        let by_verb = [method, &self.host];
        self.metrics.durations.with(&by_verb).observe_duration(took);
        self.metrics.requests.with(&by_verb).observe(sent as f64);
    }

    /// A body was read whole.
    pub fn read(&self, method: &str, bytes: usize) {
        let responses = &self.metrics.responses;
        responses.with(&[method, &self.host]).observe(bytes as f64);
    }
}
