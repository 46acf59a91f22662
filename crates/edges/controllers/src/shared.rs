//! Which objects do several loops read?
//!
//! Pods, nodes and their leases are watched, read and kept once in the process; every loop holds the same [`Arc`]s.
//!
//! [`Arc`]: std::sync::Arc

use pointsman_api_client::{Client, Event, ObjectKey, Reflector, Resource, Scope, Watcher};
use pointsman_objects::{Interner, Lease, Node, Pod};
use pointsman_protocol::peers;
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::JoinSet;

/// Reports of nodes, which are most of what comes, gather for this long.
const NODES_GATHER: Duration = Duration::from_millis(20);

/// Renewals of leases gather for this long. Silence is judged in seconds and counted from when a renewal is seen, so that
/// a node is called silent later by as much, and never sooner.
const LEASES_GATHER: Duration = Duration::from_millis(100);

/// A lease whose opinion of other nodes changed waits no longer than this: endpoints wait for it.
const OPINIONS_GLANCE: Duration = Duration::from_millis(20);

/// Where nodes' leases live.
pub(crate) const NODE_LEASES: &str = "kube-node-lease";

/// The shared watches. Loops subscribe before they start.
pub(crate) struct Shared {
    pub pods: Reflector<Pod>,
    pub nodes: Reflector<Node>,
    /// Heartbeats, and whom nodes reach.
    pub leases: Reflector<Lease>,
}

/// A watch of the leases of a namespace.
pub(crate) fn leases(client: &Client, namespace: &str) -> Reflector<Lease> {
    let scope = Scope {
        namespace: Some(namespace.into()),
        ..Scope::all(Resource::LEASES)
    };
    Reflector::new(Watcher::new(client.clone(), scope))
        .gather(LEASES_GATHER)
        .unless(OPINIONS_GLANCE, changed_opinions())
}

/// Whether a lease says of other nodes what it did not say before.
fn changed_opinions() -> impl FnMut(&Event<Lease>) -> bool + Send {
    // Nearly all nodes reach everybody; only what the others say is kept.
    let mut known: HashMap<ObjectKey, Box<str>> = HashMap::new();
    move |event| match event {
        Event::Applied { key, object, .. } => {
            let opinion = object.metadata.annotations.get(peers::ANNOTATION);
            match opinion.filter(|opinion| !opinion.is_empty()) {
                None => known.remove(key).is_some(),
                Some(opinion) if known.get(key).is_some_and(|known| **known == *opinion) => false,
                Some(opinion) => {
                    known.insert(key.clone(), opinion.into());
                    true
                }
            }
        }
        Event::Deleted { key, .. } => known.remove(key).is_some(),
        Event::Init | Event::Synced(_) => false,
    }
}

impl Shared {
    pub fn new(client: &Client) -> Self {
        let (mut of_pods, mut of_nodes) = (Interner::default(), Interner::default());
        let pods = Watcher::new(client.clone(), Scope::all(Resource::PODS));
        let nodes = Watcher::new(client.clone(), Scope::all(Resource::NODES));
        Self {
            leases: leases(client, NODE_LEASES),
            pods: Reflector::new(pods).prepare(move |pod: &mut Pod| {
                pod.intern(&mut of_pods);
                of_pods.sweep_if_grown();
            }),
            nodes: Reflector::new(nodes)
                .gather(NODES_GATHER)
                .prepare(move |node: &mut Node| {
                    node.intern(&mut of_nodes);
                    of_nodes.sweep_if_grown();
                }),
        }
    }

    /// Starts the watches that somebody reads; they end with the returned set.
    pub fn start(self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if self.pods.is_read() {
            tasks.spawn(self.pods.run());
        }
        if self.nodes.is_read() {
            tasks.spawn(self.nodes.run());
        }
        if self.leases.is_read() {
            tasks.spawn(self.leases.run());
        }
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_opinion_that_changed_is_urgent() {
        let mut changed = changed_opinions();
        let mut renewed = |opinion: Option<&str>| {
            let annotations = opinion.map(|opinion| serde_json::json!({ (peers::ANNOTATION): opinion }));
            let lease = serde_json::json!({ "metadata": { "name": "n1", "annotations": annotations } });
            changed(&Event::Applied {
                key: ObjectKey::new(NODE_LEASES, "n1"),
                object: serde_json::from_value(lease).expect("a lease"),
                resource_version: "1".into(),
            })
        };
        assert!(!renewed(None) && !renewed(Some("")), "it reaches everybody");
        assert!(renewed(Some("n2")) && !renewed(Some("n2")));
        assert!(renewed(Some("n2,n3")) && renewed(Some("")) && !renewed(None));
        assert!(renewed(Some("n2")));
        let key = ObjectKey::new(NODE_LEASES, "n1");
        let gone = Event::Deleted {
            key,
            resource_version: None,
            removed: None,
        };
        assert!(changed(&gone) && !changed(&gone));
    }
}
