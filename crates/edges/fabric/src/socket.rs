//! How does a request reach the kernel's routing tables, and what does it answer?

use pointsman_netlink::netlink::{Attributes, ErrorReply, Messages, Writer, flags, kind};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, send, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;

/// Message types, from linux/rtnetlink.h.
pub mod message {
    pub const NEW_LINK: u16 = 16;
    pub const DELETE_LINK: u16 = 17;
    pub const GET_LINK: u16 = 18;
    pub const NEW_ADDRESS: u16 = 20;
    pub const GET_ADDRESS: u16 = 22;
    pub const NEW_ROUTE: u16 = 24;
    pub const DELETE_ROUTE: u16 = 25;
    pub const GET_ROUTE: u16 = 26;
    pub const NEW_NEIGHBOUR: u16 = 28;
}

/// Replace the object if it exists; the flag that dumps use otherwise.
pub const REPLACE: u16 = 0x100;
/// Create it, or replace the one that is there.
pub const CREATE_OR_REPLACE: u16 = flags::CREATE | REPLACE;
/// Create it, and refuse if it exists.
pub const CREATE_NEW: u16 = flags::CREATE | flags::EXCLUSIVE;

/// A route-netlink socket. It belongs to the namespace it was opened in.
#[derive(Debug)]
pub struct RouteSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl RouteSocket {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        bind(&fd, &netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Self {
            fd,
            // The kernel fills dumps in pieces of at most 32 KiB.
            buffer: vec![0; 64 << 10],
            sequence: 0,
        })
    }

    /// Makes a change and waits until the kernel has acknowledged it.
    pub fn change(
        &mut self,
        kind: u16,
        extra_flags: u16,
        head: &[u8],
        body: impl FnOnce(&mut Writer),
    ) -> io::Result<()> {
        self.request(kind, extra_flags, head, body, &mut |_| {})
    }

    /// Asks for one object; `visit` gets what follows the netlink header of the answer.
    pub fn get(
        &mut self,
        kind: u16,
        head: &[u8],
        body: impl FnOnce(&mut Writer),
        visit: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        self.request(kind, 0, head, body, visit)
    }

    /// Lists everything of one kind; `visit` gets what follows the netlink header of each answer.
    pub fn dump(&mut self, kind: u16, head: &[u8], visit: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.request(kind, flags::DUMP, head, |_| {}, visit)
    }

    fn request(
        &mut self,
        message_kind: u16,
        extra_flags: u16,
        head: &[u8],
        body: impl FnOnce(&mut Writer),
        visit: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let request_flags = flags::REQUEST | flags::ACK | extra_flags;
        let bytes = encode(message_kind, request_flags, self.sequence, head, body)?;
        send(&self.fd, &bytes, SendFlags::empty())?;
        loop {
            let length = match recv(&self.fd, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((_, length)) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in Messages::new(&self.buffer[..length]) {
                let message = message.map_err(io::Error::other)?;
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    kind::DONE => return Ok(()),
                    kind::ERROR => {
                        let reply = ErrorReply::decode(&message).map_err(io::Error::other)?;
                        return match reply.error {
                            None => Ok(()),
                            Some(errno) => Err(io::Error::from_raw_os_error(errno.0)),
                        };
                    }
                    _ => visit(message.payload),
                }
            }
        }
    }
}

/// A message: netlink's header, the fixed part of its kind, attributes.
fn encode(
    kind: u16,
    message_flags: u16,
    sequence: u32,
    head: &[u8],
    body: impl FnOnce(&mut Writer),
) -> io::Result<Vec<u8>> {
    let mut attributes = Writer::new();
    body(&mut attributes);
    if attributes.overflowed() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let length = 16 + head.len() + attributes.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&u32::try_from(length).map_err(io::Error::other)?.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&message_flags.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(attributes.bytes());
    Ok(bytes)
}

/// The attributes after a fixed part of `head` bytes; what is malformed is left out.
pub fn attributes(payload: &[u8], head: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let rest = payload.get(head..).unwrap_or_default();
    Attributes::new(rest)
        .map_while(Result::ok)
        .map(|attribute| (attribute.kind, attribute.value))
}

/// A number of four bytes in host order.
pub fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes))
}
