//! How long until every watcher has a change?
//!
//! Changes are made at a fixed pace, whether or not the server keeps up, and each carries a number.
//! Every watcher notes when each number arrived, so a lost, doubled or disordered change is seen.

use crate::objects::{self, ALL_SLICES, CONFIG_MAPS, SLICES};
use crate::progress::Counter;
use crate::report::{Bound, Report, Unit};
use crate::server::{Server, Workplace};
use crate::{Fan, Scale};
use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use pointsman_benches::client::{Http1, Http2};
use pointsman_benches::kubeconfig::Access;
use pointsman_benches::latency::Latencies;
use pointsman_benches::process::Usage;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many connections the watchers share where they speak HTTP/2.
const SHARED_CONNECTIONS: usize = 20;
/// How many objects are changed in turn.
const OBJECTS: usize = 100;
/// The number of an object that was not changed yet; no change has it.
const UNCHANGED: usize = 9_999_900;
/// How long the last change may take to arrive before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long each watch may take to open; a debug build on busy cores needs most of it.
const OPENING: Duration = Duration::from_millis(50);

/// What is watched, and over what.
#[derive(Clone, Copy)]
pub struct Case {
    pub id: &'static str,
    pub what: &'static str,
    /// Where the objects are written.
    pub written: &'static str,
    /// What the watchers ask for.
    pub watched: &'static str,
    pub object: fn(&str, usize) -> Bytes,
    pub own_connections: bool,
    /// The longest that nearly every delivery may take, in milliseconds.
    pub bound: f64,
}

const CASES: &[Case] = &[
    Case {
        id: "watch_slices",
        what: "EndpointSlices over 20 HTTP/2 connections",
        written: SLICES,
        watched: ALL_SLICES,
        object: |name, sequence| objects::slice(name, sequence % OBJECTS, sequence),
        own_connections: false,
        bound: 100.0,
    },
    Case {
        id: "watch_maps",
        what: "ConfigMaps over 20 HTTP/2 connections",
        written: CONFIG_MAPS,
        watched: CONFIG_MAPS,
        object: objects::config_map,
        own_connections: false,
        bound: 100.0,
    },
    Case {
        id: "watch_maps_own",
        what: "ConfigMaps, an HTTP/1.1 connection each",
        written: CONFIG_MAPS,
        watched: CONFIG_MAPS,
        object: objects::config_map,
        own_connections: true,
        bound: 100.0,
    },
];

/// When things happened, as offsets from the start of the run, by change.
#[derive(Default)]
struct Written {
    sent: Vec<Duration>,
    answered: Vec<Duration>,
}

/// What one watcher saw.
struct Seen {
    /// When each change arrived; zero if it did not.
    arrived: Vec<Duration>,
    doubled: usize,
    disordered: usize,
    last_version: u64,
    /// The last change arrived, so whatever is missing is lost.
    complete: bool,
}

/// Measures the fan-out of changes.
pub async fn run(workplace: &Workplace, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let fan = &scale.fan;
    let title = format!("{} watchers, {} changes/s", fan.watchers, fan.changes_per_second);
    report.section("watches", &title);
    for case in CASES {
        let server = Server::start(workplace).await?;
        measure(&server, fan, case, report).await?;
    }
    Ok(())
}

/// Opens the watches, makes the changes, and says what came of them; returns what the server used before any watch was open,
/// and when all were.
pub async fn measure(
    server: &Server,
    fan: &Fan,
    case: &Case,
    report: &mut Report,
) -> anyhow::Result<(Usage, Usage)> {
    let version = prepare(server, case).await?;
    let closed = server.usages()?.server;
    let started = Instant::now();
    let watchers = open(server, fan, case, &version, started).await?;
    let before = server.usages()?;
    let written = make_changes(server, fan, case, started).await?;
    let seen = watchers.join_all().await;
    let after = server.usages()?;
    judge(case, &written, &seen, report);
    report.cost(case.id, case.what, &before, &after);
    Ok((closed, before.server))
}

