//! How is a small plain HTTP endpoint asked?

use pointsman_http::Target;
use std::net::SocketAddr;
use std::time::Duration;

/// The most that is read of an answer.
const LONGEST: usize = 16 << 20;

/// Asks once, over a connection of its own, and returns status and body.
pub async fn get(address: SocketAddr, path: &str, timeout: Duration) -> std::io::Result<(u16, String)> {
    ask(&Target::at(address), path, timeout).await
}

/// The same of a server that need not speak plain HTTP.
pub async fn ask(target: &Target, path: &str, timeout: Duration) -> std::io::Result<(u16, String)> {
    let answer = target.ask_whole(path, &[], LONGEST, timeout).await;
    let (status, body) = answer.map_err(|error| std::io::Error::new(error.kind(), error))?;
    Ok((status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
}
