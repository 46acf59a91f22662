//! What is measured about nodes? Upstream's names.

use super::ranges::Pool;
use pointsman_telemetry::{Counter, Definition, Family, Gauge, Registry};

/// The metrics of the node loops; clones share the numbers.
#[derive(Clone)]
pub struct Metrics {
    pub(super) ranges: RangeMetrics,
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
    /// Registers them.
    pub fn new(registry: &Registry) -> Self {
        Self {
            ranges: RangeMetrics::new(registry),
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
