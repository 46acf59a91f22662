//! How is one programmer, or one relay, followed?
//!
//! A task reads the watermark stream and connects again when it ends. Another reads clock and metrics
//! from time to time. A programmer without a stream is a plain kube-proxy: only its metrics are read.

use std::sync::Arc;
use std::time::Duration;

use pointsman_api_client::backoff::Backoff;
use pointsman_sli::Moment;
use pointsman_sli::fold::Report;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::client::Target;
use crate::line;
use crate::now;

/// Programmers give a sign of life every second; this much silence means a dead connection.
const SILENCE: Duration = Duration::from_secs(10);
/// How often a plain kube-proxy is asked whether it has become something better.
const PLAIN_AGAIN: Duration = Duration::from_secs(60);
/// How long reading metrics may take.
const SCRAPE: Duration = Duration::from_secs(10);
/// Most bytes of metrics that are read.
const METRICS: usize = 32 << 20;

/// Which programmer, for as long as it is followed at this address.
pub(crate) type Key = Arc<str>;

/// What a follower tells.
#[derive(Debug)]
pub(crate) enum Told {
    /// Lines of one programmer, oldest first, and how many could not be read.
    Lines {
        who: Key,
        lines: Vec<Report>,
        garbage: u64,
        at: Moment,
    },
    /// Lines of many programmers.
    Relayed {
        lines: Vec<(Key, Report)>,
        garbage: u64,
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
        text: Result<Vec<u8>, String>,
        at: Moment,
    },
}

/// Follows the stream of one programmer until the receiver is gone.
pub(crate) async fn stream(who: Key, target: Target, told: mpsc::Sender<Told>) {
    let mut backoff = backoff();
    loop {
        let began = Instant::now();
        match read_stream(&who, &target, &told).await {
            Ended::Closed => return,
            Ended::Plain => {
                if told.send(Told::Plain { who: who.clone() }).await.is_err() {
                    return;
                }
                tokio::time::sleep(PLAIN_AGAIN).await;
                continue;
            }
            Ended::Failed(why) => {
                if told
                    .send(Told::Lost {
                        who: who.clone(),
                        why,
                    })
                    .await
                    .is_err()
                {
                    return;
                }
            }
        }
        if began.elapsed() > Duration::from_secs(5) {
            backoff.reset();
        }
        tokio::time::sleep(backoff.next(fastrand::f64())).await;
    }
}

/// Follows a relay until the receiver is gone.
pub(crate) async fn relay(target: Target, told: mpsc::Sender<Told>) {
    let mut backoff = backoff();
    loop {
        match read_relay(&target, &told).await {
            Ended::Closed => return,
            Ended::Plain => tracing::warn!(?target, "the relay has no stream of watermarks"),
            Ended::Failed(why) => tracing::warn!(?target, why, "the relay is lost, connecting again"),
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
    told: mpsc::Sender<Told>,
) {
    // Programmers that were found together should not be read together; the first reading comes soon,
    // because what happened before it is not known to have happened here.
    tokio::time::sleep(every.min(Duration::from_secs(1)).mul_f64(fastrand::f64())).await;
    let mut rounds = tokio::time::interval(every);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let Ok(turn) = turns.acquire().await else { return };
        if let Some((ahead, round_trip)) = clock(&target).await {
            let who = who.clone();
            let news = Told::Clock {
                who,
                ahead,
                round_trip,
            };
            if told.send(news).await.is_err() {
                return;
            }
        }
        let text = target.get("/metrics", METRICS, SCRAPE).await;
        drop(turn);
        let news = Told::Metrics {
            who: who.clone(),
            text: text.map_err(|error| error.to_string()),
            at: now(),
        };
        if told.send(news).await.is_err() {
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

async fn read_stream(who: &Key, target: &Target, told: &mpsc::Sender<Told>) -> Ended {
    let mut answer = match open(target, "/watermark").await {
        Ok(answer) => answer,
        Err(ended) => return ended,
    };
    loop {
        let (mut lines, mut garbage) = (Vec::new(), 0);
        let more = answer.lines(|text| match line::parse(text) {
            Some((_, report)) => lines.push(report),
            None => garbage += u64::from(!text.is_empty()),
        });
        match tokio::time::timeout(SILENCE, more).await {
            Err(_) => return Ended::Failed(format!("no sign of life in {SILENCE:?}")),
            Ok(Err(error)) => return Ended::Failed(error.to_string()),
            Ok(Ok(false)) => return Ended::Failed("the stream ended".into()),
            Ok(Ok(true)) => {}
        }
        let news = Told::Lines {
            who: who.clone(),
            lines,
            garbage,
            at: now(),
        };
        if told.send(news).await.is_err() {
            return Ended::Closed;
        }
    }
}

async fn read_relay(target: &Target, told: &mpsc::Sender<Told>) -> Ended {
    let mut answer = match open(target, "").await {
        Ok(answer) => answer,
        Err(ended) => return ended,
    };
    loop {
        let (mut lines, mut garbage) = (Vec::new(), 0);
        let more = answer.lines(|text| match line::parse(text) {
            Some((node, report)) if !node.is_empty() => lines.push((Key::from(&*node), report)),
            _ => garbage += u64::from(!text.is_empty()),
        });
        match tokio::time::timeout(SILENCE, more).await {
            Err(_) => return Ended::Failed(format!("no sign of life in {SILENCE:?}")),
            Ok(Err(error)) => return Ended::Failed(error.to_string()),
            Ok(Ok(false)) => return Ended::Failed("the stream ended".into()),
            Ok(Ok(true)) => {}
        }
        let at = now();
        if told.send(Told::Relayed { lines, garbage, at }).await.is_err() {
            return Ended::Closed;
        }
    }
}

async fn open(target: &Target, path: &str) -> Result<crate::client::Answer, Ended> {
    match target.open(path).await {
        Ok(answer) if answer.status == 200 => Ok(answer),
        Ok(answer) if matches!(answer.status, 404 | 405 | 501) => Err(Ended::Plain),
        Ok(answer) => Err(Ended::Failed(format!("{path} answers {}", answer.status))),
        Err(error) => Err(Ended::Failed(error.to_string())),
    }
}

/// The other clock, read halfway between question and answer; wrong by at most half the round trip.
async fn clock(target: &Target) -> Option<(i64, Duration)> {
    #[derive(serde::Deserialize)]
    struct Clock {
        time: String,
    }
    let asked = (now(), Instant::now());
    let body = target.get("/clock", 1024, Duration::from_secs(2)).await.ok()?;
    let round_trip = asked.1.elapsed();
    let clock: Clock = serde_json::from_slice(&body).ok()?;
    let there = crate::wire::moment(&clock.time)?;
    Some((there.0 - asked.0.after(round_trip / 2).0, round_trip))
}

fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
}
