//! How do hollow programmers speak?
//!
//! One task owns all of them and all open streams. It writes lines straight into the sockets, because a
//! task for each of thousands of streams would cost more than the lines.

use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use pointsman_api_client::{Client, ConnectError, Event, Resource, Scope, Source, Watcher, connect};
use pointsman_telemetry::{CONTENT_TYPE, Encoder, Kind};
use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::state::{Hollow, Marks};

/// A reader that is this far behind is cut off.
const PENDING: usize = 4 << 20;
/// Every stream gives a sign of life this often.
const HEARTBEAT: Duration = Duration::from_secs(1);
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What hollow programmers need to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which API server.
    pub source: Source,
    /// Where they are served.
    pub listen: SocketAddr,
    /// How many.
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
    Seen(Marks, Option<i64>),
    Reader(TcpStream, Wanted),
}

enum Wanted {
    One(u32),
    Relay { part: u32, of: u32 },
    Metrics(u32),
}

struct Stream {
    socket: TcpStream,
    pending: Vec<u8>,
    wrote: Instant,
}

/// Runs for ever, once it listens and has told where.
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
    watch(&client, Resource::SERVICES, "", &sender);
    watch(
        &client,
        Resource::ENDPOINT_SLICES,
        "!service.kubernetes.io/headless",
        &sender,
    );
    tokio::spawn(accept(listener, config.count, sender));
    let hollow = Hollow::new(config.count, config.pause.0, config.pause.1, 0x9E37_79B9);
    Owner {
        hollow,
        generation: Timestamp::now().as_microsecond(),
        streams: HashMap::new(),
        relays: Vec::new(),
        line: String::new(),
    }
    .run(inbox)
    .await;
    Ok(())
}

struct Owner {
    hollow: Hollow,
    generation: i64,
    streams: HashMap<u32, Vec<Stream>>,
    relays: Vec<(u32, u32, Stream)>,
    line: String,
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
                    let due = self.hollow.tick(Timestamp::now().as_microsecond());
                    self.tell(&due);
                }
                _ = heartbeats.tick() => self.heartbeat(),
                count = inbox.recv_many(&mut batch, 256) => {
                    if count == 0 {
                        return;
                    }
                    for input in batch.drain(..) {
                        match input {
                            Input::Seen(marks, trigger) => self.hollow.receive(marks, trigger),
                            Input::Reader(socket, wanted) => self.welcome(socket, wanted),
                        }
                    }
                }
            }
        }
    }

    fn tell(&mut self, due: &[u32]) {
        if due.is_empty() {
            return;
        }
        let time = Timestamp::now().to_string();
        let mut relayed: Vec<Vec<u8>> = self.relays.iter().map(|_| Vec::new()).collect();
        for at in due {
            render(&self.hollow, self.generation, *at, &time, &mut self.line);
            if let Some(streams) = self.streams.get_mut(at) {
                streams.retain_mut(|stream| stream.write(self.line.as_bytes()));
            }
            for ((part, of, _), bytes) in self.relays.iter().zip(&mut relayed) {
                if at % of == *part {
                    bytes.extend_from_slice(self.line.as_bytes());
                }
            }
        }
        let mut relayed = relayed.into_iter();
        self.relays.retain_mut(|(_, _, stream)| {
            let bytes = relayed.next().unwrap_or_default();
            bytes.is_empty() || stream.write(&bytes)
        });
    }

    /// Says something on every stream that was quiet for long.
    fn heartbeat(&mut self) {
        let time = Timestamp::now().to_string();
        let quiet = |stream: &Stream| stream.wrote.elapsed() >= HEARTBEAT;
        for (at, streams) in &mut self.streams {
            if streams.iter().any(quiet) {
                render(&self.hollow, self.generation, *at, &time, &mut self.line);
                streams.retain_mut(|stream| !quiet(stream) || stream.write(self.line.as_bytes()));
            }
        }
        self.streams.retain(|_, streams| !streams.is_empty());
        let (hollow, generation, line) = (&self.hollow, self.generation, &mut self.line);
        self.relays.retain_mut(|(part, of, stream)| {
            if !quiet(stream) {
                return stream.write(b"");
            }
            let mut bytes = Vec::new();
            for at in (*part..hollow.count() as u32).step_by(*of as usize) {
                render(hollow, generation, at, &time, line);
                bytes.extend_from_slice(line.as_bytes());
            }
            stream.write(&bytes)
        });
    }

    fn welcome(&mut self, socket: TcpStream, wanted: Wanted) {
        let mut stream = Stream {
            socket,
            pending: b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n".to_vec(),
            wrote: Instant::now(),
        };
        let time = Timestamp::now().to_string();
        match wanted {
            Wanted::Metrics(at) => {
                let text = self.metrics(at);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\n\r\n");
                tokio::spawn(async move {
                    let _ = stream.socket.write_all((head + &text).as_bytes()).await;
                });
            }
            Wanted::One(at) => {
                render(&self.hollow, self.generation, at, &time, &mut self.line);
                if stream.write(self.line.as_bytes()) {
                    self.streams.entry(at).or_default().push(stream);
                }
            }
            Wanted::Relay { part, of } => {
                let mut bytes = Vec::new();
                for at in (part..self.hollow.count() as u32).step_by(of as usize) {
                    render(&self.hollow, self.generation, at, &time, &mut self.line);
                    bytes.extend_from_slice(self.line.as_bytes());
                }
                if stream.write(&bytes) {
                    self.relays.push((part, of, stream));
                }
            }
        }
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
            .sample(&[], self.generation as f64 / 1e6);
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

fn render(hollow: &Hollow, generation: i64, at: u32, time: &str, line: &mut String) {
    line.clear();
    let [committed, planned, received] = hollow.progress(at);
    let written = writeln!(
        line,
        "{{\"node\":\"hollow-{at}\",\"generation\":{generation},\"services\":{},\"endpointSlices\":{},\
         \"planned\":{{\"services\":{},\"endpointSlices\":{}}},\
         \"received\":{{\"services\":{},\"endpointSlices\":{}}},\"time\":\"{time}\"}}",
        committed.services,
        committed.slices,
        planned.services,
        planned.slices,
        received.services,
        received.slices,
    );
    written.expect("writing to a string cannot fail");
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: Option<HashMap<String, String>>,
}

/// Follows a collection; during lists versions come in any order, so only their end counts.
fn watch(client: &Client, resource: Resource, labels: &str, sender: &mpsc::Sender<Input>) {
    let mut scope = Scope::all(resource);
    if !labels.is_empty() {
        scope = scope.labels(labels);
    }
    let mut watcher = Watcher::<Object>::new(client.clone(), scope);
    let sender = sender.clone();
    tokio::spawn(async move {
        let mut listing = true;
        loop {
            let (version, trigger) = match watcher.next().await {
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
                } => {
                    let annotations = object.metadata.annotations.unwrap_or_default();
                    let time = annotations
                        .get(TRIGGER_TIME)
                        .and_then(|text| text.parse::<Timestamp>().ok());
                    (Some(resource_version), time.map(|time| time.as_microsecond()))
                }
            };
            let version = version.and_then(|version| version.parse().ok()).unwrap_or(0);
            if listing {
                continue;
            }
            let marks = match resource {
                Resource::SERVICES => Marks {
                    services: version,
                    slices: 0,
                },
                _ => Marks {
                    services: 0,
                    slices: version,
                },
            };
            if sender.send(Input::Seen(marks, trigger)).await.is_err() {
                return;
            }
        }
    });
}

