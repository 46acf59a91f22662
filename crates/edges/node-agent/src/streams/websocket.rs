//! How does a WebSocket carry streams?
//!
//! In the channels of Kubernetes each message begins with the number of its stream. For ports it carries the bytes of a
//! SPDY connection, in messages of any length.

use super::GOODBYE;
use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, SinkExt, Stream, StreamExt};
use pointsman_spdy::Frame;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Bytes, Message};

/// The longest message. Clients send 32 KiB, browsers what was pasted.
const MESSAGE_MAX: usize = 1 << 20;
/// How often a client learns that we are there while it has to wait: those of Kubernetes leave after a minute.
const ALIVE: Duration = Duration::from_secs(15);
/// How long a client that was refused sends nothing before it has heard of it.
const QUIET: Duration = Duration::from_secs(1);
/// The channel by which a client ends another one.
const END: u8 = 255;

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const ERROR: u8 = 3;
pub(super) const RESIZE: u8 = 4;

/// A connection whose handshake is done.
async fn open<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> WebSocketStream<S> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX))
        .read_buffer_size(super::PIECE)
        .write_buffer_size(0)
        .max_write_buffer_size(2 * MESSAGE_MAX);
    WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await
}

/// The channels on which a client may send.
#[derive(Default)]
pub(super) struct Channels {
    pub(super) stdin: Option<mpsc::Sender<Vec<u8>>>,
    pub(super) resize: Option<mpsc::Sender<Vec<u8>>>,
}

impl Channels {
    fn of(&mut self, channel: u8) -> Option<&mut Option<mpsc::Sender<Vec<u8>>>> {
        match channel {
            STDIN => Some(&mut self.stdin),
            RESIZE => Some(&mut self.resize),
            _ => None,
        }
    }
}

/// Why nothing is read any more.
enum Over {
    Left,
    /// It broke a rule.
    Refused(CloseFrame),
}

/// Serves the channels of a command until nobody can say more, or the client leaves.
pub(super) async fn channels<S>(stream: S, channels: Channels, mut said: mpsc::Receiver<Frame>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sink, mut source) = open(stream).await.split();
    let over = tokio::select! {
        over = read(&mut source, channels) => Some(over),
        said = write(&mut sink, &mut said) => said.err().map(|_| Over::Left),
    };
    let close = match over {
        Some(Over::Left) => return,
        Some(Over::Refused(close)) => close,
        None => CloseFrame {
            code: CloseCode::Normal,
            reason: "".into(),
        },
    };
    let too_long = close.code == CloseCode::Size;
    let goodbye = async {
        if sink.send(Message::Close(Some(close))).await.is_err() {
            return;
        }
        if too_long {
            discard(source, sink).await;
            return;
        }
        while let Some(Ok(message)) = source.next().await {
            if message.is_close() {
                return;
            }
        }
    };
    let _ = timeout(GOODBYE, goodbye).await;
}

/// Reads what a client was still sending, until it is quiet. Closing before would reset the connection, and with it our
/// last word.
async fn discard<S: AsyncRead + AsyncWrite + Unpin>(
    source: SplitStream<WebSocketStream<S>>,
    sink: SplitSink<WebSocketStream<S>, Message>,
) {
    let mut socket = sink.reunite(source).expect("both are of one connection");
    let mut piece = [0; 4096];
    while let Ok(Ok(1..)) = timeout(QUIET, socket.get_mut().read(&mut piece)).await {}
}

async fn write<S: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut SplitSink<WebSocketStream<S>, Message>,
    said: &mut mpsc::Receiver<Frame>,
) -> Result<(), tungstenite::Error> {
    let mut alive = interval(ALIVE);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            frame = said.recv() => match frame {
                None => return Ok(()),
                Some(Frame::Data { stream, mut bytes, .. }) if !bytes.is_empty() => {
                    bytes.insert(0, stream as u8);
                    Message::Binary(bytes.into())
                }
                Some(_) => continue,
            },
            _ = alive.tick() => Message::Pong(Bytes::new()),
        };
        sink.send(message).await?;
    }
}

async fn read<S: AsyncRead + AsyncWrite + Unpin>(
    source: &mut SplitStream<WebSocketStream<S>>,
    mut channels: Channels,
) -> Over {
    let refused = |code, reason: &'static str| {
        Over::Refused(CloseFrame {
            code,
            reason: reason.into(),
        })
    };
    while let Some(message) = source.next().await {
        let bytes = match message {
            Ok(Message::Binary(bytes)) => bytes,
            Ok(Message::Text(text)) => text.into(),
            Ok(Message::Close(_)) => return Over::Left,
            Ok(_) => continue,
            Err(tungstenite::Error::Capacity(_)) => {
                return refused(CloseCode::Size, "a message may have 1 MiB");
            }
            Err(tungstenite::Error::Protocol(_)) => {
                return refused(CloseCode::Protocol, "this is no WebSocket frame");
            }
            Err(_) => return Over::Left,
        };
        let Some((&channel, bytes)) = bytes.split_first() else {
            return refused(CloseCode::Protocol, "the first byte of a message is its channel");
        };
        if channel == END {
            if let Some(ended) = bytes.first().and_then(|channel| channels.of(*channel)) {
                *ended = None;
            }
            continue;
        }
        let Some(sender) = channels.of(channel) else {
            return refused(CloseCode::Protocol, "clients send on channels 0, 4 and 255");
        };
        if let Some(sender) = sender
            && !bytes.is_empty()
        {
            // Nobody may read it any more; then it is read for nothing.
            let _ = sender.send(bytes.to_vec()).await;
        }
    }
    Over::Left
}

/// The bytes inside of a WebSocket's messages.
pub(super) struct Inner<S> {
    socket: WebSocketStream<S>,
    rest: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Inner<S> {
    pub(super) async fn of(stream: S) -> Self {
        Self {
            socket: open(stream).await,
            rest: Bytes::new(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Inner<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(context)) {
                Some(Ok(Message::Binary(bytes))) => self.rest = bytes,
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Inner<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut socket = Pin::new(&mut self.socket);
        ready!(socket.as_mut().poll_ready(context)).map_err(io::Error::other)?;
        let message = Message::Binary(Bytes::copy_from_slice(bytes));
        socket.start_send(message).map_err(io::Error::other)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket)
            .poll_flush(context)
            .map_err(io::Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket)
            .poll_close(context)
            .map_err(io::Error::other)
    }
}
