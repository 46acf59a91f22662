//! What does the proxy measure?
//!
//! Names that kube-proxy also has keep its spelling, labels and buckets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pointsman_api_client::RequestMetrics;
use pointsman_dataplane::trigger::{Cause, Trigger};
use pointsman_dataplane::{Recovery, Scope, Totals, Watermark, Written};
use pointsman_iptables::rule::PacketCounter;
use pointsman_kernel::{Mode, counters};
use pointsman_model::{Dated, IpFamily};
use pointsman_telemetry::{
    Counter, Definition, Encoder, Family, FineHistogram, Gauge, Histogram, Kind, Registry, Unit,
    exponential_buckets, linear_buckets,
};

use crate::localhost::{self, LocalhostMetrics};
use crate::observed::{self, ObservedMetrics};
use crate::resets::{self, ResetMetrics};

const FAMILY: &[&str] = &["ip_family"];

/// All metrics of the process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Those of each family, IPv4 first.
    pub families: [FamilyMetrics; 2],
    /// Slice events and those since the last sync began.
    pub endpoint_changes: (Counter, Gauge),
    /// Service events and those since the last sync began.
    pub service_changes: (Counter, Gauge),
    /// Answers of `/healthz` by code.
    pub healthz: Family<Counter>,
    /// Answers of `/livez` by code.
    pub livez: Family<Counter>,
    /// Whether features are on, by name and stage.
    pub features: Family<Gauge>,
    pub requests: RequestMetrics,
    /// Whether another service proxy writes rules here, by its mode.
    pub second_writers: Family<Gauge>,
    /// Of asking other nodes whether they are there.
    pub peers: pointsman_peers::Metrics,
    watermark: Family<Gauge>,
}

/// The metrics of one family.
#[derive(Clone, Debug)]
pub struct FamilyMetrics {
    all: Histogram,
    full: Histogram,
    partial: Histogram,
    programming: Histogram,
    programming_fine: FineHistogram,
    /// Of Services, then of slices; by how well their beginning is known.
    samples: [[Counter; 3]; 2],
    last_sync: Gauge,
    last_queued: Gauge,
    failures: Counter,
    partial_failures: Counter,
    no_local: [Gauge; 2],
    rules_total: [Gauge; 2],
    rules_last: [Gauge; 2],
    input: [Counter; 3],
    elements: Counter,
    transactions: Counter,
    /// Checks that found that somebody may have changed the rules.
    pub disturbances: Counter,
    /// Full syncs that put right what somebody changed.
    pub repairs: Counter,
    /// Chains in which partial syncs led elsewhere than a full one would.
    pub divergences: Counter,
    /// Rules of another mode that could not be removed.
    pub cleanup_failures: Counter,
    /// Stale UDP flows that were deleted.
    pub flows_deleted: Counter,
    /// How long looking for stale flows takes.
    pub flows_duration: Histogram,
    /// What nftables mode does about node ports of loopback addresses.
    pub localhost: LocalhostMetrics,
    /// Of ending connections to nodes that are gone.
    pub resets: ResetMetrics,
    pub observed: ObservedMetrics,
}