async fn accept(listener: TcpListener, count: usize, sender: mpsc::Sender<Input>) {
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let sender = sender.clone();
        tokio::spawn(async move {
            let read = tokio::time::timeout(Duration::from_secs(10), question(socket, count));
            if let Ok(Ok(Some((socket, wanted)))) = read.await {
                let _ = sender.send(Input::Reader(socket, wanted)).await;
            }
        });
    }
}

/// Reads a request; answers it here if the owner is not needed.
async fn question(mut socket: TcpStream, count: usize) -> io::Result<Option<(TcpStream, Wanted)>> {
    let _ = socket.set_nodelay(true);
    let mut head = Vec::with_capacity(256);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > 8192 || socket.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    let head = String::from_utf8_lossy(&head);
    match wanted(head.split(' ').nth(1).unwrap_or(""), count) {
        Ok(Some(wanted)) => Ok(Some((socket, wanted))),
        Ok(None) => {
            let clock = format!("{{\"time\":\"{}\"}}", Timestamp::now());
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{clock}");
            socket.write_all(answer.as_bytes()).await?;
            Ok(None)
        }
        Err(()) => {
            socket
                .write_all(b"HTTP/1.1 404 Not Found\r\n\r\nnot found")
                .await?;
            Ok(None)
        }
    }
}

/// What a path asks for; nothing for the clock, which anybody can tell.
fn wanted(path: &str, count: usize) -> Result<Option<Wanted>, ()> {
    if let Some(query) = path.strip_prefix("/watermarks") {
        let parameter = |name: &str| {
            let pairs = query.trim_start_matches('?').split('&');
            pairs
                .filter_map(|pair| pair.split_once('='))
                .find(|(key, _)| *key == name)
        };
        let number = |name, usual| {
            parameter(name).map_or(Ok(usual), |(_, value)| value.parse::<u32>().map_err(|_| ()))
        };
        let (part, of) = (number("part", 0)?, number("of", 1)?);
        return if of > 0 && part < of {
            Ok(Some(Wanted::Relay { part, of }))
        } else {
            Err(())
        };
    }
    let rest = path.strip_prefix("/p/hollow-").ok_or(())?;
    let (number, what) = rest.split_once('/').ok_or(())?;
    let number: u32 = number.parse().map_err(|_| ())?;
    if number as usize >= count {
        return Err(());
    }
    match what {
        "watermark" => Ok(Some(Wanted::One(number))),
        "metrics" => Ok(Some(Wanted::Metrics(number))),
        "clock" => Ok(None),
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
        assert!(matches!(relay, Ok(Some(Wanted::Relay { part: 1, of: 4 }))));
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

    #[test]
    fn lines_are_those_of_a_proxy() {
        let hollow = Hollow::new(1, Duration::ZERO, Duration::ZERO, 1);
        let mut line = String::new();
        render(&hollow, 7, 0, "1970-01-01T00:00:00Z", &mut line);
        let value: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!(
            (&value["node"], &value["generation"]),
            (&"hollow-0".into(), &7.into())
        );
        assert!(line.ends_with('\n'));
    }
}
