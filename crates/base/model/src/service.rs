//! What does a Service promise, seen from one IP family?

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::{Address, Cidr, Moment, NodePort, Port, PortName, Protocol, ServiceName, ServicePortName};

/// Which endpoints may receive a kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// Any endpoint of the cluster.
    #[default]
    Cluster,
    /// Only endpoints on this node.
    Local,
}

/// Keeps a client on one endpoint until it stayed away for this many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Affinity {
    /// The time without a new connection after which the client is forgotten.
    pub timeout_seconds: NonZeroU32,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePort {
    /// The port's name, which endpoints are matched by.
    pub name: PortName,
    pub protocol: Protocol,
    /// The port on the Service's addresses.
    pub port: Port,
    /// The port on the node's addresses, if there is one.
    pub node_port: Option<NodePort>,
}

/// Ways into a Service from outside the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct External<A> {
    /// Addresses routed to the nodes by means outside the cluster.
    pub external_ips: Box<[A]>,
    /// Load balancer addresses whose traffic arrives unchanged.
    pub load_balancer_vips: Box<[A]>,
    /// Sources that may use the load balancer addresses; an empty list admits nobody, `None` everybody.
    pub source_ranges: Option<Box<[Cidr<A>]>>,
    /// The health check node port of a load balancer with the `Local` policy.
    pub health_check: Option<NodePort>,
}

impl<A> Default for External<A> {
    fn default() -> Self {
        Self {
            external_ips: Box::default(),
            load_balancer_vips: Box::default(),
            source_ranges: None,
            health_check: None,
        }
    }
}

impl<A> External<A> {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.external_ips.is_empty()
            && self.load_balancer_vips.is_empty()
            && self.source_ranges.is_none()
            && self.health_check.is_none()
    }
}

/// A Service that a proxy of one IP family programs.
///
/// Services without an address of the family, headless ones and external names never become one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service<A> {
    pub name: ServiceName,
    /// Decides between Services that name the same address.
    pub created: Option<Moment>,
    /// Its address inside the cluster.
    pub cluster_ip: A,
    /// Which endpoints serve traffic to the cluster address.
    pub internal_policy: TrafficPolicy,
    /// Which endpoints serve traffic from outside; `Cluster` for Services that cannot have any.
    pub external_policy: TrafficPolicy,
    /// Client affinity, if wanted.
    pub affinity: Option<Affinity>,
    /// Its ports; many Services have the same ones and then share them.
    pub ports: Arc<[ServicePort]>,
    /// Ways in besides cluster address and node ports; absent for most Services.
    pub external: Option<Box<External<A>>>,
}

impl<A: Address> Service<A> {
    /// The full name of one of the ports.
    pub fn port_name(&self, port: &ServicePort) -> ServicePortName {
        ServicePortName {
            service: self.name.clone(),
            port: port.name.clone(),
            protocol: port.protocol,
        }
    }

    /// The external addresses.
    pub fn external_ips(&self) -> &[A] {
        self.external
            .as_ref()
            .map_or(&[], |external| &external.external_ips)
    }

    /// The load balancer addresses.
    pub fn load_balancer_vips(&self) -> &[A] {
        self.external
            .as_ref()
            .map_or(&[], |external| &external.load_balancer_vips)
    }

    /// The sources that may use the load balancer addresses; an empty list admits nobody, `None` everybody.
    pub fn source_ranges(&self) -> Option<&[Cidr<A>]> {
        self.external
            .as_ref()
            .and_then(|external| external.source_ranges.as_deref())
    }

    /// The health check node port.
    pub fn health_check(&self) -> Option<NodePort> {
        self.external.as_ref().and_then(|external| external.health_check)
    }

    /// Whether traffic from outside can reach this port at all.
    pub fn is_externally_accessible(&self, port: &ServicePort) -> bool {
        port.node_port.is_some() || !self.external_ips().is_empty() || !self.load_balancer_vips().is_empty()
    }
}
