//! When is it worth looking again?

use super::cluster::{CONFIG_MAPS, CONFIG_NODES};
use super::objects::{CONTROLLERS_MAP, NAMESPACE, Settings, reading};
use crate::shared::Shared;
use pointsman_api_client::{Client, Event, Reflector, Scope, Watcher};
use pointsman_latency_profile::rollout::NodeReading;
use pointsman_model::Text;
use pointsman_objects::{ConfigMap, Node};
use pointsman_protocol::settings;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Tells owners what they have to know without asking.
pub struct Signals {
    /// Counts changes that matter to owners; heartbeats of nodes do not.
    pub wake: watch::Sender<u64>,
    /// How long a step may take.
    pub step_timeout: watch::Sender<Duration>,
}

/// Gives signals until the returned tasks are dropped. `flag` is how long a step may take if nobody wrote
/// anything else.
pub(crate) fn watch(client: &Client, shared: &mut Shared, signals: Signals, flag: Duration) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let Signals { wake, step_timeout } = signals;
    tasks.spawn(follow_maps(client.clone(), wake.clone(), step_timeout, flag));
    tasks.spawn(follow_requests(client.clone(), wake.clone()));
    follow_nodes(&mut shared.nodes, wake);
    tasks
}

async fn follow_maps(
    client: Client,
    wake: watch::Sender<u64>,
    step_timeout: watch::Sender<Duration>,
    flag: Duration,
) {
    let scope = Scope {
        namespace: Some(NAMESPACE.to_owned()),
        ..Scope::all(CONFIG_MAPS)
    };
    let mut watcher = Watcher::<ConfigMap>::new(client, scope);
    loop {
        let key = match watcher.next().await {
            Event::Applied { key, object, .. } => {
                if key.name() == CONTROLLERS_MAP {
                    set_limit(&object, &step_timeout, flag);
                }
                key
            }
            Event::Deleted { key, .. } => key,
            Event::Init | Event::Synced(_) => continue,
        };
        if settings::ALL.contains(&key.name()) {
            wake.send_modify(|count| *count += 1);
        }
    }
}

/// Nonsense changes nothing.
fn set_limit(map: &ConfigMap, step_timeout: &watch::Sender<Duration>, flag: Duration) {
    let (limit, problem) = Settings(map).step_timeout();
    if let Some(problem) = problem {
        tracing::warn!(config_map = CONTROLLERS_MAP, %problem, "a setting is ignored");
        return;
    }
    let limit = limit.unwrap_or(flag);
    step_timeout.send_if_modified(|before| std::mem::replace(before, limit) != limit);
}

async fn follow_requests(client: Client, wake: watch::Sender<u64>) {
    let mut watcher = Watcher::<IgnoredAny>::new(client, Scope::all(CONFIG_NODES));
    loop {
        if let Event::Applied { .. } | Event::Deleted { .. } = watcher.next().await {
            wake.send_modify(|count| *count += 1);
        }
    }
}

/// Wakes owners when a node changes in a way that matters to them.
fn follow_nodes(nodes: &mut Reflector<Node>, wake: watch::Sender<u64>) {
    let mut known: BTreeMap<Text, NodeReading> = BTreeMap::new();
    nodes.inspect(move |event| {
        let changed = match event {
            Event::Applied { object, .. } => {
                let reading = reading(object);
                known.insert(object.metadata.name.clone(), reading.clone()) != Some(reading)
            }
            Event::Deleted { key, .. } => known.remove(key.name()).is_some(),
            Event::Init | Event::Synced(_) => false,
        };
        if changed {
            wake.send_modify(|count| *count += 1);
        }
    });
}
