//! What is a flow, and which ones does a filter mean?

use std::net::IpAddr;

use crate::netlink::{Attribute, Attributes, Malformed, Message, Writer};

/// Numbers from `linux/netfilter/nfnetlink_conntrack.h`.
pub(super) mod wire {
    pub const SUBSYSTEM: u16 = 1;
    pub const GET: u16 = 1;
    pub const DELETE: u16 = 2;
    pub const TUPLE_ORIG: u16 = 1;
    pub const TUPLE_REPLY: u16 = 2;
    pub const ID: u16 = 12;
    pub const FILTER: u16 = 25;
    pub const FILTER_ORIG: u16 = 1;
    pub const FILTER_REPLY: u16 = 2;
    pub const TUPLE_IP: u16 = 1;
    pub const TUPLE_PROTO: u16 = 2;
    pub const V4_SRC: u16 = 1;
    pub const V4_DST: u16 = 2;
    pub const V6_SRC: u16 = 3;
    pub const V6_DST: u16 = 4;
    pub const PROTO_NUM: u16 = 1;
    pub const PROTO_SRC_PORT: u16 = 2;
    pub const PROTO_DST_PORT: u16 = 3;
    /// Bits of a filter: which parts of the tuple count.
    pub const MATCH_SRC: u32 = 1;
    pub const MATCH_DST: u32 = 1 << 1;
    pub const MATCH_PROTO: u32 = 1 << 3;
    pub const MATCH_SRC_PORT: u32 = 1 << 4;
    pub const MATCH_DST_PORT: u32 = 1 << 5;
}

/// One direction of a flow; parts that are not known or do not matter are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The source address.
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: Option<IpAddr>,
    /// The transport protocol's number.
    pub protocol: u8,
    /// The source port.
    pub source_port: Option<u16>,
    /// The destination port.
    pub destination_port: Option<u16>,
}

impl Tuple {
    /// Whether every part that is present here is the same there.
    pub fn admits(&self, other: &Self) -> bool {
        fn part<T: PartialEq>(wanted: Option<T>, found: Option<T>) -> bool {
            wanted.is_none() || wanted == found
        }
        self.protocol == other.protocol
            && part(self.source, other.source)
            && part(self.destination, other.destination)
            && part(self.source_port, other.source_port)
            && part(self.destination_port, other.destination_port)
    }

    pub(super) fn encode(&self, kind: u16, writer: &mut Writer) {
        writer.nest(kind, |tuple| {
            if self.source.is_some() || self.destination.is_some() {
                tuple.nest(wire::TUPLE_IP, |ip| {
                    encode_address(ip, self.source, wire::V4_SRC, wire::V6_SRC);
                    encode_address(ip, self.destination, wire::V4_DST, wire::V6_DST);
                });
            }
            tuple.nest(wire::TUPLE_PROTO, |proto| {
                proto.u8(wire::PROTO_NUM, self.protocol);
                if let Some(port) = self.source_port {
                    proto.u16_be(wire::PROTO_SRC_PORT, port);
                }
                if let Some(port) = self.destination_port {
                    proto.u16_be(wire::PROTO_DST_PORT, port);
                }
            });
        });
    }

    pub(super) fn match_bits(&self) -> u32 {
        let bit = |present: bool, bit: u32| if present { bit } else { 0 };
        wire::MATCH_PROTO
            | bit(self.source.is_some(), wire::MATCH_SRC)
            | bit(self.destination.is_some(), wire::MATCH_DST)
            | bit(self.source_port.is_some(), wire::MATCH_SRC_PORT)
            | bit(self.destination_port.is_some(), wire::MATCH_DST_PORT)
    }

    fn decode(attribute: &Attribute<'_>) -> Result<Self, Malformed> {
        let mut tuple = Self::default();
        for part in attribute.nested() {
            let part = part?;
            match part.kind {
                wire::TUPLE_IP => tuple.decode_addresses(part.nested())?,
                wire::TUPLE_PROTO => tuple.decode_ports(part.nested())?,
                _ => {}
            }
        }
        Ok(tuple)
    }

