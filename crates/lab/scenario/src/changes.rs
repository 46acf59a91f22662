//! How is each kind of change made, seen in packets and looked up in the report?

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use pointsman_api_client::{DeleteOptions, Resource};
use serde_json::json;

use super::cluster::{Cluster, NAMESPACE, Target};
use super::figures::{Figures, Kind, Sample};
use super::objects;
use super::packets::{Probers, Seen, Wanted};
use super::report::{Collector, Reported};
use pointsman_cluster::plain_http;

/// How long packets may take to show a change.
const PATIENCE: Duration = Duration::from_secs(15);
const ROLLED: &str = "rolled";
const SCALED: &str = "scaled";
/// Pods that a scale-up brings.
const SCALE: u64 = 3;

/// Everything that changes are made with.
pub struct Changes<'a> {
    cluster: &'a Cluster,
    pub collector: &'a Collector,
    probers: Probers,
    pause: Duration,
    targets: Vec<Target>,
    ready: Vec<bool>,
    rolled: SocketAddr,
    scaled: SocketAddr,
    rounds: u64,
    lives: u16,
    pub figures: Figures,
}

impl<'a> Changes<'a> {
    /// Makes the pods that are changed.
    pub async fn prepare(
        cluster: &'a Cluster,
        collector: &'a Collector,
        pods_per_node: usize,
        pause: Duration,
    ) -> anyhow::Result<Self> {
        let targets = cluster.add_targets(pods_per_node).await?;
        if targets.is_empty() {
            bail!("at least one pod on each node is needed");
        }
        Ok(Self {
            ready: vec![true; targets.len()],
            rolled: cluster.add_deployment(ROLLED, 1).await?,
            scaled: cluster.add_deployment(SCALED, 0).await?,
            probers: Probers::start(&cluster.record)?,
            cluster,
            collector,
            pause,
            targets,
            rounds: 0,
            lives: 0,
            figures: Figures::default(),
        })
    }

    /// A pod changes its mind; its node's agent finds out by a probe.
    pub async fn flip(&mut self, number: usize) -> anyhow::Result<()> {
        let target = self.targets[number].clone();
        let ready = !self.ready[number];
        self.ready[number] = ready;
        let (wanted, kind, word, path) = match ready {
            true => (Wanted::Answers, Kind::Ready, "ready", "/ready/on"),
            false => (Wanted::Nothing, Kind::NotReady, "not-ready", "/ready/off"),
        };
        let watching = self.probers.watch(target.service, wanted);
        // Probers have to have seen the state before, or the first packet would seem to be the change.
        tokio::time::sleep(self.pause).await;
        let since = Timestamp::now();
        plain_http::get(target.pod, path, Duration::from_secs(5))
            .await
            .with_context(|| format!("changing the mind of {}", target.name))?;
        let seen = watching.finish(PATIENCE).await;
        let report = self.reported(&target.name, &[word], since).await?;
        self.record(kind, &seen, 0, None, report.as_ref());
        Ok(())
    }

    /// A Service comes, changes its port and goes.
    pub async fn life(&mut self, number: usize) -> anyhow::Result<()> {
        if !self.ready[number] {
            self.flip(number).await?;
        }
        let target = self.targets[number].clone();
        let (name, address) = (format!("life-{}", self.lives), self.free_address(&target)?);
        self.lives += 1;

        let watching = self
            .probers
            .watch(SocketAddr::new(address.into(), 80), Wanted::Answers);
        tokio::time::sleep(self.pause).await;
        let since = Timestamp::now();
        self.cluster
            .add_service(&name, &target.name, 80, Some(address))
            .await?;
        let seen = watching.finish(PATIENCE).await;
        let service = self.reported(&name, &["service-created"], since).await?;
        let slice = self.reported(&name, &["ready", "endpoints"], since).await?;
        let both = service.zip(slice).map(|(service, slice)| later(service, &slice));
        self.record(Kind::ServiceCreated, &seen, 0, Some(since), both.as_ref());

        let watching = self
            .probers
            .watch(SocketAddr::new(address.into(), 81), Wanted::Answers);
        tokio::time::sleep(self.pause).await;
        let since = Timestamp::now();
        let ports = json!({ "spec": { "ports": [{ "port": 81, "targetPort": objects::PORT }] } });
        self.cluster.patch(Resource::SERVICES, &name, &ports).await?;
        let seen = watching.finish(PATIENCE).await;
        let report = self.reported(&name, &["service-changed"], since).await?;
        self.record(Kind::ServiceChanged, &seen, 0, Some(since), report.as_ref());

        let watching = self
            .probers
            .watch(SocketAddr::new(address.into(), 81), Wanted::Nothing);
        tokio::time::sleep(self.pause).await;
        let since = Timestamp::now();
        let services = self.cluster.api(Resource::SERVICES);
        services.delete(&name, &DeleteOptions::default()).await?;
        let seen = watching.finish(PATIENCE).await;
        let report = self.reported(&name, &["service-deleted"], since).await?;
        self.record(Kind::ServiceDeleted, &seen, 0, Some(since), report.as_ref());
        Ok(())
    }

