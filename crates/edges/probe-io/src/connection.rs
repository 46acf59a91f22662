//! How far is one exchange with a server?
//!
//! A connection is driven by readiness of its socket and never blocks. It knows nothing of timers:
//! who waits for it gives it up when the time is over.

use crate::finding::Finding;
use crate::grpc;
use crate::http;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustls::client::ClientConnection;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    connected: bool,
    /// The request and how much of it is sent. With TLS it is handed over whole.
    request: Arc<[u8]>,
    sent: usize,
    /// Answers to what the server asks during the exchange.
    reply: Vec<u8>,
    tls: Option<Box<ClientConnection>>,
    protocol: Protocol,
}

/// What is expected of the server.
#[derive(Debug)]
pub enum Protocol {
    Tcp,
    /// An HTTP response.
    Http(http::Reader),
    /// An answer of the gRPC health service.
    Grpc(grpc::Reader),
    /// Nothing more, except to close.
    Closing,
}

/// What an exchange came to.
#[derive(Debug)]
pub enum Step {
    /// The server has to do something first.
    Wait,
    /// An HTTP response.
    Response(http::Response),
    Done(Finding),
}

impl Connection {
    /// Begins to connect, with a socket of the right family that is not connected, if there is one.
    pub fn open(
        to: SocketAddr,
        socket: Option<OwnedFd>,
        request: Arc<[u8]>,
        tls: Option<Box<ClientConnection>>,
        protocol: Protocol,
    ) -> Result<Self, Errno> {
        let socket = match socket {
            Some(socket) => socket,
            None => {
                let family = if to.is_ipv4() {
                    AddressFamily::INET
                } else {
                    AddressFamily::INET6
                };
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                rustix::net::socket_with(family, SocketType::STREAM, flags, None)?
            }
        };
        let connected = match rustix::net::connect(&socket, &to) {
            Ok(()) => true,
            Err(Errno::INPROGRESS | Errno::INTR) => false,
            Err(errno) => return Err(errno),
        };
        let mut connection = Self {
            socket,
            connected,
            request,
            sent: 0,
            reply: Vec::new(),
            tls,
            protocol,
        };
        if let Some(tls) = &mut connection.tls {
            // rustls keeps it until the handshake is done. What does not fit into its buffer is
            // larger than any request of ours.
            let _ = tls.writer().write_all(&connection.request);
            connection.sent = connection.request.len();
        }
        Ok(connection)
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether there is something left to send, so that writability matters.
    pub fn wants_write(&self) -> bool {
        let tls = self.tls.as_ref().is_some_and(|tls| tls.wants_write());
        !self.connected || tls || self.sent < self.request.len() || !self.reply.is_empty()
    }

    /// Sends what can be sent.
    pub fn write(&mut self) -> Step {
        if matches!(self.protocol, Protocol::Tcp) {
            return self.accepted();
        }
        match self.flush() {
            Ok(()) => {
                self.connected = true;
                Step::Wait
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => Step::Wait,
            // A server may answer and close before it has read everything; then the answer counts.
            Err(Errno::PIPE | Errno::CONNRESET) if self.connected && self.tls.is_none() => {
                self.sent = self.request.len();
                self.reply.clear();
                Step::Wait
            }
            Err(errno) => Step::Done(Finding::Connection(errno)),
        }
    }

    /// Reads what has arrived.
    pub fn read(&mut self, scratch: &mut [u8]) -> Step {
        if matches!(self.protocol, Protocol::Tcp) {
            return self.accepted();
        }
        // A server that never stops sending gets its turn again later.
        for _ in 0..4 {
            let step = if self.tls.is_some() {
                self.read_tls(scratch)
            } else {
                self.read_plain(scratch)
            };
            match step {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(step) => return step,
            }
        }
        Step::Wait
    }

    /// Keeps the connection only until the server closes it, so that the server has the closed
    /// connection to remember, not us.
    pub fn close_after_peer(&mut self) {
        self.protocol = Protocol::Closing;
    }

    /// Takes the socket out of a connection that the server has closed, to be used again. Dissolving the connection
    /// resets it: nothing is lost, and neither side nor a firewall between them has to remember it for minutes, as
    /// they would 300 times per pod at five checks a second.
    pub fn recycle(self) -> Option<OwnedFd> {
        rustix::net::connect_unspec(&self.socket).ok()?;
        Some(self.socket)
    }

    /// Whether closing can be left to the server: it has been asked to, and nothing is encrypted.
    pub fn may_wait_for_close(&self) -> bool {
        self.tls.is_none() && matches!(self.protocol, Protocol::Http(_))
    }

    fn accepted(&mut self) -> Step {
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => {}
            Ok(Err(errno)) | Err(errno) => return Step::Done(Finding::Connection(errno)),
        }
        if self.connected || matches!(rustix::net::getpeername(&self.socket), Ok(Some(_))) {
            return Step::Done(Finding::Good);
        }
        Step::Wait
    }

    fn flush(&mut self) -> Result<(), Errno> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut Raw(self.socket.as_fd())).map_err(errno_of)?;
            }
            return Ok(());
        }
        while self.sent < self.request.len() {
            self.sent += rustix::net::send(&self.socket, &self.request[self.sent..], SendFlags::NOSIGNAL)?;
        }
        while !self.reply.is_empty() {
            let sent = rustix::net::send(&self.socket, &self.reply, SendFlags::NOSIGNAL)?;
            self.reply.drain(..sent);
        }
        Ok(())
    }

    fn read_plain(&mut self, scratch: &mut [u8]) -> ControlFlow<Step> {
        match rustix::net::recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
            Ok((0, _)) => ControlFlow::Break(self.ended()),
            Ok((length, _)) => {
                self.connected = true;
                let step = self.take(&scratch[..length]);
                // A short read has emptied the socket; asking again would cost a call.
                if length < scratch.len() && step.is_continue() {
                    return ControlFlow::Break(self.write());
                }
                step
            }
            Err(Errno::AGAIN) => ControlFlow::Break(Step::Wait),
            Err(Errno::INTR) => ControlFlow::Continue(()),
            Err(errno) => ControlFlow::Break(Step::Done(Finding::Connection(errno))),
        }
    }

    fn read_tls(&mut self, scratch: &mut [u8]) -> ControlFlow<Step> {
        let Some(tls) = &mut self.tls else {
            return ControlFlow::Break(Step::Wait);
        };
        let ended = match tls.read_tls(&mut Raw(self.socket.as_fd())) {
            Ok(length) => length == 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return ControlFlow::Break(self.write()),
            Err(error) => return ControlFlow::Break(Step::Done(Finding::Connection(errno_of(error)))),
        };
        self.connected = true;
        if let Err(error) = tls.process_new_packets() {
            return ControlFlow::Break(Step::Done(Finding::Tls(error)));
        }
        loop {
            let Some(tls) = &mut self.tls else {
                return ControlFlow::Break(Step::Wait);
            };
            match tls.reader().read(scratch) {
                Ok(0) => return ControlFlow::Break(self.ended()),
                Ok(length) => self.take(&scratch[..length])?,
                // Without a closing message the end of the stream is an error to rustls; whether it
                // is one to us depends on what was still to come.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return ControlFlow::Break(self.ended());
                }
                Err(_) if ended => return ControlFlow::Break(self.ended()),
                Err(_) => break,
            }
        }
        match self.write() {
            Step::Wait => ControlFlow::Continue(()),
            step => ControlFlow::Break(step),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> ControlFlow<Step> {
        match &mut self.protocol {
            Protocol::Http(reader) => match reader.push(bytes) {
                Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
                Ok(ControlFlow::Break(response)) => ControlFlow::Break(Step::Response(response)),
                Err(error) => ControlFlow::Break(Step::Done(Finding::Http(error))),
            },
            Protocol::Grpc(reader) => match reader.push(bytes, &mut self.reply) {
                Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
                Ok(ControlFlow::Break(grpc::Health::Serving)) => {
                    ControlFlow::Break(Step::Done(Finding::Good))
                }
                Ok(ControlFlow::Break(health)) => ControlFlow::Break(Step::Done(Finding::Unhealthy(health))),
                Err(error) => ControlFlow::Break(Step::Done(Finding::Grpc(error))),
            },
            // Bytes behind a complete answer are not read: closing tells the server.
            Protocol::Closing | Protocol::Tcp => ControlFlow::Break(Step::Done(Finding::Good)),
        }
    }

    fn ended(&mut self) -> Step {
        match &mut self.protocol {
            Protocol::Http(reader) => match reader.end() {
                Ok(response) => Step::Response(response),
                Err(error) => Step::Done(Finding::Http(error)),
            },
            Protocol::Grpc(reader) => Step::Done(Finding::Grpc(reader.end())),
            Protocol::Closing | Protocol::Tcp => Step::Done(Finding::Good),
        }
    }
}

/// A socket as rustls wants it.
struct Raw<'a>(BorrowedFd<'a>);

impl Read for Raw<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::net::recv(self.0, buffer, RecvFlags::empty())?.0)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::net::send(self.0, buffer, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