impl Metrics {
    /// Registers everything. Metrics of the other mode are not registered.
    pub fn new(registry: &Registry, mode: Mode) -> Self {
        let defined = Defined::new(registry, mode);
        if mode == Mode::Iptables {
            registry.collector(collect_packets);
        }
        let changes = |what: &'static str, pending: &'static str, help: &'static str| {
            (
                registry.counter(Definition::new(what, help)),
                registry.gauge(Definition::new(
                    pending,
                    "Changes received since the last sync began. It returns to 0 with every sync.",
                )),
            )
        };
        let codes = |name: &'static str, help: &'static str| {
            registry.counters(Definition::new(name, help).labels(&["code"]))
        };
        Self {
            families: [IpFamily::V4, IpFamily::V6].map(|family| defined.of(family)),
            endpoint_changes: changes(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "EndpointSlices received as added, changed or deleted.",
            ),
            service_changes: changes(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Services received as added, changed or deleted.",
            ),
            healthz: codes(
                "kubeproxy_proxy_healthz_total",
                "Answers of /healthz by HTTP code; 503 means that a sync is overdue or the node is being deleted.",
            ),
            livez: codes(
                "kubeproxy_proxy_livez_total",
                "Answers of /livez by HTTP code; 503 means that a sync is overdue.",
            ),
            features: registry.gauges(
                Definition::new(
                    "kubernetes_feature_enabled",
                    "Whether a feature gate is on; the stage is empty for those that are stable.",
                )
                .labels(&["name", "stage"]),
            ),
            requests: RequestMetrics::new(registry),
            peers: pointsman_peers::Metrics::new(registry),
            second_writers: registry.gauges(
                Definition::new(
                    "pointsman_proxy_second_writer",
                    "1 while kube-proxy, in the mode named, writes rules on this node too; what it left is no writer.",
                )
                .labels(&["mode"]),
            ),
            watermark: registry.gauges(
                Definition::new(
                    "pointsman_proxy_watermark_resource_version",
                    "All changes of the resource up to this version are in the kernel, in both families.",
                )
                .labels(&["resource"]),
            ),
        }
    }

    /// Publishes up to where the kernel is up to date.
    pub fn watermark(&self, watermark: Watermark) {
        let parts = [
            ("services", watermark.services),
            ("endpointslices", watermark.slices),
        ];
        for (resource, revision) in parts {
            if let Some(revision) = revision {
                self.watermark.with(&[resource]).set(revision.0 as f64);
            }
        }
    }

    /// Everything received so far is part of the sync that begins.
    pub fn nothing_pending(&self) {
        self.endpoint_changes.1.set(0.0);
        self.service_changes.1.set(0.0);
    }
}

impl FamilyMetrics {
    /// A sync was asked for.
    pub fn queued(&self) {
        self.last_queued.set(unix_seconds());
    }

    /// A sync ended, well or not.
    pub fn took(&self, scope: Scope, took: Duration) {
        self.all.observe_duration(took);
        match scope {
            Scope::Full => self.full.observe_duration(took),
            Scope::Partial => self.partial.observe_duration(took),
        }
    }

    /// The kernel has a batch.
    pub fn synced(&self, totals: &Totals) {
        self.last_sync.set(unix_seconds());
        self.no_local[0].set(totals.dropping_internal as f64);
        self.no_local[1].set(totals.dropping_external as f64);
    }

    /// What was written for it.
    pub fn wrote(&self, written: &Written) {
        self.transactions.add(written.transactions as u64);
        self.elements.add(written.elements as u64);
        self.repairs.add(u64::from(written.repaired));
        if let Some(size) = &written.restored {
            for table in 0..2 {
                self.rules_total[table].set(size.total[table] as f64);
                self.rules_last[table].set(size.written[table] as f64);
            }
            for (counter, amount) in self.input.iter().zip([size.bytes, size.lines, size.chains]) {
                counter.add(amount as u64);
            }
        }
    }

    /// The kernel does not have a batch.
    pub fn failed(&self, scope: Scope, recovery: Recovery) {
        self.failures.inc();
        if scope == Scope::Partial && recovery == Recovery::FullResync {
            self.partial_failures.inc();
        }
    }

    /// The time from a change to the kernel.
    pub fn programmed(&self, trigger: &Trigger, latency: Duration) {
        self.programming.observe_duration(latency);
        self.programming_fine.observe(latency);
        let resource = usize::from(trigger.cause != Cause::Service);
        self.samples[resource][trigger.began.dated as usize].inc();
    }
}

