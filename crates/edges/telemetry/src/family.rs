//! How does one metric have many series without growing for ever?
//!
//! A family maps label values to series. Resolving label values takes a read lock and a hash, with
//! no allocation when the series exists; hot paths resolve once and keep the handle.

use crate::collect::Collector;
use crate::metric::{Counter, Metric};
use crate::registry::Definition;
use crate::text::{Encoder, Kind};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// The value of every label of the series that stands for all that did not fit.
pub const OVERFLOW_LABEL: &str = "other";

/// The series of one metric, by label values.
#[derive(Debug)]
pub struct Family<M: Metric>(Arc<Inner<M>>);

impl<M: Metric> Clone for Family<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
struct Inner<M: Metric> {
    definition: Definition,
    kind: Kind,
    config: M::Config,
    hasher: RandomState,
    series: RwLock<Table<M>>,
    overflow: M,
    /// Counts lookups that did not fit, once there are any.
    overflowed: OnceLock<Counter>,
    /// Where those counts are kept; the family of these counts has none.
    overflow_counts: Option<Family<Counter>>,
}

#[derive(Debug)]
struct Table<M> {
    /// Series by the hash of their label values; a chain holds those that collide.
    by_hash: HashMap<u64, Vec<Series<M>>>,
    count: usize,
}

#[derive(Debug)]
struct Series<M> {
    values: Box<[Box<str>]>,
    metric: M,
}

impl<M: Metric> Family<M> {
    pub(crate) fn create(
        definition: Definition,
        kind: Kind,
        config: M::Config,
        overflow_counts: Option<Family<Counter>>,
    ) -> Self {
        Self(Arc::new(Inner {
            definition,
            kind,
            overflow: M::create(&config),
            config,
            hasher: RandomState::new(),
            series: RwLock::new(Table {
                by_hash: HashMap::new(),
                count: 0,
            }),
            overflowed: OnceLock::new(),
            overflow_counts,
        }))
    }

    /// The series with these label values, in the order of the definition's labels; made when it is
    /// new. Beyond the series limit, all new label values share one series labelled `other`.
    ///
    /// # Panics
    /// If the number of values differs from the number of labels: a mistake in our own code.
    pub fn with(&self, values: &[&str]) -> M {
        let inner = &*self.0;
        assert_eq!(
            values.len(),
            inner.definition.labels.len(),
            "labels of {}",
            inner.definition.name
        );
        let hash = inner.hasher.hash_one(values);
        let table = inner.series.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(metric) = table.find(hash, values) {
            return metric.clone();
        }
        drop(table);
        let mut table = inner.series.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(metric) = table.find(hash, values) {
            return metric.clone();
        }
        if table.count >= inner.definition.max_series {
            let counts = || {
                inner
                    .overflow_counts
                    .as_ref()
                    .map(|counts| counts.with(&[inner.definition.name]))
            };
            inner
                .overflowed
                .get_or_init(|| counts().unwrap_or_default())
                .inc();
            return inner.overflow.clone();
        }
        let metric = M::create(&inner.config);
        let values = values.iter().map(|value| (*value).into()).collect();
        table.count += 1;
        table.by_hash.entry(hash).or_default().push(Series {
            values,
            metric: metric.clone(),
        });
        metric
    }

    /// Forgets the series with these label values, if it exists. Handles to it stay usable but are
    /// no longer read.
    pub fn remove(&self, values: &[&str]) {
        let hash = self.0.hasher.hash_one(values);
        let mut table = self.0.series.write().unwrap_or_else(PoisonError::into_inner);
        let Some(chain) = table.by_hash.get_mut(&hash) else {
            return;
        };
        let before = chain.len();
        chain.retain(|series| !series.is(values));
        let removed = before - chain.len();
        if chain.is_empty() {
            table.by_hash.remove(&hash);
        }
        table.count -= removed;
    }

    /// How many series exist.
    pub fn len(&self) -> usize {
        self.0.series.read().unwrap_or_else(PoisonError::into_inner).count
    }

    /// Whether no series exists.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<M> Table<M> {
    fn find(&self, hash: u64, values: &[&str]) -> Option<&M> {
        let chain = self.by_hash.get(&hash)?;
        chain
            .iter()
            .find(|series| series.is(values))
            .map(|series| &series.metric)
    }
}

impl<M> Series<M> {
    fn is(&self, values: &[&str]) -> bool {
        self.values.iter().map(AsRef::as_ref).eq(values.iter().copied())
    }
}

impl<M: Metric> Collector for Family<M> {
    fn collect(&self, encoder: &mut Encoder) {
        let inner = &*self.0;
        let definition = &inner.definition;
        let mut out = encoder.family(definition.name, definition.help, inner.kind);
        let table = inner.series.read().unwrap_or_else(PoisonError::into_inner);
        let mut series: Vec<&Series<M>> = table.by_hash.values().flatten().collect();
        series.sort_unstable_by(|left, right| left.values.cmp(&right.values));
        for series in series {
            let values = series.values.iter().map(AsRef::as_ref);
            let labels: Vec<(&str, &str)> = definition.labels.iter().copied().zip(values).collect();
            series.metric.encode(&labels, &mut out);
        }
        if inner.overflowed.get().is_some() && !definition.labels.is_empty() {
            let labels: Vec<(&str, &str)> = definition
                .labels
                .iter()
                .map(|label| (*label, OVERFLOW_LABEL))
                .collect();
            inner.overflow.encode(&labels, &mut out);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Definition, Registry};

    #[test]
    fn the_same_label_values_give_the_same_series() {
        let registry = Registry::new();
        let family = registry.counters(Definition::new("requests_total", "h").labels(&["verb", "code"]));
        let handle = family.with(&["GET", "200"]);
        family.with(&["GET", "200"]).inc();
        // Values that concatenate alike are still different series.
        family.with(&["GE", "T200"]).inc();
        assert_eq!(handle.get(), 1);
        assert_eq!(family.len(), 2);
    }

    #[test]
    fn a_family_never_exceeds_its_limit_and_says_what_did_not_fit() {
        let registry = Registry::new();
        let family = registry.counters(
            Definition::new("things_total", "h")
                .labels(&["name"])
                .max_series(3),
        );
        for at in 0..100 {
            family.with(&[&format!("n{at:02}")]).inc();
        }
        assert_eq!(family.len(), 3);
        let text = registry.render();
        assert!(text.contains("things_total{name=\"n02\"} 1\n"));
        assert!(text.contains("things_total{name=\"other\"} 97\n"));
        assert!(text.contains("telemetry_series_overflow_total{metric=\"things_total\"} 97\n"));
        family.remove(&["n00"]);
        family.with(&["n99"]).inc();
        assert!(registry.render().contains("things_total{name=\"n99\"} 1\n"));
    }
}
