//! What is recorded, and what does recording cost?
//!
//! Handles are cheap to clone and share one set of atomics. Recording never takes a lock; a read
//! that races with a recording sees either the state before or after each single atomic.

use crate::text::FamilyEncoder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A metric that a [`crate::Family`] can hold one of per label set.
pub trait Metric: Clone + std::fmt::Debug + Send + Sync + 'static {
    /// What all series of a family share, such as bucket bounds.
    type Config: std::fmt::Debug + Send + Sync + 'static;
    /// A series with nothing recorded.
    fn create(config: &Self::Config) -> Self;
    /// Writes the current state as samples with `labels`.
    fn encode(&self, labels: &[(&str, &str)], out: &mut FamilyEncoder<'_>);
}

/// A number of things that happened; only grows.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Counts one more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `more` at once.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Metric for Counter {
    type Config = ();

    fn create((): &()) -> Self {
        Self::default()
    }

    fn encode(&self, labels: &[(&str, &str)], out: &mut FamilyEncoder<'_>) {
        out.sample(labels, self.get() as f64);
    }
}

/// A level that goes up and down.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Replaces the level.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Raises the level, or lowers it by a negative amount.
    pub fn add(&self, change: f64) {
        add_f64(&self.0, change);
    }

    /// Raises the level by one.
    pub fn inc(&self) {
        self.add(1.0);
    }

    /// Lowers the level by one.
    pub fn dec(&self) {
        self.add(-1.0);
    }

    /// The current level.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl Metric for Gauge {
    type Config = ();

    fn create((): &()) -> Self {
        Self::default()
    }

    fn encode(&self, labels: &[(&str, &str)], out: &mut FamilyEncoder<'_>) {
        out.sample(labels, self.get());
    }
}

/// A distribution over fixed buckets.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    bounds: Arc<[f64]>,
    /// One more than there are bounds: the last counts what is above all of them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Records one value; a value equal to a bound belongs to that bound's bucket.
    pub fn observe(&self, value: f64) {
        let at = self.0.bounds.partition_point(|bound| *bound < value);
        self.0.counts[at].fetch_add(1, Ordering::Relaxed);
        add_f64(&self.0.sum, value);
    }

    /// Records a duration in seconds.
    pub fn observe_duration(&self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }

    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.0
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// The sum of all recorded values.
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.0.sum.load(Ordering::Relaxed))
    }

    /// Pairs of upper bound and cumulative count, without the infinite bucket.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut total = 0;
        let counts = self.0.counts.iter().map(|count| count.load(Ordering::Relaxed));
        self.0
            .bounds
            .iter()
            .zip(counts)
            .map(|(bound, count)| {
                total += count;
                (*bound, total)
            })
            .collect()
    }
}

impl Metric for Histogram {
    type Config = Arc<[f64]>;

    fn create(bounds: &Arc<[f64]>) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Buckets {
            bounds: bounds.clone(),
            counts,
            sum: AtomicU64::new(0),
        }))
    }

    fn encode(&self, labels: &[(&str, &str)], out: &mut FamilyEncoder<'_>) {
        let cumulative = self.cumulative();
        let above = self.0.counts[self.0.bounds.len()].load(Ordering::Relaxed);
        // The count is what the buckets add up to, so that a racing recording cannot make the
        // infinite bucket smaller than the one before it.
        let count = cumulative.last().map_or(0, |(_, count)| *count) + above;
        out.histogram(labels, cumulative, self.sum(), count);
    }
}

/// `count` bounds that start at `first` and grow by `width`.
pub fn linear_buckets(first: f64, width: f64, count: usize) -> Vec<f64> {
    (0..count).map(|step| first + width * step as f64).collect()
}

/// `count` bounds that start at `first` and grow by `factor`.
pub fn exponential_buckets(first: f64, factor: f64, count: usize) -> Vec<f64> {
    (0..count).map(|step| first * factor.powi(step as i32)).collect()
}

pub(crate) fn add_f64(bits: &AtomicU64, change: f64) {
    let add = |old: u64| Some((f64::from_bits(old) + change).to_bits());
    // The closure never declines, so this cannot fail.
    let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_that_bound() {
        let histogram = Histogram::create(&Arc::from([0.1, 0.5]));
        for value in [0.1, 0.2, 0.5, 0.6] {
            histogram.observe(value);
        }
        assert_eq!(histogram.cumulative(), vec![(0.1, 1), (0.5, 3)]);
        assert_eq!(histogram.count(), 4);
    }

    #[test]
    fn recordings_from_several_threads_all_count() {
        let (counter, gauge) = (Counter::default(), Gauge::default());
        let histogram = Histogram::create(&Arc::from([1.0]));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counter.inc();
                        gauge.add(0.5);
                        histogram.observe(2.0);
                    }
                });
            }
        });
        assert_eq!((counter.get(), gauge.get()), (4000, 2000.0));
        assert_eq!((histogram.count(), histogram.sum()), (4000, 8000.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn each_bucket_counts_the_values_up_to_its_bound(
            values in prop::collection::vec(-10.0f64..200.0, 0..50)
        ) {
            let bounds = exponential_buckets(0.5, 2.0, 8);
            let histogram = Histogram::create(&Arc::from(bounds));
            values.iter().for_each(|value| histogram.observe(*value));
            for (bound, count) in histogram.cumulative() {
                prop_assert_eq!(count as usize, values.iter().filter(|value| **value <= bound).count());
            }
            prop_assert_eq!(histogram.count() as usize, values.len());
        }
    }
}
