//! How are stale flows found and deleted?

use super::flow::{Flow, FlowFilter, wire};
use crate::netlink::{
    Buffers, Errno, ErrorReply, Header, Malformed, Message, Messages, Received, Socket, SocketError, Writer,
    flags, kind,
};

/// Flows could not be listed or deleted.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    /// The kernel answered with an error.
    #[error("the kernel refused: {0}")]
    Refused(Errno),
    /// A filter without any part would delete every flow.
    #[error("an empty filter means every flow and is not carried out")]
    EmptyFilter,
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The answer makes no sense.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The answer ended early.
    #[error("the kernel's answer has no end")]
    Unfinished,
}

/// How flows were deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// By the kernel, which does not say how many.
    InKernel,
    /// One by one, after listing the table.
    Listed {
        /// The number of flows deleted.
        flows: usize,
    },
}

/// Whether this kernel filters deletions itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filtering {
    Untried,
    Works,
    Missing,
}

/// A connection to the connection tracker of the network namespace it was opened in.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
    next_sequence: u32,
    filtering: Filtering,
}

impl Conntrack {
    /// Connects from the calling thread's network namespace.
    pub fn open(buffers: Buffers) -> Result<Self, SocketError> {
        Ok(Self {
            socket: Socket::netfilter(buffers)?,
            next_sequence: 1,
            filtering: Filtering::Untried,
        })
    }

    /// Never asks the kernel to filter, as on kernels that cannot.
    pub fn without_kernel_filter(mut self) -> Self {
        self.filtering = Filtering::Missing;
        self
    }

    /// Deletes every flow of the address family (2 for IPv4, 10 for IPv6) that the filter means.
    pub fn delete(&mut self, family: u8, filter: &FlowFilter) -> Result<Deleted, ConntrackError> {
        if filter.is_empty() {
            return Err(ConntrackError::EmptyFilter);
        }
        if self.filtering != Filtering::Missing {
            match self.delete_in_kernel(family, filter) {
                Ok(()) => {
                    self.filtering = Filtering::Works;
                    return Ok(Deleted::InKernel);
                }
                // A kernel that does not know filters takes the tuple for a whole one, and finds none.
                Err(ConntrackError::Refused(Errno::NOENT | Errno::INVAL | Errno::OPNOTSUPP))
                    if self.filtering == Filtering::Untried =>
                {
                    self.filtering = Filtering::Missing;
                }
                Err(error) => return Err(error),
            }
        }
        let doomed: Vec<Flow> = self
            .list(family)?
            .into_iter()
            .filter(|flow| filter.admits(flow))
            .collect();
        for flow in &doomed {
            self.delete_flow(family, flow)?;
        }
        Ok(Deleted::Listed { flows: doomed.len() })
    }

    /// Deletes one flow; one that is gone already is fine.
    pub fn delete_flow(&mut self, family: u8, flow: &Flow) -> Result<(), ConntrackError> {
        let deleted = self.request(
            (family, 0),
            wire::DELETE,
            0,
            |w| {
                flow.original.encode(wire::TUPLE_ORIG, w);
                if let Some(id) = flow.id {
                    w.u32_be(wire::ID, id);
                }
            },
            &mut |_| Ok(()),
        );
        match deleted {
            Err(ConntrackError::Refused(Errno::NOENT)) => Ok(()),
            other => other,
        }
    }

    /// All flows of an address family. What changes during the listing may be in it or not.
    pub fn list(&mut self, family: u8) -> Result<Vec<Flow>, ConntrackError> {
        let mut flows = Vec::new();
        self.request((family, 0), wire::GET, flags::DUMP, |_| {}, &mut |message| {
            flows.push(Flow::decode(message)?);
            Ok(())
        })?;
        Ok(flows)
    }

    fn delete_in_kernel(&mut self, family: u8, filter: &FlowFilter) -> Result<(), ConntrackError> {
        // The kernel looks at the family of a deletion only if the version is not zero.
        self.request(
            (family, 1),
            wire::DELETE,
            0,
            |w| filter.encode(w),
            &mut |_| Ok(()),
        )
    }

    fn request(
        &mut self,
        (family, version): (u8, u8),
        message_kind: u16,
        extra_flags: u16,
        body: impl FnOnce(&mut Writer),
        visit: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), ConntrackError> {
        let sequence = self.next_sequence;
        self.next_sequence = sequence.wrapping_add(1);
        let header = Header {
            kind: wire::SUBSYSTEM << 8 | message_kind,
            flags: flags::REQUEST | flags::ACK | extra_flags,
            sequence,
            family,
            version,
            resource: 0,
        };
        let mut writer = Writer::new();
        writer.message(header, body);
        self.socket.drain();
        self.socket.send(writer.bytes())?;
        loop {
            let Received::Datagram(datagram) = self.socket.receive()? else {
                return Err(ConntrackError::Unfinished);
            };
            for message in Messages::new(datagram) {
                let message = message?;
                if message.sequence != sequence {
                    continue;
                }
                match message.kind {
                    kind::DONE => return Ok(()),
                    kind::ERROR => {
                        return match ErrorReply::decode(&message)?.error {
                            None => Ok(()),
                            Some(errno) => Err(ConntrackError::Refused(errno)),
                        };
                    }
                    _ => visit(&message)?,
                }
            }
        }
    }
}
