//! How long did changes take to reach the rules of every node? As the proxies' fine histograms say.

use crate::nodes::measuring;
use crate::plain_http;
use crate::plan::Plan;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const SERIES: &str = "pointsman_network_programming_duration_seconds_bucket{";

/// Counts of all nodes together, by the upper bound of their bucket in microseconds; cumulative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programming {
    buckets: BTreeMap<u64, u64>,
    all: u64,
}

/// Reads the histograms of all nodes that answer, but for node `except`.
pub async fn read(data_dir: &Path, plan: &Plan, except: Option<&str>) -> Programming {
    let mut sum = Programming::default();
    for node in plan.nodes() {
        if except == Some(node.name.as_str()) {
            continue;
        }
        let proxy = measuring(data_dir, node.address);
        if let Ok((200, text)) = plain_http::ask(&proxy, "/metrics", Duration::from_secs(1)).await {
            sum.add_text(&text);
        }
    }
    sum
}

impl Programming {
    /// What came since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let subtract = |(bound, count): (&u64, &u64)| (*bound, count.saturating_sub(earlier.at_most(*bound)));
        Self {
            buckets: self.buckets.iter().map(subtract).collect(),
            all: self.all.saturating_sub(earlier.all),
        }
    }

    /// How many changes were measured.
    pub fn count(&self) -> u64 {
        self.all
    }

    /// The bound that this share of the changes kept, in milliseconds. Zero if nothing was measured.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let wanted = (share * self.all as f64).ceil() as u64;
        let bound = self.buckets.iter().find(|(_, count)| **count >= wanted);
        match bound {
            Some((micros, _)) if self.all > 0 => *micros as f64 / 1000.0,
            Some(_) => 0.0,
            None => f64::INFINITY,
        }
    }

    /// Buckets that hold nothing new may be left out of the text, so the next lower one counts.
    fn at_most(&self, bound: u64) -> u64 {
        self.buckets
            .range(..=bound)
            .next_back()
            .map_or(0, |(_, count)| *count)
    }

    fn add_text(&mut self, text: &str) {
        let mut families: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
        for line in text.lines() {
            let Some((labels, count)) = line.strip_prefix(SERIES).and_then(|rest| rest.split_once("} "))
            else {
                continue;
            };
            let (Some((family, bound)), Ok(count)) =
                (labels.rsplit_once("le=\""), count.trim().parse::<f64>())
            else {
                continue;
            };
            let count = count as u64;
            match bound.trim_end_matches('"') {
                "+Inf" => self.all += count,
                seconds => {
                    let Ok(seconds) = seconds.parse::<f64>() else {
                        continue;
                    };
                    let micros = (seconds * 1e6).round() as u64;
                    families.entry(family).or_default().insert(micros, count);
                }
            }
        }
        for family in families.into_values() {
            self.add_cumulative(&Self {
                buckets: family,
                all: 0,
            });
        }
    }

    fn add_cumulative(&mut self, other: &Self) {
        let bounds: Vec<u64> = self.buckets.keys().chain(other.buckets.keys()).copied().collect();
        let sums = bounds
            .into_iter()
            .map(|bound| (bound, self.at_most(bound) + other.at_most(bound)));
        self.buckets = sums.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(counts: &[(&str, u64)]) -> String {
        let line =
            |(bound, count): &(&str, u64)| format!("{SERIES}ip_family=\"IPv4\",le=\"{bound}\"}} {count}\n");
        counts.iter().map(line).collect()
    }

    #[test]
    fn quantiles_are_those_of_what_came_since() {
        let (mut before, mut after) = (Programming::default(), Programming::default());
        before.add_text(&text(&[("0.001", 5), ("0.002", 5), ("+Inf", 5)]));
        after.add_text(&text(&[
            ("0.001", 5),
            ("0.002", 6),
            ("0.004", 14),
            ("0.1", 15),
            ("+Inf", 15),
        ]));
        after.add_text("other_metric 7\n");
        let new = after.since(&before);
        assert_eq!(new.count(), 10);
        assert_eq!(new.quantile_ms(0.5), 4.0);
        assert_eq!(new.quantile_ms(1.0), 100.0);
        assert_eq!(after.since(&after).quantile_ms(0.99), 0.0);
    }

    #[test]
    fn nodes_add_up_although_their_buckets_differ() {
        let mut sum = Programming::default();
        sum.add_text(&text(&[("0.001", 2), ("+Inf", 2)]));
        sum.add_text(&text(&[("0.002", 1), ("+Inf", 2)]));
        assert_eq!((sum.at_most(1000), sum.at_most(2000), sum.count()), (2, 3, 4));
        assert_eq!(sum.quantile_ms(1.0), f64::INFINITY);
    }
}
