//! How do hollow programmers speak?
//!
//! One task owns all of them and all open streams. It writes lines straight into the sockets, because a
//! task for each of thousands of streams would cost more than the lines.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use pointsman_api_client::{Client, ConnectError, Event, Resource, Scope, Source, Watcher, connect};
use pointsman_model::{Moment, Revision};
use pointsman_objects::{EndpointSlice, Service};
use pointsman_protocol::relay::Share;
use pointsman_protocol::watermark::{self, HEARTBEAT, Watermark};
use pointsman_protocol::{clock, relay};
use pointsman_telemetry::{CONTENT_TYPE, Encoder, Kind};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::state::Hollow;

/// A reader that is this far behind is cut off.
const PENDING: usize = 4 << 20;

/// What hollow programmers need to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which API server.
    pub source: Source,
    /// Where they are served.
    pub listen: SocketAddr,
    pub count: usize,
    /// The shortest and the longest pause that stands for a commit.
    pub pause: (Duration, Duration),
}

/// Why they do not run.
#[derive(Debug, Error)]
pub enum RunError {
    /// There is no usable configuration of the connection.
    #[error("no connection to an API server can be set up")]
    Connect(#[from] ConnectError),
    /// The address cannot be listened on.
    #[error("listening for readers")]
    Listen(#[source] io::Error),
}

/// The name of a hollow programmer.
pub fn name(number: usize) -> String {
    format!("hollow-{number}")
}

enum Input {
    Seen(Watermark, Option<Moment>),
    Reader(TcpStream, Wanted),
}

enum Wanted {
    One(u32),
    Relay(Share),
    Metrics(u32),
}

struct Stream {
    socket: TcpStream,
    pending: Vec<u8>,
    wrote: Instant,
}

/// Runs for ever, once it listens and has said where.
pub async fn run(
    config: Config,
    listening: impl FnOnce(SocketAddr) -> io::Result<()>,
) -> Result<(), RunError> {
    let client = connect::connect(&config.source, "pointsman-hollow").await?;
    let listener = TcpListener::bind(config.listen).await.map_err(RunError::Listen)?;
    listener
        .local_addr()
        .and_then(listening)
        .map_err(RunError::Listen)?;
    let (sender, inbox) = mpsc::channel(4096);
    let services = Scope::all(Resource::SERVICES);
    watch(&client, services, &sender, |services, _: Option<Service>| {
        let services = Some(services);
        (
            Watermark {
                services,
                slices: None,
            },
            None,
        )
    });
    let slices = Scope::all(Resource::ENDPOINT_SLICES).labels("!service.kubernetes.io/headless");
    watch(
        &client,
        slices,
        &sender,
        |slices, slice: Option<EndpointSlice>| {
            let slices = Some(slices);
            let trigger = slice.and_then(|slice| slice.trigger());
            (
                Watermark {
                    services: None,
                    slices,
                },
                trigger,
            )
        },
    );
    let count = config.count;
    tokio::spawn(pointsman_http::accept(
        listener,
        usize::MAX,
        std::future::pending(),
        move |socket, _| welcome(socket, count, sender.clone()),
    ));
    let hollow = Hollow::new(config.count, config.pause.0, config.pause.1, 0x9E37_79B9);
    let started = Timestamp::now().as_microsecond();
    let encoder = |number| watermark::Encoder::new(&name(number), started);
    Owner {
        hollow,
        started,
        encoders: (0..count).map(encoder).collect(),
        streams: HashMap::new(),
        relays: Vec::new(),
    }
    .run(inbox)
    .await;
    Ok(())
}

struct Owner {
    hollow: Hollow,
    started: i64,
    encoders: Vec<watermark::Encoder>,
    streams: HashMap<u32, Vec<Stream>>,
    relays: Vec<(Share, Stream)>,
}

impl Owner {
    async fn run(mut self, mut inbox: mpsc::Receiver<Input>) {
        let mut ticks = interval(Duration::from_millis(1));
        // Time that was missed is made up for, so that pauses keep their length.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut heartbeats = interval(HEARTBEAT / 4);
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let due = self.hollow.tick(now());
                    self.send(&due);
                }
                _ = heartbeats.tick() => self.heartbeat(),
                count = inbox.recv_many(&mut batch, 256) => {
                    if count == 0 {
                        return;
                    }
                    for input in batch.drain(..) {
                        match input {
                            Input::Seen(watermark, trigger) => self.hollow.receive(watermark, trigger),
                            Input::Reader(socket, wanted) => self.begin(socket, wanted),
                        }
                    }
                }
            }
        }
    }

    fn send(&mut self, due: &[u32]) {
        let (time, mut line) = (now(), String::new());
        let mut relayed: Vec<String> = self.relays.iter().map(|_| String::new()).collect();
        for at in due {
            line.clear();
            self.encode(*at, time, &mut line);
            if let Some(streams) = self.streams.get_mut(at) {
                streams.retain_mut(|stream| stream.write(line.as_bytes()));
            }
            for ((share, _), lines) in self.relays.iter().zip(&mut relayed) {
                if share.includes(*at) {
                    lines.push_str(&line);
                }
            }
        }
        let mut relayed = relayed.into_iter();
        self.relays.retain_mut(|(_, stream)| {
            let lines = relayed.next().unwrap_or_default();
            lines.is_empty() || stream.write(lines.as_bytes())
        });
    }

    /// Sends a line on every stream that was quiet for long.
    fn heartbeat(&mut self) {
        let time = now();
        let quiet = |stream: &Stream| stream.wrote.elapsed() >= HEARTBEAT;
        let mut streams = std::mem::take(&mut self.streams);
        streams.retain(|at, streams| {
            if streams.iter().any(quiet) {
                let line = self.lines([*at], time);
                streams.retain_mut(|stream| !quiet(stream) || stream.write(line.as_bytes()));
            }
            !streams.is_empty()
        });
        self.streams = streams;
        let mut relays = std::mem::take(&mut self.relays);
        relays.retain_mut(|(share, stream)| match quiet(stream) {
            true => stream.write(self.lines(share.members(self.all()), time).as_bytes()),
            false => stream.write(b""),
        });
        self.relays = relays;
    }

    fn begin(&mut self, socket: TcpStream, wanted: Wanted) {
        let mut stream = Stream {
            socket,
            pending: head(watermark::CONTENT_TYPE).into_bytes(),
            wrote: Instant::now(),
        };
        match wanted {
            Wanted::Metrics(at) => {
                let answer = head(CONTENT_TYPE) + &self.metrics(at);
                tokio::spawn(async move { stream.socket.write_all(answer.as_bytes()).await });
            }
            Wanted::One(at) => {
                if stream.write(self.lines([at], now()).as_bytes()) {
                    self.streams.entry(at).or_default().push(stream);
                }
            }
            Wanted::Relay(share) => {
                if stream.write(self.lines(share.members(self.all()), now()).as_bytes()) {
                    self.relays.push((share, stream));
                }
            }
        }
    }

    fn all(&self) -> std::ops::Range<u32> {
        0..self.hollow.count() as u32
    }

    fn lines(&self, programmers: impl IntoIterator<Item = u32>, time: Moment) -> String {
        let mut lines = String::new();
        for at in programmers {
            self.encode(at, time, &mut lines);
        }
        lines
    }

    fn encode(&self, at: u32, time: Moment, line: &mut String) {
        self.encoders[at as usize].encode(self.hollow.progress(at), time, line);
    }

    fn metrics(&self, at: u32) -> String {
        let measured = self.hollow.measured(at);
        let mut encoder = Encoder::default();
        encoder
            .family(
                "pointsman_network_programming_duration_seconds",
                "To the millisecond.",
                Kind::Histogram,
            )
            .histogram(
                &[("ip_family", "IPv4")],
                measured.sparse_cumulative(),
                measured.sum,
                measured.count(),
            );
        encoder
            .family("process_start_time_seconds", "Start.", Kind::Gauge)
            .sample(&[], self.started as f64 / 1e6);
        encoder.finish()
    }
}