/// Creates the objects; returns a version after which nothing has happened yet.
async fn prepare(server: &Server, case: &Case) -> anyhow::Result<String> {
    let mut client = Http1::connect(&server.access).await?;
    let mut version = String::new();
    for number in 0..OBJECTS {
        let object = (case.object)(&object_name(number), UNCHANGED);
        let made = client.call(Method::POST, case.written, object).await?;
        version = objects::resource_version(&made)
            .context("an answer without a resource version")?
            .to_owned();
    }
    Ok(version)
}

async fn open(
    server: &Server,
    fan: &Fan,
    case: &Case,
    version: &str,
    started: Instant,
) -> anyhow::Result<JoinSet<Seen>> {
    let counter = Counter::start("open watches", Some(fan.watchers));
    let path = format!("{}?watch=true&resourceVersion={version}", case.watched);
    let changes = changes(fan);
    // The watchers themselves must not count as idle before the changes begin.
    let opening = OPENING * u32::try_from(fan.watchers)?;
    let patience = opening + fan.time + PATIENCE * 2;
    let mut connections = Connections::open(&server.access, case.own_connections).await?;
    let mut watchers = JoinSet::new();
    for number in 0..fan.watchers {
        let (answer, held) = connections.watch(number, &path).await?;
        watchers.spawn(async move {
            let mut seen = Seen::new(changes);
            // Whoever is late keeps what it has; the missing changes are counted as lost.
            let _ = tokio::time::timeout(patience, follow(answer, started, &mut seen)).await;
            drop(held);
            seen
        });
        counter.count().fetch_add(1, Ordering::Relaxed);
    }
    Ok(watchers)
}

/// Where watches are opened.
enum Connections {
    Own(Access),
    Shared(Vec<Http2>),
}

/// A connection that must stay open as long as its watch.
enum Held {
    Own(#[expect(dead_code, reason = "held only to be dropped")] Http1),
    Shared(#[expect(dead_code, reason = "held only to be dropped")] Http2),
}

impl Connections {
    async fn open(access: &Access, own: bool) -> anyhow::Result<Self> {
        if own {
            return Ok(Self::Own(access.clone()));
        }
        let mut shared = Vec::new();
        for _ in 0..SHARED_CONNECTIONS {
            shared.push(Http2::connect(access).await?);
        }
        Ok(Self::Shared(shared))
    }

    async fn watch(&mut self, number: usize, path: &str) -> anyhow::Result<(Response<Incoming>, Held)> {
        match self {
            Self::Own(access) => {
                let mut client = Http1::connect(access).await?;
                let answer = client.send(Method::GET, path, Bytes::new()).await?;
                Ok((answer, Held::Own(client)))
            }
            Self::Shared(shared) => {
                let at = number % shared.len();
                let answer = shared[at].send(Method::GET, path, Bytes::new()).await?;
                Ok((answer, Held::Shared(shared[at].clone())))
            }
        }
    }
}

/// Makes all changes at their pace, then the one that marks the end.
async fn make_changes(server: &Server, fan: &Fan, case: &Case, started: Instant) -> anyhow::Result<Written> {
    let total = changes(fan);
    let counter = Counter::start(case.what, Some(total));
    let client = Http2::connect(&server.access).await?;
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / fan.changes_per_second);
    let mut writes = JoinSet::new();
    for sequence in 0..total {
        ticks.tick().await;
        writes.spawn(change(client.clone(), *case, sequence, started));
        counter.count().fetch_add(1, Ordering::Relaxed);
    }
    let mut times = vec![(Duration::ZERO, Duration::ZERO); total];
    while let Some(done) = writes.join_next().await {
        let (sequence, sent, answered) = done??;
        times[sequence] = (sent, answered);
    }
    change(client, *case, total, started).await?;
    let (sent, answered) = times.into_iter().unzip();
    Ok(Written { sent, answered })
}

async fn change(
    mut client: Http2,
    case: Case,
    sequence: usize,
    started: Instant,
) -> anyhow::Result<(usize, Duration, Duration)> {
    let name = object_name(sequence % OBJECTS);
    let object = (case.object)(&name, sequence);
    let path = format!("{}/{name}", case.written);
    let sent = started.elapsed();
    let answer = client.send(Method::PUT, &path, object).await?;
    let answered = started.elapsed();
    answer.into_body().collect().await?;
    Ok((sequence, sent, answered))
}

impl Seen {
    fn new(changes: usize) -> Self {
        Self {
            arrived: vec![Duration::ZERO; changes],
            doubled: 0,
            disordered: 0,
            last_version: 0,
            complete: false,
        }
    }

