//! How do people talk to programs in containers?
//!
//! A request asks for an upgrade of its connection, which then carries several streams: as SPDY/3.1, in a WebSocket, or as
//! SPDY inside of a WebSocket. What carries them ([`spdy`], [`websocket`]) knows nothing of what they are for ([`command`],
//! [`ports`]), and neither knows the runtime's ways: all that is asked of it is a [`Session`] or a connection.
//!
//! Invariants: a stream holds a few pieces of at most [`PIECE`] bytes in each direction, and whoever is too fast waits;
//! what was started ends with its connection; the number of connections and of their streams is bounded.

mod command;
mod handshake;
mod ports;
mod spdy;
mod websocket;

use crate::agent::{Input, LogError, Question};
use form_urlencoded::parse;
use futures::future::BoxFuture;
use handshake::Upgrade;
use http::{Method, Request, Response, StatusCode};
use pointsman_http::{Body, Incoming, text};
use pointsman_runtime::{Attachable, ContainerId, ContainerName, PodUid, Runtime, SessionRequest};
use pointsman_spdy::Frame;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Connections at once.
const CONNECTIONS: usize = 256;
/// How long a client may take until it has made its streams (upstream's number).
const CREATION: Duration = Duration::from_secs(30);
/// How long a client may take to read that it is over.
const GOODBYE: Duration = Duration::from_secs(5);
/// The most bytes that are read at once.
const PIECE: usize = 16 << 10;
/// Pieces that wait on a stream.
const WAITING: usize = 4;
/// The longest command, over all of its words.
const COMMAND_MAX: usize = 64 << 10;

/// What is said next to the client.
#[derive(Clone)]
struct Out {
    frames: mpsc::Sender<Frame>,
    stream: u32,
}

/// The client has gone.
struct Gone;

impl Out {
    async fn send(&self, bytes: Vec<u8>, last: bool) -> Result<(), Gone> {
        let stream = self.stream;
        let sent = self.frames.send(Frame::Data { stream, bytes, last });
        sent.await.map_err(|_| Gone)
    }
}

impl Out {
    /// Ends it before its time.
    async fn reset(&self) {
        let (stream, status) = (self.stream, spdy::CANCEL);
        let _ = self.frames.send(Frame::Reset { stream, status }).await;
    }
}

/// Where a pod runs, or one of its containers.
pub(crate) struct Place {
    pub(crate) uid: Arc<str>,
    /// Which run of the container is alive.
    pub(crate) run: u32,
    /// What that has for clients.
    pub(crate) attachable: Attachable,
}

/// Opens streams on this node.
pub(crate) struct Streams {
    runtime: Arc<dyn Runtime>,
    inputs: mpsc::UnboundedSender<Input>,
    places: Arc<Semaphore>,
}

/// What the streams are for.
enum Purpose {
    Command,
    Ports,
}

