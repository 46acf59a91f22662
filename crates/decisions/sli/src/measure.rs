//! What is the SLI now, and over the day?
//!
//! Joins readings of all programmers into the window and the day. The whole state is one value that can
//! be written down and taken up again: samples and the readings they were counted from are kept together,
//! so that after a restart the next reading adds exactly what was missed, and nothing twice.

use std::collections::BTreeMap;
use std::time::Duration;

use pointsman_model::Moment;

use crate::micros;
use crate::pool::{Estimate, Pool, Span};
use crate::slo::{self, Day, share};
use crate::source::{Reading, addition};
use crate::window::{WINDOW, Window};

const DAY: Duration = Duration::from_secs(86_400);
/// How often the SLI is evaluated for the day.
const EVALUATE: Duration = Duration::from_secs(60);
/// A programmer that was read this recently counts as measured until now.
const GRACE: Duration = Duration::from_secs(30);
/// A programmer that is gone is remembered for this long, in case it comes back.
const MEMORY: Duration = Duration::from_secs(3600);

/// Everything that is kept. Fields are open to whoever writes it down; only the methods change them.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// A fixed objective in microseconds; without it, it follows the number of programmers.
    pub fixed_objective: Option<u64>,
    pub programmers: BTreeMap<String, Programmer>,
    pub window: Window,
    pub exact: Window,
    pub day: Day,
    pub last_tick: Moment,
    pub next_evaluation: Moment,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Programmer {
    pub known_since: Moment,
    pub reading: Option<Reading>,
    /// It measures no samples of its own.
    pub unsampled: bool,
    /// When it left; none while it is there.
    pub left: Option<Moment>,
}

/// Changes that have not arrived: samples that grow until they do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unfinished {
    /// One for each programmer that lacks a change.
    pub pooled: Pool,
    /// One for each change that most programmers lack.
    pub exact: Pool,
}

/// The SLI at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sli {
    /// Samples in the window, and those that are unfinished.
    pub samples: u64,
    /// How many of them are unfinished.
    pub unfinished: u64,
    /// Half of them do not exceed this.
    pub p50: Option<Estimate>,
    /// 90 % of them do not exceed this.
    pub p90: Option<Estimate>,
    /// The SLI: 99 % of them do not exceed this.
    pub p99: Option<Estimate>,
    /// How much of the programmers' time was measured, from 0 to 1.
    pub coverage: f64,
}

impl Measure {
    /// A measurement that begins now.
    pub fn new(objective: Option<Duration>, now: Moment) -> Self {
        Self {
            fixed_objective: objective.map(|it| micros(it).unsigned_abs()),
            programmers: BTreeMap::new(),
            window: Window::default(),
            exact: Window::default(),
            day: Day::new(day_of(now)),
            last_tick: now,
            next_evaluation: now.after(EVALUATE),
        }
    }

    /// A measurement that goes on with another objective.
    #[must_use]
    pub fn with_objective(self, objective: Option<Duration>) -> Self {
        Self {
            fixed_objective: objective.map(|it| micros(it).unsigned_abs()),
            ..self
        }
    }

    /// A programmer is there.
    pub fn joined(&mut self, name: &str, now: Moment) {
        let known = self.programmers.entry(name.to_owned()).or_insert(Programmer {
            known_since: now,
            reading: None,
            unsampled: false,
            left: None,
        });
        known.left = None;
    }

    /// A programmer measures nothing of its own: it counts in the exact form alone.
    pub fn without_samples(&mut self, name: &str) {
        if let Some(programmer) = self.programmers.get_mut(name) {
            programmer.unsampled = true;
        }
    }

    /// A programmer is gone.
    pub fn left(&mut self, name: &str, now: Moment) {
        if let Some(programmer) = self.programmers.get_mut(name) {
            programmer.left = Some(now);
        }
    }

