//! How is one programmer, or one relay, followed?
//!
//! A task reads the watermark stream and connects again when it ends. Another reads clock and metrics
//! from time to time. A programmer without a stream is a plain kube-proxy: only its metrics are read.
//!
//! What a task may ever wait for is part of it as long as it lives, and there are two tasks for each of thousands of
//! programmers: questions, which are large and short, are boxed.

use std::sync::Arc;
use std::time::Duration;

use pointsman_api_client::backoff::Backoff;
use pointsman_http::{Bytes, Target};
use pointsman_model::Moment;
use pointsman_protocol::watermark::{self, Line, Report};
use pointsman_protocol::{clock, relay};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::gates::GateId;
use crate::gates::deletions::PodState;
use crate::now;

/// How long a programmer may take until its stream begins.
const CONNECT: Duration = Duration::from_secs(5);
/// So many heartbeats that do not come mean a dead connection.
const SILENCE: Duration = watermark::HEARTBEAT.saturating_mul(10);
/// How often a plain kube-proxy is asked whether it has become something better.
const PLAIN_AGAIN: Duration = Duration::from_secs(60);
/// How long reading metrics may take.
const SCRAPE: Duration = Duration::from_secs(10);
/// Most bytes of metrics that are read.
const METRICS: usize = 32 << 20;

/// Which programmer, for as long as it is followed at this address.
pub(crate) type Key = Arc<str>;

/// What a follower has seen.
#[derive(Debug)]
pub(crate) enum Observation {
    /// Lines of one programmer, oldest first.
    Lines {
        who: Key,
        lines: Vec<Report>,
        malformed: u64,
        at: Moment,
    },
    /// Lines of many programmers.
    Relayed {
        lines: Vec<(Key, Report)>,
        malformed: u64,
        at: Moment,
    },
    /// A stream ended or could not be opened.
    Lost { who: Key, why: String },
    /// The programmer has no stream.
    Plain { who: Key },
    /// How far its clock is ahead of ours, in microseconds, and the round trip that this took.
    Clock {
        who: Key,
        ahead: i64,
        round_trip: Duration,
    },
    /// Its metrics, or why they could not be read.
    Metrics {
        who: Key,
        text: Result<Bytes, String>,
        at: Moment,
    },
    /// What the API server says of the pods of a gate; nothing if it did not answer.
    Deletions {
        gate: GateId,
        said: Option<Arc<[PodState]>>,
    },
}

/// Follows the stream of one programmer until the receiver is gone.
pub(crate) async fn stream(who: Key, target: Target, observed: mpsc::Sender<Observation>) {
    let mut backoff = backoff();
    loop {
        let began = Instant::now();
        let read = read_lines(&target, watermark::PATH, &observed, |lines, malformed| {
            Observation::Lines {
                who: who.clone(),
                lines: lines.into_iter().map(|(_, report)| report).collect(),
                malformed,
                at: now(),
            }
        });
        let (seen, plain) = match read.await {
            Ended::Closed => return,
            Ended::Plain => (Observation::Plain { who: who.clone() }, true),
            Ended::Failed(why) => {
                let who = who.clone();
                (Observation::Lost { who, why }, false)
            }
        };
        if observed.send(seen).await.is_err() {
            return;
        }
        if plain {
            tokio::time::sleep(PLAIN_AGAIN).await;
            continue;
        }
        if began.elapsed() > Duration::from_secs(5) {
            backoff.reset();
        }
        tokio::time::sleep(backoff.next(fastrand::f64())).await;
    }
}

/// Follows a relay until the receiver is gone.
pub(crate) async fn relay(target: Target, observed: mpsc::Sender<Observation>) {
    let mut backoff = backoff();
    loop {
        let read = read_lines(&target, "", &observed, |lines, mut malformed| {
            let (lines, nameless): (Vec<_>, Vec<_>) =
                lines.into_iter().partition(|(node, _)| !node.is_empty());
            malformed += nameless.len() as u64;
            let at = now();
            Observation::Relayed { lines, malformed, at }
        });
        match read.await {
            Ended::Closed => return,
            Ended::Plain => tracing::warn!(?target, "the relay has no stream at {}", relay::PATH),
            Ended::Failed(why) => tracing::warn!(?target, why, "lost the relay, connecting again"),
        }
        tokio::time::sleep(backoff.next(fastrand::f64())).await;
    }
}

