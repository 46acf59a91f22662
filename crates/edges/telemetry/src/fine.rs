//! How are latencies kept to the millisecond without a fixed set of buckets?
//!
//! [`FineHistogram`] has one bucket per millisecond up to five minutes, in pages of one second that
//! are allocated when first used: a program whose latencies stay below two seconds pays for two
//! pages, 16 KiB. Rendering is sparse: only buckets that hold something appear, each together with
//! the bound just below it, so that interpolating readers stay within the millisecond.
//!
//! What this does not do: bounds appear over time, so `rate()` over single buckets in Prometheus
//! misses the first recording of each. Readers that pool whole histograms are exact.

use crate::metric::{Metric, add_f64};
use crate::text::{Exemplar, FamilyEncoder};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

const PAGE: usize = 1000;
const PAGES: usize = 300;
/// Buckets of one histogram that show a trace.
const EXEMPLARS: usize = 16;

/// A distribution of durations with millisecond buckets up to five minutes.
#[derive(Clone, Debug)]
pub struct FineHistogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pages: Box<[OnceLock<Box<[AtomicU64]>>]>,
    above: AtomicU64,
    sum: AtomicU64,
    /// By bucket; the oldest makes room.
    exemplars: Mutex<BTreeMap<u32, Exemplar>>,
}

impl Default for FineHistogram {
    fn default() -> Self {
        let pages = (0..PAGES).map(|_| OnceLock::new()).collect();
        Self(Arc::new(Inner {
            pages,
            above: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            exemplars: Mutex::default(),
        }))
    }
}

impl FineHistogram {
    /// Records one duration; it counts as the next whole millisecond.
    pub fn observe(&self, duration: Duration) {
        let bucket = millis_up(duration).saturating_sub(1);
        let count = match usize::try_from(bucket).ok().filter(|at| *at < PAGE * PAGES) {
            Some(at) => {
                let page =
                    self.0.pages[at / PAGE].get_or_init(|| (0..PAGE).map(|_| AtomicU64::new(0)).collect());
                &page[at % PAGE]
            }
            None => &self.0.above,
        };
        count.fetch_add(1, Ordering::Relaxed);
        add_f64(&self.0.sum, duration.as_secs_f64());
    }

    /// Counts a duration that has a trace, at a time in seconds since 1970.
    pub fn observe_traced(&self, duration: Duration, trace: &str, at: f64) {
        self.observe(duration);
        let bucket = u32::try_from(millis_up(duration).max(1)).unwrap_or(u32::MAX);
        let mut exemplars = self.0.exemplars.lock().unwrap_or_else(PoisonError::into_inner);
        exemplars.insert(
            bucket,
            Exemplar {
                trace: trace.into(),
                value: duration.as_secs_f64(),
                at,
            },
        );
        if exemplars.len() > EXEMPLARS {
            let oldest = exemplars
                .iter()
                .min_by(|(_, one), (_, other)| one.at.total_cmp(&other.at));
            if let Some(oldest) = oldest.map(|(bucket, _)| *bucket) {
                exemplars.remove(&oldest);
            }
        }
    }

    /// The current state as a value.
    pub fn snapshot(&self) -> FineSnapshot {
        let mut counts = BTreeMap::new();
        for (at, page) in self.0.pages.iter().enumerate() {
            for (offset, count) in page.get().into_iter().flatten().enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    counts.insert((at * PAGE + offset + 1) as u32, count);
                }
            }
        }
        let above = self.0.above.load(Ordering::Relaxed);
        let sum = f64::from_bits(self.0.sum.load(Ordering::Relaxed));
        FineSnapshot { counts, above, sum }
    }
}

impl Metric for FineHistogram {
    type Config = ();

    fn create((): &()) -> Self {
        Self::default()
    }

    fn encode(&self, labels: &[(&str, &str)], out: &mut FamilyEncoder<'_>) {
        let snapshot = self.snapshot();
        let exemplars = self.0.exemplars.lock().unwrap_or_else(PoisonError::into_inner);
        let exemplars: Vec<(f64, Exemplar)> = exemplars
            .iter()
            .map(|(bucket, exemplar)| (bucket_bound(*bucket), exemplar.clone()))
            .collect();
        out.histogram_with(
            labels,
            snapshot.sparse_cumulative(),
            (snapshot.sum, snapshot.count()),
            &exemplars,
        );
    }
}

/// What a [`FineHistogram`] held at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FineSnapshot {
    /// Recordings by upper bound in milliseconds; empty buckets are absent.
    pub counts: BTreeMap<u32, u64>,
    /// Recordings above five minutes.
    pub above: u64,
    /// The sum of all recordings, in seconds.
    pub sum: f64,
}

impl FineSnapshot {
    /// How many recordings there are.
    pub fn count(&self) -> u64 {
        self.counts.values().sum::<u64>() + self.above
    }

    /// Adds the recordings of `other`.
    pub fn merge(&mut self, other: &FineSnapshot) {
        for (bound, count) in &other.counts {
            *self.counts.entry(*bound).or_default() += count;
        }
        self.above += other.above;
        self.sum += other.sum;
    }

