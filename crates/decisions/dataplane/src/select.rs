//! Which of a Service port's endpoints does this node use, and why not the others?
//!
//! Two sets are chosen. The *cluster* set serves traffic under the `Cluster` policy, and also traffic
//! from this node and its pods that is short-circuited past the `Local` policy. The *local* set serves
//! traffic under the `Local` policy. In each, endpoints that are going away but still answer are used
//! only when nothing ready is left (KEP-1669), and topology hints apply to ready endpoints of the cluster
//! set only.

use pointsman_model::{Address, Backend, Endpoint, Few, NodeName, Service, ServicePort, TrafficPolicy, Zone};

/// Where we look from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Viewpoint {
    /// This node; endpoints that name it are local.
    pub node: NodeName,
    /// The node's zone, if its label has a value.
    pub zone: Option<Zone>,
}

/// Which sets a Service port needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Something reads the cluster set.
    pub cluster: bool,
    /// Something reads the local set.
    pub local: bool,
}

impl Needs {
    /// The sets this port's policies ask for.
    pub fn of<A: Address>(service: &Service<A>, port: &ServicePort) -> Self {
        let external = service.is_externally_accessible(port);
        let local_external = external && service.external_policy == TrafficPolicy::Local;
        Self {
            cluster: service.internal_policy == TrafficPolicy::Cluster || external,
            local: service.internal_policy == TrafficPolicy::Local || local_external,
        }
    }
}

/// Why an endpoint is or is not in the cluster set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Used,
    /// Used because nothing ready is left, although it is going away.
    LastResort,
    /// It is ready, but its hints keep it for other nodes.
    OtherNode,
    /// It is ready, but its hints keep it for other zones.
    OtherZone,
    /// It is not ready.
    NotReady,
    /// It is going away and ready ones exist, or it no longer answers.
    Terminating,
    /// It runs on another node and the policy is `Local`.
    Remote,
    /// No traffic of this kind exists for the port.
    Unneeded,
}

impl Verdict {
    /// Whether traffic can go there.
    pub const fn is_used(self) -> bool {
        matches!(self, Self::Used | Self::LastResort)
    }
}

/// Both verdicts on one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Its place in the cluster set.
    pub cluster: Verdict,
    /// Its place in the local set.
    pub local: Verdict,
}

/// An endpoint that is in at least one of the sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reachable<A> {
    /// Where to send traffic.
    pub backend: Backend<A>,
    /// It is in the cluster set.
    pub in_cluster: bool,
    /// It is in the local set.
    pub in_local: bool,
    /// It runs on this node, so its own traffic may come back to it (hairpin).
    pub on_this_node: bool,
}

/// The endpoints one node uses for one Service port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection<A> {
    /// The union of both sets, ordered by address and port.
    pub reachable: Few<Reachable<A>>,
    /// Whether any endpoint of the cluster could be used at all: decides between reject and drop.
    pub has_any: bool,
}

impl<A> Default for Selection<A> {
    fn default() -> Self {
        Self {
            reachable: Few::default(),
            has_any: false,
        }
    }
}

impl<A: Address> Selection<A> {
    /// Selects among the merged endpoints of a port, which must be ordered by backend.
    pub fn new(endpoints: &[Endpoint<A>], needs: Needs, from: &Viewpoint) -> Self {
        let judged = judge(endpoints, needs, from);
        let reachable = endpoints.iter().zip(judged).filter_map(|(endpoint, judgement)| {
            let (in_cluster, in_local) = (judgement.cluster.is_used(), judgement.local.is_used());
            (in_cluster || in_local).then(|| Reachable {
                backend: endpoint.backend,
                in_cluster,
                in_local,
                on_this_node: is_local(endpoint, from),
            })
        });
        Self {
            reachable: reachable.collect(),
            has_any: endpoints.iter().any(is_usable),
        }
    }

    /// The set for the `Cluster` policy.
    pub fn cluster(&self) -> impl DoubleEndedIterator<Item = Backend<A>> + Clone + '_ {
        self.reachable
            .iter()
            .filter(|reachable| reachable.in_cluster)
            .map(|reachable| reachable.backend)
    }

    /// The set for the `Local` policy.
    pub fn local(&self) -> impl DoubleEndedIterator<Item = Backend<A>> + Clone + '_ {
        self.reachable
            .iter()
            .filter(|reachable| reachable.in_local)
            .map(|reachable| reachable.backend)
    }

    /// The set for a policy.
    pub fn under(&self, policy: TrafficPolicy) -> impl DoubleEndedIterator<Item = Backend<A>> + Clone + '_ {
        self.reachable
            .iter()
            .filter(move |reachable| match policy {
                TrafficPolicy::Cluster => reachable.in_cluster,
                TrafficPolicy::Local => reachable.in_local,
            })
            .map(|reachable| reachable.backend)
    }

    /// Whether a policy's set is empty.
    pub fn is_empty_under(&self, policy: TrafficPolicy) -> bool {
        self.under(policy).next().is_none()
    }
}

