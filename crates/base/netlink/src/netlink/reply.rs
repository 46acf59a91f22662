//! What did the kernel think of a request?

use std::fmt;

use super::attribute::{Attributes, Malformed};
use super::message::{HEADER_LEN, Message, flags};

/// An error number of the kernel, as a positive number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Not permitted: the capability NET_ADMIN is missing.
    pub const PERM: Self = Self(1);
    /// The object does not exist.
    pub const NOENT: Self = Self(2);
    /// A signal arrived.
    pub const INTR: Self = Self(4);
    /// Try again; the subsystem was reloaded under the request.
    pub const AGAIN: Self = Self(11);
    /// Out of memory.
    pub const NOMEM: Self = Self(12);
    /// The object is in use, or exists with another value.
    pub const BUSY: Self = Self(16);
    /// The object exists.
    pub const EXIST: Self = Self(17);
    /// The request makes no sense to this kernel.
    pub const INVAL: Self = Self(22);
    /// The set is full.
    pub const NFILE: Self = Self(23);
    /// The ruleset is of a newer generation than the batch was made for.
    pub const RESTART: Self = Self(85);
    /// The message does not fit into the socket's buffer.
    pub const MSGSIZE: Self = Self(90);
    /// The kernel lacks the feature.
    pub const OPNOTSUPP: Self = Self(95);
    /// The receive queue overflowed.
    pub const NOBUFS: Self = Self(105);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// An acknowledgement or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// The request it answers.
    pub sequence: u32,
    /// `None` is an acknowledgement.
    pub error: Option<Errno>,
    /// The kernel's explanation, if it gave one.
    pub message: Option<String>,
    /// The offset within the request of the attribute that is at fault, if the kernel said so.
    pub offset: Option<u32>,
}

impl ErrorReply {
    const MESSAGE: u16 = 1;
    const OFFSET: u16 = 2;

    /// Reads a message of type [`super::kind::ERROR`].
    pub fn decode(message: &Message<'_>) -> Result<Self, Malformed> {
        let code = message
            .payload
            .first_chunk::<4>()
            .map(|bytes| i32::from_ne_bytes(*bytes))
            .ok_or(Malformed("error reply is cut off"))?;
        let mut reply = Self {
            sequence: message.sequence,
            error: (code != 0).then(|| Errno(code.checked_neg().unwrap_or(i32::MAX))),
            message: None,
            offset: None,
        };
        if message.flags & flags::EXPLAINED == 0 {
            return Ok(reply);
        }
        // The explanation follows the request's header, or the whole request if it was not capped.
        let echoed = message
            .payload
            .get(4..8)
            .and_then(|bytes| bytes.first_chunk::<4>())
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes) as usize);
        let skip = if message.flags & flags::CAPPED == 0 {
            echoed.max(HEADER_LEN).next_multiple_of(4)
        } else {
            HEADER_LEN
        };
        let rest = message.payload.get(4 + skip..).unwrap_or_default();
        for attribute in Attributes::new(rest) {
            let attribute = attribute?;
            match attribute.kind {
                Self::MESSAGE => reply.message = Some(attribute.text()?.to_owned()),
                Self::OFFSET => reply.offset = Some(attribute.u32_host()?),
                _ => {}
            }
        }
        Ok(reply)
    }
}
