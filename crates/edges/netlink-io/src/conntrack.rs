//! How are flows listed and deleted?

use pointsman_netlink::conntrack::{Flow, Tuple, wire};
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

    /// Visits the flows of an address family (2 for IPv4, 10 for IPv6) with the protocol, destination and destination
    /// port that `like` has; all, if it has no protocol. What changes during the listing may be in it or not, and a flow
    /// may be in it twice.
    pub fn visit(
        &mut self,
        family: u8,
        like: &Tuple,
        visit: &mut dyn FnMut(Flow),
    ) -> Result<(), RequestError> {
        let body = |w: &mut Writer| {
            if like.protocol != 0 {
                like.encode_filter(w);
            }
        };
        self.request(header(family, wire::GET, flags::DUMP), body, &mut |message| {
            visit(Flow::decode(message)?);
            Ok(())
        })
    }

    /// Makes the kernel track a flow, for this many seconds.
    pub fn add(&mut self, family: u8, flow: &Flow, seconds: u32) -> Result<(), RequestError> {
        let body = |w: &mut Writer| {
            flow.original.encode(wire::TUPLE_ORIG, w);
            flow.reply.encode(wire::TUPLE_REPLY, w);
            w.u32_be(wire::TIMEOUT, seconds);
        };
        let flags = flags::CREATE | flags::EXCLUSIVE;
        self.request(header(family, wire::NEW, flags), body, &mut |_| Ok(()))
    }

    /// Deletes one flow; returns whether it was still there.
    pub fn delete(&mut self, family: u8, flow: &Flow) -> Result<bool, RequestError> {
        let body = |w: &mut Writer| {
            flow.original.encode(wire::TUPLE_ORIG, w);
            if let Some(id) = flow.id {
                w.u32_be(wire::ID, id);
            }
        };
        match self.request(header(family, wire::DELETE, 0), body, &mut |_| Ok(())) {
            Err(RequestError::NotFound) => Ok(false),
            other => other.map(|()| true),
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