    /// A programmer was read. Its samples are too great by `ahead_millis`, as its clock is ahead.
    pub fn read(&mut self, name: &str, reading: Reading, ahead_millis: i64) {
        let now = reading.at;
        self.joined(name, now);
        let Some(programmer) = self.programmers.get_mut(name) else {
            return;
        };
        let before = programmer.reading.as_ref();
        let added = addition(before, &reading, programmer.known_since);
        let gap = before.map_or(Duration::ZERO, |before| now.since(before.at));
        let older_day = before.is_some_and(|before| day_of(before.at) != day_of(now));
        programmer.reading = Some(reading);
        programmer.unsampled = false;
        let samples = added.samples.earlier_by(ahead_millis);
        if gap <= WINDOW {
            self.window.add(now, &samples, added.covered);
        } else if older_day {
            // They may be from either day, or from one in between.
            self.day.unplaced += samples.count();
            return;
        }
        self.day.samples.merge(&samples);
        self.day.covered_seconds += added.covered.as_secs_f64();
    }

    /// A change was in the kernels of 99 % of the programmers so long after it happened.
    pub fn reached_most(&mut self, latency: Duration, now: Moment) {
        let mut sample = Pool::default();
        sample.add(Span::exact(latency), 1);
        self.exact.add(now, &sample, Duration::ZERO);
        self.day.exact.merge(&sample);
    }

    /// Time passes; returns a day that is over.
    pub fn tick(&mut self, now: Moment, unfinished: &Unfinished) -> Option<Day> {
        self.programmers
            .retain(|_, programmer| programmer.left.is_none_or(|left| now.since(left) <= MEMORY));
        let finished = (day_of(now) != self.day.number).then(|| {
            let next = Day::new(day_of(now));
            std::mem::replace(&mut self.day, next)
        });
        let present = || self.programmers.values().filter(|it| it.left.is_none());
        let sampled = present().filter(|programmer| !programmer.unsampled).count() as f64;
        let present = present().count();
        // After a long absence only this day's part of it is this day's.
        let passed = now.since(self.last_tick).min(now.since(start_of_day(now)));
        self.last_tick = now;
        let expected = passed.mul_f64(sampled);
        self.day.expected_seconds += expected.as_secs_f64();
        self.window.expect(now, expected.min(WINDOW.mul_f64(sampled)));
        self.day.programmers = self.day.programmers.max(present);
        let objective = slo::objective(self.day.programmers);
        self.day.objective_micros = self.fixed_objective.unwrap_or(micros(objective).unsigned_abs());
        if now >= self.next_evaluation || self.next_evaluation.since(now) > EVALUATE {
            self.next_evaluation = now.after(EVALUATE);
            let mut samples = self.window.samples(now);
            samples.merge(&unfinished.pooled);
            self.day.evaluate(samples.quantile(0.99));
        }
        finished
    }

    /// The SLI as the seed defines it: all samples of all programmers in one pool.
    pub fn pooled(&self, now: Moment, unfinished: &Unfinished) -> Sli {
        let (covered, expected) = self.window.coverage(now);
        let pending = self
            .programmers
            .values()
            .filter(|it| it.left.is_none())
            .filter_map(|it| {
                let age = now.since(it.reading.as_ref()?.at);
                (age <= GRACE).then_some(age.as_secs_f64())
            });
        let coverage = share(covered + pending.sum::<f64>(), expected);
        sli(self.window.samples(now), &unfinished.pooled, coverage)
    }

    /// The exact form: for each change, the time until 99 % of the programmers had it. Its coverage is
    /// the share of programmers that tell watermarks.
    pub fn exact(&self, now: Moment, telling: usize, unfinished: &Unfinished) -> Sli {
        let present = self.programmers.values().filter(|it| it.left.is_none()).count();
        let coverage = share(telling as f64, present as f64);
        sli(self.exact.samples(now), &unfinished.exact, coverage)
    }

    /// The day so far.
    pub fn day(&self) -> &Day {
        &self.day
    }

    /// When a programmer was last read.
    pub fn last_read(&self, name: &str) -> Option<Moment> {
        Some(self.programmers.get(name)?.reading.as_ref()?.at)
    }
}

fn sli(mut samples: Pool, unfinished: &Pool, coverage: f64) -> Sli {
    samples.merge(unfinished);
    Sli {
        samples: samples.count(),
        unfinished: unfinished.count(),
        p50: samples.quantile(0.5),
        p90: samples.quantile(0.9),
        p99: samples.quantile(0.99),
        coverage,
    }
}

/// The UTC day of a moment, counted from 1970.
pub fn day_of(now: Moment) -> i64 {
    now.0.div_euclid(micros(DAY))
}

fn start_of_day(now: Moment) -> Moment {
    Moment(day_of(now) * micros(DAY))
}

#[cfg(test)]
mod tests;
