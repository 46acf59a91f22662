//! How do several streams travel over one connection to a container runtime?
//!
//! We begin the streams, the runtime's server fills or reads them. A stream that nobody reads holds the connection back.
//! What the server gets on a stream before it has said that it knows the stream, it drops.

use crate::RuntimeError;
use crate::process::session::connect_from;
use crate::session::{Session, Terminal};
use http::Uri;
use pointsman_fabric::Netns;
use pointsman_spdy::{Decoder, Encoder, Frame};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The most bytes that are read at once, and that wait on a stream.
const PIECE: usize = 16 << 10;
/// Frames that wait to be written.
const WAITING: usize = 4;
/// The longest answer to the request for an upgrade.
const HEAD_MAX: usize = 16 << 10;
/// How long that may take (upstream's number for streams).
const ANSWER: Duration = Duration::from_secs(30);
/// The longest Status.
const STATUS_MAX: u64 = 64 << 10;

/// Columns and rows, once somebody says them.
type Size = Option<(u16, u16)>;
type Sizes = (u32, watch::Receiver<Size>);

/// A connection that is upgraded to SPDY.
pub(super) struct Connection {
    stream: TcpStream,
    /// What came behind the answer.
    rest: Vec<u8>,
}

/// What the runtime says in the end. Dropped, the connection ends.
pub(super) struct Status {
    error: DuplexStream,
    _carried: JoinSet<()>,
}

impl Status {
    pub(super) async fn said(self) -> Vec<u8> {
        let mut said = Vec::new();
        // What came until then is the answer, if it is one.
        let _ = self.error.take(STATUS_MAX).read_to_end(&mut said).await;
        said
    }
}

impl Connection {
    /// Connects to what the runtime named, from its network.
    pub(super) async fn open(netns: Netns, url: &str) -> Result<io::Result<Self>, RuntimeError> {
        let Some((address, path)) = place(url) else {
            let message = format!("{url:?} is no http://address:port/path");
            return Ok(Err(io::Error::new(ErrorKind::InvalidData, message)));
        };
        let stream = match connect_from(netns, address).await? {
            Ok(stream) => stream,
            Err(error) => return Ok(Err(error)),
        };
        let upgraded = timeout(ANSWER, upgrade(stream, address, &path)).await;
        Ok(upgraded.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())))
    }

    /// Begins the streams of a command.
    pub(super) async fn begin(mut self, stdin: bool, tty: bool) -> io::Result<(Session, Status)> {
        let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
        let (mut next, mut all) = (1, BTreeSet::new());
        let mut begin = |kind: &str| {
            let (stream, headers) = (next, vec![("streamtype".to_owned(), kind.to_owned())]);
            let last = false;
            encoder.write(
                &Frame::Open {
                    stream,
                    headers,
                    last,
                },
                &mut bytes,
            );
            all.insert(stream);
            next += 2;
            stream
        };
        let mut outputs = BTreeMap::new();
        let mut output = |stream| {
            let (near, far) = duplex(PIECE);
            outputs.insert(stream, near);
            far
        };
        let error = output(begin("error"));
        let input = stdin.then(|| (begin("stdin"), duplex(PIECE)));
        let stdout = output(begin("stdout"));
        let stderr = (!tty).then(|| output(begin("stderr")));
        let resize = tty.then(|| (begin("resize"), watch::channel(None)));
        self.stream.write_all(&bytes).await?;

        let (input, stdin) = input.map(|(stream, (near, far))| ((stream, near), far)).unzip();
        let (sizes, terminal) = resize
            .map(|(stream, (sender, receiver))| {
                ((stream, receiver), Arc::new(Resizer(sender)) as Arc<dyn Terminal>)
            })
            .unzip();
        let mut carried = JoinSet::new();
        carried.spawn(carry(
            self,
            encoder,
            Ends {
                unknown: all,
                input,
                sizes,
                outputs,
            },
        ));
        let session = Session {
            stdin: stdin.map(|far| Box::new(far) as _),
            stdout: Some(Box::new(stdout)),
            stderr: stderr.map(|far| Box::new(far) as _),
            terminal,
            end: Box::pin(std::future::pending()),
        };
        Ok((
            session,
            Status {
                error,
                _carried: carried,
            },
        ))
    }
}

pub(super) fn place(url: &str) -> Option<(SocketAddr, String)> {
    let uri: Uri = url.parse().ok()?;
    let address = uri.authority()?.as_str().parse().ok()?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    (uri.scheme_str() == Some("http")).then(|| (address, path.to_owned()))
}

/// Asks for SPDY in place of HTTP.
async fn upgrade(mut stream: TcpStream, address: SocketAddr, path: &str) -> io::Result<Connection> {
    stream.set_nodelay(true)?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    let end = loop {
        if let Some(at) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if head.len() > HEAD_MAX || stream.read_buf(&mut head).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    };
    let rest = head.split_off(end);
    let head = String::from_utf8_lossy(&head);
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("101") => Ok(Connection { stream, rest }),
        _ => Err(io::Error::other(format!("it answers {status:?}"))),
    }
}

