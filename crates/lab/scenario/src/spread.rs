//! How are times spread?

use std::time::Duration;

use serde::Serialize;

/// Ranks of a set of times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    pub count: usize,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Spread {
    /// The spread of some times; none of nothing.
    pub fn of(times: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut sorted: Vec<Duration> = times.into_iter().collect();
        sorted.sort_unstable();
        let ranked = |quantile: f64| {
            let rank = (sorted.len() as f64 * quantile).ceil() as usize;
            let time = sorted.get(rank.max(1) - 1)?;
            // To the microsecond, which is all that anybody measures here.
            Some(time.as_micros() as f64 / 1e3)
        };
        Some(Self {
            count: sorted.len(),
            p50_ms: ranked(0.5)?,
            p90_ms: ranked(0.9)?,
            p99_ms: ranked(0.99)?,
            max_ms: ranked(1.0)?,
        })
    }
}

/// `p50 / p99 / slowest`, for tables.
pub fn cells(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "– | – | –".to_owned(),
        |it| format!("{:.2} | {:.2} | {:.2}", it.p50_ms, it.p99_ms, it.max_ms),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_real_samples() {
        let spread = Spread::of((1..=200).map(Duration::from_millis)).unwrap();
        assert_eq!(
            (spread.p50_ms, spread.p99_ms, spread.max_ms),
            (100.0, 198.0, 200.0)
        );
        assert_eq!(
            cells(Spread::of([Duration::from_micros(1_500)])),
            "1.50 | 1.50 | 1.50"
        );
        assert_eq!(Spread::of([]), None);
    }
}
