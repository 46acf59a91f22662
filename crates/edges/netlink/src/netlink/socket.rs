//! How do bytes reach the kernel and come back?

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, send, socket_with,
    sockopt,
};

use super::reply::Errno;

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

/// What a read gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// One datagram.
    Datagram(&'a [u8]),
    /// Nothing is waiting.
    Nothing,
}

/// A netlink socket of the netfilter protocol.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    send_buffer: usize,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn netfilter(buffers: Buffers) -> Result<Self, SocketError> {
        let open = || -> io::Result<OwnedFd> {
            let fd = socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                Some(netlink::NETFILTER),
            )?;
            bind(&fd, &netlink::SocketAddrNetlink::new(0, 0))?;
            // Explanations with errors, and no copy of the request in them.
            set_netlink_option(fd.as_fd(), libc::NETLINK_EXT_ACK)?;
            set_netlink_option(fd.as_fd(), libc::NETLINK_CAP_ACK)?;
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

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

#[expect(unsafe_code, reason = "no safe wrapper sets options of the level SOL_NETLINK")]
fn set_netlink_option(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the call, and the pointer and length describe `on`.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const on).cast(),
            length,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
