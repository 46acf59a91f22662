//! Where does one message end and the next begin?

use super::attribute::{Attributes, Malformed};

/// The length of a netlink header.
pub const HEADER_LEN: usize = 16;
/// The length of the header that every netfilter message has after it.
pub const NETFILTER_HEADER_LEN: usize = 4;

/// Flags of requests and replies.
pub mod flags {
    /// This is a request.
    pub const REQUEST: u16 = 1;
    /// Answer even if all went well.
    pub const ACK: u16 = 4;
    /// The dump saw a change half way and may be inconsistent.
    pub const DUMP_INTERRUPTED: u16 = 0x10;
    /// Refuse if the object exists.
    pub const EXCLUSIVE: u16 = 0x200;
    /// Create the object if it does not exist.
    pub const CREATE: u16 = 0x400;
    /// Put the rule at the end of its chain.
    pub const APPEND: u16 = 0x800;
    pub const DUMP: u16 = 0x300;
    /// In an error reply: the original request is not repeated.
    pub const CAPPED: u16 = 0x100;
    /// In an error reply: attributes follow that explain it.
    pub const EXPLAINED: u16 = 0x200;
}

/// Message types below the subsystems'.
pub mod kind {
    /// An error, or with errno zero an acknowledgement.
    pub const ERROR: u16 = 2;
    /// The end of a dump.
    pub const DONE: u16 = 3;
    /// The beginning of a batch.
    pub const BATCH_BEGIN: u16 = 16;
    /// The end of a batch: commit.
    pub const BATCH_END: u16 = 17;
}

/// The two headers of a message to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Message type: subsystem in the high byte.
    pub kind: u16,
    /// See [`flags`].
    pub flags: u16,
    /// Sequence number, which the reply repeats.
    pub sequence: u32,
    pub family: u8,
    /// Version byte, zero nearly always.
    pub version: u8,
    /// The resource: the subsystem for batch messages.
    pub resource: u16,
}

pub(super) fn begin_message(bytes: &mut Vec<u8>, header: Header) -> usize {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&header.kind.to_ne_bytes());
    bytes.extend_from_slice(&header.flags.to_ne_bytes());
    bytes.extend_from_slice(&header.sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&[header.family, header.version]);
    bytes.extend_from_slice(&header.resource.to_be_bytes());
    start
}

pub(super) fn end_message(bytes: &mut [u8], start: usize) {
    // A message is a few MiB at most: every nest in it is below 64 KiB, and callers split by count.
    let length = u32::try_from(bytes.len() - start).unwrap_or(u32::MAX);
    bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// One received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    /// See [`flags`].
    pub flags: u16,
    /// The sequence number of the request.
    pub sequence: u32,
    /// Everything after the netlink header.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The protocol family in the netfilter header.
    pub fn family(&self) -> Result<u8, Malformed> {
        self.payload
            .first()
            .copied()
            .ok_or(Malformed("netfilter header is cut off"))
    }

    /// The attributes after the netfilter header.
    pub fn attributes(&self) -> Result<Attributes<'a>, Malformed> {
        let (_, rest) = self
            .payload
            .split_at_checked(NETFILTER_HEADER_LEN)
            .ok_or(Malformed("netfilter header is cut off"))?;
        Ok(Attributes::new(rest))
    }
}

/// Iterates over the messages of a datagram; ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// The messages in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let Some(head) = rest.first_chunk::<HEADER_LEN>() else {
            return Some(Err(Malformed("message header is cut off")));
        };
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if length < HEADER_LEN || length > rest.len() {
            return Some(Err(Malformed("message length does not fit")));
        }
        let payload = &rest[HEADER_LEN..length];
        self.rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Message {
            kind: u16::from_ne_bytes([head[4], head[5]]),
            flags: u16::from_ne_bytes([head[6], head[7]]),
            sequence: u32::from_ne_bytes([head[8], head[9], head[10], head[11]]),
            payload,
        }))
    }
}
