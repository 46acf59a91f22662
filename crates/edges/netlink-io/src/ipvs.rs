//! How does what kube-proxy's IPVS mode made leave the kernel?

use pointsman_netlink::ipvs::{VirtualServer, wire};
use pointsman_netlink::netlink::{Header, Malformed, Message, Writer, flags};

use crate::socket::{Buffers, RequestError, Socket, SocketError};

/// Numbers from `linux/netfilter/ipset/ip_set.h`.
mod ipset {
    pub const SUBSYSTEM: u16 = 6;
    pub const CREATE: u16 = 2;
    pub const DESTROY: u16 = 3;
    pub const PROTOCOL: u16 = 1;
    pub const SET_NAME: u16 = 2;
    pub const TYPE_NAME: u16 = 3;
    pub const REVISION: u16 = 4;
    pub const FAMILY: u16 = 5;
    pub const DATA: u16 = 7;
    /// What all kernels since 3.0 speak.
    pub const VERSION: u8 = 6;
}

const BUFFERS: Buffers = Buffers {
    send: 4 << 10,
    receive: 1 << 20,
};

/// A connection to IPVS of the network namespace it was opened in.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    /// The kernel's number for IPVS, which it gives out as modules are loaded.
    family: u16,
}

impl Ipvs {
    /// Connects from the calling thread's network namespace; `None` if the kernel has no IPVS.
    pub fn open() -> Result<Option<Self>, RequestError> {
        let mut socket = Socket::generic(BUFFERS)?;
        let mut family = None;
        let header = header(wire::CONTROL, wire::CONTROL_GET_FAMILY, 0);
        let body = |w: &mut Writer| w.text(wire::CONTROL_FAMILY_NAME, wire::FAMILY_NAME);
        let asked = socket.request(header, body, &mut |message| {
            family = family_number(message)?;
            Ok(())
        });
        match asked {
            Ok(_) => Ok(family.map(|family| Self { socket, family })),
            Err(RequestError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All virtual servers that have an address.
    pub fn servers(&mut self) -> Result<Vec<VirtualServer>, RequestError> {
        let mut servers = Vec::new();
        let header = header(self.family, wire::GET_SERVICE, flags::DUMP);
        self.socket.request(header, |_| {}, &mut |message| {
            servers.extend(VirtualServer::decode(message)?);
            Ok(())
        })?;
        Ok(servers)
    }

    /// Deletes a virtual server, and with it the ways to its endpoints.
    pub fn delete(&mut self, server: &VirtualServer) -> Result<(), RequestError> {
        let header = header(self.family, wire::DELETE_SERVICE, 0);
        match self.socket.request(header, |w| server.encode(w), &mut |_| Ok(())) {
            // ESRCH: somebody else was faster.
            Err(RequestError::Refused { errno }) if errno.0 == libc::ESRCH => Ok(()),
            other => other.map(drop),
        }
    }
}

/// A connection to the sets that rules of iptables look up.
#[derive(Debug)]
pub struct IpSets {
    socket: Socket,
}

impl IpSets {
    /// Connects from the calling thread's network namespace.
    pub fn open() -> Result<Self, SocketError> {
        Ok(Self {
            socket: Socket::netfilter(BUFFERS)?,
        })
    }

    /// Makes an empty set of IPv4 addresses.
    pub fn create(&mut self, name: &str) -> Result<(), RequestError> {
        let body = |w: &mut Writer| {
            w.u8(ipset::PROTOCOL, ipset::VERSION);
            w.text(ipset::SET_NAME, name);
            w.text(ipset::TYPE_NAME, "hash:ip");
            w.u8(ipset::REVISION, 0);
            w.u8(ipset::FAMILY, 2);
            w.nest(ipset::DATA, |_| {});
        };
        let header = set_header(ipset::CREATE, flags::CREATE | flags::EXCLUSIVE);
        self.socket.request(header, body, &mut |_| Ok(())).map(drop)
    }

    /// Destroys a set; returns whether there was one. A set that rules look up is refused.
    pub fn destroy(&mut self, name: &str) -> Result<bool, RequestError> {
        // Without the flag a set that is not there is no error.
        let header = set_header(ipset::DESTROY, flags::EXCLUSIVE);
        let body = |w: &mut Writer| {
            w.u8(ipset::PROTOCOL, ipset::VERSION);
            w.text(ipset::SET_NAME, name);
        };
        match self.socket.request(header, body, &mut |_| Ok(())) {
            Ok(_) => Ok(true),
            Err(RequestError::NotFound) => Ok(false),
            // EINVAL: the kernel has no sets at all.
            Err(RequestError::Refused { errno }) if errno.0 == libc::EINVAL => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn family_number(message: &Message<'_>) -> Result<Option<u16>, Malformed> {
    for attribute in message.attributes()? {
        let attribute = attribute?;
        if attribute.kind == wire::CONTROL_FAMILY_ID {
            let number = attribute.value.first_chunk::<2>();
            return Ok(number.map(|bytes| u16::from_ne_bytes(*bytes)));
        }
    }
    Ok(None)
}

fn set_header(command: u16, flags: u16) -> Header {
    Header {
        kind: ipset::SUBSYSTEM << 8 | command,
        flags,
        sequence: 0,
        // IPv4, as the tool says; the kernel finds a set of either family by its name.
        family: 2,
        version: 0,
        resource: 0,
    }
}

/// The header of a generic message: the command stands where netfilter's has the address family.
fn header(kind: u16, command: u8, flags: u16) -> Header {
    Header {
        kind,
        flags,
        sequence: 0,
        family: command,
        version: wire::VERSION,
        resource: 0,
    }
}
