//! What is measured about nodes? Upstream's names.

use super::ranges::Pool;
use pointsman_node_health::{Monitor, Settings};
use pointsman_telemetry::{
    Counter, Definition, Family, Gauge, Histogram, Registry, Unit, exponential_buckets,
};
use std::time::Duration;

/// The metrics of the node loops; clones share the numbers.
#[derive(Clone)]
pub struct Metrics {
    pub(super) ranges: RangeMetrics,
    pub(super) health: HealthMetrics,
    pub(super) evictions: EvictionMetrics,
}

/// Numbers about pod address ranges.
#[derive(Clone)]
pub(super) struct RangeMetrics {
    allocations: Family<Counter>,
    releases: Family<Counter>,
    usage: Family<Gauge>,
    size: Family<Gauge>,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        Self {
            ranges: RangeMetrics::new(registry),
            health: HealthMetrics::new(registry),
            evictions: EvictionMetrics::new(registry),
        }
    }
}

impl RangeMetrics {
    fn new(registry: &Registry) -> Self {
        let define = |name, help| Definition::new(name, help).labels(&["clusterCIDR"]);
        Self {
            allocations: registry.counters(define(
                "node_ipam_controller_cidrset_cidrs_allocations_total",
                "Pod address ranges given to nodes.",
            )),
            releases: registry.counters(define(
                "node_ipam_controller_cidrset_cidrs_releases_total",
                "Pod address ranges that became free with their node.",
            )),
            usage: registry.gauges(define(
                "node_ipam_controller_cidrset_usage_cidrs",
                "Share of the pod address ranges that is held, 0 to 1.",
            )),
            // Upstream spells it like this.
            size: registry.gauges(define(
                "node_ipam_controller_cirdset_max_cidrs",
                "Pod address ranges that can be given out.",
            )),
        }
    }

    pub fn assigned(&self, pools: &[Pool]) {
        self.count(&self.allocations, pools);
    }

    pub fn released(&self, pools: &[Pool]) {
        self.count(&self.releases, pools);
    }

    fn count(&self, counters: &Family<Counter>, pools: &[Pool]) {
        for pool in pools {
            let label = pool.range().to_string();
            let size = f64::from(pool.range().size());
            counters.with(&[&label]).inc();
            self.usage.with(&[&label]).set(pool.held() as f64 / size);
            self.size.with(&[&label]).set(size);
        }
    }
}

/// Numbers about the health of nodes.
#[derive(Clone)]
pub(super) struct HealthMetrics {
    health: Family<Gauge>,
    size: Family<Gauge>,
    unhealthy: Family<Gauge>,
    evictions: Family<Counter>,
    one_node: Histogram,
    all_nodes: Histogram,
    grace_period: Gauge,
}

impl HealthMetrics {
    fn new(registry: &Registry) -> Self {
        let define = Definition::new;
        let by_zone = |name, help| define(name, help).labels(&["zone"]);
        Self {
            health: registry.gauges(by_zone(
                "node_collector_zone_health",
                "Percentage of the zone's nodes that are ready.",
            )),
            size: registry.gauges(by_zone("node_collector_zone_size", "Nodes of the zone.")),
            unhealthy: registry.gauges(by_zone(
                "node_collector_unhealthy_nodes_in_zone",
                "Nodes of the zone that are not ready.",
            )),
            evictions: registry.counters(by_zone(
                "node_collector_evictions_total",
                "Nodes of the zone that were tainted for eviction.",
            )),
            one_node: registry.histogram(
                define(
                    "node_collector_update_node_health_duration_seconds",
                    "Time to write the conditions of a node that fell silent.",
                )
                .buckets(exponential_buckets(0.001, 4.0, 8)),
            ),
            all_nodes: registry.histogram(
                define(
                    "node_collector_update_all_nodes_health_duration_seconds",
                    "Time to look at the heartbeats of all nodes, without the writes that follow.",
                )
                // Upstream begins at 10 ms, which would hide everything here.
                .buckets(exponential_buckets(0.0001, 4.0, 11)),
            ),
            grace_period: registry.gauge(
                define(
                    "pointsman_controllers_node_monitor_grace_period_seconds",
                    "How long a node may be silent, as in force now.",
                )
                .unit(Unit::Seconds),
            ),
        }
    }

    /// These settings are in force.
    pub fn settings(&self, settings: &Settings) {
        self.grace_period.set(settings.grace_period.as_secs_f64());
    }

    /// All nodes were looked at.
    pub fn checked(&self, monitor: &Monitor, took: Duration) {
        self.all_nodes.observe_duration(took);
        for (zone, report) in monitor.zones() {
            // The key of a zone has a zero byte between region and zone.
            let label = zone.replace('\0', "");
            let labels: [&str; 1] = [&label];
            self.health.with(&labels).set(report.census.health_percent());
            self.size.with(&labels).set(report.census.size() as f64);
            self.unhealthy.with(&labels).set(report.census.not_ready as f64);
            let counter = self.evictions.with(&labels);
            counter.add(report.evictions.saturating_sub(counter.get()));
        }
    }

    /// The conditions of a silent node were written.
    pub fn judged(&self, took: Duration) {
        self.one_node.observe_duration(took);
    }
}

/// Numbers about evicted pods.
#[derive(Clone)]
pub(super) struct EvictionMetrics {
    deletions: Counter,
    latency: Histogram,
}

impl EvictionMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            deletions: registry.counter(Definition::new(
                "taint_eviction_controller_pod_deletions_total",
                "Pods deleted because their node is tainted.",
            )),
            latency: registry.histogram(
                Definition::new(
                    "taint_eviction_controller_pod_deletion_duration_seconds",
                    "Time from the moment a pod had to go to its deletion.",
                )
                .buckets([
                    0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0,
                ]),
            ),
        }
    }

    /// A pod was deleted, this long after it should have been.
    pub fn deleted(&self, late: Duration) {
        self.deletions.inc();
        self.latency.observe_duration(late);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_model::Moment;
    use pointsman_node_health::Now;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn zones_are_told_apart_under_upstreams_names() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry);
        let settings = Settings::default();
        let mut monitor = Monitor::new(settings);
        let now = Now {
            tick: Duration::ZERO,
            wall: Moment::default(),
        };
        for (name, zone, ready) in [("a", "x", "True"), ("b", "x", "False"), ("c", "y", "True")] {
            let labels = json!({ "topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "r" });
            let node = json!({
                "metadata": { "name": name, "labels": labels },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            });
            monitor.observe_node(Arc::new(serde_json::from_value(node).unwrap()), now);
        }
        monitor.check(now);
        monitor.pace(now.tick);
        metrics.health.settings(&settings);
        metrics.health.checked(&monitor, Duration::from_millis(1));
        metrics.health.checked(&monitor, Duration::from_millis(1));
        metrics.evictions.deleted(Duration::from_millis(10));
        let text = registry.render();
        for line in [
            "node_collector_zone_health{zone=\"r::x\"} 50",
            "node_collector_zone_size{zone=\"r::x\"} 2",
            "node_collector_zone_size{zone=\"r::y\"} 1",
            "node_collector_unhealthy_nodes_in_zone{zone=\"r::x\"} 1",
            "node_collector_evictions_total{zone=\"r::x\"} 1",
            "node_collector_update_all_nodes_health_duration_seconds_count 2",
            "taint_eviction_controller_pod_deletions_total 1",
            "pointsman_controllers_node_monitor_grace_period_seconds 40",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
