//! Where can traffic for a Service go?

use std::fmt;
use std::sync::Arc;

use crate::{Address, NodeName, Port, PortName, Protocol, ServiceName, SliceName, Zone};

/// The address and port traffic is sent to.
///
/// Prints as `10.0.0.1:80` or `[fd00::1]:80`, which is also the spelling in chain-name hashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend<A> {
    pub address: A,
    pub port: Port,
}

impl<A: Address> fmt::Display for Backend<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match A::FAMILY {
            crate::IpFamily::V4 => write!(f, "{}:{}", self.address, self.port),
            crate::IpFamily::V6 => write!(f, "[{}]:{}", self.address, self.port),
        }
    }
}

impl<A: fmt::Debug> fmt::Debug for Backend<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}", self.address, self.port)
    }
}

/// What an EndpointSlice says about an endpoint's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conditions {
    /// Traffic should be sent here.
    pub ready: bool,
    /// The endpoint can answer, whether or not it is going away.
    pub serving: bool,
    /// The endpoint is going away.
    pub terminating: bool,
}

impl Conditions {
    /// A healthy endpoint: also what missing conditions mean.
    pub const READY: Self = Self {
        ready: true,
        serving: true,
        terminating: false,
    };

    /// Good enough when nothing is ready: it is going away, but still answers.
    pub const fn is_last_resort(self) -> bool {
        self.serving && self.terminating
    }
}

/// Where an endpoint would like its traffic to come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hints {
    /// Zones whose traffic should go to the endpoint.
    pub zones: Box<[Zone]>,
    /// Nodes whose traffic should go to the endpoint.
    pub nodes: Box<[NodeName]>,
}

/// One endpoint of a slice: an address for each of the slice's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint<A> {
    /// The first address of the endpoint; upstream consumers use no other.
    pub address: A,
    pub conditions: Conditions,
    /// Where it runs, if the slice says so.
    pub node: Option<NodeName>,
    /// Where its traffic should come from; `None` if the slice has no hints for it.
    pub hints: Option<Arc<Hints>>,
}

/// One port of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlicePort {
    /// The Service port it belongs to.
    pub name: PortName,
    /// The protocol of that Service port.
    pub protocol: Protocol,
    /// The port number on each of the slice's endpoints.
    pub port: Port,
}

/// An EndpointSlice of one family that names its Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice<A> {
    pub name: SliceName,
    /// The Service whose endpoints it holds.
    pub service: ServiceName,
    /// Every endpoint has all of these ports; many slices have the same ones and then share them.
    pub ports: Arc<[SlicePort]>,
    pub endpoints: Box<[SliceEndpoint<A>]>,
}

/// An endpoint of one Service port, merged from all slices of the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint<A> {
    /// Where to send traffic.
    pub backend: Backend<A>,
    pub conditions: Conditions,
    /// Where it runs, if known.
    pub node: Option<NodeName>,
    /// Where its traffic should come from, if it cares.
    pub hints: Option<Arc<Hints>>,
}
