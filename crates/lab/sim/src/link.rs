//! When does what a node sends arrive?
//!
//! The contract that states are judged under: a link loses up to 5 % of single requests, takes up to
//! 1.5 s, and is out for at most 18 s at a time, with at least a minute between two outages. A cluster
//! that cannot stand this is not stable; one that is cut off for longer is right to call its nodes
//! unreachable. Outages are of two kinds: requests are refused at once (a proxy or load balancer that
//! answers), which burns all of a kubelet's attempts in a moment, or they vanish, which leaves a request
//! hanging until TCP gets through again or its time is up.

use crate::events::{Millis, seconds};
use fastrand::Rng;

/// Attempts that a kubelet makes for one heartbeat before it waits for the next turn.
const ATTEMPTS: usize = 5;
/// The longest outage.
pub const LONGEST_OUTAGE: Millis = seconds(18);
/// The least time between two outages.
pub const SHORTEST_PEACE: Millis = seconds(60);

/// How requests fail while a link is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Refused,
    /// Not before their time is up.
    Lost,
}

/// A time without connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    pub from: Millis,
    /// First moment after it.
    pub to: Millis,
    /// How requests fail.
    pub failure: Failure,
}

/// How calm the links of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Calm,
    /// An outage in ten minutes, on average.
    Changing,
    /// An outage in two minutes, on average.
    Rough,
}

impl Weather {
    fn mean_peace(self) -> Option<Millis> {
        match self {
            Self::Calm => None,
            Self::Changing => Some(seconds(600)),
            Self::Rough => Some(seconds(120)),
        }
    }
}

/// One node's way to the API server.
#[derive(Debug)]
pub struct Link {
    outages: Vec<Outage>,
    /// Outages before this one are over.
    passed: usize,
    latency: (Millis, Millis),
    loss: f64,
}

/// What became of one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When the API server has it; never, if all attempts failed.
    pub arrives: Option<Millis>,
    /// When the node is done with it.
    pub done: Millis,
}

impl Link {
    /// A link with faults from now to `end`. `server_down` are times at which nobody answers; links have
    /// no outages of their own around them.
    pub fn new(rng: &mut Rng, weather: Weather, server_down: &[Outage], end: Millis) -> Self {
        let latency = if rng.u8(..4) == 0 { (300, 1500) } else { (10, 150) };
        let mut outages = Vec::new();
        if let Some(mean) = weather.mean_peace() {
            let mut at = peace(rng, mean);
            while at < end {
                let length = rng.u64(seconds(2)..=LONGEST_OUTAGE);
                let failure = if rng.bool() {
                    Failure::Refused
                } else {
                    Failure::Lost
                };
                outages.push(Outage {
                    from: at,
                    to: at + length,
                    failure,
                });
                at += length + peace(rng, mean);
            }
        }
        outages.retain(|outage| {
            !server_down
                .iter()
                .any(|down| outage.from < down.to + SHORTEST_PEACE && down.from < outage.to + SHORTEST_PEACE)
        });
        outages.extend(server_down);
        outages.sort_by_key(|outage| outage.from);
        Self {
            outages,
            passed: 0,
            latency,
            loss: rng.f64() * 0.05,
        }
    }

    /// Sends a heartbeat at `now`; each attempt may take up to `timeout`. Calls come in order of time.
    pub fn send(&mut self, now: Millis, timeout: Millis, rng: &mut Rng) -> Sent {
        let mut at = now;
        while self
            .outages
            .get(self.passed)
            .is_some_and(|outage| outage.to <= now)
        {
            self.passed += 1;
        }
        for _ in 0..ATTEMPTS {
            let outage = self.outages[self.passed..]
                .iter()
                .take(2)
                .find(|outage| (outage.from..outage.to).contains(&at));
            match outage {
                None if rng.f64() >= self.loss => {
                    let there = rng.u64(self.latency.0..=self.latency.1);
                    let back = rng.u64(self.latency.0..=self.latency.1);
                    return Sent {
                        arrives: Some(at + there),
                        done: at + there + back,
                    };
                }
                // A single request that fails does so in about a round trip.
                None => at += self.latency.1,
                Some(outage) => match outage.failure {
                    Failure::Refused => at += 20,
                    Failure::Lost => match hangs(outage.to - at, timeout) {
                        Some(wait) => {
                            let arrives = at + wait + self.latency.0;
                            return Sent {
                                arrives: Some(arrives),
                                done: arrives + self.latency.1,
                            };
                        }
                        None => at += timeout,
                    },
                },
            }
        }
        Sent {
            arrives: None,
            done: at,
        }
    }
}

/// Exponential, and never shorter than the shortest.
fn peace(rng: &mut Rng, mean: Millis) -> Millis {
    let more = -(1.0 - rng.f64()).ln() * (mean - SHORTEST_PEACE) as f64;
    SHORTEST_PEACE + more as Millis
}

/// When TCP's next retransmission after the outage comes, if that is in time: 0.2 s, 0.6 s, 1.4 s and
/// so on after the first.
fn hangs(rest: Millis, timeout: Millis) -> Option<Millis> {
    let mut at = 0;
    let mut wait = 200;
    while at < rest {
        at += wait;
        wait *= 2;
    }
    (at < timeout).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(failure: Failure) -> Link {
        Link {
            outages: vec![Outage {
                from: seconds(10),
                to: seconds(28),
                failure,
            }],
            passed: 0,
            latency: (100, 100),
            loss: 0.0,
        }
    }

    #[test]
    fn refused_heartbeats_wait_for_the_next_turn_and_lost_ones_hang() {
        let mut rng = Rng::with_seed(1);
        let fine = link(Failure::Refused).send(seconds(9), seconds(10), &mut rng);
        assert_eq!(fine.arrives, Some(seconds(9) + 100));
        let refused = link(Failure::Refused).send(seconds(11), seconds(10), &mut rng);
        assert_eq!(
            refused,
            Sent {
                arrives: None,
                done: seconds(11) + 100
            }
        );
        // Two attempts time out, the third hangs until TCP tries again.
        let lost = link(Failure::Lost).send(seconds(11), seconds(8), &mut rng);
        assert_eq!(lost.arrives, Some(seconds(27) + 1400 + 100));
    }

    #[test]
    fn faults_keep_their_contract() {
        for seed in 0..200 {
            let mut rng = Rng::with_seed(seed);
            let down = Outage {
                from: seconds(500),
                to: seconds(505),
                failure: Failure::Refused,
            };
            let link = Link::new(&mut rng, Weather::Rough, &[down], seconds(3000));
            assert!(link.outages.len() > 5);
            for outage in &link.outages {
                assert!(outage.to - outage.from <= LONGEST_OUTAGE);
            }
            for pair in link.outages.windows(2) {
                assert!(pair[1].from >= pair[0].to + SHORTEST_PEACE, "{pair:?}");
            }
        }
    }
}
