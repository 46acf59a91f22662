//! How is a measurement written as JSON?
//!
//! One structure for each value of `pointsman-sli` that is kept, since those know no encoding. Field names
//! are those of the files: they cannot change without losing what is in them.

use std::collections::BTreeMap;

use pointsman_model::Moment;
use pointsman_sli::measure::{Measure, Programmer};
use pointsman_sli::pool::Pool;
use pointsman_sli::slo::Day;
use pointsman_sli::source::Reading;
use pointsman_sli::window::{Slot, Window};
use serde::{Deserialize, Serialize};

/// Something that is kept as JSON.
pub(crate) trait Saved: Sized {
    fn to_json(&self) -> String;
    fn from_json(text: &str) -> Option<Self>;
}

/// Intervals (low, high] in microseconds, and how many samples lie in each.
type Samples = Vec<(u64, u64, u64)>;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedMeasure {
    fixed_objective: Option<u64>,
    programmers: BTreeMap<String, SavedProgrammer>,
    window: SavedWindow,
    exact: SavedWindow,
    day: SavedDay,
    last_tick: i64,
    next_evaluation: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedProgrammer {
    known_since: i64,
    reading: Option<SavedReading>,
    #[serde(default)]
    unsampled: bool,
    left: Option<i64>,
}

#[derive(Serialize, Deserialize)]
struct SavedReading {
    at: i64,
    started: Option<i64>,
    counted: Samples,
}

#[derive(Serialize, Deserialize)]
struct SavedWindow {
    slots: Vec<SavedSlot>,
}

#[derive(Serialize, Deserialize)]
struct SavedSlot {
    number: i64,
    samples: Samples,
    expected_seconds: f64,
    covered_seconds: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedDay {
    number: i64,
    samples: Samples,
    exact: Samples,
    values: Samples,
    quiet_minutes: u64,
    covered_seconds: f64,
    expected_seconds: f64,
    unplaced: u64,
    programmers: usize,
    objective_micros: u64,
}

impl Saved for Measure {
    fn to_json(&self) -> String {
        json(&SavedMeasure::from(self.clone()))
    }

    fn from_json(text: &str) -> Option<Self> {
        Some(serde_json::from_str::<SavedMeasure>(text).ok()?.into())
    }
}

impl Saved for Day {
    fn to_json(&self) -> String {
        json(&SavedDay::from(self.clone()))
    }

    fn from_json(text: &str) -> Option<Self> {
        Some(serde_json::from_str::<SavedDay>(text).ok()?.into())
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values always serialize")
}

/// Conversions in both directions, field by field, so that a field that is added on one side does not
/// compile without the other.
macro_rules! mirror {
    ($value:ident, $saved:ident { $($field:ident: $to:expr, $from:expr;)* }) => {
        impl From<$value> for $saved {
            fn from(value: $value) -> Self {
                let $value { $($field),* } = value;
                Self { $($field: $to($field)),* }
            }
        }

        impl From<$saved> for $value {
            fn from(saved: $saved) -> Self {
                let $saved { $($field),* } = saved;
                Self { $($field: $from($field)),* }
            }
        }
    };
}

use std::convert::identity as same;

mirror!(Measure, SavedMeasure {
    fixed_objective: same, same;
    programmers: entries, entries;
    window: SavedWindow::from, Window::from;
    exact: SavedWindow::from, Window::from;
    day: SavedDay::from, Day::from;
    last_tick: micros, Moment;
    next_evaluation: micros, Moment;
});

mirror!(Programmer, SavedProgrammer {
    known_since: micros, Moment;
    reading: |it: Option<Reading>| it.map(SavedReading::from), |it: Option<SavedReading>| it.map(Reading::from);
    unsampled: same, same;
    left: |it: Option<Moment>| it.map(micros), |it: Option<i64>| it.map(Moment);
});

mirror!(Reading, SavedReading {
    at: micros, Moment;
    started: |it: Option<Moment>| it.map(micros), |it: Option<i64>| it.map(Moment);
    counted: Samples::from, Pool::from;
});

mirror!(Window, SavedWindow {
    slots: items, items;
});

mirror!(Slot, SavedSlot {
    number: same, same;
    samples: Samples::from, Pool::from;
    expected_seconds: same, same;
    covered_seconds: same, same;
});

mirror!(Day, SavedDay {
    number: same, same;
    samples: Samples::from, Pool::from;
    exact: Samples::from, Pool::from;
    values: Samples::from, Pool::from;
    quiet_minutes: same, same;
    covered_seconds: same, same;
    expected_seconds: same, same;
    unplaced: same, same;
    programmers: same, same;
    objective_micros: same, same;
});

fn micros(at: Moment) -> i64 {
    at.0
}

fn items<T, U: From<T>, C: FromIterator<U>>(items: impl IntoIterator<Item = T>) -> C {
    items.into_iter().map(U::from).collect()
}

fn entries<T, U: From<T>>(entries: BTreeMap<String, T>) -> BTreeMap<String, U> {
    let converted = entries.into_iter().map(|(name, value)| (name, value.into()));
    converted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_sli::measure::Unfinished;
    use pointsman_sli::pool::Span;
    use proptest::prelude::*;
    use std::time::Duration;

    fn pool(millis: &[u64]) -> Pool {
        let mut pool = Pool::default();
        for high in millis {
            let (low, high) = (high * 1000, (high + 1) * 1000);
            pool.add(Span { low, high }, 1);
        }
        pool
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_was_saved_is_what_is_found(
            objective in prop::option::of(1u64..1000),
            readings in prop::collection::vec((0usize..3, 0i64..2000, prop::collection::vec(0u64..500, 0..5)), 0..20),
        ) {
            let at = |seconds: i64| Moment(seconds * 1_000_000);
            let mut measure = Measure::new(objective.map(Duration::from_millis), at(0));
            let mut now = 0;
            for (node, later, millis) in readings {
                now += later;
                let reading = Reading { at: at(now), started: Some(at(now - 1)), counted: pool(&millis) };
                measure.read(&format!("n{node}"), reading, 0);
                measure.reached_most(Duration::from_millis(7), at(now));
                if node == 2 {
                    measure.left("n1", at(now));
                }
                if let Some(day) = measure.tick(at(now), &Unfinished::default()) {
                    prop_assert_eq!(Day::from_json(&day.to_json()), Some(day));
                }
            }
            prop_assert_eq!(Measure::from_json(&measure.to_json()), Some(measure));
        }

        #[test]
        fn any_text_is_a_measurement_or_none(text in any::<String>()) {
            prop_assert_eq!(Measure::from_json(&text), None);
            prop_assert_eq!(Day::from_json(&text), None);
        }
    }

    #[test]
    fn files_of_the_first_release_are_read() {
        let text = r#"{"fixedObjective":null,"programmers":{"n1":{"knownSince":5,"reading":
            {"at":6,"started":null,"counted":[[0,1000,2]]},"left":null}},"window":{"slots":[{"number":1,
            "samples":[],"expected_seconds":1.5,"covered_seconds":1.0}]},"exact":{"slots":[]},"day":{"number":0,
            "samples":[],"exact":[],"values":[],"quietMinutes":1,"coveredSeconds":0.0,"expectedSeconds":0.0,
            "unplaced":0,"programmers":1,"objectiveMicros":100000},"lastTick":7,"nextEvaluation":8}"#;
        let measure = Measure::from_json(text).unwrap();
        assert_eq!(measure.programmers["n1"].known_since, Moment(5));
        assert_eq!(measure.last_read("n1"), Some(Moment(6)));
        assert_eq!(
            (measure.day.quiet_minutes, measure.next_evaluation),
            (1, Moment(8))
        );
    }
}
