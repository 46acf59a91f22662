//! When is it worth looking again?

use super::cluster::{CONFIG_MAPS, CONFIG_NODES};
use super::objects::{CONTROLLERS_MAP, LEDGER_MAP, NAMESPACE, NODE_MAP, Node, SERVER_MAP};
use pointsman_api_client::{Client, Event, Resource, Scope, Watcher};
use pointsman_latency_profile::rollout::NodeReading;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Counts changes that matter to owners; heartbeats of nodes do not.
pub fn watch(client: &Client, wake: watch::Sender<u64>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let maps = Scope {
        namespace: Some(NAMESPACE.to_owned()),
        ..Scope::all(CONFIG_MAPS)
    };
    tasks.spawn(follow(client.clone(), maps, wake.clone(), |name| {
        [NODE_MAP, CONTROLLERS_MAP, SERVER_MAP, LEDGER_MAP].contains(&name)
    }));
    let wishes = Scope::all(CONFIG_NODES);
    tasks.spawn(follow(client.clone(), wishes, wake.clone(), |_| true));
    tasks.spawn(follow_nodes(client.clone(), wake));
    tasks
}

async fn follow(client: Client, scope: Scope, wake: watch::Sender<u64>, matters: fn(&str) -> bool) {
    let mut watcher = Watcher::<IgnoredAny>::new(client, scope);
    loop {
        let matters = match watcher.next().await {
            Event::Applied { key, .. } | Event::Deleted { key, .. } => matters(key.name()),
            Event::Init | Event::Synced(_) => false,
        };
        if matters {
            wake.send_modify(|count| *count += 1);
        }
    }
}

async fn follow_nodes(client: Client, wake: watch::Sender<u64>) {
    let mut watcher = Watcher::<Node>::new(client, Scope::all(Resource::NODES));
    let mut known: BTreeMap<String, NodeReading> = BTreeMap::new();
    loop {
        let changed = match watcher.next().await {
            Event::Applied { key, object, .. } => {
                let reading = object.reading();
                known.insert(key.name().to_owned(), reading.clone()) != Some(reading)
            }
            Event::Deleted { key, .. } => known.remove(key.name()).is_some(),
            Event::Init | Event::Synced(_) => false,
        };
        if changed {
            wake.send_modify(|count| *count += 1);
        }
    }
}
