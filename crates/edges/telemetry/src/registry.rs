//! Which metrics exist?
//!
//! A registry owns the definitions and reads all of them at once. A process may have several, one
//! per role, so that two roles in one process do not mix their numbers.

use crate::collect::Collector;
use crate::family::Family;
use crate::fine::FineHistogram;
use crate::metric::{Counter, Gauge, Histogram, Metric};
use crate::text::{Encoder, Format, Kind, is_label_name, is_metric_name};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a metric's numbers stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count of things.
    Count,
    /// Seconds, as Prometheus wants all times.
    Seconds,
    Bytes,
    /// A fraction between 0 and 1.
    Ratio,
}

/// All that is fixed about a metric before anything is recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// The name as it is exposed.
    pub name: &'static str,
    /// What it measures, and what it does not capture.
    pub help: &'static str,
    /// What the numbers stand for.
    pub unit: Unit,
    /// Label names; values are given in this order.
    pub labels: &'static [&'static str],
    /// How many series may exist; more share one series labelled `other`.
    pub max_series: usize,
    /// Upper bounds of a histogram's buckets, ascending.
    pub buckets: Vec<f64>,
}

impl Definition {
    /// A count without labels.
    pub fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            unit: Unit::Count,
            labels: &[],
            max_series: 1000,
            buckets: Vec::new(),
        }
    }

    /// Names the unit.
    #[must_use]
    pub fn unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// Names the labels.
    #[must_use]
    pub fn labels(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// Limits the number of series.
    #[must_use]
    pub fn max_series(self, max_series: usize) -> Self {
        Self { max_series, ..self }
    }

    /// Names the upper bounds of the buckets.
    #[must_use]
    pub fn buckets(self, buckets: impl Into<Vec<f64>>) -> Self {
        Self {
            buckets: buckets.into(),
            ..self
        }
    }
}

/// The name is taken in this registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateName(pub String);

impl std::fmt::Display for DuplicateName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "metric {} is registered twice", self.0)
    }
}

impl std::error::Error for DuplicateName {}

/// All metrics of one role.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    definitions: BTreeMap<&'static str, (Definition, Kind)>,
    collectors: Vec<Arc<dyn Collector>>,
    overflowed: Option<Family<Counter>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.debug_set().entries(entries.definitions.keys()).finish()
    }
}

/// The registering functions panic on a name that is taken or malformed: both are mistakes in our
/// own code that the first start shows. [`Registry::try_register`] reports a taken name instead.
impl Registry {
    /// A registry with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a counter without labels.
    pub fn counter(&self, definition: Definition) -> Counter {
        self.counters(definition).with(&[])
    }

    /// Registers a counter with labels.
    pub fn counters(&self, definition: Definition) -> Family<Counter> {
        self.family(definition, Kind::Counter, ())
    }

    /// Registers a gauge without labels.
    pub fn gauge(&self, definition: Definition) -> Gauge {
        self.gauges(definition).with(&[])
    }

    /// Registers a gauge with labels.
    pub fn gauges(&self, definition: Definition) -> Family<Gauge> {
        self.family(definition, Kind::Gauge, ())
    }

    /// Registers a histogram without labels.
    pub fn histogram(&self, definition: Definition) -> Histogram {
        self.histograms(definition).with(&[])
    }

    /// Registers a histogram with labels.
    pub fn histograms(&self, definition: Definition) -> Family<Histogram> {
        let bounds: Arc<[f64]> = definition.buckets.as_slice().into();
        assert!(
            bounds.is_sorted_by(|left, right| left < right),
            "buckets of {} ascend",
            definition.name
        );
        self.family(definition, Kind::Histogram, bounds)
    }

    /// Registers a histogram with millisecond buckets, without labels.
    pub fn fine_histogram(&self, definition: Definition) -> FineHistogram {
        self.fine_histograms(definition).with(&[])
    }

    /// Registers a histogram with millisecond buckets.
    pub fn fine_histograms(&self, definition: Definition) -> Family<FineHistogram> {
        self.family(definition, Kind::Histogram, ())
    }

    /// Adds something that writes its own families. Their names should not be registered here too.
    pub fn collector(&self, collector: impl Collector + 'static) {
        self.lock().collectors.push(Arc::new(collector));
    }

