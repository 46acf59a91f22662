//! How are thousands of streams of lines followed in little memory?
//!
//! A connection of hyper's keeps 17 KiB as long as it lives: for what may be sent over it, and for messages between its
//! halves. A stream needs neither. It is asked for in HTTP/1.0, whose answers are a head and then the body as it is,
//! until the connection ends.

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderValue, InvalidHeaderValue};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{ClientError, Stream, Target};

/// Longest line of a stream.
const LINE: usize = 64 << 10;
/// Longest head of an answer, and most headers in it.
const HEAD: (usize, usize) = (8 << 10, 64);
/// What is read at once, and kept for the next read, unless it is to be little.
const PIECE: usize = 64 << 10;

/// A stream of lines that goes on.
#[derive(Debug)]
pub struct Lines {
    stream: Stream,
    authority: String,
    rest: Vec<u8>,
    piece: usize,
}

impl Target {
    /// Asks for a stream of lines; the head of the answer has to come within a time, its lines may take longer. Lines
    /// are worth reading if the status is a success.
    pub async fn follow(&self, path: &str, within: Duration) -> Result<(StatusCode, Lines), ClientError> {
        self.bounded(within, self.begin(path)).await
    }

    async fn begin(&self, path: &str) -> Result<(StatusCode, Lines), ClientError> {
        let (mut stream, token) = self.connected().await?;
        let authority = self.authority();
        let question = question(&self.path(path), &authority, token.as_deref());
        let question = question.map_err(|error| ClientError::BadRequest(self.authority(), error.into()))?;
        let failed = |error| ClientError::Lost(self.authority(), error);
        stream.write_all(&question).await.map_err(failed)?;
        let mut rest = Vec::new();
        loop {
            rest.reserve(1 << 10);
            if stream.read_buf(&mut rest).await.map_err(failed)? == 0 {
                return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
            }
            let mut headers = [httparse::EMPTY_HEADER; HEAD.1];
            let mut head = httparse::Response::new(&mut headers);
            let length = match head.parse(&rest) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) if rest.len() <= HEAD.0 => continue,
                Ok(httparse::Status::Partial) => return Err(ClientError::TooLong(authority, HEAD.0)),
                Err(_) => return Err(ClientError::NotPlain(authority)),
            };
            let coded = |header: &httparse::Header<'_>| header.name.eq_ignore_ascii_case("transfer-encoding");
            if head.headers.iter().any(coded) {
                let why = "it answers in pieces to a question in HTTP/1.0";
                return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidData, why)));
            }
            let status = head.code.and_then(|code| StatusCode::from_u16(code).ok());
            let status = status.ok_or_else(|| ClientError::NotPlain(authority.clone()))?;
            rest.drain(..length);
            let lines = Lines {
                stream,
                authority,
                rest,
                piece: self.read_buffer.unwrap_or(PIECE),
            };
            return Ok((status, lines));
        }
    }
}

/// The head of a question. A token is checked as a header, so that a file with a break in it asks for nothing else.
fn question(path: &str, authority: &str, token: Option<&str>) -> Result<Vec<u8>, InvalidHeaderValue> {
    let mut head = format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\n").into_bytes();
    if let Some(token) = token {
        let token = HeaderValue::try_from(format!("Bearer {token}"))?;
        head.extend([b"Authorization: ", token.as_bytes(), b"\r\n"].concat());
    }
    head.extend(b"\r\n");
    Ok(head)
}

impl Lines {
    /// Hands every complete line that has come to `take`, or waits for one; false at the end.
    pub async fn next(&mut self, mut take: impl FnMut(&[u8])) -> Result<bool, ClientError> {
        loop {
            if let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') {
                for line in self.rest[..end].split(|byte| *byte == b'\n') {
                    take(line);
                }
                self.rest.drain(..=end);
                self.rest.shrink_to(self.piece);
                return Ok(true);
            }
            if self.rest.len() > LINE {
                return Err(ClientError::TooLong(self.authority.clone(), LINE));
            }
            self.rest.reserve(self.piece);
            match self.stream.read_buf(&mut self.rest).await {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) => return Err(ClientError::Lost(self.authority.clone(), error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const SOON: Duration = Duration::from_secs(20);

    /// What a server that sends these pieces to its one client, and closes, answers.
    async fn answer(pieces: &'static [&'static str]) -> Result<(StatusCode, Lines), ClientError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::at(listener.local_addr().unwrap()).reading_little();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await.unwrap();
            for piece in pieces {
                stream.write_all(piece.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
            }
        });
        target.follow("/watermark", SOON).await
    }

    #[test]
    fn a_token_is_a_header_and_nothing_else() {
        let head = question("/watermark", "n1:10249", Some("abc")).unwrap();
        let expected = "GET /watermark HTTP/1.0\r\nHost: n1:10249\r\nAuthorization: Bearer abc\r\n\r\n";
        assert_eq!(String::from_utf8(head).unwrap(), expected);
        assert!(question("/watermark", "n1:10249", Some("abc\r\nX: y")).is_err());
    }

    #[tokio::test]
    async fn lines_come_whole_however_they_are_cut() {
        let pieces = &["HTTP/1.1 200 OK\r\nx: y\r\n", "\r\none\ntw", "o\nthree"];
        let (status, mut answer) = answer(pieces).await.unwrap();
        assert_eq!(status, StatusCode::OK);
        let mut lines = Vec::new();
        while answer
            .next(|line| lines.push(String::from_utf8_lossy(line).into_owned()))
            .await
            .unwrap()
        {}
        assert_eq!(lines, ["one", "two"], "a last line without an end was cut off");
    }

    #[tokio::test]
    async fn what_is_no_stream_of_lines_is_an_error_and_statuses_are_told() {
        let missing = answer(&["HTTP/1.1 404 Not Found\r\n\r\n"]).await.unwrap();
        assert_eq!(missing.0, StatusCode::NOT_FOUND);
        let not_http = answer(&["SSH-2.0-OpenSSH\r\n\r\n"]).await;
        assert!(matches!(not_http, Err(ClientError::NotPlain(_))));
        let in_pieces = answer(&["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]).await;
        assert!(matches!(in_pieces, Err(ClientError::Lost(..))));
        assert!(matches!(
            answer(&["HTTP/1.1 200"]).await,
            Err(ClientError::Lost(..))
        ));
    }
}
