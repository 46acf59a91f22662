//! What is a percentile of samples that are known only by their buckets?
//!
//! A histogram knows of each sample an interval that it lies in: one millisecond for Pointsman's own
//! proxies, a quarter of a second and more for kube-proxy. A [`Pool`] keeps these intervals as they are,
//! so that pooling loses nothing: a percentile comes as an interval too, and the true value lies in it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::micros;

/// The interval (low, high] in microseconds; `u64::MAX` is "above every bound".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The sample is greater than this (or equal to it, if it is zero).
    pub low: u64,
    /// The sample is not greater than this.
    pub high: u64,
}

impl Span {
    /// A sample that is known to the microsecond.
    pub fn exact(value: Duration) -> Self {
        let value = micros(value).unsigned_abs();
        Self {
            low: value,
            high: value,
        }
    }
}

/// Between which two values a percentile lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// It is not less than this.
    pub low: Duration,
    /// It is not greater than this; `None` if it lies above every bound.
    pub high: Option<Duration>,
}

impl Estimate {
    /// How far the reported (upper) value can be from the truth.
    pub fn error(&self) -> Option<Duration> {
        self.high.map(|high| high.saturating_sub(self.low))
    }
}

/// Samples by interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    counts: BTreeMap<Span, u64>,
}

impl Pool {
    /// Adds samples of one interval.
    pub fn add(&mut self, span: Span, count: u64) {
        if count > 0 {
            let known = self.counts.entry(span).or_default();
            *known = known.saturating_add(count);
        }
    }

    /// Adds all samples of another pool.
    pub fn merge(&mut self, other: &Self) {
        for (span, count) in &other.counts {
            self.add(*span, *count);
        }
    }

    /// How many samples there are.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Intervals and how many samples lie in each.
    pub fn iter(&self) -> impl Iterator<Item = (Span, u64)> {
        self.counts.iter().map(|(span, count)| (*span, *count))
    }

    /// What this pool has more than a former state of the same counters. `None` if any of them went back:
    /// then whoever counts has begun anew.
    pub fn since(&self, before: &Self) -> Option<Self> {
        let mut more = Self::default();
        for (span, count) in &self.counts {
            let known = before.counts.get(span).copied().unwrap_or(0);
            more.add(*span, count.checked_sub(known)?);
        }
        let lost = before.counts.keys().any(|span| !self.counts.contains_key(span));
        (!lost).then_some(more)
    }

    /// The same samples, each smaller by so many milliseconds (greater, if negative) but not below zero.
    #[must_use]
    pub fn earlier_by(&self, millis: i64) -> Self {
        let shift = |value: u64| match value {
            u64::MAX => u64::MAX,
            value => value.saturating_add_signed(millis.saturating_mul(-1000)),
        };
        let mut moved = Self::default();
        for (span, count) in &self.counts {
            let span = Span {
                low: shift(span.low),
                high: shift(span.high),
            };
            moved.add(span, *count);
        }
        moved
    }

    /// The value that at least the fraction `quantile` of samples do not exceed; `None` without samples.
    ///
    /// The rank-th smallest of all lower ends and of all upper ends enclose the rank-th smallest sample.
    pub fn quantile(&self, quantile: f64) -> Option<Estimate> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((count as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).clamp(1, count);
        let low = ranked(self.counts.iter().map(|(span, count)| (span.low, *count)), rank);
        let mut highs: Vec<(u64, u64)> = self
            .counts
            .iter()
            .map(|(span, count)| (span.high, *count))
            .collect();
        highs.sort_unstable();
        let high = ranked(highs.into_iter(), rank);
        Some(Estimate {
            low: Duration::from_micros(low),
            high: (high != u64::MAX).then(|| Duration::from_micros(high)),
        })
    }
}

fn ranked(ascending: impl Iterator<Item = (u64, u64)>, rank: u64) -> u64 {
    let mut seen = 0;
    let mut last = 0;
    for (value, count) in ascending {
        last = value;
        seen += count;
        if seen >= rank {
            break;
        }
    }
    last
}

