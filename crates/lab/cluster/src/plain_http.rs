//! How is a small plain HTTP endpoint asked?

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The most that is read of an answer.
const LONGEST: u64 = 16 << 20;

/// Asks once, over a connection of its own, and returns status and body.
pub async fn get(address: SocketAddr, path: &str, timeout: Duration) -> std::io::Result<(u16, String)> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer).await?;
        parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
    };
    match tokio::time::timeout(timeout, asked).await {
        Ok(outcome) => outcome,
        Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_told_apart() {
        let answer = "HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\nnot yet";
        assert_eq!(parse(answer), Some((503, "not yet".to_owned())));
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse("HTTP/1.0 many\r\n\r\n"), None);
    }
}
