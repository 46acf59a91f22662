//! How long after the deletion of a pod did its gate open?
//!
//! The deletion counts from the moment at which a watch of our own reports it, the opening by the word of the
//! cluster's collector, which runs on the same machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use pointsman_api_client::{Client, Event, Resource, Scope, Watcher};
use pointsman_objects::Pod;
use serde_json::Value;
use tokio::task::AbortHandle;

use super::report::{state, time};
use pointsman_cluster::claim::Record;

type Deletions = Arc<Mutex<BTreeMap<String, Timestamp>>>;

/// What is known of gates.
#[derive(Debug, Default)]
pub struct Opened {
    /// How many there were, by what came of them.
    pub outcomes: BTreeMap<String, u64>,
    /// From the deletion to the opening.
    pub after_deletion: Vec<Duration>,
    /// From the question to the opening.
    pub waited: Vec<Duration>,
}

/// Follows deletions and gates.
pub struct Gates {
    collector: SocketAddr,
    namespace: String,
    deletions: Deletions,
    watching: AbortHandle,
    counted: BTreeSet<String>,
    pub opened: Opened,
}

impl Drop for Gates {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Gates {
    /// Begins to follow those of a namespace.
    pub async fn start(client: &Client, record: &Record, namespace: &str) -> anyhow::Result<Self> {
        let page = record.page.as_deref().context("the cluster has no collector")?;
        let authority = page.trim_start_matches("http://").trim_end_matches('/');
        let deletions = Deletions::default();
        let watcher = Watcher::<Pod>::new(client.clone(), Scope::all(Resource::PODS));
        let watching = tokio::spawn(watch(watcher, namespace.to_owned(), deletions.clone()));
        let mut gates = Self {
            collector: authority
                .parse()
                .with_context(|| format!("{page} is no address"))?,
            namespace: namespace.to_owned(),
            deletions,
            watching: watching.abort_handle(),
            counted: BTreeSet::new(),
            opened: Opened::default(),
        };
        // What opened before is not ours to count.
        gates.collect().await?;
        gates.opened = Opened::default();
        Ok(gates)
    }

    /// Takes in gates that opened since. To be called often: collectors remember the last 50.
    pub async fn collect(&mut self) -> anyhow::Result<()> {
        let state = state(self.collector).await?;
        let deletions = self.deletions.lock().unwrap_or_else(PoisonError::into_inner);
        for gate in state["gates"]["recent"].as_array().into_iter().flatten() {
            let about = gate["about"].as_str().unwrap_or_default();
            let ours = about
                .split_once('/')
                .filter(|(space, _)| *space == self.namespace);
            let Some((_, pod)) = ours else { continue };
            if gate["form"] != "pod" || !self.counted.insert(pod.to_owned()) {
                continue;
            }
            let outcome = gate["outcome"].as_str().unwrap_or("other").to_owned();
            *self.opened.outcomes.entry(outcome).or_default() += 1;
            let waited = gate["waitedSeconds"].as_f64().map(Duration::from_secs_f64);
            self.opened.waited.extend(waited);
            if let (Some(deleted), Some(at)) = (deletions.get(pod), time(&gate["at"])) {
                let micros = at.as_microsecond() - deleted.as_microsecond();
                let after = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
                self.opened.after_deletion.push(after);
            }
        }
        Ok(())
    }

    /// The collector's SLI.
    pub async fn sli(&self) -> anyhow::Result<Value> {
        Ok(state(self.collector).await?["sli"].take())
    }
}

async fn watch(mut watcher: Watcher<Pod>, namespace: String, deletions: Deletions) {
    loop {
        let event = watcher.next().await;
        let now = Timestamp::now();
        if let Event::Applied { key, object, .. } = event
            && key.namespace() == namespace
            && object.is_terminating()
        {
            let mut deletions = deletions.lock().unwrap_or_else(PoisonError::into_inner);
            deletions.entry(key.name().to_owned()).or_insert(now);
        }
    }
}
