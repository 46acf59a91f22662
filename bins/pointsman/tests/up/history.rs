//! What was seen of a collection of objects, and when?

use crate::cluster::{Cluster, eventually, eventually_within};
use jiff::Timestamp;
use pointsman_api_client::connect::connect;
use pointsman_api_client::{Client, Event, Resource, Scope, Source, Watcher};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Watches a cluster from the host, where everything is heard.
pub struct Observer {
    runtime: Runtime,
    client: Client,
}

/// Every version of every object of a collection, in the order in which they were seen.
pub struct History(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    sights: Vec<Sight>,
    synced: bool,
}

/// A version of an object.
#[derive(Clone)]
pub struct Sight {
    pub at: Timestamp,
    pub object: Value,
}

impl Observer {
    pub fn of(cluster: &Cluster) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let kubeconfig = Source::Kubeconfig(cluster.data_dir().join("admin.kubeconfig"));
        let client = runtime.block_on(connect(&kubeconfig, "test")).unwrap();
        Self { runtime, client }
    }

    /// Follows a collection for as long as the observer lives; returns once all that is there was seen.
    pub fn follow(&self, resource: Resource) -> History {
        let history = History(Arc::default());
        let seen = history.0.clone();
        let mut watcher = Watcher::<Value>::new(self.client.clone(), Scope::all(resource));
        self.runtime.spawn(async move {
            loop {
                let event = watcher.next().await;
                let at = Timestamp::now();
                let mut seen = seen.lock().unwrap();
                match event {
                    Event::Applied { object, .. } => seen.sights.push(Sight { at, object }),
                    Event::Synced(_) => seen.synced = true,
                    Event::Init | Event::Deleted { .. } => {}
                }
            }
        });
        eventually("the watch has begun", || {
            history.0.lock().unwrap().synced.then_some(())
        });
        history
    }
}

impl History {
    /// How much was seen so far.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().sights.len()
    }

    /// What was seen after the first `skipped` versions.
    pub fn since(&self, skipped: usize) -> Vec<Sight> {
        self.0.lock().unwrap().sights[skipped..].to_vec()
    }

    /// The first version, after the first `skipped`, of which something is so; waits for it.
    pub fn first(&self, what: &str, skipped: usize, is_so: impl Fn(&Value) -> bool) -> Sight {
        self.first_within(Duration::from_secs(60), what, skipped, is_so)
    }

    /// The same for something that takes longer.
    pub fn first_within(
        &self,
        patience: Duration,
        what: &str,
        skipped: usize,
        is_so: impl Fn(&Value) -> bool,
    ) -> Sight {
        eventually_within(patience, what, || {
            let seen = self.0.lock().unwrap();
            let mut later = seen.sights[skipped..].iter();
            later.find(|sight| is_so(&sight.object)).cloned()
        })
    }
}

/// The name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The status of a condition.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let mut found = conditions.filter(|condition| condition["type"] == kind);
    found
        .next()
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or_default()
}

/// The taints of a node.
pub fn taints(node: &Value) -> &[Value] {
    node["spec"]["taints"].as_array().map_or(&[], Vec::as_slice)
}

/// Whether a node has the taint of a silent node, with this effect.
pub fn is_unreachable(node: &Value, effect: &str) -> bool {
    taints(node)
        .iter()
        .any(|taint| taint["key"] == "node.kubernetes.io/unreachable" && taint["effect"] == effect)
}

/// Fails if one of these nodes was ever tainted or not ready.
pub fn assert_always_well(nodes: &History, names: &[&str]) {
    for Sight { at, object } in nodes.since(0) {
        if names.contains(&name(&object)) {
            assert_eq!(condition(&object, "Ready"), "True", "at {at}: {object:#}");
            assert!(taints(&object).is_empty(), "at {at}: {object:#}");
        }
    }
}
