//! What does the role measure?
//!
//! The families are those that CoreDNS has, under our prefix.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use pointsman_api_client::RequestMetrics;
use pointsman_names::Kind;
use pointsman_protocol::watermark::{Resource, Watermark};
use pointsman_telemetry::{
    Counter, Definition, Family, Gauge, Histogram, Registry, Unit, exponential_buckets,
};

use crate::wire::{self, Transport};

/// All metrics of the role.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<Counter>,
    responses: Family<Counter>,
    cluster: Histogram,
    upstream: Histogram,
    pub ignored: Counter,
    pub rejected: Counter,
    asked: Family<Counter>,
    watermark: Family<Gauge>,
    pub api: RequestMetrics,
}

/// Registers the metrics without running anything, for a reference of them.
pub fn describe_metrics(registry: &Registry) {
    Metrics::new(registry);
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        let durations = registry.histograms(
            Definition::new(
                "pointsman_dns_request_duration_seconds",
                "Time from a question to its answer, by who knew it: the cluster's own zone, or a name server outside.",
            )
            .unit(Unit::Seconds)
            .labels(&["source"])
            .buckets(exponential_buckets(0.000_025, 2.0, 18)),
        );
        Self {
            requests: registry.counters(
                Definition::new(
                    "pointsman_dns_requests_total",
                    "Questions by transport (udp or tcp) and type of record.",
                )
                .labels(&["proto", "type"]),
            ),
            responses: registry.counters(
                Definition::new("pointsman_dns_responses_total", "Answers by their code.").labels(&["rcode"]),
            ),
            cluster: durations.with(&["cluster"]),
            upstream: durations.with(&["upstream"]),
            ignored: registry.counter(Definition::new(
                "pointsman_dns_ignored_packets_total",
                "Packets without an answer: too short for a question, or answers themselves.",
            )),
            rejected: registry.counter(Definition::new(
                "pointsman_dns_upstream_rejected_total",
                "Questions for name servers outside that failed at once because too many were waiting already.",
            )),
            asked: registry.counters(
                Definition::new(
                    "pointsman_dns_upstream_requests_total",
                    "Questions sent to name servers outside: answered, refused (or the server itself failed), failed \
                     (not reached) or timeout.",
                )
                .labels(&["to", "outcome"]),
            ),
            watermark: registry.gauges(
                Definition::new(
                    "pointsman_dns_watermark_resource_version",
                    "All changes of the resource up to this version are in the answers.",
                )
                .labels(&["resource"]),
            ),
            api: RequestMetrics::new(registry),
        }
    }

    pub fn request(&self, transport: Transport, kind: Kind) {
        let transport = match transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        let kind = match kind {
            Kind::A => "A",
            Kind::Aaaa => "AAAA",
            Kind::Srv => "SRV",
            Kind::Ptr => "PTR",
            Kind::Cname => "CNAME",
            Kind::Txt => "TXT",
            Kind::Soa => "SOA",
            Kind::Other => "other",
        };
        self.requests.with(&[transport, kind]).inc();
    }

    pub fn response(&self, packet: &[u8]) {
        let code = match wire::code(packet) {
            ResponseCode::NoError => "NOERROR",
            ResponseCode::FormErr => "FORMERR",
            ResponseCode::ServFail => "SERVFAIL",
            ResponseCode::NXDomain => "NXDOMAIN",
            ResponseCode::NotImp => "NOTIMP",
            ResponseCode::Refused => "REFUSED",
            _ => "other",
        };
        self.responses.with(&[code]).inc();
    }

    pub fn answered_here(&self, since: Instant) {
        self.cluster.observe_duration(since.elapsed());
    }

    pub fn answered_elsewhere(&self, took: Duration) {
        self.upstream.observe_duration(took);
    }

    pub fn asked(&self, server: SocketAddr, outcome: &str) {
        self.asked.with(&[&server.to_string(), outcome]).inc();
    }

    #[expect(clippy::cast_precision_loss, reason = "revisions are far below 2^53")]
    pub fn watermark(&self, watermark: Watermark) {
        for resource in Resource::ALL {
            let version = watermark.of(resource) as f64;
            self.watermark.with(&[resource.as_str()]).set(version);
        }
    }
}
