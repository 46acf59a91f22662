//! A bounded load: what becomes of a new connection every few milliseconds?
//!
//! Every request has a connection of its own, so that each meets the rules of its moment. A line of JSON
//! says what became of the requests since the line before; how fast answers come does not change how many
//! are sent.

use anyhow::Context;
use pointsman_fabric::Netns;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// What to ask, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What to connect to.
    pub target: SocketAddr,
    /// Connections per second.
    pub rate: u32,
    /// How long a request may take.
    pub timeout: Duration,
    /// How often a line is written.
    pub report: Duration,
    /// How long to go on; without it, until a signal.
    pub duration: Option<Duration>,
    /// Whether a line is written for each request instead.
    pub each: bool,
}

/// What became of one request, as `--each` writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was sent, in microseconds since 1970.
    pub sent: i64,
    /// How long it took, in microseconds.
    pub took: u64,
    pub host: Option<String>,
    /// Why nobody did.
    pub failed: Option<String>,
}

impl Sample {
    fn new(sent: i64, took: Duration, outcome: &Outcome) -> Self {
        let (host, failed) = match outcome {
            Outcome::Answered { host, .. } => (Some(host.clone()), None),
            Outcome::Failed(why) => (None, Some((*why).to_owned())),
        };
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Self {
            sent,
            took,
            host,
            failed,
        }
    }
}

/// What became of some requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Requests that got the answer they should.
    pub ok: u64,
    /// Requests that did not, by what happened.
    pub failed: BTreeMap<String, u64>,
    /// Who answered, and how often.
    pub by: BTreeMap<String, u64>,
    /// The slowest good answer, in milliseconds.
    pub slowest_ms: f64,
}

impl Tally {
    /// Counts one request.
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Answered { host, took } => {
                self.ok += 1;
                *self.by.entry(host.clone()).or_default() += 1;
                self.slowest_ms = self.slowest_ms.max(took.as_secs_f64() * 1000.0);
            }
            Outcome::Failed(why) => *self.failed.entry((*why).to_owned()).or_default() += 1,
        }
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        self.ok += other.ok;
        for (why, count) in &other.failed {
            *self.failed.entry(why.clone()).or_default() += count;
        }
        for (host, count) in &other.by {
            *self.by.entry(host.clone()).or_default() += count;
        }
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
    }

    /// How many requests failed.
    pub fn lost(&self) -> u64 {
        self.failed.values().sum()
    }
}

/// What became of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A good answer.
    Answered {
        host: String,
        /// How long it took.
        took: Duration,
    },
    /// No answer, or a bad one.
    Failed(&'static str),
}

/// Sends until `stop` or the end of the time, then waits for the last answers.
pub async fn run(config: Config, stop: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    let mut sends = tokio::time::interval(Duration::from_secs(1) / config.rate);
    // After a hold-up the missed requests are not made up for in one burst.
    sends.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reports = tokio::time::interval(config.report);
    let end = tokio::time::sleep(config.duration.unwrap_or(Duration::MAX));
    tokio::pin!(stop, end);
    let (mut tally, mut total) = (Tally::default(), Tally::default());
    loop {
        tokio::select! {
            _ = sends.tick() => {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let (sent, started) = (jiff::Timestamp::now().as_microsecond(), Instant::now());
                    let outcome = ask(config.target, config.timeout).await;
                    if config.each {
                        say(&Sample::new(sent, started.elapsed(), &outcome));
                    }
                    // The receiver ends only with the program.
                    let _ = sender.send(outcome);
                });
            }
            Some(outcome) = outcomes.recv() => tally.add(&outcome),
            _ = reports.tick(), if !config.each => report(&mut tally, &mut total)?,
            signal = &mut stop => {
                signal?;
                break;
            }
            () = &mut end => break,
        }
    }
    drop(sender);
    while let Some(outcome) = outcomes.recv().await {
        tally.add(&outcome);
    }
    if !config.each {
        report(&mut tally, &mut total)?;
    }
    tracing::info!(answered = total.ok, lost = total.lost(), "that was all");
    Ok(())
}

/// Starts `pointsman load` of `program` in a network namespace; `take` gets each line of its output, which ends with
/// the process. It is killed when dropped.
pub fn spawn<T: DeserializeOwned>(
    namespace: &str,
    program: &Path,
    flags: impl IntoIterator<Item = String>,
    mut take: impl FnMut(T) + Send + 'static,
) -> anyhow::Result<(Child, JoinHandle<()>)> {
    let mut command = Netns::named(namespace)?.command(program);
    command.args(["load", "--log=warn"]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting a load in {namespace}"))?;
    let output = process.stdout.take().context("a load has an output")?;
    let reading = tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if let Ok(line) = serde_json::from_str(&line) {
                take(line);
            }
        }
    });
    Ok((process, reading))
}

/// Writes a line. Whoever does not read it any more does not want it.
fn say(sample: &Sample) {
    if let Ok(line) = serde_json::to_string(sample) {
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}

/// Writes what was counted since the last time.
fn report(tally: &mut Tally, total: &mut Tally) -> anyhow::Result<()> {
    total.merge(tally);
    let line = serde_json::to_string(&std::mem::take(tally))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

async fn ask(target: SocketAddr, timeout: Duration) -> Outcome {
    let started = Instant::now();
    match crate::plain_http::get(target, "/", timeout).await {
        Ok((200, body)) => {
            let host = serde_json::from_str::<serde_json::Value>(&body).ok();
            let host = host.and_then(|answer| Some(answer["host"].as_str()?.to_owned()));
            Outcome::Answered {
                host: host.unwrap_or_else(|| "?".to_owned()),
                took: started.elapsed(),
            }
        }
        Ok(_) => Outcome::Failed("bad status"),
        Err(error) => Outcome::Failed(match error.kind() {
            ErrorKind::ConnectionRefused => "refused",
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "reset",
            ErrorKind::TimedOut => "timeout",
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "unreachable",
            ErrorKind::InvalidData => "cut off",
            _ => "other",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let mut one = Tally::default();
        let answered = |host: &str, millis| Outcome::Answered {
            host: host.to_owned(),
            took: Duration::from_millis(millis),
        };
        one.add(&answered("a", 5));
        one.add(&Outcome::Failed("reset"));
        let mut two = Tally::default();
        two.add(&answered("a", 9));
        two.add(&answered("b", 1));
        one.merge(&two);
        assert_eq!((one.ok, one.lost(), one.slowest_ms), (3, 1, 9.0));
        assert_eq!(one.by, BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]));
        let line = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Tally>(&line).unwrap(), one);
    }
}
