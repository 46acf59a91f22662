//! How are latencies of many places kept in little memory?
//!
//! A [`Spread`] counts latencies of the last five to ten minutes in buckets of an eighth of an octave, so that a
//! percentile is too great by at most an eighth; 64 µs and less are one bucket. It takes 700 bytes where something was
//! counted and none where not: each of thousands of programmers has one.

use std::time::Duration;

use pointsman_model::Moment;

use crate::micros;

/// Counts are dropped when they are between one and two of these old.
const GENERATION: Duration = Duration::from_secs(300);
const SMALLEST_BITS: u32 = 6;
/// Latencies of 134 s and more are one bucket, too.
const LARGEST_BITS: u32 = 27;
const BUCKETS: usize = ((LARGEST_BITS - SMALLEST_BITS) as usize) * 8 + 2;

/// What is known of a [`Spread`] now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantiles {
    pub count: u64,
    /// Half are not greater than this.
    pub p50: Duration,
    /// 99 % are not greater than this.
    pub p99: Duration,
}

/// Latencies of the last minutes. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    /// Which generation the newer half is of, counted from 1970.
    number: i64,
    /// The newer and the older half.
    halves: Option<Box<[[u16; BUCKETS]; 2]>>,
}

impl Spread {
    /// Counts a latency. More than 65,535 of one bucket and generation count as so many.
    pub fn add(&mut self, latency: Duration, now: Moment) {
        self.turn(now);
        let halves = self.halves.get_or_insert_with(|| Box::new([[0; BUCKETS]; 2]));
        let count = &mut halves[0][bucket(latency)];
        *count = count.saturating_add(1);
    }

    /// The percentiles; `None` if nothing was counted in the last minutes.
    pub fn quantiles(&self, now: Moment) -> Option<Quantiles> {
        let halves = self.halves.as_ref()?;
        let age = generation(now) - self.number;
        let used = match age {
            ..=0 => 0..2,
            1 => 0..1,
            _ => return None,
        };
        let at = |bucket: usize| {
            let counts = halves[used.clone()].iter().map(|half| u64::from(half[bucket]));
            counts.sum::<u64>()
        };
        let count: u64 = (0..BUCKETS).map(at).sum();
        let ranked = |share: f64| {
            let rank = ((count as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            let found = (0..BUCKETS).find(|bucket| {
                seen += at(*bucket);
                seen >= rank
            });
            found.map(upper)
        };
        Some(Quantiles {
            count,
            p50: ranked(0.5)?,
            p99: ranked(0.99)?,
        })
    }

    fn turn(&mut self, now: Moment) {
        let passed = generation(now) - self.number;
        if passed > 0 {
            self.number = generation(now);
            if let Some(halves) = &mut self.halves {
                halves[1] = if passed == 1 { halves[0] } else { [0; BUCKETS] };
                halves[0] = [0; BUCKETS];
            }
        }
    }
}

fn generation(now: Moment) -> i64 {
    now.0.div_euclid(micros(GENERATION))
}

fn bucket(latency: Duration) -> usize {
    let value = micros(latency).unsigned_abs();
    // Bounds belong to the bucket below them, as in histograms.
    let value = value.saturating_sub(1);
    if value < 1 << SMALLEST_BITS {
        return 0;
    }
    let octave = value.ilog2();
    if octave >= LARGEST_BITS {
        return BUCKETS - 1;
    }
    let eighth = (value >> (octave - 3)) & 7;
    1 + (octave - SMALLEST_BITS) as usize * 8 + eighth as usize
}

/// The greatest latency of a bucket; of the last one, that it is not less than this.
fn upper(bucket: usize) -> Duration {
    let micros = match bucket.checked_sub(1) {
        None => 1 << SMALLEST_BITS,
        Some(_) if bucket == BUCKETS - 1 => 1 << LARGEST_BITS,
        Some(at) => (9 + at as u64 % 8) << (SMALLEST_BITS as usize + at / 8 - 3),
    };
    Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Moment {
        Moment(seconds * 1_000_000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_percentile_is_never_too_small_and_too_great_by_at_most_an_eighth(
            mut samples in prop::collection::vec(65u64..130_000_000, 1..200),
        ) {
            let mut spread = Spread::default();
            samples.iter().for_each(|it| spread.add(Duration::from_micros(*it), at(10)));
            samples.sort_unstable();
            let found = spread.quantiles(at(10)).unwrap();
            prop_assert_eq!(found.count, samples.len() as u64);
            for (share, found) in [(0.5, found.p50), (0.99, found.p99)] {
                let rank = ((samples.len() as f64 * share).ceil() as usize).max(1);
                let truth = samples[rank - 1];
                let found = found.as_micros() as u64;
                prop_assert!(truth <= found && found <= truth + truth / 8 + 1, "{truth} {found}");
            }
        }
    }

    #[test]
    fn what_is_older_than_ten_minutes_is_forgotten() {
        let mut spread = Spread::default();
        assert_eq!(spread.quantiles(at(0)), None);
        spread.add(Duration::from_secs(1), at(10));
        assert_eq!(spread.quantiles(at(590)).unwrap().count, 1);
        assert_eq!(spread.quantiles(at(610)), None);
        spread.add(Duration::from_millis(1), at(310));
        assert_eq!(spread.quantiles(at(320)).unwrap().count, 2);
        spread.add(Duration::from_millis(1), at(910));
        assert_eq!(spread.quantiles(at(910)).unwrap().count, 1);
    }

    #[test]
    fn the_smallest_and_the_greatest_have_a_place() {
        for (latency, shown) in [
            (Duration::ZERO, Duration::from_micros(64)),
            (Duration::from_secs(10_000), Duration::from_micros(1 << 27)),
        ] {
            let mut spread = Spread::default();
            spread.add(latency, at(0));
            assert_eq!(spread.quantiles(at(0)).unwrap().p99, shown);
        }
    }
}
