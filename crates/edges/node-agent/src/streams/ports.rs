//! How do connections of a client reach a port in a pod?
//!
//! The client makes two streams for each of its connections, with one request id: `data`, and `error`, on which it learns
//! why there is none.

use super::handshake::{Carrier, Upgrade};
use super::spdy::{self, Begun, Incoming};
use super::websocket::Inner;
use super::{CREATION, PIECE};
use pointsman_runtime::{PodUid, Runtime};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Connections of one client at once, and how many may be half made.
const CONNECTIONS: usize = 100;

/// Carries connections to ports of a pod.
pub(super) async fn carry(upgrade: Upgrade, pod: PodUid, runtime: Arc<dyn Runtime>) {
    let carrier = upgrade.carrier;
    let Ok(connection) = upgrade.connection().await else {
        return;
    };
    if carrier == Carrier::SpdyInWebSocket {
        let (begun, carried) = spdy::connection(Inner::of(connection).await);
        tokio::join!(serve(begun, pod, runtime), carried);
    } else {
        let (begun, carried) = spdy::connection(connection);
        tokio::join!(serve(begun, pod, runtime), carried);
    }
}

/// Half of a connection: the other stream is still to come.
struct Half {
    stream: Incoming,
    until: Instant,
}

async fn serve(mut begun: Begun, pod: PodUid, runtime: Arc<dyn Runtime>) {
    let mut halves: BTreeMap<String, Half> = BTreeMap::new();
    let mut open = JoinSet::new();
    loop {
        let late = halves.values().map(|half| half.until).min();
        let stream = tokio::select! {
            stream = begun.next() => stream,
            Some(_) = open.join_next() => continue,
            () = sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => {
                halves.retain(|_, half| half.until > Instant::now());
                continue;
            }
        };
        // When the client has gone, its connections go too.
        let Some(stream) = stream else { return };
        let id = stream.header("requestid").to_owned();
        let (data, error) = match (halves.remove(&id), stream.header("streamtype")) {
            (Some(half), "data") if half.stream.header("streamtype") == "error" => (stream, half.stream),
            (Some(half), "error") if half.stream.header("streamtype") == "data" => (half.stream, stream),
            (None, "data" | "error") if halves.len() < CONNECTIONS => {
                let until = Instant::now() + CREATION;
                halves.insert(id, Half { stream, until });
                continue;
            }
            _ => {
                stream.out.reset().await;
                continue;
            }
        };
        if open.len() >= CONNECTIONS {
            let message = format!("{CONNECTIONS} connections are open already");
            refuse(data, error, message).await;
            continue;
        }
        let (runtime, pod) = (runtime.clone(), pod.clone());
        open.spawn(async move { forward(data, error, &pod, &*runtime).await });
    }
}

async fn forward(data: Incoming, error: Incoming, pod: &PodUid, runtime: &dyn Runtime) {
    let port = data.header("port");
    let Some(port) = port.parse::<u16>().ok().filter(|port| *port > 0) else {
        let message = format!("port: {port:?} is no port");
        return refuse(data, error, message).await;
    };
    match runtime.connect(pod, port).await {
        Ok(stream) => {
            pass(data, stream).await;
            let _ = error.out.send(Vec::new(), true).await;
        }
        Err(reason) => {
            let source =
                std::error::Error::source(&reason).map_or(String::new(), |source| format!(": {source}"));
            refuse(data, error, format!("{reason}{source}")).await;
        }
    }
}

async fn refuse(data: Incoming, error: Incoming, message: String) {
    let _ = error.out.send(message.into_bytes(), true).await;
    data.out.reset().await;
}

/// Passes bytes on until both sides have ended, or one cannot go on.
async fn pass(data: Incoming, mut stream: TcpStream) {
    let Incoming { mut bytes, out, .. } = data;
    let _ = stream.set_nodelay(true);
    let (mut read, mut write) = stream.split();
    let sent = async {
        while let Some(bytes) = bytes.recv().await {
            write.write_all(&bytes).await?;
        }
        write.shutdown().await
    };
    let received = async {
        let mut buffer = vec![0; PIECE];
        loop {
            let length = read.read(&mut buffer).await?;
            let said = out.send(buffer[..length].to_vec(), length == 0).await;
            if length == 0 || said.is_err() {
                return Ok(());
            }
        }
    };
    if let Err::<_, std::io::Error>(error) = tokio::try_join!(sent, received) {
        tracing::debug!(%error, "a forwarded connection broke");
        out.reset().await;
    }
}