impl From<Vec<(u64, u64, u64)>> for Pool {
    fn from(parts: Vec<(u64, u64, u64)>) -> Self {
        let mut pool = Self::default();
        for (low, high, count) in parts {
            pool.add(Span { low, high }, count);
        }
        pool
    }
}

impl From<Pool> for Vec<(u64, u64, u64)> {
    fn from(pool: Pool) -> Self {
        let parts = pool.counts.into_iter();
        parts.map(|(span, count)| (span.low, span.high, count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KUBE_PROXY: [u64; 5] = [250_000, 500_000, 1_000_000, 2_000_000, u64::MAX];

    fn bucket(bounds: &[u64], sample: u64) -> Span {
        let at = bounds
            .iter()
            .position(|bound| sample <= *bound)
            .unwrap_or(bounds.len() - 1);
        let low = if at == 0 { 0 } else { bounds[at - 1] };
        Span {
            low,
            high: bounds[at],
        }
    }

    fn fine(sample: u64) -> Span {
        let high = sample.div_ceil(1000).max(1) * 1000;
        Span {
            low: high - 1000,
            high,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn the_true_percentile_lies_in_the_estimate(
            samples in prop::collection::vec((0..3_000_000u64, any::<bool>()), 1..200),
            quantile in 0.0..=1.0f64,
        ) {
            let mut pool = Pool::default();
            for (sample, coarse) in &samples {
                pool.add(if *coarse { bucket(&KUBE_PROXY, *sample) } else { fine(*sample) }, 1);
            }
            let mut sorted: Vec<u64> = samples.iter().map(|(sample, _)| *sample).collect();
            sorted.sort_unstable();
            let rank = ((sorted.len() as f64 * quantile).ceil() as usize).clamp(1, sorted.len());
            let truth = Duration::from_micros(sorted[rank - 1]);
            let estimate = pool.quantile(quantile).unwrap();
            prop_assert!(estimate.low <= truth, "{estimate:?} {truth:?}");
            prop_assert!(estimate.high.is_none_or(|high| truth <= high), "{estimate:?} {truth:?}");
            if samples.iter().all(|(_, coarse)| !coarse) {
                prop_assert!(estimate.error().unwrap() <= Duration::from_millis(1));
            }
        }

        #[test]
        fn what_was_added_since_is_what_is_found(
            before in prop::collection::vec(0..2_000_000u64, 0..30),
            more in prop::collection::vec(0..2_000_000u64, 0..30),
        ) {
            let pool = |samples: &[u64]| {
                let mut pool = Pool::default();
                samples.iter().for_each(|sample| pool.add(fine(*sample), 1));
                pool
            };
            let (first, added) = (pool(&before), pool(&more));
            let mut both = first.clone();
            both.merge(&added);
            prop_assert_eq!(both.since(&first), Some(added.clone()));
            prop_assert_eq!(first.since(&both).is_none(), !more.is_empty());
            let rows: Vec<(u64, u64, u64)> = both.clone().into();
            prop_assert_eq!(Pool::from(rows), both);
        }
    }

    #[test]
    fn samples_above_every_bound_have_no_upper_end() {
        let mut pool = Pool::default();
        pool.add(
            Span {
                low: 2_000_000,
                high: u64::MAX,
            },
            1,
        );
        let estimate = pool.quantile(0.99).unwrap();
        assert_eq!((estimate.low, estimate.high), (Duration::from_secs(2), None));
        assert_eq!(Pool::default().quantile(0.5), None);
        assert_eq!(
            pool.earlier_by(1000).quantile(0.5).unwrap().low,
            Duration::from_secs(1)
        );
    }

    #[test]
    fn a_clock_that_is_ahead_is_taken_back_but_not_below_zero() {
        let mut pool = Pool::default();
        pool.add(fine(5_500), 2);
        assert_eq!(
            pool.earlier_by(4).quantile(1.0).unwrap().high,
            Some(Duration::from_millis(2))
        );
        assert_eq!(
            pool.earlier_by(9).quantile(1.0).unwrap().high,
            Some(Duration::ZERO)
        );
        assert_eq!(
            pool.earlier_by(-4).quantile(1.0).unwrap().high,
            Some(Duration::from_millis(10))
        );
    }
}
