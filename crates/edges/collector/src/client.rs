//! How is a programmer asked?
//!
//! Programmers serve plain HTTP. The collector may follow thousands of them, so this client keeps nothing
//! per connection but a small buffer: it speaks HTTP/1.0, whose answers end with the connection and come
//! without framing of their own.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest head of an answer.
const HEAD: usize = 16 << 10;
/// Longest line of a stream.
const LINE: usize = 64 << 10;

/// Host, port and the beginning of every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    authority: String,
    prefix: String,
}

impl Target {
    /// Reads `http://host:port/prefix`.
    pub fn parse(url: &str) -> Result<Self, String> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| format!("{url:?} does not begin with http://"))?;
        let (authority, prefix) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let bad = |byte: u8| !byte.is_ascii_graphic();
        if authority.is_empty() || url.bytes().any(bad) {
            return Err(format!("{url:?} is not a URL"));
        }
        let port = authority.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        });
        Ok(Self {
            authority: if port {
                authority.to_owned()
            } else {
                format!("{authority}:80")
            },
            prefix: prefix.trim_end_matches('/').to_owned(),
        })
    }

    /// Asks for a path; the answer's body is still to be read.
    pub(crate) async fn open(&self, path: &str) -> io::Result<Answer> {
        let head = async {
            let stream = TcpStream::connect(&self.authority).await?;
            stream.set_nodelay(true)?;
            let mut answer = Answer {
                stream,
                buffer: Vec::with_capacity(512),
                status: 0,
            };
            let request = format!(
                "GET {}{path} HTTP/1.0\r\nHost: {}\r\nUser-Agent: pointsman-sli\r\n\r\n",
                self.prefix, self.authority
            );
            answer.stream.write_all(request.as_bytes()).await?;
            answer.read_head().await?;
            Ok(answer)
        };
        timeout(CONNECT, head)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Asks for a path and reads at most `most` bytes of a successful answer.
    pub(crate) async fn get(&self, path: &str, most: usize, within: Duration) -> io::Result<Vec<u8>> {
        let all = async {
            let mut answer = self.open(path).await?;
            if answer.status != 200 {
                return Err(io::Error::other(format!("{path} answers {}", answer.status)));
            }
            while answer.buffer.len() <= most {
                if answer.more(64 << 10).await? == 0 {
                    return Ok(answer.buffer);
                }
            }
            Err(io::Error::other(format!("{path} has more than {most} bytes")))
        };
        timeout(within, all)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// An answer whose body is still arriving.
#[derive(Debug)]
pub(crate) struct Answer {
    stream: TcpStream,
    buffer: Vec<u8>,
    pub status: u16,
}

impl Answer {
    async fn read_head(&mut self) -> io::Result<()> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                self.status = status(&self.buffer)?;
                self.buffer.drain(..end + 4);
                return Ok(());
            }
            if self.buffer.len() > HEAD || self.more(1024).await? == 0 {
                return Err(io::Error::other("the answer has no complete head"));
            }
        }
    }

    async fn more(&mut self, at_most: usize) -> io::Result<usize> {
        if self.buffer.capacity() - self.buffer.len() < 256 {
            self.buffer.reserve(at_most.min(self.buffer.len().max(256)));
        }
        self.stream.read_buf(&mut self.buffer).await
    }

    /// Waits for news and hands every complete line to `take`; false at the end of the stream.
    pub async fn lines(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        loop {
            if let Some(end) = self.buffer.iter().rposition(|byte| *byte == b'\n') {
                for line in self.buffer[..end].split(|byte| *byte == b'\n') {
                    take(line);
                }
                self.buffer.drain(..=end);
                return Ok(true);
            }
            if self.buffer.len() > LINE {
                return Err(io::Error::other(format!("a line has more than {LINE} bytes")));
            }
            if self.more(LINE).await? == 0 {
                return Ok(false);
            }
        }
    }
}

fn status(head: &[u8]) -> io::Result<u16> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let code = std::str::from_utf8(line)
        .ok()
        .filter(|line| line.starts_with("HTTP/1."))
        .and_then(|line| line.split(' ').nth(1)?.parse().ok());
    code.ok_or_else(|| io::Error::other("the answer is not HTTP"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn urls_are_read_and_bad_ones_refused() {
        let target = Target::parse("http://10.0.0.5:10249/p/a/").unwrap();
        assert_eq!(
            (target.authority.as_str(), target.prefix.as_str()),
            ("10.0.0.5:10249", "/p/a")
        );
        assert_eq!(Target::parse("http://host").unwrap().authority, "host:80");
        assert_eq!(Target::parse("http://[::1]:5").unwrap().authority, "[::1]:5");
        for bad in ["", "https://a", "http://", "http://a b"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    async fn answering(pieces: &'static [&'static str]) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await.unwrap();
            for piece in pieces {
                stream.write_all(piece.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
        });
        target
    }

    #[tokio::test]
    async fn lines_come_whole_however_they_are_cut() {
        let target = answering(&["HTTP/1.1 200 OK\r\nx: y\r\n", "\r\none\ntw", "o\nthree"]).await;
        let mut answer = target.open("/watermark").await.unwrap();
        let mut lines = Vec::new();
        while answer
            .lines(|line| lines.push(String::from_utf8_lossy(line).into_owned()))
            .await
            .unwrap()
        {}
        assert_eq!(lines, ["one", "two"], "a last line without an end was cut off");
    }

    #[tokio::test]
    async fn what_is_not_http_is_an_error() {
        let target = answering(&["SSH-2.0-OpenSSH\r\n\r\n"]).await;
        assert!(target.open("/").await.is_err());
        let target = answering(&["HTTP/1.1 404 Not Found\r\n\r\n"]).await;
        assert_eq!(target.open("/").await.unwrap().status, 404);
    }
}
