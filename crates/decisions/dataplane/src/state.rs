//! What does the kernel have to know about one Service?
//!
//! [`ServiceState`] is the whole answer for one family: the Service, the endpoints chosen for each port
//! and the destinations it really owns. A backend's rules for a Service are a function of this value and
//! the [`Settings`](crate::Settings) alone, so comparing two states is comparing their rules.

use std::sync::Arc;

use pointsman_model::{
    Address, Affinity, Backend, Cidr, Conditions, Endpoint, Few, NodePort, Protocol, Service, ServicePort,
    ServicePortName, SliceEndpoint, SlicePort, TrafficPolicy,
};

use crate::claims::{ClaimKind, Claims, Destination, destinations};
use crate::select::{Needs, Selection, Viewpoint};

/// The desired or programmed state of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceState<A> {
    pub service: Arc<Service<A>>,
    /// One for each of the Service's ports, in the same order.
    pub ports: Few<PortState<A>>,
    /// The number of endpoints over all ports, whatever their health.
    pub endpoints: u32,
    /// The number of distinct addresses of ready endpoints on this node.
    pub local_ready: u32,
}

/// The state of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortState<A> {
    /// The chosen endpoints.
    pub selection: Selection<A>,
    /// What most ports do not have.
    rare: Option<Box<Rare<A>>>,
}

/// Parts of a port's state that are nearly always empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rare<A> {
    lost: Box<[(ClaimKind, Destination<A>)]>,
    answering: Box<[Backend<A>]>,
}

impl<A: Address> PortState<A> {
    /// A port's state from its parts; see the methods of the same names.
    pub fn new(
        selection: Selection<A>,
        lost: Box<[(ClaimKind, Destination<A>)]>,
        answering: Box<[Backend<A>]>,
    ) -> Self {
        let is_rare = !lost.is_empty() || !answering.is_empty();
        Self {
            selection,
            rare: is_rare.then(|| Box::new(Rare { lost, answering })),
        }
    }

    /// Destinations the port names but must leave alone.
    pub fn lost(&self) -> &[(ClaimKind, Destination<A>)] {
        self.rare.as_ref().map_or(&[], |rare| &rare.lost)
    }

    /// For UDP, every endpoint that still answers: flows to any other are stale.
    pub fn answering(&self) -> &[Backend<A>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.answering)
    }
}

impl<A: Address> ServiceState<A> {
    /// Resolves a Service against its slices.
    pub fn resolve<'a>(
        service: &Arc<Service<A>>,
        slices: impl Iterator<Item = SliceView<'a, A>> + Clone,
        claims: &Claims<A>,
        from: &Viewpoint,
        external_ips: ExternalIps,
    ) -> Self {
        let mut endpoints_total = 0;
        let mut local_ready: Vec<A> = Vec::new();
        let ports = service.ports.iter().map(|port| {
            let endpoints = merge(port, slices.clone());
            endpoints_total += endpoints.len();
            local_ready.extend(
                endpoints
                    .iter()
                    .filter(|endpoint| is_counted_for_health(endpoint, from))
                    .map(|endpoint| endpoint.backend.address),
            );
            let lost = destinations(service, port).filter(|(kind, at)| {
                let refused = *kind == ClaimKind::ExternalIp && external_ips == ExternalIps::Refused;
                refused || !claims.owns(at, *kind, &service.name)
            });
            PortState::new(
                Selection::new(&endpoints, Needs::of(service, port), from),
                lost.collect(),
                answering(port, &endpoints),
            )
        });
        let ports = ports.collect();
        local_ready.sort_unstable();
        local_ready.dedup();
        Self {
            service: Arc::clone(service),
            ports,
            endpoints: u32::try_from(endpoints_total).unwrap_or(u32::MAX),
            local_ready: u32::try_from(local_ready.len()).unwrap_or(u32::MAX),
        }
    }

    /// The ports with all that is known about them.
    pub fn ports(&self) -> impl Iterator<Item = PortView<'_, A>> + '_ {
        self.service
            .ports
            .iter()
            .zip(&self.ports)
            .map(|(port, state)| PortView {
                service: &self.service,
                port,
                state,
            })
    }
}

/// Whether `spec.externalIPs` is honoured (the gate AllowServiceExternalIPs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExternalIps {
    /// Rules are written for external addresses.
    #[default]
    Honoured,
    /// External addresses get no rules.
    Refused,
}

/// One port of a Service together with its state.
#[derive(Clone, Copy, Debug)]
pub struct PortView<'a, A> {
    pub service: &'a Service<A>,
    pub port: &'a ServicePort,
    pub state: &'a PortState<A>,
}

impl<'a, A: Address> PortView<'a, A> {
    /// The port's full name.
    pub fn name(&self) -> ServicePortName {
        self.service.port_name(self.port)
    }

