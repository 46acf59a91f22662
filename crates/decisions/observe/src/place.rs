//! Where do rules say something about a Service, and what?

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pointsman_model::{Address, Backend, Protocol};

/// What rules say about a Service, place by place. A place without content is not named.
pub type Statement<A> = BTreeMap<Place<A>, Content<A>>;

/// Somewhere in the rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place<A> {
    /// The element of a map that decides about packets to a destination.
    Element(Map, Key<A>),
    /// A chain of one Service port.
    Chain(String),
}

impl<A> Place<A> {
    /// The destination that something is said about here.
    pub const fn key(&self) -> Option<&Key<A>> {
        match self {
            Self::Element(_, key) => Some(key),
            Self::Chain(_) => None,
        }
    }
}

/// The maps that packets are looked up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Map {
    /// Addresses of Services.
    ServiceIps,
    /// Ports of the node.
    ServiceNodePorts,
    /// Addresses that packets are turned away from.
    NoEndpointServices,
    /// Ports of the node that packets are turned away from.
    NoEndpointNodePorts,
    /// Addresses that not everybody may use.
    FirewallIps,
}

/// A destination of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<A> {
    /// None for a port of the node.
    pub address: Option<A>,
    pub protocol: Protocol,
    pub port: u16,
}

/// What is said at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content<A> {
    /// Packets go to a chain.
    Leads(String),
    /// Packets are dropped.
    Drops,
    /// Packets are refused.
    Rejects,
    Chain(Chain<A>),
}

/// Where the rules of a chain send packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain<A> {
    /// To these endpoints, each with the same share.
    pub endpoints: BTreeSet<Backend<A>>,
    /// To these chains of the same Service.
    pub chains: BTreeSet<String>,
}

impl<A> Default for Chain<A> {
    fn default() -> Self {
        Self {
            endpoints: BTreeSet::new(),
            chains: BTreeSet::new(),
        }
    }
}

impl<A> Chain<A> {
    /// A chain without rules is as good as none: kube-proxy empties chains first and removes them later.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.chains.is_empty()
    }
}

impl<A: Address> fmt::Display for Key<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{address} {} {}", self.protocol, self.port),
            None => write!(f, "node port {} {}", self.protocol, self.port),
        }
    }
}

impl Map {
    /// The name as kube-proxy's nftables mode has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServiceIps => "service-ips",
            Self::ServiceNodePorts => "service-nodeports",
            Self::NoEndpointServices => "no-endpoint-services",
            Self::NoEndpointNodePorts => "no-endpoint-nodeports",
            Self::FirewallIps => "firewall-ips",
        }
    }

    pub const ALL: [Self; 5] = [
        Self::ServiceIps,
        Self::ServiceNodePorts,
        Self::NoEndpointServices,
        Self::NoEndpointNodePorts,
        Self::FirewallIps,
    ];
}

impl<A: Address> fmt::Display for Place<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Element(map, key) => write!(f, "{} of {}", key, map.as_str()),
            Self::Chain(name) => write!(f, "chain {name}"),
        }
    }
}

/// In what the rules differ from what they must say at one place, for operators.
pub fn difference<A: Address>(
    place: &Place<A>,
    desired: Option<&Content<A>>,
    found: Option<&Content<A>>,
) -> String {
    if let (Some(Content::Chain(desired)), Some(Content::Chain(found))) = (desired, found) {
        let first =
            |one: &Chain<A>, other: &Chain<A>| one.endpoints.difference(&other.endpoints).next().copied();
        if let Some(missing) = first(desired, found) {
            return format!("{place} does not send to {missing}");
        }
        if let Some(surplus) = first(found, desired) {
            return format!("{place} still sends to {surplus}");
        }
    }
    match (desired, found) {
        (Some(_), None) => format!("{place} is missing"),
        (None, Some(_)) => format!("{place} is still there"),
        _ => format!("{place} leads elsewhere"),
    }
}
