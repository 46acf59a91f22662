//! How are the streams of a command in a container held?
//!
//! The shim makes them, and hands over one end each: no byte of them takes a way through it.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use pointsman_fabric::Netns;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use super::{ProcessRuntime, blocking, control};
use crate::session::{Reader, Session, SessionRequest, Terminal, Writer};
use crate::shim::protocol::{Reply, Request, decode, encode};
use crate::shim::streams::HANDED_MAX;
use crate::{Attachable, ContainerId, ExecEnd, Network, PodUid, RuntimeError};

/// How long a program in a pod may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

impl ProcessRuntime {
    pub(super) async fn open_in(
        &self,
        id: &ContainerId,
        request: SessionRequest,
    ) -> Result<Session, RuntimeError> {
        let SessionRequest { command, stdin, tty } = request;
        let asked = Request::Open { command, stdin, tty };
        let (streams, stream) = self.hold(id, &asked).await?;
        let mut session = match tty {
            true => of_terminal(streams, stdin),
            false => of_pipes(streams, stdin),
        };
        session.end = Box::pin(end(stream, id.clone()));
        Ok(session)
    }

    pub(super) async fn attach_to(
        &self,
        id: &ContainerId,
        wants: Attachable,
    ) -> Result<Session, RuntimeError> {
        let Attachable { stdin, tty, .. } = wants;
        let (mut streams, stream) = self.hold(id, &Request::Attach { stdin }).await?;
        let mut session = match tty {
            true => {
                let output = streams.drain(1..).next().map(reader);
                Session {
                    stdout: output,
                    ..of_terminal(streams, stdin)
                }
            }
            false => of_pipes(streams, stdin),
        };
        let id = id.clone();
        session.end = Box::pin(async move {
            // The shim ends with the container; how that ended, its status says.
            let _ = end(stream, id).await;
            Ok(ExecEnd::Exited(0))
        });
        Ok(session)
    }

    /// Asks the shim for streams. They are there as long as the connection is.
    async fn hold(
        &self,
        id: &ContainerId,
        asked: &Request,
    ) -> Result<(Vec<Arc<Stream>>, UnixStream), RuntimeError> {
        self.running(id)?;
        let directory = self.inner.layout.container(id);
        let opened = open(&directory, asked).await;
        let (reply, held, stream) =
            opened.map_err(|error| RuntimeError::system(format!("reach the shim of {id}"), error))?;
        match reply {
            Reply::Opened => {}
            Reply::CannotStart { reason, message } => {
                return Err(RuntimeError::CannotStart { reason, message });
            }
            _ => return Err(RuntimeError::NotRunning(id.clone())),
        }
        let streams = held.into_iter().map(Stream::new).collect::<io::Result<Vec<_>>>();
        let streams =
            streams.map_err(|error| RuntimeError::system("watch the streams of a command", error))?;
        Ok((streams, stream))
    }

    /// Connects to a port that something in the pod listens on.
    pub(super) async fn connect_in(&self, pod: &PodUid, port: u16) -> Result<TcpStream, RuntimeError> {
        let (inner, pod) = (Arc::clone(&self.inner), pod.clone());
        connect_inside(blocking(move || inner.netns(&pod)).await?, port).await
    }
}

/// Connects to a port on the loopback addresses of a network: what listens on all addresses listens there.
pub(crate) async fn connect_inside(netns: Netns, port: u16) -> Result<TcpStream, RuntimeError> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        match connect_from(netns.clone(), SocketAddr::new(ip, port)).await? {
            Ok(stream) => return Ok(stream),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::TimedOut) => {
                last = error;
            }
            Err(_) => {}
        }
    }
    let doing = format!("connect to port {port} inside of the pod");
    Err(RuntimeError::system(doing, last))
}

/// Connects from a network.
pub(crate) async fn connect_from(
    netns: Netns,
    address: SocketAddr,
) -> Result<io::Result<TcpStream>, RuntimeError> {
    let make = move || match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    // A socket stays in the namespace that it was made in.
    let made = blocking(move || netns.run(make).map_err(super::network::system)).await?;
    let socket = made.map_err(|error| RuntimeError::system("make a socket", error))?;
    let connected = tokio::time::timeout(CONNECT, socket.connect(address)).await;
    Ok(connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())))
}