/// Which streams of a command the client holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Streams {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, inputs: mpsc::UnboundedSender<Input>) -> Self {
        Self {
            runtime,
            inputs,
            places: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }

    /// Answers a request for streams.
    pub(crate) async fn answer(&self, request: Request<Incoming>, parts: &[&str]) -> Response<Body> {
        let answered = match parts {
            ["exec", namespace, pod, container] => self.exec(request, namespace, pod, container).await,
            ["attach", namespace, pod, container] => self.attach(request, namespace, pod, container).await,
            ["portForward", namespace, pod] => self.forward(request, namespace, pod).await,
            _ => Err(text(StatusCode::NOT_FOUND, "not found")),
        };
        answered.unwrap_or_else(|refusal| refusal)
    }

    async fn exec(
        &self,
        request: Request<Incoming>,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Answered {
        let (wanted, command) = asked(request.uri().query().unwrap_or("")).map_err(bad_request)?;
        let place = self.find(namespace, pod, Some(container)).await?;
        let id = container_id(&place, container)?;
        let runtime = self.runtime.clone();
        let begin = move |client| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                let request = SessionRequest {
                    command,
                    stdin: wanted.stdin,
                    tty: wanted.tty,
                };
                let session = runtime.open(&id, request);
                command::serve(session, client).await;
            })
        };
        self.begin(request, Purpose::Command, move |upgrade, permit| {
            tokio::spawn(async move {
                let _permit = permit;
                command::carry(upgrade, wanted, begin).await;
            });
        })
    }

    async fn attach(
        &self,
        request: Request<Incoming>,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Answered {
        let query = request.uri().query().unwrap_or("");
        let (wanted, _) = asked(query).map_err(bad_request)?;
        let place = self.find(namespace, pod, Some(container)).await?;
        let has = place.attachable;
        // As the kubelet refuses what the container does not have.
        if wanted.stdin && !has.stdin {
            let message = format!(
                "container {container:?} in pod {pod:?} reads no input: its spec does not have stdin"
            );
            return Err(bad_request(message));
        }
        if wanted.tty && !has.tty {
            let message =
                format!("container {container:?} in pod {pod:?} has no terminal: its spec does not have tty");
            return Err(bad_request(message));
        }
        let id = container_id(&place, container)?;
        let runtime = self.runtime.clone();
        let begin = move |client| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                let wants = Attachable {
                    stdin: wanted.stdin,
                    ..has
                };
                let session = runtime.attach(&id, wants);
                command::serve(session, client).await;
            })
        };
        self.begin(request, Purpose::Command, move |upgrade, permit| {
            tokio::spawn(async move {
                let _permit = permit;
                command::carry(upgrade, wanted, begin).await;
            });
        })
    }

    async fn forward(&self, request: Request<Incoming>, namespace: &str, pod: &str) -> Answered {
        let place = self.find(namespace, pod, None).await?;
        let uid = pod_uid(&place)?;
        let runtime = self.runtime.clone();
        self.begin(request, Purpose::Ports, move |upgrade, permit| {
            tokio::spawn(async move {
                let _permit = permit;
                ports::carry(upgrade, uid, runtime).await;
            });
        })
    }

    /// Says yes if the client speaks what we speak and there is room; `carry` then has the connection.
    fn begin(
        &self,
        mut request: Request<Incoming>,
        purpose: Purpose,
        carry: impl FnOnce(Upgrade, OwnedSemaphorePermit),
    ) -> Answered {
        if !matches!(*request.method(), Method::GET | Method::POST) {
            let message = "streams are opened with GET or POST";
            return Err(text(StatusCode::METHOD_NOT_ALLOWED, message));
        }
        let permit = self.places.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{CONNECTIONS} connections with streams are open on this node");
            text(StatusCode::TOO_MANY_REQUESTS, message)
        })?;
        let (response, carrier) = handshake::agree(&purpose, request.headers())?;
        let upgrade = handshake::take(&mut request, carrier).ok_or_else(|| {
            let message = "this connection cannot be upgraded: it is no HTTP/1.1";
            text(StatusCode::BAD_REQUEST, message)
        })?;
        carry(upgrade, permit);
        Ok(response)
    }

    async fn find(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
    ) -> Result<Place, Response<Body>> {
        let (answer, found) = oneshot::channel();
        let _ = self.inputs.send(Input::Ask(Question::Place {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.map(str::to_owned),
            answer,
        }));
        match found.await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(LogError::NotFound(message))) => Err(text(StatusCode::NOT_FOUND, message)),
            Ok(Err(LogError::NotYet(message))) => Err(text(StatusCode::BAD_REQUEST, message)),
            Err(_) => Err(text(StatusCode::SERVICE_UNAVAILABLE, "the agent stops")),
        }
    }
}

/// A yes, or a refusal.
type Answered = Result<Response<Body>, Response<Body>>;

fn bad_request(message: impl Into<String>) -> Response<Body> {
    text(StatusCode::BAD_REQUEST, message)
}

fn pod_uid(place: &Place) -> Result<PodUid, Response<Body>> {
    PodUid::try_new(&place.uid).map_err(|error| bad_request(error.to_string()))
}

fn container_id(place: &Place, container: &str) -> Result<ContainerId, Response<Body>> {
    Ok(ContainerId {
        pod: pod_uid(place)?,
        name: ContainerName::try_new(container).map_err(|error| bad_request(error.to_string()))?,
        attempt: place.run,
    })
}

/// Reads the kubelet's parameters of a command.
fn asked(query: &str) -> Result<(Wanted, Vec<String>), String> {
    let (mut wanted, mut command) = (Wanted::default(), Vec::new());
    for (key, value) in parse(query.as_bytes()) {
        let flag = matches!(&*value, "1" | "true");
        match &*key {
            "input" => wanted.stdin = flag,
            "output" => wanted.stdout = flag,
            "error" => wanted.stderr = flag,
            "tty" => wanted.tty = flag,
            "command" => command.push(value.into_owned()),
            _ => {}
        }
    }
    // A terminal has one output.
    wanted.stderr &= !wanted.tty;
    if !(wanted.stdin || wanted.stdout || wanted.stderr) {
        return Err("at least one of input, output and error has to be asked for".into());
    }
    if command.iter().map(String::len).sum::<usize>() > COMMAND_MAX {
        return Err(format!("command: longer than {COMMAND_MAX} bytes"));
    }
    Ok((wanted, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_as_the_kubelet_reads_it() {
        let (wanted, command) =
            asked("command=sh&command=-c&command=a+b&input=1&output=1&tty=1&error=1").unwrap();
        assert_eq!(command, ["sh", "-c", "a b"]);
        let expected = Wanted {
            stdin: true,
            stdout: true,
            stderr: false,
            tty: true,
        };
        assert_eq!(wanted, expected);
        assert!(asked("command=x").unwrap_err().contains("at least one"));
        let long = format!("output=1&command={}", "x".repeat(COMMAND_MAX + 1));
        assert!(asked(&long).unwrap_err().starts_with("command: "));
    }
}
