//! How does a client talk to a command?
//!
//! What it sends becomes the command's input, what the command says goes to the client, and at the end the client gets a
//! Status: with an exit code, if there is one.

use super::handshake::{Carrier, Upgrade};
use super::spdy::{self, Begun, Incoming};
use super::websocket::{self, Channels, ERROR, STDERR, STDOUT};
use super::{CREATION, Gone, Out, PIECE, WAITING, Wanted};
use pointsman_runtime::session::{Reader, Writer};
use pointsman_runtime::{ExecEnd, Pending, RuntimeError, Session, Terminal};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// How long nothing has to come after the end of a command until that was all: what it left running may hold its
/// output open.
const QUIET: Duration = Duration::from_millis(100);

/// The client's ends of a command's streams.
#[derive(Default)]
pub(super) struct Client {
    stdin: Option<mpsc::Receiver<Vec<u8>>>,
    resize: Option<mpsc::Receiver<Vec<u8>>>,
    stdout: Option<Out>,
    stderr: Option<Out>,
    error: Option<Out>,
}

/// Carries the streams of a command over a connection.
pub(super) async fn carry<F: Future<Output = ()>>(
    upgrade: Upgrade,
    wanted: Wanted,
    begin: impl FnOnce(Client) -> F,
) {
    let carrier = upgrade.carrier;
    let Ok(connection) = upgrade.connection().await else {
        return;
    };
    if carrier == Carrier::Spdy {
        let (mut begun, carried) = spdy::connection(connection);
        let served = async {
            if let Ok(Some(client)) = timeout(CREATION, Client::of_spdy(&mut begun, wanted)).await {
                drop(begun);
                begin(client).await;
            }
        };
        tokio::join!(served, carried);
    } else {
        let (channels, client, said) = Client::of_channels(wanted);
        tokio::join!(begin(client), websocket::channels(connection, channels, said));
    }
}

impl Client {
    /// Waits until the client has made all streams that it asked for.
    async fn of_spdy(begun: &mut Begun, wanted: Wanted) -> Option<Self> {
        let mut client = Self::default();
        let is_whole = |client: &Self| {
            client.error.is_some()
                && client.stdin.is_some() == wanted.stdin
                && client.stdout.is_some() == wanted.stdout
                && client.stderr.is_some() == wanted.stderr
                && client.resize.is_some() == wanted.tty
        };
        while !is_whole(&client) {
            let stream = begun.next().await?;
            let kind = stream.header("streamtype").to_owned();
            let Incoming { bytes, out, .. } = stream;
            match kind.as_str() {
                "error" => client.error = Some(out),
                "stdin" if wanted.stdin => client.stdin = Some(bytes),
                "stdout" if wanted.stdout => client.stdout = Some(out),
                "stderr" if wanted.stderr => client.stderr = Some(out),
                "resize" if wanted.tty => client.resize = Some(bytes),
                _ => {}
            }
        }
        Some(client)
    }

    fn of_channels(wanted: Wanted) -> (Channels, Self, mpsc::Receiver<pointsman_spdy::Frame>) {
        let (frames, said) = mpsc::channel(WAITING);
        let out = |channel: u8| Out {
            frames: frames.clone(),
            stream: channel.into(),
        };
        let (stdin, input) = mpsc::channel(WAITING);
        let (resize, sizes) = mpsc::channel(WAITING);
        let client = Self {
            stdin: wanted.stdin.then_some(input),
            resize: wanted.tty.then_some(sizes),
            stdout: wanted.stdout.then(|| out(STDOUT)),
            stderr: wanted.stderr.then(|| out(STDERR)),
            error: Some(out(ERROR)),
        };
        let channels = Channels {
            stdin: wanted.stdin.then_some(stdin),
            resize: wanted.tty.then_some(resize),
        };
        (channels, client, said)
    }
}

/// Opens a session and connects it with the client until it has ended, or the client has gone.
pub(super) async fn serve(session: Pending<'_, Session>, client: Client) {
    let Some(error) = client.error.clone() else { return };
    let frames = error.frames.clone();
    let served = async {
        let ended = match session.await {
            Ok(session) => talk(session, client).await,
            Err(error) => Err(error),
        };
        let status = status(&ended).to_string();
        let _ = error.send(status.into_bytes(), true).await;
    };
    tokio::select! {
        () = served => {}
        () = frames.closed() => {}
    }
}

async fn talk(session: Session, client: Client) -> Result<ExecEnd, RuntimeError> {
    let Session {
        stdin,
        stdout,
        stderr,
        terminal,
        end,
    } = session;
    let (over, ended) = watch::channel(false);
    let input = async {
        tokio::join!(feed(stdin, client.stdin), resize(terminal, client.resize));
        std::future::pending::<()>().await;
    };
    let end = async {
        let end = end.await;
        over.send_replace(true);
        end
    };
    let output = async {
        let outputs = (
            pass(stdout, client.stdout, ended.clone()),
            pass(stderr, client.stderr, ended.clone()),
        );
        tokio::join!(end, outputs.0, outputs.1).0
    };
    tokio::select! {
        end = output => end,
        () = input => unreachable!("input goes on until the output has ended"),
    }
}

async fn feed(stdin: Option<Writer>, bytes: Option<mpsc::Receiver<Vec<u8>>>) {
    let (Some(mut stdin), Some(mut bytes)) = (stdin, bytes) else {
        return;
    };
    while let Some(bytes) = bytes.recv().await {
        if stdin.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = stdin.shutdown().await;
}

async fn resize(terminal: Option<Arc<dyn Terminal>>, sizes: Option<mpsc::Receiver<Vec<u8>>>) {
    /// As clients write it.
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Size {
        width: u16,
        height: u16,
    }
    let (Some(terminal), Some(mut sizes)) = (terminal, sizes) else {
        return;
    };
    while let Some(bytes) = sizes.recv().await {
        // What is no size changes none.
        if let Ok(Size { width, height }) = serde_json::from_slice(&bytes) {
            let _ = terminal.resize(width, height);
        }
    }
}

/// Passes output on until it ends, or until nothing comes after the command has ended.
async fn pass(reader: Option<Reader>, out: Option<Out>, mut ended: watch::Receiver<bool>) {
    let Some(mut reader) = reader else {
        return close(out).await;
    };
    let mut buffer = vec![0; PIECE];
    loop {
        let quiet = async {
            let _ = ended.wait_for(|ended| *ended).await;
            sleep(QUIET).await;
        };
        let length = tokio::select! {
            read = reader.read(&mut buffer) => read.unwrap_or(0),
            () = quiet => 0,
        };
        if length == 0 {
            break;
        }
        if let Some(out) = &out
            && let Err(Gone) = out.send(buffer[..length].to_vec(), false).await
        {
            return;
        }
    }
    close(out).await;
}

async fn close(out: Option<Out>) {
    if let Some(out) = out {
        let _ = out.send(Vec::new(), true).await;
    }
}

/// What the client's exit code is made of.
fn status(ended: &Result<ExecEnd, RuntimeError>) -> Value {
    let code = match ended {
        Ok(ExecEnd::Exited(0)) => return json!({"metadata": {}, "status": "Success"}),
        Ok(ExecEnd::Exited(code)) => *code,
        Ok(ExecEnd::Signaled(signal)) => 128 + signal,
        Ok(ExecEnd::TimedOut) => 137,
        Err(error) => {
            let source =
                std::error::Error::source(error).map_or(String::new(), |source| format!(": {source}"));
            let message = format!("cannot run the command in the container: {error}{source}");
            return json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "message": message, "code": 500,
            });
        }
    };
    json!({
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    })
}