/// Families of series before they are told apart by IP family.
struct Defined {
    times: Times,
    writes: Writes,
    iptables: Option<IptablesWrites>,
    elements: Option<Family<Counter>>,
    cleanup_failures: Option<Family<Counter>>,
    no_local: Family<Gauge>,
    flows_deleted: Family<Counter>,
    flows_duration: Family<Histogram>,
    localhost: Option<localhost::Defined>,
    resets: resets::Defined,
    observed: observed::Defined,
}

/// When and how long.
struct Times {
    durations: [Family<Histogram>; 3],
    programming: Family<Histogram>,
    programming_fine: Family<FineHistogram>,
    samples: Family<Counter>,
    stamps: [Family<Gauge>; 2],
}

/// What is written and repaired in both modes.
struct Writes {
    failures: Family<Counter>,
    transactions: Family<Counter>,
    disturbances: Family<Counter>,
    repairs: Family<Counter>,
}

/// What only iptables mode has.
struct IptablesWrites {
    partial_failures: Family<Counter>,
    divergences: Family<Counter>,
    rules: [Family<Gauge>; 2],
    input: [Family<Counter>; 3],
}

fn counter(registry: &Registry, name: &'static str, help: &'static str) -> Family<Counter> {
    registry.counters(Definition::new(name, help).labels(FAMILY))
}

fn duration(registry: &Registry, name: &'static str, help: &'static str) -> Family<Histogram> {
    let definition = Definition::new(name, help).unit(Unit::Seconds).labels(FAMILY);
    registry.histograms(definition.buckets(exponential_buckets(0.001, 2.0, 15)))
}

impl Defined {
    fn new(registry: &Registry, mode: Mode) -> Self {
        let iptables = mode == Mode::Iptables;
        Self {
            times: Times::new(registry),
            writes: Writes::new(registry, mode),
            iptables: iptables.then(|| IptablesWrites::new(registry)),
            elements: (!iptables).then(|| {
                counter(
                    registry,
                    "pointsman_proxy_nftables_elements_total",
                    "Elements of sets and maps added or deleted: what a change costs the kernel.",
                )
            }),
            cleanup_failures: (!iptables).then(|| {
                counter(
                    registry,
                    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
                    "Attempts to remove rules that another mode left and that could not be removed.",
                )
            }),
            no_local: registry.gauges(
                Definition::new(
                    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                    "Service ports whose policy wants an endpoint of this node and that have none.",
                )
                .labels(&["traffic_policy", "ip_family"]),
            ),
            flows_deleted: counter(
                registry,
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Connection-tracking entries of UDP flows deleted because their endpoint is gone.",
            ),
            localhost: (!iptables).then(|| localhost::Defined::new(registry)),
            resets: resets::Defined::new(registry),
            observed: observed::Defined::new(registry),
            flows_duration: duration(
                registry,
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "How long looking for stale UDP flows takes.",
            ),
        }
    }