    /// Registers a family unless its name is taken.
    pub fn try_register<M: Metric>(
        &self,
        definition: Definition,
        kind: Kind,
        config: M::Config,
    ) -> Result<Family<M>, DuplicateName> {
        assert!(
            is_metric_name(definition.name),
            "metric name {:?}",
            definition.name
        );
        assert!(
            definition
                .labels
                .iter()
                .all(|label| is_label_name(label) && *label != "le"),
            "labels of {}",
            definition.name
        );
        let overflow_counts = self.overflow_counters();
        let mut entries = self.lock();
        if entries.definitions.contains_key(definition.name) {
            return Err(DuplicateName(definition.name.to_owned()));
        }
        entries
            .definitions
            .insert(definition.name, (definition.clone(), kind));
        let family = Family::create(definition, kind, config, Some(overflow_counts));
        entries.collectors.push(Arc::new(family.clone()));
        Ok(family)
    }

    /// Every registered definition with its type, in order of name.
    pub fn definitions(&self) -> Vec<(Definition, Kind)> {
        self.lock().definitions.values().cloned().collect()
    }

    /// The whole state in the classic Prometheus text format.
    pub fn render(&self) -> String {
        self.render_as(Format::Classic)
    }

    /// The same in a format that somebody asked for.
    pub fn render_as(&self, format: Format) -> String {
        // Collectors run without the lock, so that one of them may read this registry.
        let collectors = self.lock().collectors.clone();
        let mut encoder = Encoder::new(format);
        for collector in collectors {
            collector.collect(&mut encoder);
        }
        encoder.finish()
    }

    fn family<M: Metric>(&self, definition: Definition, kind: Kind, config: M::Config) -> Family<M> {
        self.try_register(definition, kind, config)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Registers the counter of overflows before any family does.
    pub(crate) fn count_overflows(&self) {
        self.overflow_counters();
    }

    fn overflow_counters(&self) -> Family<Counter> {
        let mut entries = self.lock();
        if let Some(family) = &entries.overflowed {
            return family.clone();
        }
        let definition = Definition::new(
            "telemetry_series_overflow_total",
            "Label lookups that fell into a family's `other` series because the family is full.",
        )
        .labels(&["metric"])
        .max_series(usize::MAX);
        entries
            .definitions
            .insert(definition.name, (definition.clone(), Kind::Counter));
        let family = Family::create(definition, Kind::Counter, (), None);
        entries.collectors.push(Arc::new(family.clone()));
        entries.overflowed = Some(family.clone());
        family
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_renders_cumulative_buckets_sum_and_count() {
        let registry = Registry::new();
        let histogram = registry.histogram(
            Definition::new("wait_seconds", "Wait.")
                .unit(Unit::Seconds)
                .buckets([0.005, 1.0]),
        );
        histogram.observe(0.002);
        histogram.observe(0.5);
        histogram.observe(7.0);
        let expected = "# HELP wait_seconds Wait.\n# TYPE wait_seconds histogram\n\
            wait_seconds_bucket{le=\"0.005\"} 1\nwait_seconds_bucket{le=\"1\"} 2\n\
            wait_seconds_bucket{le=\"+Inf\"} 3\nwait_seconds_sum 7.502\nwait_seconds_count 3\n";
        assert!(registry.render().ends_with(expected), "{}", registry.render());
    }

    #[test]
    fn equal_states_render_to_equal_bytes_whatever_the_order_of_recording() {
        let render = |order: &[usize]| {
            let registry = Registry::new();
            let family = registry.gauges(Definition::new("level", "h").labels(&["name"]));
            for at in order {
                family.with(&[&at.to_string()]).set(*at as f64);
            }
            registry.collector(|encoder: &mut Encoder| {
                encoder.family("a_first", "h", Kind::Gauge).sample(&[], 1.0);
            });
            registry.render()
        };
        assert_eq!(render(&[1, 2, 3, 4]), render(&[4, 2, 3, 1]));
        assert!(render(&[]).starts_with("# HELP a_first"));
    }

    #[test]
    fn a_name_can_be_registered_once() {
        let registry = Registry::new();
        registry.counter(Definition::new("x_total", "h"));
        let again = registry.try_register::<Gauge>(Definition::new("x_total", "h"), Kind::Gauge, ());
        assert_eq!(again.map(|_| ()), Err(DuplicateName("x_total".into())));
        let names: Vec<&str> = registry
            .definitions()
            .iter()
            .map(|(definition, _)| definition.name)
            .collect();
        assert_eq!(names, ["telemetry_series_overflow_total", "x_total"]);
    }
}