    fn note(&mut self, line: &[u8], now: Duration) -> anyhow::Result<()> {
        let (Some(sequence), Some(version)) = (objects::sequence(line), objects::resource_version(line))
        else {
            bail!("not a change: {}", String::from_utf8_lossy(line));
        };
        let version: u64 = version.parse()?;
        self.disordered += usize::from(version <= self.last_version);
        self.last_version = version;
        match self.arrived.get_mut(sequence) {
            None => self.complete = true,
            Some(arrived) if arrived.is_zero() => *arrived = now,
            Some(_) => self.doubled += 1,
        }
        Ok(())
    }
}

/// Reads a watch up to the change that marks the end.
async fn follow(answer: Response<Incoming>, started: Instant, seen: &mut Seen) -> anyhow::Result<()> {
    let mut body = answer.into_body();
    let mut rest: Vec<u8> = Vec::new();
    while !seen.complete {
        let frame = body.frame().await.context("the watch ended")??;
        let now = started.elapsed();
        let Some(data) = frame.data_ref() else { continue };
        let mut data: &[u8] = data;
        while let Some(end) = memchr::memchr(b'\n', data) {
            let (line, after) = data.split_at(end + 1);
            data = after;
            if rest.is_empty() {
                seen.note(line, now)?;
            } else {
                rest.extend_from_slice(line);
                seen.note(&rest, now)?;
                rest.clear();
            }
        }
        rest.extend_from_slice(data);
    }
    Ok(())
}

fn judge(case: &Case, written: &Written, seen: &[Seen], report: &mut Report) {
    let (mut after_answer, mut after_send) = (Latencies::default(), Latencies::default());
    let mut lost = 0;
    for watcher in seen {
        for (at, arrived) in watcher.arrived.iter().enumerate() {
            if arrived.is_zero() {
                lost += 1;
                continue;
            }
            // A watcher may well have the change before its writer has the answer.
            after_answer.record(arrived.saturating_sub(written.answered[at]));
            after_send.record(arrived.saturating_sub(written.sent[at]));
        }
    }
    let doubled: usize = seen.iter().map(|watcher| watcher.doubled).sum();
    let disordered: usize = seen.iter().map(|watcher| watcher.disordered).sum();
    let (delivered, id, what) = (after_answer.count(), case.id, case.what);
    for (name, since, latencies) in [("answer", "answered", after_answer), ("send", "sent", after_send)] {
        let sorted = latencies.sorted();
        let bound = Some(Bound::AtMost(case.bound));
        let row = |quantile: &str| format!("{what}: from {since} to seen, {quantile}");
        report.add(
            format!("{id}_{name}_p50_ms"),
            row("p50"),
            Unit::Millis,
            sorted.millis(0.5),
            None,
        );
        report.add(
            format!("{id}_{name}_p99_ms"),
            row("p99"),
            Unit::Millis,
            sorted.millis(0.99),
            bound,
        );
        report.add(
            format!("{id}_{name}_max_ms"),
            row("slowest"),
            Unit::Millis,
            sorted.millis(1.0),
            None,
        );
    }
    let mut count = |name: &str, title: &str, value: usize, bound| {
        report.add(
            format!("{id}_{name}"),
            format!("{what}: {title}"),
            Unit::Count,
            value as f64,
            bound,
        );
    };
    count("delivered", "deliveries", delivered, None);
    let none = Some(Bound::AtMost(0.0));
    count(
        "wrong",
        "lost, doubled or disordered",
        lost + doubled + disordered,
        none,
    );
}

fn changes(fan: &Fan) -> usize {
    (fan.time.as_secs_f64() * f64::from(fan.changes_per_second)) as usize
}

fn object_name(number: usize) -> String {
    format!("watched-{number:03}")
}
