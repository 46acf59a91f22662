//! Which samples do a programmer's metrics tell?
//!
//! Pointsman's own histogram resolves a millisecond and is preferred; kube-proxy's has the buckets of
//! upstream. Only the lines that matter are parsed: an exposition may be large and there are many of them.

use pointsman_model::Moment;
use pointsman_sli::pool::{Pool, Span};
use pointsman_sli::source::Reading;
use pointsman_telemetry::parse::{ParseError, parse};
use std::collections::BTreeMap;
use thiserror::Error;

const FINE: &str = "pointsman_network_programming_duration_seconds_bucket";
const COARSE: &str = "kubeproxy_network_programming_duration_seconds_bucket";
const STARTED: &str = "process_start_time_seconds";
/// Samples above the last bucket of Pointsman's histogram are longer than this.
const FINE_LIMIT: u64 = 300_000_000;

type Labels = Vec<(String, String)>;

/// Why an exposition says nothing.
#[derive(Debug, Error)]
pub(crate) enum ScrapeError {
    #[error("the metrics are not text")]
    NotText,
    #[error("the metrics cannot be read")]
    Malformed(#[from] ParseError),
    #[error("there is no histogram of network programming latency")]
    NoHistogram,
}

/// Reads the samples out of an exposition.
pub(crate) fn read(text: &[u8], at: Moment) -> Result<Reading, ScrapeError> {
    let text = std::str::from_utf8(text).map_err(|_| ScrapeError::NotText)?;
    let fine = text.lines().any(|line| line.starts_with(FINE));
    let histogram = if fine { FINE } else { COARSE };
    let relevant: String = text
        .lines()
        .filter(|line| line.starts_with(histogram) || line.starts_with(STARTED))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut started = None;
    // One histogram for each set of labels but the bound.
    let mut series: BTreeMap<Labels, Vec<(u64, u64)>> = BTreeMap::new();
    for family in parse(&relevant)? {
        for mut sample in family.samples {
            if sample.name == STARTED {
                started = Some(Moment((sample.value * 1e6) as i64));
                continue;
            }
            let Some(bound) = sample.label("le").and_then(bound) else {
                continue;
            };
            sample.labels.retain(|(name, _)| name != "le");
            let buckets = series.entry(sample.labels).or_default();
            buckets.push((bound, count(sample.value)));
        }
    }
    // A kube-proxy that has programmed nothing yet has the family but no series.
    if series.is_empty() && !text.contains("network_programming_duration_seconds") {
        return Err(ScrapeError::NoHistogram);
    }
    let mut counted = Pool::default();
    for mut buckets in series.into_values() {
        buckets.sort_unstable();
        let (mut low, mut below) = (0, 0u64);
        for (high, cumulative) in buckets {
            let low_of_this = if fine && high == u64::MAX { FINE_LIMIT } else { low };
            let span = Span {
                low: low_of_this,
                high,
            };
            counted.add(span, cumulative.saturating_sub(below));
            (low, below) = (high, below.max(cumulative));
        }
    }
    Ok(Reading { at, started, counted })
}

/// A bound in microseconds.
fn bound(text: &str) -> Option<u64> {
    if text == "+Inf" {
        return Some(u64::MAX);
    }
    let seconds: f64 = text.parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some((seconds * 1e6).round() as u64)
}

/// Counters that are no counts are none.
fn count(value: f64) -> u64 {
    if value.is_finite() {
        value.max(0.0) as u64
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_telemetry::{Definition, Registry, Unit};
    use std::time::Duration;

    #[test]
    fn our_own_histogram_is_read_to_the_millisecond_and_preferred() {
        let registry = Registry::new();
        let define = |name| {
            Definition::new(name, "h")
                .unit(Unit::Seconds)
                .labels(&["ip_family"])
        };
        let fine = registry.fine_histograms(define("pointsman_network_programming_duration_seconds"));
        let coarse = registry
            .histograms(define("kubeproxy_network_programming_duration_seconds").buckets([0.25, 0.5, 1.0]));
        for (family, millis) in [("IPv4", 3), ("IPv4", 700), ("IPv6", 3), ("IPv4", 400_000)] {
            fine.with(&[family]).observe(Duration::from_millis(millis));
            coarse.with(&[family]).observe(millis as f64 / 1000.0);
        }
        let text = registry.render() + "process_start_time_seconds 12.5\n";
        let reading = read(text.as_bytes(), Moment(7)).unwrap();
        assert_eq!(reading.started, Some(Moment(12_500_000)));
        let spans: Vec<(Span, u64)> = reading.counted.iter().collect();
        let span = |low, high| Span { low, high };
        assert_eq!(
            spans,
            [
                (span(2_000, 3_000), 2),
                (span(699_000, 700_000), 1),
                (span(300_000_000, u64::MAX), 1)
            ]
        );
    }

    #[test]
    fn kube_proxys_buckets_are_kept_as_wide_as_they_are() {
        let text = "# TYPE kubeproxy_network_programming_duration_seconds histogram\n\
            kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.25\"} 3\n\
            kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.5\"} 5\n\
            kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"+Inf\"} 6\n";
        let reading = read(text.as_bytes(), Moment(0)).unwrap();
        let spans: Vec<(u64, u64, u64)> = reading.counted.into();
        assert_eq!(
            spans,
            [(0, 250_000, 3), (250_000, 500_000, 2), (500_000, u64::MAX, 1)]
        );
    }

    #[test]
    fn garbage_is_an_error_and_nonsense_counts_nothing() {
        assert!(matches!(read(b"\xff", Moment(0)), Err(ScrapeError::NotText)));
        assert!(matches!(
            read(b"up 1\n", Moment(0)),
            Err(ScrapeError::NoHistogram)
        ));
        let malformed = format!("{COARSE}{{le=\"1\" 5\n");
        assert!(matches!(
            read(malformed.as_bytes(), Moment(0)),
            Err(ScrapeError::Malformed(_))
        ));
        let odd = format!("{COARSE}{{le=\"x\"}} 5\n{COARSE}{{le=\"1\"}} NaN\n{COARSE}{{le=\"2\"}} -4\n");
        assert!(read(odd.as_bytes(), Moment(0)).unwrap().counted.is_empty());
    }
}