    fn of(&self, family: IpFamily) -> FamilyMetrics {
        let family = family.as_str();
        let series = [family];
        let [all, full, partial] = &self.times.durations;
        let [last_sync, last_queued] = &self.times.stamps;
        let iptables = self.iptables.as_ref();
        let tables = |which: usize| {
            let rules = iptables.map(|defined| &defined.rules[which]);
            ["filter", "nat"]
                .map(|table| rules.map_or_else(Gauge::default, |rules| rules.with(&[table, family])))
        };
        // A metric of the other mode counts into nothing.
        let optional = |counters: Option<&Family<Counter>>| {
            counters.map_or_else(Counter::default, |counters| counters.with(&series))
        };
        FamilyMetrics {
            all: all.with(&series),
            full: full.with(&series),
            partial: partial.with(&series),
            programming: self.times.programming.with(&series),
            programming_fine: self.times.programming_fine.with(&series),
            samples: ["services", "endpointslices"].map(|resource| {
                Dated::ALL.map(|dated| self.times.samples.with(&[family, resource, dated.as_str()]))
            }),
            last_sync: last_sync.with(&series),
            last_queued: last_queued.with(&series),
            failures: self.writes.failures.with(&series),
            partial_failures: optional(iptables.map(|defined| &defined.partial_failures)),
            divergences: optional(iptables.map(|defined| &defined.divergences)),
            no_local: ["internal", "external"].map(|policy| self.no_local.with(&[policy, family])),
            rules_total: tables(0),
            rules_last: tables(1),
            input: [0, 1, 2].map(|part| optional(iptables.map(|defined| &defined.input[part]))),
            elements: optional(self.elements.as_ref()),
            cleanup_failures: optional(self.cleanup_failures.as_ref()),
            transactions: self.writes.transactions.with(&series),
            disturbances: self.writes.disturbances.with(&series),
            repairs: self.writes.repairs.with(&series),
            flows_deleted: self.flows_deleted.with(&series),
            flows_duration: self.flows_duration.with(&series),
            resets: self.resets.of(family),
            observed: self.observed.of(family),
            localhost: self
                .localhost
                .as_ref()
                .map_or_else(LocalhostMetrics::default, |defined| defined.of(family)),
        }
    }
}

impl Times {
    fn new(registry: &Registry) -> Self {
        let stamp = |name: &'static str, help: &'static str| {
            registry.gauges(Definition::new(name, help).unit(Unit::Seconds).labels(FAMILY))
        };
        let latency = |name: &'static str, help: &'static str| {
            Definition::new(name, help).unit(Unit::Seconds).labels(FAMILY)
        };
        Self {
            durations: [
                duration(
                    registry,
                    "kubeproxy_sync_proxy_rules_duration_seconds",
                    "How long syncs take, failed ones too; those without anything to write are not counted.",
                ),
                duration(
                    registry,
                    "kubeproxy_sync_full_proxy_rules_duration_seconds",
                    "How long syncs take that compare and write the whole state.",
                ),
                duration(
                    registry,
                    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                    "How long syncs take that write only what changed.",
                ),
            ],
            programming: registry.histograms(
                latency(
                    "kubeproxy_network_programming_duration_seconds",
                    "Time from the change of a pod or Service to the rules in the kernel. Includes the \
                     difference between the clocks of two machines.",
                )
                .buckets(programming_buckets()),
            ),
            programming_fine: registry.fine_histograms(latency(
                "pointsman_network_programming_duration_seconds",
                "kubeproxy_network_programming_duration_seconds to the millisecond.",
            )),
            samples: registry.counters(
                Definition::new(
                    "pointsman_network_programming_samples_total",
                    "Samples of kubeproxy_network_programming_duration_seconds, by what changed and by how well its \
                     beginning is known (dated): exact to the microsecond, by the second, or only by this proxy's watch.",
                )
                .labels(&["ip_family", "resource", "dated"]),
            ),
            stamps: [
                stamp(
                    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                    "When the kernel was last brought up to date.",
                ),
                stamp(
                    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                    "When a sync was last asked for.",
                ),
            ],
        }
    }
}

impl Writes {
    fn new(registry: &Registry, mode: Mode) -> Self {
        let failures = match mode {
            Mode::Iptables => "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            Mode::Nftables => "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        };
        Self {
            failures: counter(
                registry,
                failures,
                "Syncs that the kernel or a program refused; each is tried again, in full.",
            ),
            transactions: counter(
                registry,
                "pointsman_proxy_transactions_total",
                "Transactions committed, or runs of iptables-restore.",
            ),
            disturbances: counter(
                registry,
                "pointsman_proxy_disturbances_total",
                "Checks that found that somebody else may have changed the rules; a full sync follows each.",
            ),
            repairs: counter(
                registry,
                "pointsman_proxy_repairs_total",
                "Full syncs that found rules which had been right and were no longer, and put them right.",
            ),
        }
    }
}

