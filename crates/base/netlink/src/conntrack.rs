//! What is a tracked flow?
//!
//! The kernel keeps sending a flow where its first packet went. For TCP that is right; a UDP flow must be
//! forgotten when its backend is gone, or the client talks to nobody until the entry expires.

use std::net::IpAddr;

use crate::netlink::{Attribute, Attributes, Malformed, Message, Writer};

/// Numbers from `linux/netfilter/nfnetlink_conntrack.h`.
pub mod wire {
    pub const SUBSYSTEM: u16 = 1;
    pub const NEW: u16 = 0;
    pub const GET: u16 = 1;
    pub const DELETE: u16 = 2;
    pub const TUPLE_ORIG: u16 = 1;
    pub const TUPLE_REPLY: u16 = 2;
    pub const TIMEOUT: u16 = 7;
    pub const ID: u16 = 12;
    pub const TUPLE_IP: u16 = 1;
    pub const TUPLE_PROTO: u16 = 2;
    pub const V4_SRC: u16 = 1;
    pub const V4_DST: u16 = 2;
    pub const V6_SRC: u16 = 3;
    pub const V6_DST: u16 = 4;
    pub const FILTER: u16 = 25;
    pub const FILTER_ORIG_FLAGS: u16 = 1;
    pub const FILTER_DESTINATION: u32 = 1 << 1;
    pub const FILTER_PROTOCOL: u32 = 1 << 3;
    pub const FILTER_DESTINATION_PORT: u32 = 1 << 5;
    pub const PROTO_NUM: u16 = 1;
    pub const PROTO_SRC_PORT: u16 = 2;
    pub const PROTO_DST_PORT: u16 = 3;
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
    pub source_port: Option<u16>,
    pub destination_port: Option<u16>,
}

impl Tuple {
    /// Writes the direction as one attribute.
    pub fn encode(&self, kind: u16, writer: &mut Writer) {
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

    /// Asks for flows whose original direction has this protocol and, as far as they are given, this destination
    /// and destination port. Kernels before 5.8 do not look at it and list all.
    pub fn encode_filter(&self, writer: &mut Writer) {
        let flag = |given: bool, flag: u32| if given { flag } else { 0 };
        let flags = wire::FILTER_PROTOCOL
            | flag(self.destination.is_some(), wire::FILTER_DESTINATION)
            | flag(self.destination_port.is_some(), wire::FILTER_DESTINATION_PORT);
        self.encode(wire::TUPLE_ORIG, writer);
        writer.nest(wire::FILTER, |filter| {
            filter.u32_host(wire::FILTER_ORIG_FLAGS, flags);
        });
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