impl Stream {
    /// Writes what the socket takes and keeps the rest; false if the reader is gone or too slow.
    fn write(&mut self, bytes: &[u8]) -> bool {
        self.wrote = Instant::now();
        self.pending.extend_from_slice(bytes);
        while !self.pending.is_empty() {
            match self.socket.try_write(&self.pending) {
                Ok(0) => return false,
                Ok(count) => drop(self.pending.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.pending.len() <= PENDING;
                }
                Err(_) => return false,
            }
        }
        self.pending.shrink_to(256);
        true
    }
}

fn now() -> Moment {
    Timestamp::now().into()
}

fn head(content_type: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n\r\n")
}

/// Follows a collection; during lists versions come in any order, so only their end counts.
fn watch<T: DeserializeOwned + Send + 'static>(
    client: &Client,
    scope: Scope,
    sender: &mpsc::Sender<Input>,
    seen: impl Fn(Revision, Option<T>) -> (Watermark, Option<Moment>) + Send + 'static,
) {
    let mut watcher = Watcher::<T>::new(client.clone(), scope);
    let sender = sender.clone();
    tokio::spawn(async move {
        let mut listing = true;
        loop {
            let (version, object) = match watcher.next().await {
                Event::Init => {
                    listing = true;
                    continue;
                }
                Event::Synced(version) => {
                    listing = false;
                    (Some(version), None)
                }
                Event::Deleted { resource_version, .. } => (resource_version, None),
                Event::Applied {
                    object,
                    resource_version,
                    ..
                } => (Some(resource_version), Some(object)),
            };
            if listing {
                continue;
            }
            let revision = version.as_deref().and_then(Revision::parse).unwrap_or_default();
            let (watermark, trigger) = seen(revision, object);
            if sender.send(Input::Seen(watermark, trigger)).await.is_err() {
                return;
            }
        }
    });
}