impl IptablesWrites {
    fn new(registry: &Registry) -> Self {
        let rules = |name: &'static str, help: &'static str| {
            registry.gauges(Definition::new(name, help).labels(&["table", "ip_family"]))
        };
        Self {
            partial_failures: counter(
                registry,
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                "Partial syncs that failed and may have written something; a full one follows each.",
            ),
            divergences: counter(
                registry,
                "pointsman_proxy_divergences_total",
                "Chains in which partial syncs led elsewhere than a full one would; a full sync heals them.",
            ),
            rules: [
                rules(
                    "kubeproxy_sync_proxy_rules_iptables_total",
                    "Rules that the proxy keeps in the table.",
                ),
                rules(
                    "kubeproxy_sync_proxy_rules_iptables_last",
                    "Rules written into the table by the last sync; far fewer than in all when syncs are partial.",
                ),
            ],
            input: [
                counter(
                    registry,
                    "pointsman_proxy_restore_bytes_total",
                    "Bytes given to iptables-restore.",
                ),
                counter(
                    registry,
                    "pointsman_proxy_restore_lines_total",
                    "Lines given to iptables-restore.",
                ),
                counter(
                    registry,
                    "pointsman_proxy_restore_chains_total",
                    "Chains that iptables-restore wrote or removed.",
                ),
            ],
        }
    }
}

/// Packets that rules counted, read from the kernel; what it does not say is left out.
fn collect_packets(encoder: &mut Encoder) {
    let metrics = [
        (
            PacketCounter::InvalidDropped,
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "Packets dropped because connection tracking calls them invalid, of both families.",
        ),
        (
            PacketCounter::LocalhostAccepted,
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
            "Connections to node ports on 127.0.0.1 that were accepted, by their first packets.",
        ),
    ];
    for (counter, name, help) in metrics {
        let mut family = encoder.family(name, help, Kind::Counter);
        if let Some(packets) = counters::read(counter) {
            family.sample(&[], packets as f64);
        }
    }
}

/// The bounds of upstream's metric: its helper for joining lists adds the zero.
fn programming_buckets() -> Vec<f64> {
    let mut buckets = vec![0.0];
    buckets.extend(linear_buckets(0.25, 0.25, 2));
    buckets.extend(linear_buckets(1.0, 1.0, 59));
    buckets.extend(linear_buckets(60.0, 5.0, 12));
    buckets.extend(linear_buckets(120.0, 30.0, 7));
    buckets
}

fn unix_seconds() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use pointsman_model::{Began, Moment, ServiceName};

    use super::*;

    #[test]
    fn latency_has_the_buckets_of_upstream() {
        // Written out from kube-proxy's formula: halves and quarters below a second, seconds of the first minute,
        // fives of the second, then half minutes up to five.
        let quarters = [0.0, 0.25, 0.5].into_iter();
        let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
        let expected: Vec<f64> = quarters.chain(seconds.map(f64::from)).collect();
        assert_eq!(programming_buckets(), expected);
    }

    #[test]
    fn each_mode_shows_its_own_metrics_under_upstream_names() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry, Mode::Iptables);
        let trigger = Trigger {
            cause: Cause::Service,
            service: ServiceName::new("default", "web").unwrap(),
            began: Began::seen(Moment(5)),
        };
        metrics.families[0].programmed(&trigger, Duration::from_millis(7));
        metrics.families[1].failed(Scope::Partial, Recovery::FullResync);
        metrics.families[1].failed(Scope::Partial, Recovery::Retry);
        let text = registry.render();
        for line in [
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.25\"} 1\n",
            "pointsman_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.007\"} 1\n",
            "pointsman_network_programming_samples_total{ip_family=\"IPv4\",resource=\"services\",dated=\"watch\"} 1\n",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv6\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
        let registry = Registry::new();
        Metrics::new(&registry, Mode::Nftables);
        assert!(!registry.render().contains("_iptables_"));
    }
}
