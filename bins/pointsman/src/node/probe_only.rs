//! `pointsman node --probe-only`: sub-second readiness beside a kubelet.

use crate::stop_signal;
use anyhow::Context;
use pointsman_probe_only::{Config, run as run_prober};
use pointsman_telemetry::{BuildInfo, CONTENT_TYPE, Registry, register_process};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Probes the pods that ask for it until a signal stops it.
pub async fn run(config: Config, listen: Option<SocketAddr>) -> anyhow::Result<()> {
    let registry = Registry::new();
    let build = BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        revision: "",
        role: "probe-only",
    };
    register_process(&registry, build);
    if let Some(address) = listen {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("listening on {address}"))?;
        tokio::spawn(serve(listener, registry.clone()));
    }
    let (stop, stopping) = watch::channel(false);
    let running = run_prober(config, &registry, stopping);
    tokio::pin!(running);
    tokio::select! {
        outcome = &mut running => return Ok(outcome?),
        signal = stop_signal() => signal?,
    }
    stop.send_replace(true);
    Ok(running.await?)
}

/// Answers `/metrics` and `/healthz`, one request per connection.
async fn serve(listener: TcpListener, registry: Registry) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, mostly: others have to close theirs first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let registry = registry.clone();
        tokio::spawn(async move {
            // A client that is slow or gone gets no answer.
            let _ = tokio::time::timeout(PATIENCE, answer(stream, &registry)).await;
        });
    }
}

async fn answer(stream: TcpStream, registry: &Registry) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let path = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
    while line.len() > 2 {
        line.clear();
        stream.read_line(&mut line).await?;
    }
    let (status, kind, body) = match path.as_str() {
        "/metrics" => ("200 OK", CONTENT_TYPE, registry.render()),
        "/healthz" => ("200 OK", "text/plain", "ok".to_owned()),
        _ => ("404 Not Found", "text/plain", "not found".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.flush().await
}
