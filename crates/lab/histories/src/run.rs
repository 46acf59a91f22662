//! How is a history recorded while everything breaks?
//!
//! Clients read, write and list a few objects, watchers follow them, and faults strike as the seed says. When the faults
//! of a history are over every object is read once more, one last write is made, and every watch has to bring it.

mod clients;
mod disk;
mod record;
mod schedule;
mod servers;
mod watchers;

pub use schedule::{Engine, Fault, Step, schedule};

use crate::history::{Answer, Freshness, History, Key, Request, Scope};
use crate::judge::{Counts, judge};
use fastrand::Rng;
use record::Record;
use serde_json::json;
use servers::Servers;
use std::fmt::{Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use watchers::Habit;

/// The objects of a history: few, so that clients meet.
const KEYS: usize = 5;
const CLIENTS: usize = 6;
/// So many operations lie between two faults at least.
const WORK: usize = 20;
const HABITS: [Habit; 4] = [
    Habit::Resume(Scope::All),
    Habit::Resume(Scope::Even),
    Habit::State(Scope::All),
    Habit::Replay,
];

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub engine: Engine,
    pub seed: u64,
    /// The run ends when so many processes were killed.
    pub kills: usize,
    /// How many faults strike in one history.
    pub faults: usize,
}

/// What went wrong on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub kills: usize,
    pub power_losses: usize,
    /// Pages that were other than the program had left them, after all power losses.
    pub pages_lost: usize,
    pub failed_syncs: usize,
    pub freezes: usize,
    /// How often a server ended itself because etcd was gone.
    pub ended: usize,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    pub plan: Plan,
    pub tally: Tally,
    pub counts: Counts,
    /// What no order explains, with the seed of its history.
    pub violations: Vec<String>,
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Tally {
            kills,
            power_losses,
            pages_lost,
            failed_syncs,
            freezes,
            ended,
        } = self.tally;
        write!(
            f,
            "{:?}, seed {}: {kills} kills ({power_losses} with power loss, {pages_lost} pages lost), {failed_syncs} failed \
             syncs, {freezes} freezes, {ended} ends without etcd; {}; {} violations",
            self.plan.engine,
            self.plan.seed,
            self.counts,
            self.violations.len()
        )
    }
}

/// Records and judges histories until enough was killed. `progress` gets a line now and then.
pub async fn run(plan: Plan, progress: impl Fn(&Report)) -> Report {
    let mut servers = Servers::start(plan.engine, plan.seed).await;
    let mut report = Report {
        plan,
        tally: Tally::default(),
        counts: Counts::default(),
        violations: Vec::new(),
    };
    let mut judging: Option<JoinHandle<(u64, crate::Verdict)>> = None;
    let mut seed = plan.seed;
    while servers.tally.kills < plan.kills {
        let (history, surprises) = record(&mut servers, plan, seed).await;
        let named = surprises
            .into_iter()
            .map(|surprise| format!("seed {seed}: {surprise}"));
        report.violations.extend(named);
        // The judge looks at one history while the next is recorded.
        if let Some(judging) = judging.take() {
            report.add(judging.await.expect("the judge does not panic"));
        }
        judging = Some(tokio::task::spawn_blocking(move || (seed, judge(&history))));
        report.tally = servers.tally;
        progress(&report);
        seed += 1;
    }
    if let Some(judging) = judging {
        report.add(judging.await.expect("the judge does not panic"));
    }
    report.violations.extend(servers.complaints());
    report.tally = servers.tally;
    report
}

impl Report {
    fn add(&mut self, (seed, verdict): (u64, crate::Verdict)) {
        self.counts += verdict.counts;
        let violations = verdict.violations.into_iter();
        self.violations
            .extend(violations.map(|violation| format!("seed {seed}: {violation}")));
    }
}

/// One history, and what was wrong on sight.
async fn record(servers: &mut Servers, plan: Plan, seed: u64) -> (History, Vec<String>) {
    let record = Arc::new(Record::new(format!("h{seed}"), KEYS));
    let first = begin(servers, &record, plan.engine).await;
    let (end, ending) = watch::channel(None);
    let mut watchers = Vec::new();
    for (number, habit) in HABITS.into_iter().enumerate() {
        let access = servers.access(number % plan.engine.servers()).await;
        watchers.push(tokio::spawn(watchers::follow(
            record.clone(),
            access,
            habit,
            first,
            ending.clone(),
        )));
    }
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let access = servers.access(number % plan.engine.servers()).await;
        let random = Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(number as u64));
        clients.push(tokio::spawn(clients::work(record.clone(), access, random)));
    }
    for step in schedule(plan.engine, seed, plan.faults) {
        tokio::time::sleep(step.after).await;
        some_work(&record).await;
        servers.hurt(step.fault).await;
    }
    some_work(&record).await;
    record.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("clients do not panic");
    }
    end.send_replace(Some(finish(servers, &record, plan.engine).await));
    let mut watches = Vec::new();
    for watcher in watchers {
        watches.extend(watcher.await.expect("watchers do not panic"));
    }
    let record = Arc::into_inner(record).expect("everybody has finished");
    let (operations, surprises) = record.into_parts();
    let history = History {
        keys: KEYS,
        operations,
        watches,
    };
    (history, surprises)
}

/// Makes the namespace and lets every server see it; gives the revision at which the history begins.
async fn begin(servers: &Servers, record: &Record, engine: Engine) -> u64 {
    let path = "/api/v1/namespaces";
    let namespace = json!({"metadata": {"name": record.namespace}});
    let http = servers.access(0).await.http;
    until(async || {
        let answer = http.try_post(path, &namespace).await;
        answer.is_ok_and(|answer| matches!(answer.code, 201 | 409))
    })
    .await;
    let mut first = 0;
    for server in 0..engine.servers() {
        let access = servers.access(server).await;
        let path = format!("{path}/{}", record.namespace);
        until(async || {
            access
                .http
                .try_get(&path)
                .await
                .is_ok_and(|answer| answer.code == 200)
        })
        .await;
        let listed = until_answered(record, &access, || Request::List(Freshness::Newest)).await;
        if let Answer::Listed(listing) = listed {
            first = listing.revision;
        }
    }
    first
}

/// Reads everything from every server and makes one last write; gives its revision.
async fn finish(servers: &Servers, record: &Record, engine: Engine) -> u64 {
    for server in 0..engine.servers() {
        let access = servers.access(server).await;
        for key in (0..KEYS).map(Key) {
            until_answered(record, &access, || Request::Get { key }).await;
        }
        until_answered(record, &access, || Request::List(Freshness::Newest)).await;
    }
    let access = servers.access(0).await;
    loop {
        // Even, so that every watch covers it.
        let (key, write) = (Key(0), record.next_even_write());
        let replace = Request::Put {
            key,
            write: record.next_even_write(),
            expected: None,
        };
        let requests = [Request::Create { key, write }, replace];
        for request in requests {
            if let Some(Answer::Written(seen)) = record.carry_out(&access, request).await {
                return seen.revision;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Asks until there is an answer: the faults are over.
async fn until_answered(record: &Record, access: &servers::Access, request: impl Fn() -> Request) -> Answer {
    let mut answer = None;
    until(async || {
        answer = record.carry_out(access, request()).await;
        answer.is_some()
    })
    .await;
    answer.expect("waited for")
}

async fn until(mut attempt: impl AsyncFnMut() -> bool) {
    while !attempt().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Lets clients get something done, also on a slow machine.
async fn some_work(record: &Record) {
    let enough = record.recorded() + WORK;
    until(async || record.recorded() >= enough).await;
}
