//! Which objects do several loops read?
//!
//! Pods, nodes and their leases are watched, read and kept once in the process; every loop holds the same [`Arc`]s.
//!
//! [`Arc`]: std::sync::Arc

use pointsman_api_client::{Client, Reflector, Resource, Scope, Watcher};
use pointsman_objects::{Interner, Lease, Node, Pod};
use std::time::Duration;
use tokio::task::JoinSet;

/// Reports of nodes, which are most of what comes, gather for this long.
const NODES_GATHER: Duration = Duration::from_millis(20);

/// Renewals of leases gather for this long; a changed opinion after a time of quiet is not held up.
const LEASES_GATHER: Duration = Duration::from_millis(20);

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
    Reflector::new(Watcher::new(client.clone(), scope)).gather(LEASES_GATHER)
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
