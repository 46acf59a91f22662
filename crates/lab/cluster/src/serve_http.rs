//! A small web server: who answers, is it ready, and does it stop without losing anybody?
//!
//! ```text
//! GET /             200, a line of JSON with host name and process id
//! GET /?ms=500      the same after half a second
//! GET /ready        200 or 503
//! GET /ready/off    from now on /ready says 503; /ready/on takes it back
//! ```
//!
//! After SIGTERM it answers everybody who has connected, also those still in the kernel's queue, and ends.

use anyhow::Context;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves until `stop`, then drains.
pub async fn run(address: SocketAddr, stop: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listening on {address}"))?;
    let is_ready = Arc::new(AtomicBool::new(true));
    let mut answers = JoinSet::new();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.context("accepting a connection")?;
                answers.spawn(answer(stream, is_ready.clone()));
            }
            Some(_) = answers.join_next() => {}
            signal = &mut stop => {
                signal?;
                break;
            }
        }
    }
    // Whoever is in the queue has connected and counts on an answer.
    let listener = listener.into_std()?;
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true)?;
        answers.spawn(answer(TcpStream::from_std(stream)?, is_ready.clone()));
    }
    drop(listener);
    while answers.join_next().await.is_some() {}
    Ok(())
}

async fn answer(stream: TcpStream, is_ready: Arc<AtomicBool>) {
    // A client that is gone needs no answer.
    let _ = tokio::time::timeout(PATIENCE, exchange(stream, &is_ready)).await;
}

async fn exchange(stream: TcpStream, is_ready: &AtomicBool) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let mut header = String::new();
    while stream.read_line(&mut header).await? > 2 {
        header.clear();
    }
    let target = request.split_whitespace().nth(1).unwrap_or("/");
    let (status, body) = decide(target, is_ready);
    if let Some(wait) = wait_of(target) {
        tokio::time::sleep(wait).await;
    }
    let length = body.len();
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

fn decide(target: &str, is_ready: &AtomicBool) -> (&'static str, String) {
    let path = target.split('?').next().unwrap_or(target);
    match path {
        "/ready/on" => is_ready.store(true, Ordering::Relaxed),
        "/ready/off" => is_ready.store(false, Ordering::Relaxed),
        _ => {}
    }
    let ready = is_ready.load(Ordering::Relaxed);
    let status = match path {
        "/ready" if !ready => "503 Service Unavailable",
        "/" | "/ready" | "/ready/on" | "/ready/off" => "200 OK",
        _ => "404 Not Found",
    };
    let host = rustix::system::uname();
    let body = json!({"host": host.nodename().to_string_lossy(), "pid": std::process::id(), "ready": ready});
    (status, format!("{body}\n"))
}

/// The wait that a request asks for, at most a few seconds.
fn wait_of(target: &str) -> Option<Duration> {
    let millis: u64 = target.split_once("?ms=")?.1.parse().ok()?;
    Some(Duration::from_millis(millis.min(9_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_switched_and_told() {
        let is_ready = AtomicBool::new(true);
        let status = |target: &str| decide(target, &is_ready).0;
        assert_eq!(status("/ready"), "200 OK");
        assert_eq!(status("/ready/off"), "200 OK");
        assert_eq!(status("/ready"), "503 Service Unavailable");
        assert_eq!(status("/?ms=5"), "200 OK", "an unready server still serves");
        assert_eq!(status("/ready/on"), "200 OK");
        assert_eq!(status("/ready"), "200 OK");
        assert_eq!(status("/other"), "404 Not Found");
        assert_eq!(wait_of("/?ms=5"), Some(Duration::from_millis(5)));
        assert_eq!(wait_of("/?ms=x"), None);
    }
}
