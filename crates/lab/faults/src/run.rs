//! What happens in one run?

use super::cluster::Cluster;
use super::inject::suffer;
use super::objects;
use super::oracle::{self, Micros, Verdict, Window, judge};
use super::schedule::{Fault, Planned, Schedule};
use super::steady::unsteady;
use super::traces::traces;
use super::witness::{Notes, Traffic, Witnesses, now};
use super::writers::{Books, User, all_ready, clerk};
use anyhow::{Context, bail};
use pointsman_api_client::Resource;
use pointsman_cluster::containers::RuntimeKind;
use pointsman_cluster::own_faults;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long the cluster may take to its steady state after the last fault.
const RECOVERY: Duration = Duration::from_secs(60);
/// How long every ready pod may take to answer every node in the steady state.
const REACHED: Duration = Duration::from_secs(15);
/// How long the steady state is watched at least.
const WATCHED: Duration = Duration::from_millis(1500);

/// What came of a run.
pub struct Report {
    /// What the oracle says.
    pub verdict: Verdict,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// From the end of the last fault to the steady state.
    pub recovery: Option<Duration>,
    /// Where logs are kept, if something is wrong.
    pub kept: Option<PathBuf>,
}

/// Plays a seed on a cluster of its own. An error means that the run itself could not be made.
pub async fn play(
    program: &Path,
    seed: u64,
    schedule: &Schedule,
    runtime: RuntimeKind,
    keep: bool,
) -> anyhow::Result<Report> {
    let name = format!("f{}-{seed}", std::process::id());
    let cluster = Cluster::start(program.to_owned(), &name, schedule.proxy_mode, runtime).await?;
    let cluster = Arc::new(cluster);
    let run = Run {
        notes: Notes::default(),
        books: Books::default(),
        uids: Mutex::default(),
        scene: Mutex::default(),
        traffic: Mutex::default(),
        cluster,
    };
    let outcome = run.all(schedule, seed).await;
    let (mut verdict, recovery) = match outcome {
        Ok(done) => done,
        Err(error) => {
            let verdict = Verdict {
                violations: vec![format!("{error:#}")],
                ..Verdict::default()
            };
            (verdict, None)
        }
    };
    if let Some(traffic) = run.traffic.lock().await.take() {
        traffic.stop().await;
    }
    if let Err(error) = run.cluster.stop().await {
        verdict.violations.push(format!("{error:#}"));
        // What is left must not be in the way of the next run.
        let _ = run.cluster.pointsman("down", &[]).await;
    }
    let home = run.cluster.home.path().to_owned();
    let acknowledged = run.books.lock().acknowledged();
    let scene = std::mem::take(&mut *run.scene.lock().await);
    let kept = match verdict.violations.is_empty() && !keep {
        true => None,
        false => run.keep(seed, schedule, &verdict, &scene).ok(),
    };
    let uids = run.uids.into_inner();
    // The last reference, so that the disk goes.
    drop(run.cluster);
    let left = traces(&name, &home, &uids);
    verdict
        .violations
        .extend(left.into_iter().map(|trace| format!("left behind: {trace}")));
    Ok(Report {
        verdict,
        acknowledged,
        recovery,
        kept,
    })
}

struct Run {
    cluster: Arc<Cluster>,
    notes: Notes,
    books: Books,
    uids: Mutex<BTreeSet<String>>,
    /// How the network looked when something was wrong.
    scene: Mutex<String>,
    traffic: Mutex<Option<Traffic>>,
}

