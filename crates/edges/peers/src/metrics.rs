//! What is measured about peers?

use pointsman_telemetry::{Counter, Definition, Gauge, Registry};

#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) asks: Counter,
    pub(crate) answers: Counter,
    pub(crate) peers: Gauge,
    pub(crate) unreachable: Gauge,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        Self {
            asks: registry.counter(Definition::new(
                "pointsman_peer_asks_total",
                "How often this node asked others whether they are there.",
            )),
            answers: registry.counter(Definition::new(
                "pointsman_peer_answers_total",
                "How many of these asks were answered, late answers included.",
            )),
            peers: registry.gauge(Definition::new(
                "pointsman_peers",
                "How many other nodes this node asks.",
            )),
            unreachable: registry.gauge(Definition::new(
                "pointsman_peers_unreachable",
                "How many of them it does not reach, as its Lease says.",
            )),
        }
    }
}