/// Says for every endpoint whether it is used and, if not, why.
pub fn judge<A: Address>(endpoints: &[Endpoint<A>], needs: Needs, from: &Viewpoint) -> Vec<Judgement> {
    let topology = Topology::infer(endpoints, from);
    let ready_in_reach =
        |endpoint: &Endpoint<A>| endpoint.conditions.ready && topology.admits(endpoint, from);
    let cluster_ready = endpoints.iter().any(ready_in_reach);
    let local_ready = endpoints
        .iter()
        .any(|endpoint| endpoint.conditions.ready && is_local(endpoint, from));
    endpoints
        .iter()
        .map(|endpoint| Judgement {
            cluster: if !needs.cluster {
                Verdict::Unneeded
            } else if ready_in_reach(endpoint) {
                Verdict::Used
            } else if endpoint.conditions.ready {
                topology.refusal()
            } else {
                fallback(endpoint, cluster_ready)
            },
            local: if !needs.local {
                Verdict::Unneeded
            } else if !is_local(endpoint, from) {
                Verdict::Remote
            } else if endpoint.conditions.ready {
                Verdict::Used
            } else {
                fallback(endpoint, local_ready)
            },
        })
        .collect()
}

/// The verdict on an endpoint that is not ready.
fn fallback<A>(endpoint: &Endpoint<A>, ready_exists: bool) -> Verdict {
    match (
        endpoint.conditions.is_last_resort(),
        endpoint.conditions.terminating,
    ) {
        (true, _) if !ready_exists => Verdict::LastResort,
        (_, true) => Verdict::Terminating,
        _ => Verdict::NotReady,
    }
}

/// Whether the endpoint could serve traffic under some circumstances.
fn is_usable<A>(endpoint: &Endpoint<A>) -> bool {
    endpoint.conditions.ready || endpoint.conditions.is_last_resort()
}

/// Whether the endpoint runs on this node. A node without a name has no local endpoints.
fn is_local<A>(endpoint: &Endpoint<A>, from: &Viewpoint) -> bool {
    endpoint
        .node
        .as_ref()
        .is_some_and(|node| *node == from.node && !node.as_str().is_empty())
}

/// How hints narrow the cluster set. Inferred from the ready endpoints alone: the proxy never reads the
/// Service's `trafficDistribution`, which the slice controller has already turned into hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    SameNode,
    SameZone,
    Anywhere,
}

impl Topology {
    fn infer<A>(endpoints: &[Endpoint<A>], from: &Viewpoint) -> Self {
        // One ready endpoint without hints means that the hints are incomplete; following them would
        // overload the endpoints that have some.
        let (mut all_nodes, mut all_zones, mut node_named, mut zone_named) = (true, true, false, false);
        let mut any_ready = false;
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.conditions.ready) {
            any_ready = true;
            let hints = endpoint.hints.as_deref();
            all_nodes &= hints.is_some_and(|hints| !hints.nodes.is_empty());
            all_zones &= hints.is_some_and(|hints| !hints.zones.is_empty());
            node_named |= names_node(endpoint, from);
            zone_named |= names_zone(endpoint, from);
        }
        match () {
            () if any_ready && all_nodes && node_named => Self::SameNode,
            () if any_ready && all_zones && zone_named => Self::SameZone,
            () => Self::Anywhere,
        }
    }

    fn admits<A>(self, endpoint: &Endpoint<A>, from: &Viewpoint) -> bool {
        match self {
            Self::SameNode => names_node(endpoint, from),
            Self::SameZone => names_zone(endpoint, from),
            Self::Anywhere => true,
        }
    }

    fn refusal(self) -> Verdict {
        if self == Self::SameNode {
            Verdict::OtherNode
        } else {
            Verdict::OtherZone
        }
    }
}

fn names_node<A>(endpoint: &Endpoint<A>, from: &Viewpoint) -> bool {
    endpoint
        .hints
        .as_ref()
        .is_some_and(|hints| hints.nodes.contains(&from.node))
}

fn names_zone<A>(endpoint: &Endpoint<A>, from: &Viewpoint) -> bool {
    let Some(zone) = &from.zone else { return false };
    endpoint
        .hints
        .as_ref()
        .is_some_and(|hints| hints.zones.contains(zone))
}

#[cfg(test)]
mod tests;