    /// A pod is replaced by one that can be distinguished by refusing where the other answers, or the reverse.
    pub async fn roll(&mut self) -> anyhow::Result<()> {
        self.rounds += 1;
        let new_answer = self.rounds.is_multiple_of(2);
        let watching = self.probers.watch(self.rolled, Wanted::TakeOver { new_answer });
        tokio::time::sleep(self.pause).await;
        let since = Timestamp::now();
        let template = objects::replaced(&self.cluster.served, self.rounds, new_answer);
        self.cluster
            .patch(Resource::DEPLOYMENTS, ROLLED, &template)
            .await?;
        let seen = watching.finish(PATIENCE).await;
        let ready = self.reported(ROLLED, &["ready"], since).await?;
        let terminating = self.reported(ROLLED, &["terminating"], since).await?;
        self.record(Kind::RolledReady, &seen, 0, None, ready.as_ref());
        self.record(Kind::RolledTerminating, &seen, 1, None, terminating.as_ref());
        self.cluster.wait_for_rollout(ROLLED).await
    }

    /// A Deployment gets its first pods, and loses them again.
    pub async fn scale_up(&mut self) -> anyhow::Result<()> {
        let watching = self.probers.watch(self.scaled, Wanted::Answers);
        tokio::time::sleep(self.pause).await;
        let since = Timestamp::now();
        let scale = |replicas: u64| json!({ "spec": { "replicas": replicas } });
        self.cluster
            .patch(Resource::DEPLOYMENTS, SCALED, &scale(SCALE))
            .await?;
        let seen = watching.finish(PATIENCE).await;
        let report = self.reported(SCALED, &["ready"], since).await?;
        self.record(Kind::ScaledUp, &seen, 0, None, report.as_ref());
        self.cluster.wait_for_rollout(SCALED).await?;
        self.cluster
            .patch(Resource::DEPLOYMENTS, SCALED, &scale(0))
            .await?;
        self.cluster.wait_for_rollout(SCALED).await
    }

    async fn reported(
        &self,
        service: &str,
        kinds: &[&str],
        since: Timestamp,
    ) -> anyhow::Result<Option<Reported>> {
        let service = format!("{NAMESPACE}/{service}");
        self.collector.change(&service, kinds, since).await
    }

    /// Writes down a change: `cause` is when it was asked for, if nobody writes that into objects.
    fn record(
        &mut self,
        kind: Kind,
        seen: &Seen,
        which: usize,
        cause: Option<Timestamp>,
        report: Option<&Reported>,
    ) {
        let began = cause.or(report.map(|report| report.began));
        let samples: Vec<Sample> = seen
            .iter()
            .map(|(node, truths)| {
                let truth = truths.get(which);
                let reported = report.and_then(|report| report.nodes.get(node)).copied();
                Sample {
                    truth: truth.zip(began).map(|(truth, began)| between(began, truth.at)),
                    width: truth.map_or(Duration::ZERO, |truth| truth.width),
                    reported: reported.zip(report).map(|(at, report)| between(report.began, at)),
                    error: truth.zip(reported).map(|(truth, at)| apart(truth.at, at)),
                }
            })
            .collect();
        self.figures
            .add(kind, samples, report.and_then(|report| report.most));
    }

    /// An address for a Service that nobody has: the first 256 of a range are given only to those who choose.
    fn free_address(&self, target: &Target) -> anyhow::Result<Ipv4Addr> {
        let SocketAddr::V4(service) = target.service else {
            bail!("Services with IPv6 addresses are not part of the scenario");
        };
        let [a, b, ..] = service.ip().octets();
        // The very first ones are customary for DNS and the API server.
        let last = 16 + self.lives % 240;
        Ok(Ipv4Addr::new(a, b, 0, u8::try_from(last)?))
    }
}

/// Both changes are needed before packets get through, so the later one counts on every node.
fn later(service: Reported, slice: &Reported) -> Reported {
    let nodes = service.nodes.into_iter().filter_map(|(name, at)| {
        let other = slice.nodes.get(&name)?;
        Some((name, at.max(*other)))
    });
    let nodes: std::collections::BTreeMap<_, _> = nodes.collect();
    let last = nodes.values().max().copied();
    Reported {
        most: last.map(|last| between(service.began, last)),
        nodes,
        ..service
    }
}

fn apart(one: Timestamp, other: Timestamp) -> Duration {
    Duration::from_micros(one.as_microsecond().abs_diff(other.as_microsecond()))
}

fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    let micros = later.as_microsecond() - earlier.as_microsecond();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
