//! How does a SPDY connection carry streams?
//!
//! Frames are read one by one, and a stream that nobody reads holds the whole connection back, as in the implementation
//! of Kubernetes: SPDY's own flow control is not used by its clients.

use super::{GOODBYE, Out, PIECE, WAITING};
use pointsman_spdy::{Decoder, Encoder, Frame};
use std::collections::HashMap;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Streams that a client may have open at once.
const STREAMS: usize = 256;
/// Status of a stream that is not wanted.
const REFUSED: u32 = 3;
/// Status of a stream that ends without its client's fault.
pub(super) const CANCEL: u32 = 5;

/// A stream that the client has begun.
pub(super) struct Incoming {
    pub(super) headers: Vec<(String, String)>,
    /// What the client sends on it, until it has ended it.
    pub(super) bytes: mpsc::Receiver<Vec<u8>>,
    pub(super) out: Out,
}

impl Incoming {
    pub(super) fn header(&self, name: &str) -> &str {
        let mut headers = self.headers.iter();
        let found = headers.find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

/// The streams that a client begins.
pub(super) struct Begun {
    streams: mpsc::Receiver<Incoming>,
    /// Keeps the connection while there are no streams.
    _frames: mpsc::Sender<Frame>,
}

impl Begun {
    /// The next one; none when the client has gone.
    pub(super) async fn next(&mut self) -> Option<Incoming> {
        self.streams.recv().await
    }
}

/// Serves a connection. It ends when nobody can say anything more on it, and what waits for the client is sent before.
pub(super) fn connection<S>(stream: S) -> (Begun, impl Future<Output = ()>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (incoming, streams) = mpsc::channel(WAITING);
    let (frames, said) = mpsc::channel(WAITING);
    let reader = Reader {
        incoming,
        frames: frames.downgrade(),
        streams: HashMap::new(),
    };
    let begun = Begun {
        streams,
        _frames: frames,
    };
    let carried = async move {
        let (read, write) = tokio::io::split(stream);
        let mut reading = std::pin::pin!(read_all(read, reader));
        let ended = tokio::select! {
            ended = &mut reading => Err(ended),
            ended = write_all(write, said) => Ok(ended),
        };
        match ended {
            Ok(Ok(mut write)) => {
                let goodbye = async {
                    let _ = write.shutdown().await;
                    let _ = reading.await;
                };
                let _ = timeout(GOODBYE, goodbye).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a client of streams cannot be written to"),
            Err(Err(error)) => tracing::debug!(%error, "a client of streams is left"),
            Err(Ok(())) => {}
        }
    };
    (begun, carried)
}

/// Writes what is said until nobody can say more.
async fn write_all<W: AsyncWrite + Unpin>(mut write: W, mut said: mpsc::Receiver<Frame>) -> io::Result<W> {
    let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
    while let Some(frame) = said.recv().await {
        encoder.write(&frame, &mut bytes);
        write.write_all(&bytes).await?;
        write.flush().await?;
        bytes.clear();
    }
    encoder.write(&Frame::GoAway, &mut bytes);
    write.write_all(&bytes).await?;
    write.flush().await?;
    Ok(write)
}

async fn read_all<R: AsyncRead + Unpin>(mut read: R, mut reader: Reader) -> io::Result<()> {
    let (mut decoder, mut buffer) = (Decoder::default(), vec![0; PIECE]);
    loop {
        let length = read.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        decoder.push(&buffer[..length]);
        while let Some(frame) = decoder.next().map_err(io::Error::other)? {
            reader.take(frame).await;
        }
    }
}

/// What is known of the client's streams.
struct Reader {
    incoming: mpsc::Sender<Incoming>,
    /// Weak: the reader alone does not keep the connection.
    frames: mpsc::WeakSender<Frame>,
    streams: HashMap<u32, mpsc::Sender<Vec<u8>>>,
}

impl Reader {
    async fn take(&mut self, frame: Frame) {
        match frame {
            Frame::Open {
                stream,
                headers,
                last,
            } => self.begin(stream, headers, last).await,
            Frame::Data {
                stream, bytes, last, ..
            } => {
                if let Some(sender) = self.streams.get(&stream)
                    && !bytes.is_empty()
                {
                    // Nobody may read it any more; then it is read for nothing.
                    let _ = sender.send(bytes).await;
                }
                if last {
                    self.streams.remove(&stream);
                }
            }
            Frame::Reset { stream, .. } => drop(self.streams.remove(&stream)),
            Frame::Ping(number) => self.say(Frame::Ping(number)).await,
            Frame::Opened { .. } | Frame::GoAway => {}
        }
    }

    async fn begin(&mut self, stream: u32, headers: Vec<(String, String)>, last: bool) {
        let Some(frames) = self.frames.upgrade() else {
            return;
        };
        if self.streams.len() >= STREAMS || self.streams.contains_key(&stream) {
            let status = REFUSED;
            let _ = frames.send(Frame::Reset { stream, status }).await;
            return;
        }
        let (sender, bytes) = mpsc::channel(WAITING);
        if !last {
            self.streams.insert(stream, sender);
        }
        let _ = frames.send(Frame::Opened { stream }).await;
        let out = Out { frames, stream };
        let _ = self.incoming.send(Incoming { headers, bytes, out }).await;
    }

    async fn say(&self, frame: Frame) {
        if let Some(frames) = self.frames.upgrade() {
            let _ = frames.send(frame).await;
        }
    }
}
