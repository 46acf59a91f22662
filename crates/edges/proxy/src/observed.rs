//! How far are rules that kube-proxy writes and we only observe?

use pointsman_telemetry::{Definition, Family, Gauge, Registry};

/// What is known of them, for one family of addresses.
#[derive(Clone, Debug)]
pub struct ObservedMetrics {
    /// Services whose rules have differed for long.
    pub behind: Gauge,
    /// How late what they say may be known.
    pub error: Gauge,
}

/// The same of all families.
pub(crate) struct Defined {
    behind: Family<Gauge>,
    error: Family<Gauge>,
}

impl Defined {
    pub fn new(registry: &Registry) -> Self {
        let gauges = |name, help| registry.gauges(Definition::new(name, help).labels(&["ip_family"]));
        Self {
            behind: gauges(
                "pointsman_proxy_observed_behind_services",
                "Services whose rules, which kube-proxy writes and we only observe, have differed for 5 s or more from \
                 what they must say.",
            ),
            error: gauges(
                "pointsman_proxy_observed_error_seconds",
                "How much later than kube-proxy wrote its rules they may be known, because the older iptables interface \
                 announces nothing and is polled; 0 where commits are announced.",
            ),
        }
    }

    pub fn of(&self, family: &str) -> ObservedMetrics {
        ObservedMetrics {
            behind: self.behind.with(&[family]),
            error: self.error.with(&[family]),
        }
    }
}