/// Reads a request and hands it to the owner, unless it can be answered here.
async fn welcome(socket: TcpStream, count: usize, sender: mpsc::Sender<Input>) {
    let read = tokio::time::timeout(Duration::from_secs(10), question(socket, count));
    if let Ok(Ok(Some((socket, wanted)))) = read.await {
        let _ = sender.send(Input::Reader(socket, wanted)).await;
    }
}

async fn question(mut socket: TcpStream, count: usize) -> io::Result<Option<(TcpStream, Wanted)>> {
    let mut request = Vec::with_capacity(256);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if request.len() > 8192 || socket.read_buf(&mut request).await? == 0 {
            return Ok(None);
        }
    }
    let request = String::from_utf8_lossy(&request);
    let answer = match wanted(request.split(' ').nth(1).unwrap_or(""), count) {
        Ok(Some(wanted)) => return Ok(Some((socket, wanted))),
        Ok(None) => head("application/json") + &clock::encode(now()),
        Err(()) => "HTTP/1.1 404 Not Found\r\n\r\nnot found".to_owned(),
    };
    socket.write_all(answer.as_bytes()).await?;
    Ok(None)
}

/// What a path asks for; nothing for the clock, which needs no owner.
fn wanted(path: &str, count: usize) -> Result<Option<Wanted>, ()> {
    if path.starts_with(relay::PATH) {
        return Share::parse(path)
            .map(|share| Some(Wanted::Relay(share)))
            .ok_or(());
    }
    let rest = path.strip_prefix("/p/hollow-").ok_or(())?;
    let (number, what) = rest.split_at(rest.find('/').ok_or(())?);
    let number: u32 = number.parse().map_err(|_| ())?;
    if number as usize >= count {
        return Err(());
    }
    match what {
        watermark::PATH => Ok(Some(Wanted::One(number))),
        "/metrics" => Ok(Some(Wanted::Metrics(number))),
        clock::PATH => Ok(None),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_a_programmer_or_a_part_of_them() {
        assert!(matches!(
            wanted("/p/hollow-3/watermark", 4),
            Ok(Some(Wanted::One(3)))
        ));
        assert!(matches!(
            wanted("/p/hollow-3/metrics", 4),
            Ok(Some(Wanted::Metrics(3)))
        ));
        assert!(matches!(wanted("/p/hollow-3/clock", 4), Ok(None)));
        let relay = wanted("/watermarks?part=1&of=4", 4);
        let share = Share::try_new(1, 4).unwrap();
        assert!(matches!(relay, Ok(Some(Wanted::Relay(asked))) if asked == share));
        for bad in [
            "/",
            "/p/hollow-4/watermark",
            "/p/x/watermark",
            "/watermarks?part=4&of=4",
            "/watermarks?of=0",
        ] {
            assert!(wanted(bad, 4).is_err(), "{bad}");
        }
    }
}
