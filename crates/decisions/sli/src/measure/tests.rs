//! The seed's arithmetic, on synthetic samples in simulated time, across restarts of either side.

use super::*;
use crate::slo::Verdict;

const START: i64 = 1_000 * 86_400;

fn at(seconds: i64) -> Moment {
    Moment((START + seconds) * 1_000_000)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A programmer that counts for ever and begins anew when it restarts.
#[derive(Clone, Default)]
struct Fake {
    started: i64,
    counted: Pool,
    /// All that it ever counted.
    truth: Vec<(i64, u64)>,
}

impl Fake {
    fn observe(&mut self, second: i64, latency_ms: u64) {
        let high = latency_ms.max(1) * 1000;
        self.counted.add(
            Span {
                low: high - 1000,
                high,
            },
            1,
        );
        self.truth.push((second, latency_ms));
    }

    fn restart(&mut self, second: i64) {
        self.started = second;
        self.counted = Pool::default();
    }

    fn reading(&self, second: i64) -> Reading {
        Reading {
            at: at(second),
            started: Some(at(self.started)),
            counted: self.counted.clone(),
        }
    }
}

fn p99(mut samples: Vec<u64>) -> Option<Duration> {
    samples.sort_unstable();
    let rank = (samples.len() as f64 * 0.99).ceil() as usize;
    Some(millis(*samples.get(rank.checked_sub(1)?)?))
}

fn truth(fakes: &[Fake], from: i64, to: i64) -> Vec<u64> {
    let all = fakes.iter().flat_map(|fake| &fake.truth);
    all.filter(|(second, _)| (from..to).contains(second))
        .map(|(_, latency)| *latency)
        .collect()
}

/// Numbers that look random and are the same each time.
fn noise(seed: u64) -> u64 {
    let mut value = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value ^= value >> 29;
    value = value.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value ^ (value >> 32)
}

/// Runs a whole day with readings every 5 s; every programmer counts a few samples a minute. `each` may
/// replace the collector and restart programmers.
fn run_day(mut each: impl FnMut(i64, &mut Measure, &mut Vec<Fake>)) -> (Measure, Vec<Fake>) {
    let mut fakes = vec![
        Fake {
            started: -100,
            ..Fake::default()
        };
        3
    ];
    let mut measure = Measure::new(Some(millis(100)), at(0));
    for (number, fake) in fakes.iter().enumerate() {
        measure.read(&number.to_string(), fake.reading(0), 0);
    }
    for second in 1..86_400 {
        for (number, fake) in fakes.iter_mut().enumerate() {
            let dice = noise(second as u64 * 7 + number as u64);
            if dice.is_multiple_of(20) {
                fake.observe(second, 5 + dice % 30);
            }
        }
        each(second, &mut measure, &mut fakes);
        if second % 5 == 0 {
            for (number, fake) in fakes.iter().enumerate() {
                measure.read(&number.to_string(), fake.reading(second), 0);
            }
            assert_eq!(measure.tick(at(second), &Unfinished::default()), None);
        }
    }
    (measure, fakes)
}

#[test]
fn five_minutes_and_the_day_are_those_of_a_plain_recount() {
    let (measure, fakes) = run_day(|second, measure, fakes| {
        if second % 3_600 == 0 {
            // Readings happen every 5 s and slots are 5 s long, so the window is known exactly here.
            let expected = p99(truth(fakes, second - 299, second - 4));
            let pooled = measure.pooled(at(second - 5), &Unfinished::default());
            assert_eq!(pooled.p99.unwrap().high, expected, "at {second}");
            assert!(pooled.coverage > 0.99);
        }
    });
    let day = measure.day();
    let all = truth(&fakes, 0, 86_396);
    assert_eq!(day.samples.count(), all.len() as u64);
    assert_eq!(day.samples.quantile(0.99).unwrap().high, p99(all));
    assert_eq!(day.values.count() + day.quiet_minutes, 1439);
    assert_eq!(day.verdict(), Verdict::Met);
    assert!(day.coverage() > 0.999, "{}", day.coverage());
}

#[test]
fn a_collector_that_restarts_loses_nothing_and_counts_nothing_twice() {
    let mut saved = None;
    let (measure, fakes) = run_day(|second, measure, _| {
        if second % 600 == 300 {
            saved = Some(measure.clone());
        }
        // Half a minute later it dies, and its successor finds what was written down.
        if second % 600 == 331 {
            *measure = saved.clone().expect("it was saved before");
        }
    });
    let all = truth(&fakes, 0, 86_396);
    let day = measure.day();
    assert_eq!(day.samples.count(), all.len() as u64);
    assert_eq!(day.samples.quantile(0.99).unwrap().high, p99(all));
    assert!(day.coverage() > 0.999, "{}", day.coverage());
}

#[test]
fn a_programmer_without_samples_is_not_missing_in_the_pool_and_counts_in_the_exact_form() {
    let (mut measure, _) = run_day(|second, measure, _| {
        if second == 1 {
            measure.joined("dns", at(second));
            measure.without_samples("dns");
        }
    });
    let day = measure.day();
    assert!(day.coverage() > 0.999, "{}", day.coverage());
    assert_eq!(day.programmers, 4);
    let exact = |telling| {
        measure
            .exact(at(86_399), telling, &Unfinished::default())
            .coverage
    };
    assert_eq!((exact(4), exact(3)), (1.0, 0.75));
    measure.read("dns", Fake::default().reading(86_399), 0);
    assert!(!measure.programmers["dns"].unsampled);
}

#[test]
fn a_programmer_that_restarts_costs_what_it_had_not_told_and_coverage_says_so() {
    let (measure, fakes) = run_day(|second, _, fakes| {
        if second % 7_200 == 7_198 {
            // Samples of 7196, 7197 and 7198 are gone with the process.
            fakes[1].restart(second);
        }
    });
    let all = truth(&fakes, 0, 86_396).len() as u64;
    let lost: usize = fakes[1]
        .truth
        .iter()
        .filter(|(second, _)| (7_196..=7_198).contains(&(second % 7_200)))
        .count();
    assert!(lost > 0, "the test would show nothing");
    assert_eq!(measure.day().samples.count(), all - lost as u64);
    assert!(measure.day().coverage() < 1.0);
    assert!(measure.day().coverage() > 0.999);
}

#[test]
fn a_bad_hour_misses_the_objective_and_fourteen_bad_minutes_do_not() {
    let bad = |length: i64| {
        let (measure, _) = run_day(|second, _, fakes| {
            if (40_000..40_000 + length).contains(&second) && second % 3 == 0 {
                fakes[0].observe(second, 800);
            }
        });
        measure.day().verdict()
    };
    // Ten bad minutes darken five more: those that look back at them.
    assert_eq!(bad(9 * 60), Verdict::Met);
    assert_eq!(bad(3_600), Verdict::Missed);
}

#[test]
fn what_is_not_measured_is_a_number_and_ends_in_no_verdict() {
    let mut measure = Measure::new(Some(millis(100)), at(0));
    let fake = Fake {
        started: -100,
        ..Fake::default()
    };
    for name in ["seen", "unseen"] {
        measure.joined(name, at(0));
    }
    for second in (0..3_000).step_by(5) {
        measure.read("seen", fake.reading(second), 0);
        measure.tick(at(second), &Unfinished::default());
    }
    let pooled = measure.pooled(at(2_999), &Unfinished::default());
    assert!((0.49..0.52).contains(&pooled.coverage), "{}", pooled.coverage);
    assert_eq!(pooled.p99, None);
    assert_eq!(measure.day().verdict(), Verdict::Unknown);
}

#[test]
fn a_day_ends_at_midnight_and_a_long_absence_is_placed_nowhere() {
    let mut measure = Measure::new(None, at(0));
    let mut fake = Fake {
        started: -100,
        ..Fake::default()
    };
    measure.read("n1", fake.reading(0), 0);
    fake.observe(10, 7);
    measure.read("n1", fake.reading(10), 0);
    measure.tick(at(10), &Unfinished::default());
    fake.observe(50_000, 900);
    // The collector was away until the next day.
    let finished = measure.tick(at(90_000), &Unfinished::default()).unwrap();
    assert_eq!((finished.samples.count(), finished.programmers), (1, 1));
    measure.read("n1", fake.reading(90_000), 0);
    assert_eq!((measure.day().samples.count(), measure.day().unplaced), (0, 1));
    assert_eq!(measure.pooled(at(90_000), &Unfinished::default()).samples, 0);
    assert_eq!(measure.day().number, finished.number + 1);
}

#[test]
fn kube_proxies_and_ours_are_pooled_and_the_error_is_told() {
    let mut measure = Measure::new(Some(millis(100)), at(0));
    let mut ours = Fake {
        started: -100,
        ..Fake::default()
    };
    let mut coarse = Reading {
        at: at(0),
        started: None,
        counted: Pool::default(),
    };
    measure.read("ours", ours.reading(0), 0);
    measure.read("theirs", coarse.clone(), 0);
    for second in 1..=1000 {
        ours.observe(second % 5, 3);
    }
    coarse.counted.add(
        Span {
            low: 0,
            high: 250_000,
        },
        5,
    );
    coarse.at = at(5);
    measure.read("ours", ours.reading(5), 0);
    measure.read("theirs", coarse, 0);
    let p99 = measure.pooled(at(5), &Unfinished::default()).p99.unwrap();
    assert_eq!(
        (p99.high, p99.error()),
        (Some(millis(3)), Some(millis(1))),
        "five of 1005 do not matter"
    );
}

#[test]
fn a_clock_that_is_ahead_does_not_make_samples_late() {
    let mut measure = Measure::new(None, at(0));
    let mut fake = Fake {
        started: -100,
        ..Fake::default()
    };
    measure.read("n1", fake.reading(0), 0);
    fake.observe(1, 45);
    measure.read("n1", fake.reading(5), 40);
    assert_eq!(
        measure.pooled(at(5), &Unfinished::default()).p99.unwrap().high,
        Some(millis(5))
    );
}
