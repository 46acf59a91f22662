//! What is measured about slices? Upstream's names, and the conditions of what churned.

use pointsman_objects::Service;
use pointsman_slices::ServiceKey;
use pointsman_slices::controller::Job;
use pointsman_telemetry::{Counter, Definition, Family, Gauge, Histogram, Registry, exponential_buckets};
use std::collections::HashMap;

/// Go's default buckets, which upstream uses here.
const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The metrics of the slice loop. Clones share the numbers but not what is remembered per Service.
#[derive(Clone)]
pub struct Metrics {
    added: Histogram,
    removed: Histogram,
    churn: Family<Counter>,
    desired_endpoints: Gauge,
    slices: Gauge,
    desired_slices: Gauge,
    changes: Family<Counter>,
    changed: Family<Histogram>,
    syncs: Family<Counter>,
    distribution: Family<Gauge>,
    backlog: Gauge,
    services: HashMap<ServiceKey, Share>,
}

/// What one Service adds to the totals.
#[derive(Clone, Debug, Default, PartialEq)]
struct Share {
    endpoints: usize,
    slices: usize,
    desired_slices: usize,
    distribution: &'static str,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        let per_sync = || exponential_buckets(2.0, 2.0, 15);
        let define = Definition::new;
        Self {
            added: registry.histogram(
                define(
                    "endpoint_slice_controller_endpoints_added_per_sync",
                    "Endpoints added on each Service sync, per address family.",
                )
                .buckets(per_sync()),
            ),
            removed: registry.histogram(
                define(
                    "endpoint_slice_controller_endpoints_removed_per_sync",
                    "Endpoints removed on each Service sync, per address family.",
                )
                .buckets(per_sync()),
            ),
            churn: registry.counters(
                define(
                    "endpoint_slice_controller_endpoint_changes_total",
                    "Endpoints added, updated or removed, by the conditions they have (removed: had).",
                )
                .labels(&["operation", "condition"]),
            ),
            desired_endpoints: registry.gauge(define(
                "endpoint_slice_controller_endpoints_desired",
                "Endpoints that should exist, over all Services and address families.",
            )),
            slices: registry.gauge(define(
                "endpoint_slice_controller_num_endpoint_slices",
                "EndpointSlices that exist and belong to this controller.",
            )),
            desired_slices: registry.gauge(define(
                "endpoint_slice_controller_desired_endpoint_slices",
                "EndpointSlices that would exist with perfect packing; far fewer than exist means that slices are sparse.",
            )),
            changes: registry.counters(
                define("endpoint_slice_controller_changes", "EndpointSlices created, updated or deleted.").labels(&["operation"]),
            ),
            changed: registry.histograms(
                define(
                    "endpoint_slice_controller_endpointslices_changed_per_sync",
                    "EndpointSlices changed on each Service sync, per address family.",
                )
                .labels(&["topology", "traffic_distribution"])
                .buckets(DEFAULT_BUCKETS),
            ),
            syncs: registry.counters(
                define(
                    "endpoint_slice_controller_syncs",
                    "Service syncs by result: success, error (tried again), stale (waited for its own last write to be seen).",
                )
                .labels(&["result"]),
            ),
            distribution: registry.gauges(
                define(
                    "endpoint_slice_controller_services_count_by_traffic_distribution",
                    "Services that use a traffic distribution.",
                )
                .labels(&["traffic_distribution"]),
            ),
            backlog: registry.gauge(define(
                "endpoint_slice_controller_backlog",
                "Services that wait to be synced. It should return to 0 within a second of a burst.",
            )),
            services: HashMap::new(),
        }
    }

    /// Nothing is known of any Service: a leadership begins.
    pub(super) fn reset(&mut self) {
        self.services.clear();
        for gauge in [
            &self.desired_endpoints,
            &self.slices,
            &self.desired_slices,
            &self.backlog,
        ] {
            gauge.set(0.0);
        }
        for distribution in ["PreferClose", "PreferSameZone", "PreferSameNode"] {
            self.distribution.with(&[distribution]).set(0.0);
        }
    }

    /// A sync found its cache behind its own last write.
    pub(super) fn stale(&self) {
        self.syncs.with(&["stale"]).inc();
    }

    /// Services that wait.
    pub(super) fn backlog(&self, count: usize) {
        self.backlog.set(count as f64);
    }

    /// A sync is over; so many of its writes went through.
    pub(super) fn synced(&mut self, job: &Job, service: Option<&Service>, written: usize, failed: bool) {
        let again = failed || !job.plan.skipped_pods.is_empty();
        self.syncs.with(&[if again { "error" } else { "success" }]).inc();
        let plan = &job.plan;
        let mut left = written;
        let operations = [
            ("create", plan.create.len()),
            ("update", plan.update.len()),
            ("delete", plan.delete.len()),
        ];
        for (operation, planned) in operations {
            let done = planned.min(left);
            left -= done;
            if done > 0 {
                self.changes.with(&[operation]).add(done as u64);
            }
        }
        if failed {
            return;
        }
        let traffic = service.map(|service| service.traffic).unwrap_or_default();
        let (topology, distribution) = (traffic.topology_label(), traffic.distribution_label());
        let mut share = Share {
            distribution,
            ..Share::default()
        };
        for facts in &plan.facts {
            self.added.observe(facts.added.values().sum::<usize>() as f64);
            self.removed.observe(facts.removed.values().sum::<usize>() as f64);
            self.changed
                .with(&[topology, distribution])
                .observe(facts.slices_changed as f64);
            for (operation, counts) in [
                ("added", &facts.added),
                ("updated", &facts.updated),
                ("removed", &facts.removed),
            ] {
                for (condition, count) in counts {
                    self.churn.with(&[operation, condition]).add(*count as u64);
                }
            }
            // Both families of a dual-stack Service count.
            share.endpoints += facts.desired_endpoints;
            share.slices += facts.slices;
            share.desired_slices += facts.desired_slices;
        }
        if service.is_some() {
            self.set(job.key.clone(), share);
        }
    }

    /// A Service is gone.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        if let Some(share) = self.services.remove(key) {
            self.add(&share, -1.0);
        }
    }

    fn set(&mut self, key: ServiceKey, share: Share) {
        self.add(&share, 1.0);
        if let Some(old) = self.services.insert(key, share) {
            self.add(&old, -1.0);
        }
    }

    fn add(&self, share: &Share, sign: f64) {
        self.desired_endpoints.add(sign * share.endpoints as f64);
        self.slices.add(sign * share.slices as f64);
        self.desired_slices.add(sign * share.desired_slices as f64);
        if !share.distribution.is_empty() {
            self.distribution.with(&[share.distribution]).add(sign);
        }
    }
}
