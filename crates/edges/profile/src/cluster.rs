//! Profiles of a cluster, over its API.

use crate::{print, print_check};
use anyhow::{Context as _, bail};
use pointsman_api_client::connect::connect;
use pointsman_api_client::{ApiError, Client, Patch, Source};
use pointsman_controllers::latency_profile::cluster::{CONFIG_NODES, Cluster};
use pointsman_controllers::latency_profile::{Desk, DriverError};
use pointsman_latency_profile::profile::DEFAULT;
use pointsman_latency_profile::rollout::{Ledger, Readings, Settled, Spec, Stored};
use pointsman_latency_profile::state::Owner;
use pointsman_latency_profile::{Catalog, Day, Wanted, next_step};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};

const NAME: &str = "cluster";
const POLL: Duration = Duration::from_millis(500);
/// How long conditions may still be about an earlier request.
const STALE: Duration = Duration::from_secs(15);
/// Counts attempts at the same profile.
const ATTEMPT: &str = "pointsman.io/worker-latency-profile-attempt";

const NOTHING_ASKED: &str = "No profile was ever asked for; `pointsman profile apply PROFILE` does.\n";

/// A profile for the cluster.
pub struct Request {
    /// Its name, or its short one.
    pub profile: String,
    /// Other profiles for the nodes of some pools; an empty name removes one.
    pub pools: Vec<(String, String)>,
    /// How long the rollout is followed; not at all without.
    pub follow: Option<Duration>,
}

/// Asks for the profile, then follows its rollout.
pub async fn apply(source: &Source, request: &Request) -> anyhow::Result<()> {
    let catalog = Catalog::standard();
    let profile = catalog.find(&request.profile)?;
    let mut annotations = Map::new();
    for (pool, name) in &request.pools {
        let key = format!("pointsman.io/worker-latency-profile.{pool}");
        let value = match name.as_str() {
            "" => Value::Null,
            name => catalog.find(name)?.name.into(),
        };
        annotations.insert(key, value);
    }
    let client = open(source).await?;
    let (spec, conditions, _) = look(&client)
        .await
        .context("cannot read nodes.config.openshift.io/cluster")?;
    let degraded = conditions
        .iter()
        .any(|it| it.kind == "Degraded" && it.status == "True");
    if let Some(spec) = spec.filter(|spec| degraded && spec.profile == profile.name) {
        // Asking for the same again is a new attempt.
        let attempt = (spec.generation >> 32) + 1;
        annotations.insert(ATTEMPT.into(), attempt.to_string().into());
    }
    let api = client.api(CONFIG_NODES, None);
    let wanted = json!({
        "metadata": { "annotations": annotations },
        "spec": { "workerLatencyProfile": profile.name },
    });
    let patched = api
        .patch::<IgnoredAny>(NAME, Patch::Merge(wanted.to_string().into_bytes()))
        .await;
    match patched {
        Ok(_) => {}
        Err(ApiError::NotFound(_)) => create(&client, wanted).await?,
        Err(error) => return Err(error).context("cannot write nodes.config.openshift.io/cluster"),
    }
    print(&format!("{} is requested\n", profile.name))?;
    match request.follow {
        Some(timeout) => follow(&client, Some(timeout)).await,
        None => Ok(()),
    }
}

async fn create(client: &Client, mut wanted: Value) -> anyhow::Result<()> {
    wanted["apiVersion"] = json!("config.openshift.io/v1");
    wanted["kind"] = json!("Node");
    wanted["metadata"]["name"] = json!(NAME);
    if let Some(annotations) = wanted["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|_, value| !value.is_null());
    }
    let api = client.api(CONFIG_NODES, None);
    match api.create::<IgnoredAny>(wanted.to_string().into_bytes()).await {
        Ok(_) => Ok(()),
        Err(ApiError::NotFound(_)) => bail!(
            "this API server has no nodes.config.openshift.io; for a kubeadm control plane use --kubeadm-dir"
        ),
        Err(error) => Err(error).context("cannot create nodes.config.openshift.io/cluster"),
    }
}

/// Prints what owners say whenever it changes, until the profile is in force or an owner is degraded.
pub async fn watch(source: &Source) -> anyhow::Result<()> {
    follow(&open(source).await?, None).await
}

/// Prints what owners say.
pub async fn status(source: &Source) -> anyhow::Result<()> {
    let client = open(source).await?;
    let (spec, conditions, _) = look(&client).await?;
    match spec.filter(|spec| !is_nothing_asked(spec, &conditions)) {
        Some(spec) => print(&table(&spec, &conditions)),
        None => print(NOTHING_ASKED),
    }
}

/// Reads the values in force and judges them.
pub async fn check(source: &Source) -> anyhow::Result<()> {
    let cluster = Cluster::reader(open(source).await?);
    let readings = readings(&cluster).await;
    let readings = readings.context("cannot read the settings of a component")?;
    let state = readings.state().context("the values in force are not known")?;
    print_check(&state)
}

async fn readings(cluster: &Cluster) -> Result<Readings, DriverError> {
    let mut readings = Readings::default();
    for driver in cluster.drivers() {
        driver.read().await?.part.put_into(&mut readings);
    }
    Ok(readings)
}

