//! How do bytes reach the kernel and come back?

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, send,
    socket_with, sockopt,
};

use pointsman_netlink::netlink::{
    Errno, ErrorReply, Header, Malformed, Message, Messages, Writer, flags, kind,
};

/// How much the socket may hold.
///
/// A batch is one `send`, so the send buffer must hold the largest batch; the kernel counts its own
/// bookkeeping too, hence the factor in [`Socket::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes that may wait for the kernel.
    pub send: usize,
    /// Bytes that may wait for us.
    pub receive: usize,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            send: 1 << 20,
            receive: 8 << 20,
        }
    }
}

/// Talking to the kernel failed; whether a request had an effect is unknown.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The socket could not be made.
    #[error("opening a netlink socket")]
    Open(#[source] io::Error),
    /// Nothing was sent.
    #[error("sending {bytes} bytes over netlink")]
    Send {
        /// The length of the request.
        bytes: usize,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Replies were lost: the queue overflowed.
    #[error("netlink replies were lost because the receive buffer is full")]
    Overrun,
    /// Reading a reply failed.
    #[error("receiving over netlink")]
    Receive(#[source] io::Error),
}

/// A request was not answered as it should be.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The kernel answered with an error.
    #[error("the kernel refused the request: {errno}")]
    Refused { errno: Errno },
    /// What the request speaks of does not exist.
    #[error("there is no such table, chain, set or flow")]
    NotFound,
    /// The ruleset changed during every attempt.
    #[error("the ruleset changed during each of {0} attempts to list it")]
    Disturbed(u32),
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

/// Whether a list is of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    Whole,
    /// A commit came in between.
    Disturbed,
}

/// What a read gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    Datagram(&'a [u8]),
    /// Nothing is waiting.
    Nothing,
}

/// A netlink socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    send_buffer: usize,
    next_sequence: u32,
}

impl Socket {
    /// Opens a socket of the netfilter protocol in the calling thread's network namespace.
    pub fn netfilter(buffers: Buffers) -> Result<Self, SocketError> {
        Self::open(netlink::NETFILTER, buffers)
    }

    /// The same of the generic protocol, whose messages have a header of the same length.
    pub(crate) fn generic(buffers: Buffers) -> Result<Self, SocketError> {
        Self::open(netlink::GENERIC, buffers)
    }

    /// Joins a group, whose messages then come without having been asked for.
    pub(crate) fn join(&self, group: u32) -> Result<(), SocketError> {
        let group = i32::try_from(group).map_err(io::Error::other);
        let joined =
            group.and_then(|group| set_netlink_option(self.fd.as_fd(), libc::NETLINK_ADD_MEMBERSHIP, group));
        joined.map_err(SocketError::Open)
    }