/// Reads clock and metrics of one programmer at this interval, until the receiver is gone.
pub(crate) async fn scrape(
    who: Key,
    target: Target,
    every: Duration,
    turns: Arc<Semaphore>,
    observed: mpsc::Sender<Observation>,
) {
    // Programmers that were found together should not be read together; the first reading comes soon,
    // because what happened before it is not known to have happened here.
    tokio::time::sleep(every.min(Duration::from_secs(1)).mul_f64(fastrand::f64())).await;
    let mut rounds = tokio::time::interval(every);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let Ok(turn) = turns.acquire().await else { return };
        if let Some((ahead, round_trip)) = read_clock(&target).await {
            let seen = Observation::Clock {
                who: who.clone(),
                ahead,
                round_trip,
            };
            if observed.send(seen).await.is_err() {
                return;
            }
        }
        let text = Box::pin(target.get("/metrics", METRICS, SCRAPE)).await;
        drop(turn);
        let seen = Observation::Metrics {
            who: who.clone(),
            text: text.map_err(|error| error.to_string()),
            at: now(),
        };
        if observed.send(seen).await.is_err() {
            return;
        }
    }
}

enum Ended {
    /// Nobody listens to us any more.
    Closed,
    /// There is no such stream.
    Plain,
    /// The stream broke.
    Failed(String),
}

/// Reads lines until the stream ends, and hands over those that came together with how many could not be
/// read.
async fn read_lines(
    target: &Target,
    path: &str,
    observed: &mpsc::Sender<Observation>,
    observation: impl Fn(Vec<(Key, Report)>, u64) -> Observation,
) -> Ended {
    let (status, mut stream) = match Box::pin(target.follow(path, CONNECT)).await {
        Ok(answer) => answer,
        Err(error) => return Ended::Failed(error.to_string()),
    };
    match status.as_u16() {
        200 => {}
        404 | 405 | 501 => return Ended::Plain,
        status => return Ended::Failed(format!("{path} answers with status {status}")),
    }
    // One programmer's lines all have the same name.
    let mut last = Key::from("");
    loop {
        let (mut lines, mut malformed) = (Vec::new(), 0);
        let more = stream.next(|text| match watermark::decode(text) {
            Some(Line { node, report }) => {
                if *last != *node {
                    last = Key::from(&*node);
                }
                lines.push((last.clone(), report));
            }
            None => malformed += u64::from(!text.is_empty()),
        });
        match tokio::time::timeout(SILENCE, more).await {
            Err(_) => return Ended::Failed(format!("no heartbeat within {SILENCE:?}")),
            Ok(Err(error)) => return Ended::Failed(error.to_string()),
            Ok(Ok(false)) => return Ended::Failed("the stream ended".into()),
            Ok(Ok(true)) => {}
        }
        if observed.send(observation(lines, malformed)).await.is_err() {
            return Ended::Closed;
        }
    }
}

/// The other clock, read halfway between question and answer; wrong by at most half the round trip.
async fn read_clock(target: &Target) -> Option<(i64, Duration)> {
    let asked = (now(), Instant::now());
    let answer = target.get(clock::PATH, clock::LONGEST, Duration::from_secs(2));
    let answer = Box::pin(answer).await;
    let round_trip = asked.1.elapsed();
    let there = clock::decode(&answer.ok()?)?;
    Some((there.0 - asked.0.after(round_trip / 2).0, round_trip))
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tasks_of_a_programmer_take_little_memory() {
        let (who, target) = (Key::from("n1"), Target::parse("http://127.0.0.1:1").unwrap());
        let (sender, _receiver) = mpsc::channel(1);
        let stream = stream(who.clone(), target.clone(), sender.clone());
        let scrape = scrape(who, target, SCRAPE, Arc::new(Semaphore::new(1)), sender);
        let sizes = (size_of_val(&stream), size_of_val(&scrape));
        assert!(sizes.0 <= 2500 && sizes.1 <= 1000, "{sizes:?} bytes");
    }
}
