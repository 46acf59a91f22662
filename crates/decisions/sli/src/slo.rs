//! What is promised, and was it kept?
//!
//! The seed promises that the 99th percentile per cluster-day is at most X and leaves X open. The SLI is
//! evaluated once a minute over the last five; the day's figure is the 99th percentile of these values, so
//! that a quarter of an hour in a day may be bad. `docs/sli.md` reasons about the numbers below.

use std::time::Duration;

use crate::pool::{Estimate, Pool, Span};

/// The objective by number of programmers: up to so many, this time.
pub const OBJECTIVES: [(usize, Duration); 4] = [
    (100, Duration::from_millis(100)),
    (1_000, Duration::from_millis(250)),
    (5_000, Duration::from_secs(1)),
    (usize::MAX, Duration::from_secs(2)),
];

/// A day of which less was measured has no verdict.
pub const LEAST_COVERAGE: f64 = 0.9;

/// X for a cluster with so many programmers.
pub fn objective(programmers: usize) -> Duration {
    let fits = OBJECTIVES.iter().find(|(most, _)| programmers <= *most);
    fits.map_or(OBJECTIVES[OBJECTIVES.len() - 1].1, |(_, objective)| *objective)
}

/// Whether a promise was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Met,
    /// It was not.
    Missed,
    /// Nothing changed, so nothing was late.
    Quiet,
    /// Too little was measured, or too coarsely, to tell.
    Unknown,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Quiet => "quiet",
            Self::Unknown => "unknown",
        }
    }
}

/// Judges a figure against an objective.
pub fn judge(figure: Option<Estimate>, coverage: f64, objective: Duration) -> Verdict {
    if coverage < LEAST_COVERAGE {
        return Verdict::Unknown;
    }
    match figure {
        None => Verdict::Quiet,
        Some(figure) if figure.low > objective => Verdict::Missed,
        Some(figure) if figure.high.is_some_and(|high| high <= objective) => Verdict::Met,
        Some(_) => Verdict::Unknown,
    }
}

/// What is known of one cluster-day. Days are those of UTC.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Day {
    /// Days since 1970.
    pub number: i64,
    /// All samples of all programmers.
    pub samples: Pool,
    /// For each change, the time until 99 % of the programmers had it.
    pub exact: Pool,
    /// The SLI's values, one for each minute with samples.
    pub values: Pool,
    /// Minutes without samples.
    pub quiet_minutes: u64,
    /// Seconds of programmers that samples cover.
    pub covered_seconds: f64,
    /// Seconds of programmers that passed.
    pub expected_seconds: f64,
    /// Samples that could not be placed in any day.
    pub unplaced: u64,
    /// The most programmers at any time.
    pub programmers: usize,
    /// The objective, in microseconds.
    pub objective_micros: u64,
}

impl Day {
    /// An empty day.
    pub fn new(number: i64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    /// One more value of the SLI.
    pub fn evaluate(&mut self, value: Option<Estimate>) {
        match value {
            None => self.quiet_minutes += 1,
            Some(value) => {
                let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                let span = Span {
                    low: micros(value.low),
                    high: value.high.map_or(u64::MAX, micros),
                };
                self.values.add(span, 1);
            }
        }
    }

    /// The day's figure: the 99th percentile of the SLI's values.
    pub fn figure(&self) -> Option<Estimate> {
        self.values.quantile(0.99)
    }

    /// How much of the programmers' time was measured, from 0 to 1.
    pub fn coverage(&self) -> f64 {
        share(self.covered_seconds, self.expected_seconds)
    }

    pub fn objective(&self) -> Duration {
        Duration::from_micros(self.objective_micros)
    }

    /// Whether the promise was kept.
    pub fn verdict(&self) -> Verdict {
        judge(self.figure(), self.coverage(), self.objective())
    }
}

/// A share from 0 to 1; of nothing, everything is covered.
pub(crate) fn share(covered: f64, expected: f64) -> f64 {
    if expected <= 0.0 {
        return 1.0;
    }
    (covered / expected).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(low: u64, high: u64) -> Option<Estimate> {
        Some(Estimate {
            low: Duration::from_millis(low),
            high: Some(Duration::from_millis(high)),
        })
    }

    #[test]
    fn a_figure_is_judged_only_as_far_as_it_is_known() {
        let objective = Duration::from_millis(100);
        assert_eq!(judge(estimate(98, 99), 1.0, objective), Verdict::Met);
        assert_eq!(judge(estimate(101, 102), 1.0, objective), Verdict::Missed);
        assert_eq!(
            judge(estimate(0, 250), 1.0, objective),
            Verdict::Unknown,
            "too coarse"
        );
        assert_eq!(
            judge(estimate(1, 2), 0.5, objective),
            Verdict::Unknown,
            "too little"
        );
        assert_eq!(judge(None, 1.0, objective), Verdict::Quiet);
    }

    #[test]
    fn a_quarter_of_an_hour_of_a_day_may_be_bad() {
        let mut day = Day::new(0);
        day.objective_micros = 100_000;
        for minute in 0..1440 {
            day.evaluate(if minute < 14 {
                estimate(899, 900)
            } else {
                estimate(9, 10)
            });
        }
        assert_eq!(day.verdict(), Verdict::Met);
        day.evaluate(estimate(899, 900));
        assert_eq!(
            (day.figure(), day.verdict()),
            (estimate(899, 900), Verdict::Missed)
        );
    }

    #[test]
    fn the_objective_follows_the_size() {
        assert_eq!(objective(3), Duration::from_millis(100));
        assert_eq!(objective(101), Duration::from_millis(250));
        assert_eq!(objective(1_000_000), Duration::from_secs(2));
    }
}
