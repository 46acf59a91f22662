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
use pointsman_http::{Body, Incoming, Request, Requests, Response, Server, StatusCode, reply};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The longest wait that a request may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(9);

/// Serves until `stop`, then drains.
pub async fn run(address: SocketAddr, stop: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listening on {address}"))?;
    let server = Server {
        requests: Requests::One,
        // Whoever has connected may still take its time to ask, and may ask for a wait.
        drain: Server::default().head + LONGEST_WAIT + Duration::from_secs(1),
        ..Server::default()
    };
    let is_ready = Arc::new(AtomicBool::new(true));
    let (failed, failure) = oneshot::channel();
    let stopped = async move {
        let _ = failed.send(stop.await);
    };
    let connected = move |_: &_| {
        let is_ready = is_ready.clone();
        move |request| answer(request, is_ready.clone())
    };
    server.serve(listener, stopped, connected).await;
    failure.await?
}

async fn answer(request: Request<Incoming>, is_ready: Arc<AtomicBool>) -> Response<Body> {
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let (status, body) = decide(target, &is_ready);
    if let Some(wait) = wait_of(target) {
        tokio::time::sleep(wait).await;
    }
    reply(status, "application/json", body)
}

fn decide(target: &str, is_ready: &AtomicBool) -> (StatusCode, String) {
    let path = target.split('?').next().unwrap_or(target);
    match path {
        "/ready/on" => is_ready.store(true, Ordering::Relaxed),
        "/ready/off" => is_ready.store(false, Ordering::Relaxed),
        _ => {}
    }
    let ready = is_ready.load(Ordering::Relaxed);
    let status = match path {
        "/ready" if !ready => StatusCode::SERVICE_UNAVAILABLE,
        "/" | "/ready" | "/ready/on" | "/ready/off" => StatusCode::OK,
        _ => StatusCode::NOT_FOUND,
    };
    let host = rustix::system::uname();
    let body = json!({"host": host.nodename().to_string_lossy(), "pid": std::process::id(), "ready": ready});
    (status, format!("{body}\n"))
}

/// The wait that a request asks for, at most a few seconds.
fn wait_of(target: &str) -> Option<Duration> {
    let millis: u64 = target.split_once("?ms=")?.1.parse().ok()?;
    Some(Duration::from_millis(millis).min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_switched_and_shown() {
        let is_ready = AtomicBool::new(true);
        let status = |target: &str| decide(target, &is_ready).0;
        assert_eq!(status("/ready"), 200);
        assert_eq!(status("/ready/off"), 200);
        assert_eq!(status("/ready"), 503);
        assert_eq!(status("/?ms=5"), 200, "an unready server still serves");
        assert_eq!(status("/ready/on"), 200);
        assert_eq!(status("/ready"), 200);
        assert_eq!(status("/other"), 404);
        assert_eq!(wait_of("/?ms=5"), Some(Duration::from_millis(5)));
        assert_eq!(wait_of("/?ms=x"), None);
    }
}