impl Run {
    async fn all(&self, schedule: &Schedule, seed: u64) -> anyhow::Result<(Verdict, Option<Duration>)> {
        self.notes.lock().nodes = self
            .cluster
            .record
            .nodes
            .iter()
            .map(|node| node.name.clone())
            .collect();
        objects::create(&self.cluster.client, &self.cluster.served).await?;
        let witnesses = Witnesses::start(&self.cluster, &self.notes);
        if let Err(reasons) = self.wait_until_steady().await {
            bail!("the pods do not get ready in the beginning: {reasons:#?}");
        }
        let target = self.target().await?;
        *self.traffic.lock().await = Some(Traffic::start(&self.cluster, target, &self.notes)?);
        let clerk = tokio::spawn(clerk(self.cluster.client.clone(), self.books.clone(), seed));
        let suffered = self.suffer(schedule, target).await;
        let healed = Instant::now();
        suffered?;
        let steady = self.wait_until_steady().await;
        let recovery = steady.is_ok().then(|| healed.elapsed());
        self.notes.lock().steady = recovery.map(|_| now());
        let unreached = match &steady {
            Ok(()) => self.wait_until_reached().await?,
            Err(_) => BTreeSet::new(),
        };
        clerk.abort();
        // Its last write, if any, is in doubt; it must not be under way when everything is read.
        let _ = clerk.await;
        if let Some(traffic) = self.traffic.lock().await.take() {
            traffic.stop().await;
        }
        drop(witnesses);
        let mut verdict = judge(&self.notes.lock());
        if !verdict.violations.is_empty() {
            *self.scene.lock().await = self.cluster.scene().await;
        }
        let found = objects::numbers(&self.cluster.client).await?;
        verdict
            .violations
            .extend(self.books.lock().contradictions(&found));
        if let Err(reasons) = steady {
            verdict
                .violations
                .push(format!("no steady state within {RECOVERY:?}: {reasons:#?}"));
        }
        let own_faults = own_faults::of_cluster(&self.cluster.record, &schedule.flushed()).await;
        verdict
            .violations
            .extend(own_faults.unwrap_or_else(|error| vec![format!("{error:#}")]));
        verdict.violations.extend(
            unreached
                .into_iter()
                .map(|(node, pod)| format!("{pod} is ready and never answered {node} within {REACHED:?}")),
        );
        Ok((verdict, recovery))
    }

    async fn target(&self) -> anyhow::Result<SocketAddr> {
        let services = self
            .cluster
            .client
            .api(Resource::SERVICES, Some(objects::NAMESPACE));
        let service: Value = services.get(objects::SERVICE).await?;
        let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
        let address: IpAddr = address.parse().context("the Service has no cluster address")?;
        Ok(SocketAddr::new(address, 80))
    }

    /// Lets all faults and changes happen at their time; returns when the last is over.
    async fn suffer(&self, schedule: &Schedule, target: SocketAddr) -> anyhow::Result<()> {
        let begun = tokio::time::Instant::now();
        let mode = schedule.proxy_mode;
        let faults = schedule.faults.iter().map(|planned| async move {
            tokio::time::sleep_until(begun + planned.at).await;
            self.one(*planned, mode, target).await
        });
        let changes = async {
            let mut user = User::new(self.cluster.clone(), self.books.clone());
            for (at, change) in &schedule.changes {
                tokio::time::sleep_until(begun + *at).await;
                user.make(*change).await;
            }
        };
        let all = async {
            let mut outcome = Ok(());
            for ended in futures_join(faults).await {
                outcome = outcome.and(ended);
            }
            outcome
        };
        tokio::join!(all, changes).0
    }

    async fn one(&self, planned: Planned, mode: &str, target: SocketAddr) -> anyhow::Result<()> {
        let from = now();
        if planned.fault == Fault::Crash {
            // Loads end with the namespaces.
            if let Some(traffic) = self.traffic.lock().await.take() {
                self.see_pods().await;
                let (crashed, ()) = tokio::join!(self.cluster.crash(), traffic.stop());
                crashed?;
            }
            *self.traffic.lock().await = Some(Traffic::start(&self.cluster, target, &self.notes)?);
        } else {
            suffer(&self.cluster, mode, planned).await?;
        }
        let aftermath = Micros::try_from(planned.aftermath(mode).as_micros()).unwrap_or(0);
        self.notes.lock().windows.push(Window {
            cause: planned.to_string(),
            from,
            until: now() + aftermath,
        });
        Ok(())
    }

