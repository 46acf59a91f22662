//! What is a virtual server of IPVS?
//!
//! kube-proxy's IPVS mode made one for each address and port of a Service. They are only listed and deleted here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{Attributes, Malformed, Message, Writer};

/// Numbers from `linux/genetlink.h` and `linux/ip_vs.h`.
pub mod wire {
    /// The family that knows the numbers of the others.
    pub const CONTROL: u16 = 16;
    pub const CONTROL_GET_FAMILY: u8 = 3;
    pub const CONTROL_FAMILY_ID: u16 = 1;
    pub const CONTROL_FAMILY_NAME: u16 = 2;
    pub const FAMILY_NAME: &str = "IPVS";
    pub const VERSION: u8 = 1;
    pub const DELETE_SERVICE: u8 = 3;
    pub const GET_SERVICE: u8 = 4;
    pub const SERVICE: u16 = 1;
    pub const SERVICE_FAMILY: u16 = 1;
    pub const SERVICE_PROTOCOL: u16 = 2;
    pub const SERVICE_ADDRESS: u16 = 3;
    pub const SERVICE_PORT: u16 = 4;
}

const INET: u16 = 2;
const INET6: u16 = 10;

/// The address, protocol and port that clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtualServer {
    pub address: IpAddr,
    /// The transport protocol's number.
    pub protocol: u16,
    pub port: u16,
}

impl VirtualServer {
    /// Writes what names the server.
    pub fn encode(&self, writer: &mut Writer) {
        let (family, mut octets) = (if self.address.is_ipv4() { INET } else { INET6 }, [0; 16]);
        match self.address {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets = address.octets(),
        }
        writer.nest(wire::SERVICE, |service| {
            service.bytes_attribute(wire::SERVICE_FAMILY, &family.to_ne_bytes());
            service.bytes_attribute(wire::SERVICE_PROTOCOL, &self.protocol.to_ne_bytes());
            service.bytes_attribute(wire::SERVICE_ADDRESS, &octets);
            service.u16_be(wire::SERVICE_PORT, self.port);
        });
    }

    /// Reads a message of a dump; `None` for servers that are found by a packet's mark.
    pub fn decode(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        for attribute in message.attributes()? {
            let attribute = attribute?;
            if attribute.kind == wire::SERVICE {
                return Self::decode_service(attribute.nested());
            }
        }
        Err(Malformed("a virtual server without attributes"))
    }

    fn decode_service(parts: Attributes<'_>) -> Result<Option<Self>, Malformed> {
        let (mut family, mut protocol, mut port, mut octets) = (None, None, None, None);
        for part in parts {
            let part = part?;
            let number = part
                .value
                .first_chunk::<2>()
                .map(|bytes| u16::from_ne_bytes(*bytes));
            match part.kind {
                wire::SERVICE_FAMILY => family = number,
                wire::SERVICE_PROTOCOL => protocol = number,
                wire::SERVICE_PORT => port = Some(part.u16_be()?),
                wire::SERVICE_ADDRESS => octets = part.value.first_chunk::<16>().copied(),
                _ => {}
            }
        }
        let (Some(octets), Some(protocol), Some(port)) = (octets, protocol, port) else {
            return Ok(None);
        };
        let address = match family {
            Some(INET) => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
            Some(INET6) => Ipv6Addr::from(octets).into(),
            _ => return Err(Malformed("a virtual server of an unknown family")),
        };
        Ok(Some(Self {
            address,
            protocol,
            port,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Header, Messages};

    fn message(body: impl FnOnce(&mut Writer)) -> Writer {
        let mut writer = Writer::new();
        let header = Header {
            kind: 30,
            flags: 0,
            sequence: 1,
            family: wire::GET_SERVICE,
            version: wire::VERSION,
            resource: 0,
        };
        writer.message(header, body);
        writer
    }

    #[test]
    fn a_virtual_server_is_written_as_the_kernel_lists_it() {
        for (address, octets) in [
            ("10.96.0.10", [&[10, 96, 0, 10][..], &[0; 12]].concat()),
            (
                "fd00::a",
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 10).octets().to_vec(),
            ),
        ] {
            let server = VirtualServer {
                address: address.parse().unwrap(),
                protocol: 17,
                port: 53,
            };
            let written = message(|w| server.encode(w));
            let message = Messages::new(written.bytes()).next().unwrap().unwrap();
            assert_eq!(VirtualServer::decode(&message), Ok(Some(server)));
            let parts = message.attributes().unwrap().next().unwrap().unwrap();
            let values: Vec<Vec<u8>> = parts.nested().map(|part| part.unwrap().value.to_vec()).collect();
            assert_eq!(values[2], octets, "the address fills sixteen bytes");
            assert_eq!(values[3], [0, 53], "the port is in network order");
        }
    }

    #[test]
    fn a_server_that_is_found_by_a_mark_is_left_alone() {
        let written = message(|w| {
            w.nest(wire::SERVICE, |service| {
                service.bytes_attribute(wire::SERVICE_FAMILY, &INET.to_ne_bytes());
                service.u32_host(5, 7);
            });
        });
        let message = Messages::new(written.bytes()).next().unwrap().unwrap();
        assert_eq!(VirtualServer::decode(&message), Ok(None));
    }
}