    /// The chosen endpoints.
    pub fn selection(&self) -> &'a Selection<A> {
        &self.state.selection
    }

    /// The cluster address, unless another Service owns it.
    pub fn cluster_ip(&self) -> Option<A> {
        self.owned(ClaimKind::ClusterIp, self.at(self.service.cluster_ip))
            .then_some(self.service.cluster_ip)
    }

    /// The external addresses to program.
    pub fn external_ips(&self) -> impl Iterator<Item = A> + 'a {
        let view = *self;
        let all = self.service.external_ips().iter().copied();
        all.filter(move |ip| view.owned(ClaimKind::ExternalIp, view.at(*ip)))
    }

    /// The load balancer addresses to program.
    pub fn load_balancer_vips(&self) -> impl Iterator<Item = A> + 'a {
        let view = *self;
        let all = self.service.load_balancer_vips().iter().copied();
        all.filter(move |ip| view.owned(ClaimKind::LoadBalancer, view.at(*ip)))
    }

    /// The node port to program.
    pub fn node_port(&self) -> Option<NodePort> {
        self.port.node_port.filter(|node_port| {
            self.owned(
                ClaimKind::NodePort,
                Destination::NodePort(self.port.protocol, *node_port),
            )
        })
    }

    /// The sources that may use the load balancer addresses; an empty list admits nobody, `None` everybody.
    pub fn source_ranges(&self) -> Option<&'a [Cidr<A>]> {
        self.service.source_ranges()
    }

    /// Client affinity, if wanted.
    pub fn affinity(&self) -> Option<Affinity> {
        self.service.affinity
    }

    /// Whether traffic from outside can reach the port.
    pub fn is_externally_accessible(&self) -> bool {
        self.service.is_externally_accessible(self.port)
    }

    /// Whether any of the ways in from outside is this port's to program and admits somebody.
    pub fn has_external_destination(&self) -> bool {
        let shut = self.source_ranges().is_some_and(<[_]>::is_empty);
        self.node_port().is_some()
            || self.external_ips().next().is_some()
            || !shut && self.load_balancer_vips().next().is_some()
    }

    /// Traffic to the cluster address is dropped: endpoints exist, but none the policy allows.
    pub fn drops_internal(&self) -> bool {
        self.drops(self.service.internal_policy)
    }

    /// Traffic from outside is dropped: endpoints exist, but none the policy allows.
    pub fn drops_external(&self) -> bool {
        self.is_externally_accessible() && self.drops(self.service.external_policy)
    }

    fn drops(&self, policy: TrafficPolicy) -> bool {
        self.state.selection.has_any && self.state.selection.is_empty_under(policy)
    }

    fn at(&self, address: A) -> Destination<A> {
        Destination::Address(address, self.port.protocol, self.port.port)
    }

    fn owned(&self, kind: ClaimKind, at: Destination<A>) -> bool {
        !self.state.lost().contains(&(kind, at))
    }
}

/// The part of a slice that endpoints are made of.
#[derive(Clone, Copy, Debug)]
pub struct SliceView<'a, A> {
    pub ports: &'a [SlicePort],
    /// Its endpoints, each of which has all the ports.
    pub endpoints: &'a [SliceEndpoint<A>],
}

/// The endpoints of one port over all slices, one per address and port, ordered by them.
///
/// Slices may overlap while a controller moves endpoints between them. A running endpoint beats a
/// terminating one; between two running ones the healthier wins, so that the order of slices is
/// irrelevant.
pub fn merge<'a, A: Address>(
    port: &ServicePort,
    slices: impl Iterator<Item = SliceView<'a, A>>,
) -> Vec<Endpoint<A>> {
    let mut merged: Vec<Endpoint<A>> = Vec::new();
    for slice in slices {
        let ports = slice
            .ports
            .iter()
            .filter(|candidate| candidate.name == port.name && candidate.protocol == port.protocol);
        for slice_port in ports {
            merged.extend(slice.endpoints.iter().map(|endpoint| Endpoint {
                backend: Backend {
                    address: endpoint.address,
                    port: slice_port.port,
                },
                conditions: endpoint.conditions,
                node: endpoint.node.clone(),
                hints: endpoint.hints.clone(),
            }));
        }
    }
    // The best of equals comes first, and the others go.
    merged.sort_by(|one, other| {
        let order = one.backend.cmp(&other.backend);
        order.then_with(|| rank(other).cmp(&rank(one)))
    });
    merged.dedup_by(|later, earlier| later.backend == earlier.backend);
    merged
}

/// Orders duplicates of one endpoint; the greatest is kept.
fn rank<A>(endpoint: &Endpoint<A>) -> impl Ord + '_ {
    let Conditions {
        ready,
        serving,
        terminating,
    } = endpoint.conditions;
    (
        !terminating,
        ready,
        serving,
        endpoint.node.as_ref(),
        endpoint.hints.as_ref(),
    )
}

/// Load balancers count ready endpoints on this node, each address once.
fn is_counted_for_health<A>(endpoint: &Endpoint<A>, from: &Viewpoint) -> bool {
    endpoint.conditions.ready
        && !endpoint.conditions.terminating
        && endpoint.node.as_ref() == Some(&from.node)
        && !from.node.as_str().is_empty()
}

fn answering<A: Address>(port: &ServicePort, endpoints: &[Endpoint<A>]) -> Box<[Backend<A>]> {
    if port.protocol != Protocol::Udp {
        return Box::default();
    }
    let serving = endpoints.iter().filter(|endpoint| endpoint.conditions.serving);
    serving.map(|endpoint| endpoint.backend).collect()
}
