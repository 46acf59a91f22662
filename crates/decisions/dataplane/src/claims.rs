//! Whose packet is it when two Services name the same destination?
//!
//! The API server keeps cluster addresses and node ports unique, but nothing keeps two Services from
//! listing the same external address and port. Upstream leaves the winner to chance. Here nobody takes over
//! another Service's address by listing it: a cluster address beats all others, and one that a load balancer
//! reported in the status, which users cannot write, beats an external one, which they can. Among equals the
//! older Service wins, and then the lower name: the same answer on every node and after every history.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pointsman_model::{Address, Moment, NodePort, Port, Protocol, Service, ServiceName, ServicePort};

/// What a new connection is addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination<A> {
    /// An address and port of the Service.
    Address(A, Protocol, Port),
    /// A port on any of the node's own addresses.
    NodePort(Protocol, NodePort),
}

/// Why a Service lays claim to a destination; lower wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimKind {
    /// It is the Service's cluster address.
    ClusterIp,
    /// It is one of the Service's load balancer addresses.
    LoadBalancer,
    /// It is one of the Service's external addresses.
    ExternalIp,
    /// It is one of the Service's node ports.
    NodePort,
}

/// A claim, as it competes with others for one destination; lower wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    kind: ClaimKind,
    /// A Service that does not say how old it is counts as the youngest.
    created: Moment,
    service: ServiceName,
}

/// Who owns which destination.
#[derive(Debug)]
pub struct Claims<A> {
    owners: HashMap<Destination<A>, Claimant>,
    /// Claims that lost, for the destinations that have any.
    waiting: BTreeMap<Destination<A>, BTreeSet<Claimant>>,
}

impl<A> Default for Claims<A> {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            waiting: BTreeMap::new(),
        }
    }
}

impl<A: Address> Claims<A> {
    /// Replaces a Service's claims and returns the other Services whose ownership changed by that.
    pub fn replace(
        &mut self,
        before: Option<&Service<A>>,
        after: Option<&Service<A>>,
    ) -> BTreeSet<ServiceName> {
        let list = |service: Option<&Service<A>>| -> BTreeSet<(Destination<A>, Claimant)> {
            service.into_iter().flat_map(claims).collect()
        };
        if let (None, Some(service)) = (before, after) {
            // Most Services are only ever added, and most of those in a long list.
            let touched = claims(service).filter_map(|(at, claimant)| self.claim(at, claimant));
            return touched.filter(|name| *name != service.name).collect();
        }
        let (before, after) = (list(before), list(after));
        let mut touched = BTreeSet::new();
        for (at, claimant) in before.difference(&after) {
            touched.extend(self.release(*at, claimant));
        }
        for (at, claimant) in after.difference(&before) {
            touched.extend(self.claim(*at, claimant.clone()));
        }
        touched
    }

    /// Whether this claim owns its destination.
    pub fn owns(&self, at: &Destination<A>, kind: ClaimKind, service: &ServiceName) -> bool {
        self.owners
            .get(at)
            .is_some_and(|owner| owner.kind == kind && owner.service == *service)
    }

    /// The Service that owns a destination.
    pub fn owner(&self, at: &Destination<A>) -> Option<&ServiceName> {
        self.owners.get(at).map(|owner| &owner.service)
    }

    /// The number of destinations that more than one claim names.
    pub fn contested(&self) -> usize {
        self.waiting.len()
    }

    fn claim(&mut self, at: Destination<A>, claimant: Claimant) -> Option<ServiceName> {
        match self.owners.get_mut(&at) {
            None => {
                self.owners.insert(at, claimant);
                None
            }
            Some(owner) if claimant == *owner => None,
            Some(owner) if claimant < *owner => {
                let displaced = std::mem::replace(owner, claimant);
                let name = displaced.service.clone();
                self.waiting.entry(at).or_default().insert(displaced);
                Some(name)
            }
            Some(_) => {
                self.waiting.entry(at).or_default().insert(claimant);
                None
            }
        }
    }

    fn release(&mut self, at: Destination<A>, claimant: &Claimant) -> Option<ServiceName> {
        let promoted = if self.owners.get(&at) == Some(claimant) {
            match self.waiting.get_mut(&at).and_then(BTreeSet::pop_first) {
                Some(next) => {
                    let name = next.service.clone();
                    self.owners.insert(at, next);
                    Some(name)
                }
                None => {
                    self.owners.remove(&at);
                    None
                }
            }
        } else {
            if let Some(waiting) = self.waiting.get_mut(&at) {
                waiting.remove(claimant);
            }
            None
        };
        if self.waiting.get(&at).is_some_and(BTreeSet::is_empty) {
            self.waiting.remove(&at);
        }
        promoted
    }
}

/// Everything a Service lays claim to.
fn claims<A: Address>(service: &Service<A>) -> impl Iterator<Item = (Destination<A>, Claimant)> + '_ {
    let ports = service.ports.iter();
    let created = service.created.unwrap_or(Moment(i64::MAX));
    ports.flat_map(move |port| {
        destinations(service, port).map(move |(kind, at)| {
            let service = service.name.clone();
            (
                at,
                Claimant {
                    kind,
                    created,
                    service,
                },
            )
        })
    })
}

/// Everything a Service port answers to.
pub fn destinations<'a, A: Address>(
    service: &'a Service<A>,
    port: &'a ServicePort,
) -> impl Iterator<Item = (ClaimKind, Destination<A>)> + 'a {
    let at = move |address: A| Destination::Address(address, port.protocol, port.port);
    std::iter::once((ClaimKind::ClusterIp, at(service.cluster_ip)))
        .chain(
            service
                .external_ips()
                .iter()
                .map(move |ip| (ClaimKind::ExternalIp, at(*ip))),
        )
        .chain(
            service
                .load_balancer_vips()
                .iter()
                .map(move |ip| (ClaimKind::LoadBalancer, at(*ip))),
        )
        .chain(port.node_port.map(|node_port| {
            (
                ClaimKind::NodePort,
                Destination::NodePort(port.protocol, node_port),
            )
        }))
}