    /// Remembers who the pods are, to look for what they leave.
    async fn see_pods(&self) {
        if let Ok(pods) = objects::pods(&self.cluster.client).await {
            self.uids
                .lock()
                .await
                .extend(pods.into_iter().map(|pod| pod.metadata.uid.to_string()));
        }
    }

    async fn wait_until_steady(&self) -> Result<(), Vec<String>> {
        let started = Instant::now();
        loop {
            self.see_pods().await;
            let reasons = unsteady(&self.cluster, &self.notes).await;
            if reasons.is_empty() {
                return Ok(());
            }
            if started.elapsed() > RECOVERY || !self.cluster.is_running().await {
                return Err(reasons);
            }
            // Pods whose flip was lost in a fault are switched back; the others do not mind.
            let _ = all_ready(&self.cluster).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until every pod has answered every node; returns who has not.
    async fn wait_until_reached(&self) -> anyhow::Result<BTreeSet<(String, String)>> {
        let (started, since) = (Instant::now(), now());
        let pods = objects::pods(&self.cluster.client).await?;
        let pods: BTreeSet<String> = pods.iter().map(|pod| pod.metadata.name.to_string()).collect();
        loop {
            let silent = {
                let notes = self.notes.lock();
                oracle::silent(&notes.requests, since, &notes.nodes, &pods)
            };
            let watched = started.elapsed() > WATCHED;
            if (silent.is_empty() && watched) || started.elapsed() > REACHED {
                return Ok(silent);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Keeps the logs and what was seen, for whoever wants to know why.
    fn keep(
        &self,
        seed: u64,
        schedule: &Schedule,
        verdict: &Verdict,
        scene: &str,
    ) -> anyhow::Result<PathBuf> {
        let path = std::env::temp_dir().join(format!("pointsman-faults-seed-{seed}"));
        std::fs::create_dir_all(&path)?;
        let logs = self.cluster.home.data_dir().join("logs");
        for entry in std::fs::read_dir(logs).into_iter().flatten().flatten() {
            std::fs::copy(entry.path(), path.join(entry.file_name()))?;
        }
        std::fs::copy(self.cluster.home.path().join("up.log"), path.join("up.log"))?;
        std::fs::write(path.join("events.txt"), self.events(schedule, verdict))?;
        std::fs::write(path.join("scene.txt"), scene)?;
        Ok(path)
    }

    fn events(&self, schedule: &Schedule, verdict: &Verdict) -> String {
        let notes = self.notes.lock();
        let mut lines: Vec<(Micros, String)> = Vec::new();
        for window in &notes.windows {
            lines.push((window.from, format!("fault: {}", window.cause)));
            lines.push((window.until, format!("aftermath ends: {}", window.cause)));
        }
        lines.extend(notes.steady.map(|at| (at, "steady".to_owned())));
        for request in notes.requests.iter().filter(|request| request.outcome.is_err()) {
            lines.push((
                request.sent,
                format!("lost: {} {:?}", request.node, request.outcome),
            ));
        }
        let mut before = None;
        for sighting in &notes.sightings {
            if before != Some(&sighting.listed) {
                lines.push((
                    sighting.answered,
                    format!("slices {}: {:?}", sighting.version, sighting.listed),
                ));
            }
            before = Some(&sighting.listed);
        }
        let mut last = std::collections::BTreeMap::new();
        for mark in &notes.marks {
            if last.insert(&mark.node, mark.version) != Some(mark.version) {
                lines.push((mark.received, format!("{} has {}", mark.node, mark.version)));
            }
        }
        lines.sort();
        let mut text = format!("{schedule:#?}\n{verdict:#?}\n");
        for (at, line) in lines {
            let at = jiff::Timestamp::from_microsecond(at).unwrap_or_default();
            let _ = writeln!(text, "{at:.3} {line}");
        }
        text
    }
}

/// Waits for all of them, in any order.
async fn futures_join<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = all.map(Box::pin).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|context| {
        pending.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => {
                done.push(value);
                false
            }
            std::task::Poll::Pending => true,
        });
        match pending.is_empty() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done
}
