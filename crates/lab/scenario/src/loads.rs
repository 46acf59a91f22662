//! What becomes of requests from every node?

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::task::JoinHandle;

use pointsman_cluster::claim::Record;
use pointsman_cluster::load::{self, Tally};

const PATIENCE: Duration = Duration::from_secs(30);

/// One load in the namespace of each node.
pub struct Loads {
    processes: Vec<Child>,
    readers: Vec<JoinHandle<()>>,
    tallies: Vec<Arc<Mutex<Tally>>>,
}

impl Loads {
    /// Starts them; returns once each has had an answer.
    pub async fn start(
        record: &Record,
        program: &Path,
        target: SocketAddr,
        rate: u32,
    ) -> anyhow::Result<Self> {
        let mut loads = Self {
            processes: Vec::new(),
            readers: Vec::new(),
            tallies: Vec::new(),
        };
        for node in &record.nodes {
            let flags = [
                "--report=100ms".to_owned(),
                "--timeout=5s".to_owned(),
                format!("--target={target}"),
                format!("--rate={rate}"),
            ];
            let tally = Arc::new(Mutex::new(Tally::default()));
            let counting = tally.clone();
            let count = move |more: Tally| lock(&counting).merge(&more);
            let (process, reader) = load::spawn(&node.namespace, program, flags, count)?;
            loads.readers.push(reader);
            loads.processes.push(process);
            loads.tallies.push(tally);
        }
        loads.wait_for_answers().await?;
        Ok(loads)
    }

    /// Ends all loads, waits for their last answers and returns what became of all requests.
    pub async fn finish(mut self) -> anyhow::Result<Tally> {
        for process in &mut self.processes {
            let id = process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
            let id = id.context("a load ended by itself")?;
            kill_process(id, Signal::TERM)?;
        }
        for process in &mut self.processes {
            tokio::time::timeout(PATIENCE, process.wait())
                .await
                .context("a load does not end")??;
        }
        for reader in &mut self.readers {
            reader.await?;
        }
        let mut total = Tally::default();
        for tally in &self.tallies {
            total.merge(&lock(tally));
        }
        Ok(total)
    }

    async fn wait_for_answers(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.tallies.iter().any(|tally| lock(tally).ok == 0) {
            if Instant::now() > deadline {
                bail!("the Service does not answer on every node");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // What happened before the Service was everywhere is not what is measured.
        for tally in &self.tallies {
            *lock(tally) = Tally::default();
        }
        Ok(())
    }
}

/// Nobody panics with the lock; if somebody did, the counts are still good.
fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}
