//! What happens to a packet?
//!
//! The question and the answer of a packet walk, shared by both backends so that the same cases run on
//! both and `explain` prints the same words.

use std::collections::BTreeMap;
use std::fmt;

use pointsman_model::{Address, Backend, Port, Protocol};

use crate::settings::InterfaceName;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<A> {
    /// Where it comes from.
    pub source: A,
    /// Where it is going.
    pub destination: A,
    pub protocol: Protocol,
    /// The port it is going to.
    pub port: Port,
    /// The interface it came in through, if that matters.
    pub interface: Option<InterfaceName>,
}

/// What the kernel knows about the node the packet meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host<A> {
    /// The addresses of its interfaces, besides the loopback range.
    pub addresses: Vec<A>,
}

impl<A: Address> Host<A> {
    /// Whether the kernel calls the address local.
    pub fn is_local(&self, address: A) -> bool {
        A::LOOPBACK.contains(address) || self.addresses.contains(&address)
    }

    /// Whether the packet starts on this node, and so enters at the output hook.
    pub fn sends(&self, packet: &Packet<A>) -> bool {
        packet.interface.is_none() && self.is_local(packet.source)
    }
}

impl<A: Address> fmt::Display for Packet<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = Backend {
            address: self.destination,
            port: self.port,
        };
        write!(f, "{} -> {to}/{}", self.source, self.protocol)?;
        match &self.interface {
            Some(interface) => write!(f, " via {interface}"),
            None => Ok(()),
        }
    }
}

/// Whose address the endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeenAs {
    /// The client's own.
    Client,
    /// The node's: the packet is masqueraded.
    Node,
}

/// What becomes of a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate<A> {
    /// It goes to one of these endpoints, chosen at random.
    Delivered(BTreeMap<Backend<A>, SeenAs>),
    /// The rules leave it as it is.
    Untouched,
    Dropped,
    /// The client is told that nobody listens.
    Rejected,
}

impl<A: Address> fmt::Display for Fate<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untouched => f.write_str("untouched"),
            Self::Dropped => f.write_str("dropped"),
            Self::Rejected => f.write_str("rejected"),
            Self::Delivered(backends) => {
                for (position, (backend, seen_as)) in backends.iter().enumerate() {
                    let separator = if position == 0 { "" } else { ", " };
                    let masquerade = if *seen_as == SeenAs::Node { " masq" } else { "" };
                    write!(f, "{separator}{backend}{masquerade}")?;
                }
                Ok(())
            }
        }
    }
}