fn of_terminal(streams: Vec<Arc<Stream>>, has_stdin: bool) -> Session {
    let master = streams.into_iter().next();
    Session {
        stdin: master
            .clone()
            .filter(|_| has_stdin)
            .map(|stream| writer(stream, true)),
        stdout: master.clone().map(reader),
        stderr: None,
        terminal: master.map(|stream| stream as Arc<dyn Terminal>),
        end: unknown(),
    }
}

fn of_pipes(streams: Vec<Arc<Stream>>, has_stdin: bool) -> Session {
    let mut streams = streams.into_iter();
    Session {
        stdin: has_stdin
            .then(|| streams.next())
            .flatten()
            .map(|stream| writer(stream, false)),
        stdout: streams.next().map(reader),
        stderr: streams.next().map(reader),
        terminal: None,
        end: unknown(),
    }
}

fn unknown() -> BoxFuture<'static, Result<ExecEnd, RuntimeError>> {
    Box::pin(std::future::pending())
}

fn reader(stream: Arc<Stream>) -> Reader {
    Box::new(End {
        stream,
        is_terminal: false,
    })
}

fn writer(stream: Arc<Stream>, is_terminal: bool) -> Writer {
    Box::new(End { stream, is_terminal })
}

/// Waits until the shim says how the command ended. Dropped, it ends the connection, and with it the command.
async fn end(mut stream: UnixStream, id: ContainerId) -> Result<ExecEnd, RuntimeError> {
    match control::read_reply(&mut stream).await {
        Ok(Reply::Exec { end, .. }) => Ok(end),
        // The shim ends with the container.
        _ => Err(RuntimeError::NotRunning(id)),
    }
}

/// Sends a request; returns the reply with the descriptors that came with it, and the connection.
async fn open(directory: &Path, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>, UnixStream)> {
    let mut stream = control::connect(directory).await?;
    stream.write_all(&encode(request)?).await?;
    let (mut bytes, mut held) = (Vec::new(), Vec::new());
    loop {
        let mut buffer = [0; 4 << 10];
        let received = stream.async_io(Interest::READABLE, || receive(&stream, &mut buffer, &mut held));
        let length = received.await?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buffer[..length]);
        if let Some((reply, _)) = decode(&bytes)? {
            return Ok((reply, held, stream));
        }
    }
}

fn receive(stream: &UnixStream, buffer: &mut [u8], held: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            held.extend(descriptors);
        }
    }
    Ok(received.bytes)
}

/// A pipe or terminal that does not block.
struct Stream(AsyncFd<OwnedFd>);

impl Stream {
    #[expect(
        unsafe_code,
        reason = "a descriptor has to stay open as long as it is watched"
    )]
    fn new(held: OwnedFd) -> io::Result<Arc<Self>> {
        rustix::io::ioctl_fionbio(&held, true)?;
        // SAFETY: the value owns the descriptor, always gives the same one, and is never changed or taken out.
        let watched = unsafe { AsyncFd::register(held) }?;
        Ok(Arc::new(Self(watched)))
    }
}

impl Terminal for Stream {
    fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(tcsetwinsize(self.0.get_ref().as_fd(), size)?)
    }
}

/// One direction of a stream.
struct End {
    stream: Arc<Stream>,
    is_terminal: bool,
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.stream.0.poll_read_ready(context))?;
            let room = buffer.initialize_unfilled();
            match guard.try_io(|inner| Ok(rustix::io::read(inner.get_ref(), room)?)) {
                Ok(Ok(length)) => buffer.advance(length),
                // So the kernel says that nobody has the terminal open any more.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => continue,
            }
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.stream.0.poll_write_ready(context))?;
            match guard.try_io(|inner| Ok(rustix::io::write(inner.get_ref(), bytes)?)) {
                Ok(written) => return Poll::Ready(written),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A terminal cannot be closed for one direction: its end of input is a character. Pipes end when they are dropped.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.is_terminal {
            true => self.poll_write(context, &[4]).map_ok(|_| ()),
            false => Poll::Ready(Ok(())),
        }
    }
}

impl super::Inner {
    fn netns(&self, pod: &PodUid) -> Result<Netns, RuntimeError> {
        let record = self.sandbox_record(pod)?;
        let record = record.ok_or_else(|| RuntimeError::NoSuchPod(pod.clone()))?;
        match record.spec.network {
            Network::Host => Ok(self.node.clone()),
            Network::Own => Netns::named(&self.layout.netns(pod)).map_err(super::network::system),
        }
    }
}
