//! What is seen meanwhile: requests, slices and watermarks?

use super::cluster::Cluster;
use super::objects::{self, SERVICE};
use super::oracle::{Mark, Micros, Recorded, Request, Sighting, Version};
use pointsman_api_client::{Event, Resource, Scope, Watcher};
use pointsman_cluster::load::{self, Sample};
use pointsman_cluster::nodes::measuring;
use pointsman_http::Target;
use pointsman_objects::EndpointSlice;
use pointsman_objects::names::SERVICE_NAME_LABEL;
use pointsman_protocol::watermark;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::process::Child;
use tokio::task::JoinHandle;

/// Requests per second from each node.
pub const RATE: u32 = 25;
/// How long a request may take before it counts as lost.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two looks at the slices.
const LOOK: Duration = Duration::from_millis(60);
/// A proxy says something every second; one that does not for so long is asked anew.
const SILENCE: Duration = Duration::from_secs(3);

/// Everything recorded, shared by all who record.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Recorded>>);

impl Notes {
    /// The notes. Nobody panics with them; if somebody did, they are still good.
    pub fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time as loads write it.
pub fn now() -> Micros {
    jiff::Timestamp::now().as_microsecond()
}

/// Loads in the namespaces of all nodes.
pub struct Traffic {
    loads: Vec<(Child, JoinHandle<()>)>,
}

impl Traffic {
    /// Starts asking from every node.
    pub fn start(cluster: &Cluster, target: SocketAddr, notes: &Notes) -> anyhow::Result<Self> {
        let mut loads = Vec::new();
        for node in &cluster.record.nodes {
            let flags = [
                "--each".to_owned(),
                format!("--timeout={}s", TIMEOUT.as_secs()),
                format!("--target={target}"),
                format!("--rate={RATE}"),
            ];
            let (name, notes) = (node.name.clone(), notes.clone());
            let note = move |sample: Sample| notes.lock().requests.push(request(&name, sample));
            loads.push(load::spawn(&node.namespace, &cluster.program, flags, note)?);
        }
        Ok(Self { loads })
    }

    /// Ends the loads once the last answers are there.
    pub async fn stop(self) {
        for (process, _) in &self.loads {
            let pid = process.id().and_then(|pid| i32::try_from(pid).ok());
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                // It was not waited for, so that the number is still its own.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        for (mut process, reading) in self.loads {
            if tokio::time::timeout(TIMEOUT * 2, process.wait()).await.is_err() {
                let _ = process.kill().await;
            }
            // The output ends with the process.
            let _ = reading.await;
        }
    }
}

fn request(node: &str, sample: Sample) -> Request {
    let took = Micros::try_from(sample.took).unwrap_or(Micros::MAX);
    Request {
        node: node.to_owned(),
        sent: sample.sent,
        done: sample.sent.saturating_add(took),
        outcome: match (sample.host, sample.failed) {
            (Some(host), None) => Ok(host),
            (_, why) => Err(why.unwrap_or_default()),
        },
    }
}

/// Tasks that look at slices and listen to proxies until they are dropped.
pub struct Witnesses(Vec<JoinHandle<()>>);

impl Witnesses {
    /// Starts looking and listening.
    pub fn start(cluster: &Arc<Cluster>, notes: &Notes) -> Self {
        let mut tasks = vec![
            tokio::spawn(look(cluster.clone(), notes.clone())),
            tokio::spawn(remember(cluster.clone(), notes.clone())),
        ];
        for node in &cluster.record.nodes {
            let proxy = measuring(&cluster.record.data_dir, node.address);
            tasks.push(tokio::spawn(listen(node.name.clone(), proxy, notes.clone())));
        }
        Self(tasks)
    }
}

impl Drop for Witnesses {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

async fn look(cluster: Arc<Cluster>, notes: Notes) {
    loop {
        let asked = now();
        let slices = tokio::time::timeout(TIMEOUT, objects::slices(&cluster.client, SERVICE)).await;
        if let Ok(Ok(slices)) = slices {
            notes.lock().sightings.push(Sighting {
                asked,
                answered: now(),
                version: slices.version,
                listed: slices.listed,
            });
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Follows the slices, version by version.
async fn remember(cluster: Arc<Cluster>, notes: Notes) {
    let selector = format!("{SERVICE_NAME_LABEL}={SERVICE}");
    let scope = Scope::all(Resource::ENDPOINT_SLICES).labels(&selector);
    let mut watcher = Watcher::<EndpointSlice>::new(cluster.client.clone(), scope);
    let (mut slices, mut is_listing) = (BTreeMap::new(), false);
    loop {
        let (version, is_known) = match watcher.next().await {
            Event::Init => {
                is_listing = true;
                continue;
            }
            Event::Applied {
                key,
                object,
                resource_version,
            } => {
                slices.insert(key, object);
                (resource_version.parse().ok(), !is_listing)
            }
            Event::Deleted {
                key,
                resource_version,
                ..
            } => {
                slices.remove(&key);
                (
                    resource_version.and_then(|version| version.parse().ok()),
                    !is_listing,
                )
            }
            // Versions before the end of a list were not reported one by one.
            Event::Synced(version) => (version.parse().ok(), !std::mem::take(&mut is_listing)),
        };
        if let Some(version) = version {
            let listed = is_known.then(|| objects::fold_slices(slices.values()).listed);
            notes.lock().history.push(Version { version, listed });
        }
    }
}

async fn listen(node: String, proxy: Target, notes: Notes) {
    loop {
        // A proxy that is gone, cut off or stopped is asked again.
        let _ = follow(&node, &proxy, &notes).await;
        tokio::time::sleep(LOOK).await;
    }
}

async fn follow(node: &str, proxy: &Target, notes: &Notes) -> anyhow::Result<()> {
    let (status, mut lines) = proxy.follow(watermark::PATH, SILENCE).await?;
    anyhow::ensure!(status.is_success(), "the stream of watermarks answers {status}");
    loop {
        let mut versions = Vec::new();
        let more = lines.next(|line| {
            let line = watermark::decode(line);
            versions.extend(line.and_then(|line| line.report.progress.committed.slices));
        });
        let more = tokio::time::timeout(SILENCE, more).await??;
        let received = now();
        notes
            .lock()
            .marks
            .extend(versions.into_iter().map(|version| Mark {
                node: node.to_owned(),
                received,
                version: version.0,
            }));
        if !more {
            return Ok(());
        }
    }
}