    fn open(protocol: Protocol, buffers: Buffers) -> Result<Self, SocketError> {
        let open = || -> io::Result<OwnedFd> {
            let fd = socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                Some(protocol),
            )?;
            bind(&fd, &netlink::SocketAddrNetlink::new(0, 0))?;
            // Explanations with errors, and no copy of the request in them.
            set_netlink_option(fd.as_fd(), libc::NETLINK_EXT_ACK, 1)?;
            set_netlink_option(fd.as_fd(), libc::NETLINK_CAP_ACK, 1)?;
            // Without the privilege the system's limit stays, and large batches fail with a clear error.
            if sockopt::set_socket_recv_buffer_size_force(&fd, buffers.receive).is_err() {
                let _ = sockopt::set_socket_recv_buffer_size(&fd, buffers.receive);
            }
            Ok(fd)
        };
        let mut socket = Self {
            fd: open().map_err(SocketError::Open)?,
            // The kernel fills dumps in pieces of at most 32 KiB.
            buffer: vec![0; 64 << 10],
            send_buffer: 0,
            next_sequence: 1,
        };
        socket.ensure_send_buffer(buffers.send);
        Ok(socket)
    }

    /// Sends one request or batch. The kernel handles it before this returns.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SocketError> {
        self.ensure_send_buffer(bytes.len());
        loop {
            match send(&self.fd, bytes, SendFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(source) => {
                    return Err(SocketError::Send {
                        bytes: bytes.len(),
                        source: source.into(),
                    });
                }
            }
        }
    }

    /// Reads one datagram if one is waiting.
    ///
    /// Requests are handled while they are sent, so their replies are waiting when `send` returns.
    pub fn receive(&mut self) -> Result<Received<'_>, SocketError> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let length = loop {
            match recv(&self.fd, self.buffer.as_mut_slice(), flags) {
                Ok((_, length)) => break length,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(Received::Nothing),
                Err(rustix::io::Errno::NOBUFS) => return Err(SocketError::Overrun),
                Err(error) => return Err(SocketError::Receive(error.into())),
            }
        };
        if length > self.buffer.len() {
            self.buffer.resize(length.next_power_of_two(), 0);
            return Err(SocketError::Overrun);
        }
        Ok(Received::Datagram(&self.buffer[..length]))
    }

    /// The sequence number that the next message should have.
    pub fn next_sequence(&self) -> u32 {
        self.next_sequence
    }

    /// So many sequence numbers are used up.
    pub fn skip_sequences(&mut self, count: u32) {
        self.next_sequence = self.next_sequence.wrapping_add(count);
    }

    /// Sends a request, whose sequence number is set here, and hands every message of the answer to `visit`,
    /// up to the end of the list or the acknowledgement.
    pub(crate) fn request(
        &mut self,
        header: Header,
        body: impl FnOnce(&mut Writer),
        visit: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<Listing, RequestError> {
        let sequence = self.next_sequence;
        self.skip_sequences(1);
        let mut writer = Writer::new();
        let flags = flags::REQUEST | flags::ACK | header.flags;
        writer.message(
            Header {
                sequence,
                flags,
                ..header
            },
            body,
        );
        self.drain();
        self.send(writer.bytes())?;
        self.read_answer(sequence, visit)
    }

    fn read_answer(
        &mut self,
        sequence: u32,
        visit: &mut dyn FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<Listing, RequestError> {
        let mut listing = Listing::Whole;
        let mut malformed = None;
        loop {
            let Received::Datagram(datagram) = self.receive()? else {
                return Err(RequestError::Unfinished);
            };
            for message in Messages::new(datagram) {
                let message = message?;
                if message.sequence != sequence {
                    continue;
                }
                if message.flags & flags::DUMP_INTERRUPTED != 0 {
                    listing = Listing::Disturbed;
                }
                match message.kind {
                    kind::DONE => return malformed.map_or(Ok(listing), Err),
                    kind::ERROR => match ErrorReply::decode(&message)?.error {
                        None => return malformed.map_or(Ok(listing), Err),
                        Some(Errno::NOENT) => return Err(RequestError::NotFound),
                        Some(errno) => return Err(RequestError::Refused { errno }),
                    },
                    // Go on reading after nonsense, so that the socket is left in order.
                    _ if malformed.is_none() => malformed = visit(&message).err().map(RequestError::from),
                    _ => {}
                }
            }
        }
    }

    /// Throws away whatever is waiting, so that an old reply is not taken for a new one.
    pub fn drain(&mut self) {
        while matches!(
            self.receive(),
            Ok(Received::Datagram(_)) | Err(SocketError::Overrun)
        ) {}
    }

    fn ensure_send_buffer(&mut self, bytes: usize) {
        if bytes <= self.send_buffer {
            return;
        }
        let wanted = bytes.next_power_of_two();
        // Beyond the system's limit only root may go; root of a user namespace gets the limit, which is
        // enough for the table and for changes of a small cluster.
        if sockopt::set_socket_send_buffer_size_force(&self.fd, wanted).is_ok() {
            self.send_buffer = wanted;
        } else {
            let _ = sockopt::set_socket_send_buffer_size(&self.fd, wanted);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[expect(unsafe_code, reason = "no safe wrapper sets options of the level SOL_NETLINK")]
fn set_netlink_option(fd: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the call, and the pointer and length describe `value`.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