async fn open(source: &Source) -> anyhow::Result<Client> {
    connect(source, "pointsman-profile").await.context(
        "name a kubeconfig with --kubeconfig, or files of a kubeadm control plane with --kubeadm-dir",
    )
}

/// What is asked for, what owners say about it, and what they agreed on.
async fn look(client: &Client) -> Result<(Option<Spec>, Vec<Stored>, Ledger), DriverError> {
    let cluster = Cluster::reader(client.clone());
    let (spec, posted) = cluster.spec().await?;
    let (ledger, _) = cluster.ledger().await?;
    Ok((spec, posted.conditions, ledger))
}

/// Prints every change until the profile is in force or cannot be.
async fn follow(client: &Client, timeout: Option<Duration>) -> anyhow::Result<()> {
    let started = Instant::now();
    let deadline = timeout.map(|timeout| started + timeout);
    let mut printed = String::new();
    loop {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            bail!(
                "the rollout goes on, but took longer than --timeout; `pointsman profile status --watch` follows it"
            );
        }
        let (spec, conditions, ledger) = match look(client).await {
            Ok(found) => found,
            // A server that restarts comes back.
            Err(DriverError::Unknown(why)) => {
                tracing::warn!(why, "the API server does not answer, trying again");
                tokio::time::sleep(POLL).await;
                continue;
            }
            Err(error) => return Err(error).context("cannot read nodes.config.openshift.io/cluster"),
        };
        let Some(spec) = spec else {
            bail!(
                "nodes.config.openshift.io/cluster was deleted; `pointsman profile apply PROFILE` makes it again"
            );
        };
        if is_nothing_asked(&spec, &conditions) {
            return print(NOTHING_ASKED);
        }
        let text = table(&spec, &conditions);
        if text != printed {
            print(&format!("{text}\n"))?;
            printed = text;
        }
        let answers = answers(&spec, conditions);
        if is_settled(&spec, &answers, &ledger) {
            return Ok(());
        }
        if let Some(degraded) = degraded(client, &spec, &answers, &ledger, started).await? {
            bail!("{}: {}", degraded.owner, degraded.message);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// What owners say that have seen this request; the others still speak of an earlier one.
fn answers(spec: &Spec, conditions: Vec<Stored>) -> Vec<Stored> {
    let said = conditions.clone();
    let has_seen = |owner: &str| said.iter().any(|it| it.owner == owner && it.is_about(spec));
    conditions.into_iter().filter(|it| has_seen(&it.owner)).collect()
}

/// Nobody asked for anything, and owners agree on that.
fn is_nothing_asked(spec: &Spec, conditions: &[Stored]) -> bool {
    spec.is_empty() && conditions.iter().any(|it| it.reason == "ProfileEmpty")
}

/// Every owner has finished with this request, and they agree that all is done.
fn is_settled(spec: &Spec, answers: &[Stored], ledger: &Ledger) -> bool {
    let is = |owner: Owner, kind: &str, status: &str| {
        let mut all = answers.iter();
        all.any(|it| it.owner == owner.name() && it.kind == kind && it.status == status)
    };
    let settled = Settled {
        generation: spec.generation,
        profile: spec.name(),
    };
    let mut owners = Owner::ALL.into_iter();
    ledger.settled.as_ref() == Some(&settled)
        && owners.all(|owner| is(owner, "Complete", "True") && is(owner, "Progressing", "False"))
}

/// An owner that gave up on this profile, once Default is back; or one that cannot even begin.
async fn degraded<'a>(
    client: &Client,
    spec: &Spec,
    answers: &'a [Stored],
    ledger: &Ledger,
    started: Instant,
) -> anyhow::Result<Option<&'a Stored>> {
    let Some(degraded) = answers
        .iter()
        .find(|it| it.kind == "Degraded" && it.status == "True")
    else {
        return Ok(None);
    };
    let failed = ledger.failure.as_ref().is_some_and(|failure| {
        failure.generation == spec.generation && failure.owner.name() == degraded.owner
    });
    if !failed {
        // What was said before this request is soon corrected.
        return Ok(Some(degraded).filter(|_| started.elapsed() > STALE));
    }
    let wanted = Wanted::everywhere(DEFAULT);
    let state = readings(&Cluster::reader(client.clone())).await?.state();
    let restored = state.is_ok_and(|state| {
        next_step(&state, &wanted, &Catalog::standard(), Day::Two).is_none() && ledger.claim.is_none()
    });
    Ok(Some(degraded).filter(|_| restored))
}

fn table(spec: &Spec, conditions: &[Stored]) -> String {
    let mut out = format!("profile {}\n", spec.name());
    if conditions.is_empty() {
        out.push_str(
            "  nobody reports yet; is `pointsman controllers` with the loop latencyprofile running?\n",
        );
        return out;
    }
    let answers = answers(spec, conditions.to_vec());
    for owner in Owner::ALL.map(Owner::name) {
        if !answers.iter().any(|it| it.owner == owner) {
            let _ = writeln!(out, "  {owner:<30} has not answered this request yet");
        }
        for condition in answers.iter().filter(|it| it.owner == owner) {
            let line = format!(
                "  {owner:<30} {:<12} {:<8} {}  {}",
                condition.kind, condition.status, condition.reason, condition.message
            );
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
    out
}
