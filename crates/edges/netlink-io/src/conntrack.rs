//! How are flows listed and deleted?

use pointsman_netlink::conntrack::{Flow, wire};
use pointsman_netlink::netlink::{Header, Malformed, Message, Writer, flags};

use crate::socket::{Buffers, RequestError, Socket, SocketError};

/// A connection to the connection tracker of the network namespace it was opened in.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Connects from the calling thread's network namespace.
    pub fn open(buffers: Buffers) -> Result<Self, SocketError> {
        let socket = Socket::netfilter(buffers)?;
        Ok(Self { socket })
    }

    /// All flows of an address family (2 for IPv4, 10 for IPv6). What changes during the listing may be in it
    /// or not.
    pub fn list(&mut self, family: u8) -> Result<Vec<Flow>, RequestError> {
        let mut flows = Vec::new();
        let header = header(family, wire::GET, flags::DUMP);
        self.request(header, |_| {}, &mut |message| {
            flows.push(Flow::decode(message)?);
            Ok(())
        })?;
        Ok(flows)
    }

    /// Deletes one flow; one that is gone already is fine.
    pub fn delete(&mut self, family: u8, flow: &Flow) -> Result<(), RequestError> {
        let body = |w: &mut Writer| {
            flow.original.encode(wire::TUPLE_ORIG, w);
            if let Some(id) = flow.id {
                w.u32_be(wire::ID, id);
            }
        };
        match self.request(header(family, wire::DELETE, 0), body, &mut |_| Ok(())) {
            Err(RequestError::NotFound) => Ok(()),
            other => other,
        }
    }

    fn request(
        &mut self,
        header: Header,
        body: impl FnOnce(&mut Writer),
        visit: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), RequestError> {
        self.socket.request(header, body, visit).map(drop)
    }
}

fn header(family: u8, kind: u16, flags: u16) -> Header {
    Header {
        kind: wire::SUBSYSTEM << 8 | kind,
        flags,
        sequence: 0,
        family,
        version: 0,
        resource: 0,
    }
}
