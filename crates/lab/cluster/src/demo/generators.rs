//! The loads of all nodes, and what they have counted.

use super::Stage;
use crate::load::{self, Tally};
use anyhow::bail;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::process::Child;

/// How long a request may take before it counts as lost.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// One load per node.
pub struct Generators {
    all: Vec<Generator>,
}

struct Generator {
    node: String,
    process: Child,
    counted: Arc<Mutex<Counted>>,
}

#[derive(Default)]
struct Counted {
    tally: Tally,
    last_answer: BTreeMap<String, Instant>,
}

impl Generators {
    /// Starts a load in every node's namespace.
    pub fn start(stage: &Stage, target: SocketAddr, rate: u32) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for node in stage.plan.nodes() {
            let flags = [
                "--report=50ms".to_owned(),
                format!("--timeout={}s", TIMEOUT.as_secs()),
                format!("--target={target}"),
                format!("--rate={rate}"),
            ];
            let counted = Arc::new(Mutex::new(Counted::default()));
            let counting = counted.clone();
            let count = move |tally: Tally| lock(&counting).add(&tally, Instant::now());
            let (process, _) = load::spawn(&node.namespace, &stage.program, flags, count)?;
            all.push(Generator {
                node: node.name,
                process,
                counted,
            });
        }
        Ok(Self { all })
    }

    /// Waits until every load got an answer.
    pub async fn wait_for_answers(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let silent = self.all.iter().find(|load| lock(&load.counted).tally.ok == 0);
            let Some(silent) = silent else { return Ok(()) };
            if started.elapsed() > Duration::from_secs(30) {
                let failed = lock(&silent.counted).tally.failed.clone();
                bail!("the Service does not answer on {}: {failed:?}", silent.node);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What was counted since the last time, by node.
    pub async fn take(&mut self) -> BTreeMap<String, Tally> {
        let taken = |load: &Generator| std::mem::take(&mut lock(&load.counted).tally);
        self.all
            .iter()
            .map(|load| (load.node.clone(), taken(load)))
            .collect()
    }

    /// How many requests failed since the counts were taken, but for those of the load of node `except`.
    pub fn lost(&self, except: &str) -> u64 {
        let loads = self.all.iter().filter(|load| load.node != except);
        loads.map(|load| lock(&load.counted).tally.lost()).sum()
    }

    /// When this host answered last, to anybody; known to 50 ms.
    pub fn last_answer(&self, host: &str) -> Option<Instant> {
        self.all
            .iter()
            .filter_map(|load| lock(&load.counted).last_answer.get(host).copied())
            .max()
    }

    /// Ends all loads.
    pub async fn stop(self) {
        for mut load in self.all {
            // One that ended by itself has been counted already.
            let _ = load.process.kill().await;
        }
    }
}

impl Counted {
    fn add(&mut self, tally: &Tally, now: Instant) {
        self.tally.merge(tally);
        for host in tally.by.keys() {
            self.last_answer.insert(host.clone(), now);
        }
    }
}

/// Nobody panics with the lock; if somebody did, the counts are still good.
fn lock(counted: &Mutex<Counted>) -> std::sync::MutexGuard<'_, Counted> {
    counted.lock().unwrap_or_else(PoisonError::into_inner)
}
