//! What does the server count?
//!
//! Names and labels are upstream's where the meaning is the same, so that dashboards and alerts work
//! unchanged.

use crate::audit;
use crate::auth::flow::{FlowControl, Limits};
use crate::cache::Cache;
use crate::cache::collection::{Collection, Window};
use crate::settings::Settings;
use pointsman_rules::Kind;
use pointsman_rules::admission::tolerations::TolerationSeconds;
use pointsman_telemetry::{
    Counter, Definition, Encoder, Family, Gauge, Histogram, Kind as MetricKind, Registry, Unit,
};
use std::sync::Arc;
use std::time::Duration;

/// Upstream's buckets of request durations.
const REQUEST_SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
const RESPONSE_BYTES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// How a request is labelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLabels {
    /// `GET`, `LIST`, `WATCH`, `POST`, `PUT`, `PATCH`, `DELETE`, `DELETECOLLECTION`.
    pub verb: &'static str,
    /// `All` for dry runs.
    pub dry_run: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub resource: &'static str,
    /// Subresource or nothing.
    pub subresource: &'static str,
    /// `cluster`, `namespace` or `resource`.
    pub scope: &'static str,
}

const REQUEST_LABELS: [&str; 8] = [
    "verb",
    "dry_run",
    "group",
    "version",
    "resource",
    "subresource",
    "scope",
    "code",
];

const STORE_SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

type Figure = fn(&Collection) -> usize;

/// The server's metrics.
#[derive(Clone)]
pub struct Metrics {
    /// Where they are registered.
    pub registry: Registry,
    requests: Family<Counter>,
    durations: Family<Histogram>,
    sizes: Family<Histogram>,
    longrunning: Family<Gauge>,
    watch_events: Family<Counter>,
    watch_bytes: Family<Counter>,
    commits: Family<Histogram>,
    /// Requests whose handler panicked.
    pub panics: Counter,
}

/// Registers the server's metrics without a server, for a reference of them.
pub fn describe(registry: &Registry) {
    Settings::new(TolerationSeconds::default(), registry);
    let cache = Arc::new(Cache::new(Window::default(), Vec::new()));
    Metrics::new(registry.clone()).watch_cache(cache);
    FlowControl::new(Limits::default()).register(registry);
    audit::log::Metrics::new(registry);
}

impl Metrics {
    pub fn new(registry: Registry) -> Self {
        let define = Definition::new;
        Self {
            requests: registry.counters(
                define(
                    "apiserver_request_total",
                    "Requests answered, by verb, resource, scope and HTTP code; dry_run is `All` for those that wrote nothing.",
                )
                .labels(&REQUEST_LABELS)
                .max_series(4096),
            ),
            durations: registry.histograms(
                define(
                    "apiserver_request_duration_seconds",
                    "Time from the head of a request to the end of its answer, watches excepted.",
                )
                .unit(Unit::Seconds)
                .labels(&REQUEST_LABELS[..7])
                .buckets(REQUEST_SECONDS),
            ),
            sizes: registry.histograms(
                define(
                    "apiserver_response_sizes",
                    "Bytes of answers whose size is known beforehand.",
                )
                .unit(Unit::Bytes)
                .labels(&["verb", "group", "version", "resource", "subresource", "scope"])
                .buckets(RESPONSE_BYTES),
            ),
            longrunning: registry.gauges(
                define("apiserver_longrunning_requests", "Watches that are open, by what they watch.")
                    .labels(&["verb", "group", "version", "resource"]),
            ),
            watch_events: registry.counters(
                define("apiserver_watch_events_total", "Events sent to watchers.")
                    .labels(&["group", "version", "kind"]),
            ),
            watch_bytes: registry.counters(
                define("pointsman_apiserver_watch_bytes_total", "Bytes sent to watchers.")
                    .unit(Unit::Bytes)
                    .labels(&["group", "version", "kind"]),
            ),
            commits: registry.histograms(
                define(
                    "etcd_request_duration_seconds",
                    "Time the store took, by operation, until a write is durable. The name is upstream's, whatever the engine.",
                )
                .unit(Unit::Seconds)
                .labels(&["operation"])
                .buckets(STORE_SECONDS),
            ),
            panics: registry.counter(define(
                "apiserver_request_aborts_total",
                "Requests whose handler panicked. Anything but 0 is a bug worth reporting.",
            )),
            registry,
        }
    }

    /// Registers the figures that are read from the cache when somebody looks.
    pub fn watch_cache(&self, cache: Arc<Cache>) {
        self.registry.collector(move |encoder: &mut Encoder| {
            let figures: [(_, _, Figure); 2] = [
                (
                    "apiserver_resource_objects",
                    "Stored objects by resource.",
                    Collection::count,
                ),
                (
                    "apiserver_resource_size_estimate_bytes",
                    "Bytes of stored objects by resource, as JSON.",
                    Collection::object_bytes,
                ),
            ];
            for (name, help, figure) in figures {
                let mut family = encoder.family(name, help, MetricKind::Gauge);
                for collection in cache.stored() {
                    let kind = collection.kind;
                    let labels = [("group", kind.group), ("resource", kind.plural)];
                    family.sample(&labels, figure(collection) as f64);
                }
            }
            encoder
                .family(
                    "apiserver_watch_cache_resource_version",
                    "Everything up to this revision can be read from memory; a restart continues from it.",
                    MetricKind::Gauge,
                )
                .sample(&[], cache.applied().0 as f64);
        });
    }

    /// Counts a finished request.
    pub fn finished(&self, labels: &RequestLabels, code: u16, took: Duration, size: Option<u64>) {
        let RequestLabels {
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
        } = *labels;
        let text = code.to_string();
        self.requests
            .with(&[verb, dry_run, group, version, resource, subresource, scope, &text])
            .inc();
        if verb != "WATCH" {
            let durations =
                self.durations
                    .with(&[verb, dry_run, group, version, resource, subresource, scope]);
            durations.observe_duration(took);
        }
        if let Some(size) = size {
            self.sizes
                .with(&[verb, group, version, resource, subresource, scope])
                .observe(size as f64);
        }
    }

    /// Records how long the store took.
    pub fn store_took(&self, operation: &str, took: Duration) {
        self.commits.with(&[operation]).observe_duration(took);
    }

    /// Counts a watch as open until the guard is dropped.
    pub fn open_watch(&self, kind: &'static Kind) -> OpenWatch {
        let longrunning = self
            .longrunning
            .with(&["WATCH", kind.group, kind.version, kind.plural]);
        let labels = [kind.group, kind.version, kind.kind];
        OpenWatch {
            _under: Under::new(longrunning),
            events: self.watch_events.with(&labels),
            bytes: self.watch_bytes.with(&labels),
        }
    }
}

/// A gauge that is one higher while this lives.
pub struct Under(Gauge);

impl Under {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counters of one open watch.
pub struct OpenWatch {
    _under: Under,
    events: Counter,
    bytes: Counter,
}

impl OpenWatch {
    /// Counts what was sent.
    pub fn sent(&self, events: u64, bytes: usize) {
        self.events.add(events);
        self.bytes.add(bytes as u64);
    }
}