    fn decode_addresses(&mut self, parts: Attributes<'_>) -> Result<(), Malformed> {
        for part in parts {
            let part = part?;
            let address = match part.value.len() {
                4 => part.value.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
                16 => part.value.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
                _ => None,
            };
            match part.kind {
                wire::V4_SRC | wire::V6_SRC => self.source = address,
                wire::V4_DST | wire::V6_DST => self.destination = address,
                _ => {}
            }
        }
        Ok(())
    }

    fn decode_ports(&mut self, parts: Attributes<'_>) -> Result<(), Malformed> {
        for part in parts {
            let part = part?;
            match part.kind {
                wire::PROTO_NUM => self.protocol = part.u8()?,
                wire::PROTO_SRC_PORT => self.source_port = Some(part.u16_be()?),
                wire::PROTO_DST_PORT => self.destination_port = Some(part.u16_be()?),
                _ => {}
            }
        }
        Ok(())
    }
}

fn encode_address(writer: &mut Writer, address: Option<IpAddr>, v4: u16, v6: u16) {
    match address {
        Some(IpAddr::V4(address)) => writer.bytes_attribute(v4, &address.octets()),
        Some(IpAddr::V6(address)) => writer.bytes_attribute(v6, &address.octets()),
        None => {}
    }
}

/// A tracked flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// What the client sends.
    pub original: Tuple,
    /// What the kernel expects back: its source is where the flow really goes.
    pub reply: Tuple,
    /// Tells this flow from a later one with the same tuples.
    pub id: Option<u32>,
}

impl Flow {
    /// Reads a message of a dump.
    pub fn decode(message: &Message<'_>) -> Result<Self, Malformed> {
        let (mut original, mut reply, mut id) = (None, None, None);
        for attribute in message.attributes()? {
            let attribute = attribute?;
            match attribute.kind {
                wire::TUPLE_ORIG => original = Some(Tuple::decode(&attribute)?),
                wire::TUPLE_REPLY => reply = Some(Tuple::decode(&attribute)?),
                wire::ID => id = Some(attribute.u32_be()?),
                _ => {}
            }
        }
        Ok(Self {
            original: original.ok_or(Malformed("a flow without its original direction"))?,
            reply: reply.ok_or(Malformed("a flow without its reply direction"))?,
            id,
        })
    }
}

/// Which flows are meant: all given parts must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowFilter {
    /// What the client sends.
    pub original: Option<Tuple>,
    /// What comes back.
    pub reply: Option<Tuple>,
}

impl FlowFilter {
    /// Flows of a protocol that clients address to this address and port.
    pub fn to_destination(protocol: u8, address: Option<IpAddr>, port: u16) -> Self {
        Self {
            original: Some(Tuple {
                protocol,
                destination: address,
                destination_port: Some(port),
                ..Tuple::default()
            }),
            reply: None,
        }
    }

    /// Flows of a protocol that this backend answers.
    pub fn to_backend(protocol: u8, address: IpAddr, port: Option<u16>) -> Self {
        Self {
            original: None,
            reply: Some(Tuple {
                protocol,
                source: Some(address),
                source_port: port,
                ..Tuple::default()
            }),
        }
    }

    /// Whether a flow is meant.
    pub fn admits(&self, flow: &Flow) -> bool {
        let part = |wanted: &Option<Tuple>, found: &Tuple| wanted.is_none_or(|tuple| tuple.admits(found));
        part(&self.original, &flow.original) && part(&self.reply, &flow.reply)
    }

    /// Whether no part is given: such a filter would mean every flow, and is refused.
    pub fn is_empty(&self) -> bool {
        self.original.is_none() && self.reply.is_none()
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        if let Some(tuple) = &self.original {
            tuple.encode(wire::TUPLE_ORIG, writer);
        }
        if let Some(tuple) = &self.reply {
            tuple.encode(wire::TUPLE_REPLY, writer);
        }
        writer.nest(wire::FILTER, |filter| {
            let bits = |tuple: Option<Tuple>| tuple.map_or(0, |tuple| tuple.match_bits());
            filter.u32_host(wire::FILTER_ORIG, bits(self.original));
            filter.u32_host(wire::FILTER_REPLY, bits(self.reply));
        });
    }
}