    /// The recordings made since `earlier`, a former state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &FineSnapshot) -> FineSnapshot {
        let mut counts = BTreeMap::new();
        for (bound, count) in &self.counts {
            let more = count.saturating_sub(earlier.counts.get(bound).copied().unwrap_or(0));
            if more > 0 {
                counts.insert(*bound, more);
            }
        }
        let above = self.above.saturating_sub(earlier.above);
        FineSnapshot {
            counts,
            above,
            sum: self.sum - earlier.sum,
        }
    }

    /// The smallest whole millisecond that at least the fraction `quantile` of recordings do not
    /// exceed. `None` without recordings, or when it lies above five minutes.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let rank = ((self.count() as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut total = 0;
        for (bound, count) in &self.counts {
            total += count;
            if total >= rank {
                return Some(Duration::from_millis(u64::from(*bound)));
            }
        }
        None
    }

    /// Pairs of upper bound in seconds and cumulative count around the buckets that hold something.
    pub fn sparse_cumulative(&self) -> Vec<(f64, u64)> {
        let mut pairs = Vec::with_capacity(self.counts.len() * 2);
        let (mut total, mut last) = (0, 0);
        for (bound, count) in &self.counts {
            if bound - 1 > last {
                pairs.push((seconds(bound - 1), total));
            }
            total += count;
            last = *bound;
            pairs.push((seconds(*bound), total));
        }
        pairs
    }
}

/// The bound under which a bucket appears.
fn bucket_bound(millis: u32) -> f64 {
    match millis as usize <= PAGE * PAGES {
        true => seconds(millis),
        false => f64::INFINITY,
    }
}

fn millis_up(duration: Duration) -> u128 {
    duration.as_nanos().div_ceil(1_000_000)
}

fn seconds(millis: u32) -> f64 {
    f64::from(millis) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rendering_is_sparse_and_keeps_the_millisecond() {
        let registry = crate::Registry::new();
        let histogram = registry.fine_histogram(crate::Definition::new("lag_seconds", "Lag."));
        for micros in [6_500, 7_000, 7_001, 299_999_500, 400_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let text = registry.render();
        let buckets: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("lag_seconds_bucket"))
            .collect();
        assert_eq!(
            buckets,
            [
                "lag_seconds_bucket{le=\"0.006\"} 0",
                "lag_seconds_bucket{le=\"0.007\"} 2",
                "lag_seconds_bucket{le=\"0.008\"} 3",
                "lag_seconds_bucket{le=\"299.999\"} 3",
                "lag_seconds_bucket{le=\"300\"} 4",
                "lag_seconds_bucket{le=\"+Inf\"} 5",
            ]
        );
    }

    #[test]
    fn the_newest_traces_are_shown_to_those_who_ask_for_openmetrics() {
        let registry = crate::Registry::new();
        let histogram = registry.fine_histogram(crate::Definition::new("lag_seconds", "Lag."));
        histogram.observe_traced(Duration::from_millis(400_000), "above", 0.5);
        for n in 1..=20u32 {
            histogram.observe_traced(
                Duration::from_millis(u64::from(n)),
                &format!("t{n}"),
                f64::from(n),
            );
        }
        histogram.observe_traced(Duration::from_millis(400_000), "above", 30.5);
        let text = registry.render_as(crate::Format::OpenMetrics);
        assert!(
            text.contains("lag_seconds_bucket{le=\"0.02\"} 20 # {trace_id=\"t20\"} 0.02 20\n"),
            "{text}"
        );
        assert!(
            text.contains("lag_seconds_bucket{le=\"+Inf\"} 22 # {trace_id=\"above\"} 400 30.5\n"),
            "{text}"
        );
        assert_eq!(text.matches("trace_id").count(), EXEMPLARS);
        assert!(!registry.render().contains("trace_id"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn quantiles_agree_with_a_sorted_list(
            mut micros in prop::collection::vec(0u64..2_000_000, 1..200),
            quantile in 0.0f64..=1.0,
        ) {
            let histogram = FineHistogram::default();
            micros.iter().for_each(|micros| histogram.observe(Duration::from_micros(*micros)));
            micros.sort_unstable();
            let rank = ((micros.len() as f64 * quantile).ceil() as usize).max(1);
            let expected = micros[rank - 1].div_ceil(1000).max(1);
            prop_assert_eq!(histogram.snapshot().quantile(quantile), Some(Duration::from_millis(expected)));
        }

        #[test]
        fn a_later_state_minus_an_earlier_one_plus_the_earlier_one_is_the_later_one(
            first in prop::collection::vec(0u64..1000, 0..50),
            second in prop::collection::vec(0u64..1000, 0..50),
        ) {
            let histogram = FineHistogram::default();
            first.iter().for_each(|millis| histogram.observe(Duration::from_millis(*millis)));
            let earlier = histogram.snapshot();
            second.iter().for_each(|millis| histogram.observe(Duration::from_millis(*millis)));
            let later = histogram.snapshot();
            let mut joined = later.since(&earlier);
            joined.merge(&earlier);
            prop_assert_eq!(joined.counts, later.counts);
        }
    }
}