/// Our ends of the streams.
struct Ends {
    /// Streams that the server has not answered yet.
    unknown: BTreeSet<u32>,
    input: Option<(u32, DuplexStream)>,
    sizes: Option<Sizes>,
    outputs: BTreeMap<u32, DuplexStream>,
}

/// Serves a connection until the server ends it.
async fn carry(connection: Connection, encoder: Encoder, ends: Ends) {
    let Connection { stream, rest } = connection;
    let Ends {
        unknown,
        input,
        sizes,
        outputs,
    } = ends;
    let (read, write) = stream.into_split();
    let (frames, said) = mpsc::channel(WAITING);
    let (ready, are_known) = watch::channel(false);
    let reader = Reader {
        unknown,
        outputs,
        ready,
        frames: frames.clone(),
    };
    let inputs = async {
        let mut are_known = are_known;
        if are_known.wait_for(|known| *known).await.is_ok() {
            tokio::join!(feed(input, &frames), resize(sizes, &frames));
        }
        std::future::pending().await
    };
    let ended = tokio::select! {
        ended = read_all(read, rest, reader) => ended,
        ended = write_all(write, encoder, said) => ended,
        never = inputs => never,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "the container runtime broke a stream off");
    }
}

async fn feed(input: Option<(u32, DuplexStream)>, frames: &mpsc::Sender<Frame>) {
    let Some((stream, mut input)) = input else { return };
    let mut buffer = vec![0; PIECE];
    loop {
        let length = input.read(&mut buffer).await.unwrap_or(0);
        let (bytes, last) = (buffer[..length].to_vec(), length == 0);
        if frames.send(Frame::Data { stream, bytes, last }).await.is_err() || last {
            return;
        }
    }
}

async fn resize(sizes: Option<Sizes>, frames: &mpsc::Sender<Frame>) {
    let Some((stream, mut sizes)) = sizes else { return };
    while sizes.changed().await.is_ok() {
        let Some((columns, rows)) = *sizes.borrow_and_update() else {
            continue;
        };
        let size = serde_json::json!({ "Width": columns, "Height": rows });
        let bytes = size.to_string().into_bytes();
        let last = false;
        if frames.send(Frame::Data { stream, bytes, last }).await.is_err() {
            return;
        }
    }
}

/// A terminal whose size the server sets.
struct Resizer(watch::Sender<Size>);

impl Terminal for Resizer {
    fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        self.0.send_replace(Some((columns, rows)));
        Ok(())
    }
}

async fn write_all<W: AsyncWrite + Unpin>(
    mut write: W,
    mut encoder: Encoder,
    mut said: mpsc::Receiver<Frame>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    while let Some(frame) = said.recv().await {
        encoder.write(&frame, &mut bytes);
        write.write_all(&bytes).await?;
        bytes.clear();
    }
    Ok(())
}

async fn read_all<R: AsyncRead + Unpin>(mut read: R, rest: Vec<u8>, mut reader: Reader) -> io::Result<()> {
    let mut decoder = Decoder::default();
    decoder.push(&rest);
    let mut buffer = vec![0; PIECE];
    loop {
        while let Some(frame) = decoder.next().map_err(io::Error::other)? {
            reader.take(frame).await;
        }
        let length = read.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        decoder.push(&buffer[..length]);
    }
}

struct Reader {
    unknown: BTreeSet<u32>,
    outputs: BTreeMap<u32, DuplexStream>,
    /// Turns true when the server knows all streams.
    ready: watch::Sender<bool>,
    frames: mpsc::Sender<Frame>,
}

impl Reader {
    async fn take(&mut self, frame: Frame) {
        match frame {
            Frame::Opened { stream } => {
                self.unknown.remove(&stream);
                self.ready.send_replace(self.unknown.is_empty());
            }
            Frame::Data { stream, bytes, last } => {
                if let Some(output) = self.outputs.get_mut(&stream) {
                    // Nobody may read it any more; then it is read for nothing.
                    let _ = output.write_all(&bytes).await;
                }
                if last {
                    self.outputs.remove(&stream);
                }
            }
            Frame::Reset { stream, .. } => drop(self.outputs.remove(&stream)),
            Frame::Ping(number) => drop(self.frames.send(Frame::Ping(number)).await),
            Frame::Open { .. } | Frame::GoAway => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_where_the_runtime_says() {
        let place = |url| place(url).map(|(address, path)| (address.to_string(), path));
        let at = |address: &str, path: &str| Some((address.to_owned(), path.to_owned()));
        assert_eq!(
            place("http://127.0.0.1:43117/exec/x1"),
            at("127.0.0.1:43117", "/exec/x1")
        );
        assert_eq!(place("http://[::1]:4/exec/x1"), at("[::1]:4", "/exec/x1"));
        assert_eq!(place("https://127.0.0.1:43117/exec/x1"), None);
        assert_eq!(place("http://node:1/exec"), None);
    }
}
