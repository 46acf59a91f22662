//! How is a destination, slot or endpoint written as a key?

use pointsman_model::{Address, Backend, Cidr, NodePort, Port, Protocol};
use pointsman_netlink::nft::Value;

/// What a new connection is addressed to, as the table sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key<A> {
    /// An address of a Service.
    Address(A, Protocol, Port),
    /// A port of the node.
    NodePort(Protocol, NodePort),
}

impl<A: Address> Key<A> {
    /// The destination alone.
    pub fn value(&self) -> Value {
        let mut value = Value::EMPTY;
        let (protocol, port) = match self {
            Self::Address(address, protocol, port) => {
                push(&mut value, address.octets().as_ref());
                (protocol, *port)
            }
            Self::NodePort(protocol, port) => (protocol, port.0),
        };
        push(&mut value, &[protocol.number()]);
        push(&mut value, &port.get().to_be_bytes());
        value
    }

    /// The destination and a slot or token.
    pub fn with_number(&self, number: u32) -> Value {
        let mut value = self.value();
        push(&mut value, &number.to_ne_bytes());
        value
    }

    /// The destination and a source.
    pub fn with_source(&self, source: A) -> Value {
        let mut value = self.value();
        push(&mut value, source.octets().as_ref());
        value
    }
}

/// An address alone.
pub(crate) fn address<A: Address>(address: A) -> Value {
    let mut value = Value::EMPTY;
    push(&mut value, address.octets().as_ref());
    value
}

/// An address twice, as source and destination of a packet that comes back to its sender.
pub(crate) fn hairpin<A: Address>(address: A) -> Value {
    let mut value = Value::EMPTY;
    push(&mut value, address.octets().as_ref());
    push(&mut value, address.octets().as_ref());
    value
}

/// Where a connection is sent.
pub(crate) fn backend<A: Address>(backend: &Backend<A>) -> Value {
    let mut value = Value::EMPTY;
    push(&mut value, backend.address.octets().as_ref());
    push(&mut value, &backend.port.get().to_be_bytes());
    value
}

/// The last address of a range.
pub(crate) fn last_address<A: Address>(range: &Cidr<A>) -> A {
    let mut octets = [0u8; 16];
    let network = range.network().octets();
    let network = network.as_ref();
    octets[..network.len()].copy_from_slice(network);
    for (index, octet) in octets[..network.len()].iter_mut().enumerate() {
        let fixed = usize::from(range.prefix()).saturating_sub(index * 8).min(8);
        *octet |= 0xffu8.checked_shr(fixed as u32).unwrap_or(0);
    }
    from_octets(&octets[..network.len()])
}

/// The address with these octets, which must be as many as the family has.
pub(crate) fn from_octets<A: Address>(octets: &[u8]) -> A {
    let address = match octets.first_chunk::<16>() {
        Some(octets) => std::net::IpAddr::from(*octets),
        None => std::net::IpAddr::from(octets.first_chunk::<4>().copied().unwrap_or_default()),
    };
    A::narrow(address).expect("the octets are of the family's length")
}

fn push(value: &mut Value, field: &[u8]) {
    value
        .push_field(field)
        .expect("the longest key is two IPv6 addresses, protocol, port and slot: 44 bytes");
}
