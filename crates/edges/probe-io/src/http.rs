//! What does an HTTP server answer?
//!
//! Requests are built once per probe; responses are read as bytes arrive, without a socket in
//! sight. Bodies are skipped, not kept: an answer counts by its status. Only the beginning of a redirect's body is kept, for
//! the event about it.

use crate::url::Url;
use std::ops::ControlFlow;

/// As much of a body as is waited for, as upstream.
pub const MAX_BODY: u64 = 10 << 10;
/// What is kept of a redirect's body.
const KEPT: usize = 1 << 10;
/// More than any sensible head; a server that sends more is broken or hostile.
const MAX_HEAD: usize = 64 << 10;
const MAX_FIELDS: usize = 128;

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Where a redirect leads.
    pub location: Option<String>,
    /// The beginning of a redirect's body.
    pub body: Vec<u8>,
}

impl Response {
    fn is_redirect(&self) -> bool {
        (300..400).contains(&self.status)
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.is_redirect() {
            let room = KEPT - self.body.len();
            self.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
}

/// Why an answer is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadResponse {
    #[error("malformed HTTP response")]
    Malformed,
    /// The head is too large.
    #[error("HTTP response head is larger than 64 KiB")]
    LargeHead,
    /// The connection ended too early.
    #[error("unexpected EOF")]
    Truncated,
}

/// Headers that are ours to set.
const RESERVED: [&str; 5] = [
    "Host",
    "Connection",
    "Content-Length",
    "Transfer-Encoding",
    "Trailer",
];

/// The bytes of a GET for `url`. `headers` are the probe's own: `Host`, `User-Agent` and `Accept`
/// replace the defaults, and an empty value of the latter two leaves the header out.
pub fn request(url: &Url, headers: &[(String, String)], user_agent: &str) -> Vec<u8> {
    let given = |name: &str| {
        let named = |(given, _): &&(String, String)| given.eq_ignore_ascii_case(name);
        headers.iter().find(named).map(|(_, value)| clean(value))
    };
    let host = given("Host")
        .filter(|host| !host.is_empty())
        .unwrap_or_else(|| url.authority());
    let mut text = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n", url.target);
    let mut field = |name: &str, value: &str| {
        text.push_str(name);
        text.push_str(": ");
        text.push_str(value);
        text.push_str("\r\n");
    };
    for (name, default) in [("User-Agent", user_agent), ("Accept", "*/*")] {
        let value = given(name).unwrap_or_else(|| default.to_owned());
        if !value.is_empty() {
            field(name, &value);
        }
    }
    for (name, value) in headers {
        let name = canonical(name);
        let ours = RESERVED.contains(&name.as_str()) || name == "User-Agent" || name == "Accept";
        if !ours && is_token(&name) {
            field(&name, &clean(value));
        }
    }
    text.push_str("Connection: close\r\n\r\n");
    text.into_bytes()
}

fn has_blank_line(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}

fn is_token(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(plain)
}

/// The spelling of a header name that servers are used to: `x-name` becomes `X-Name`.
fn canonical(name: &str) -> String {
    let mut upper = true;
    let turn = |letter: char| {
        let turned = if upper {
            letter.to_ascii_uppercase()
        } else {
            letter.to_ascii_lowercase()
        };
        upper = letter == '-';
        turned
    };
    name.chars().map(turn).collect()
}

/// A value that cannot end its line.
fn clean(value: &str) -> String {
    let plain = |letter: char| {
        if letter.is_control() && letter != '\t' {
            ' '
        } else {
            letter
        }
    };
    value.chars().map(plain).collect::<String>().trim().to_owned()
}

/// Reads one response.
#[derive(Debug, Default)]
pub struct Reader {
    /// The head so far, if it did not come in one piece.
    head: Vec<u8>,
    body: Option<Body>,
    skipped: u64,
}

#[derive(Debug)]
struct Body {
    response: Response,
    framing: Framing,
}

#[derive(Debug)]
enum Framing {
    Length(u64),
    Chunked(Chunks),
    UntilEnd,
}

#[derive(Clone, Copy, Debug)]
enum Chunks {
    /// In a size line: the size so far, whether a digit was seen, and whether it is past the digits.
    Size {
        size: u64,
        any: bool,
        over: bool,
    },
    Data(u64),
    /// After a chunk: its line end.
    End,
    /// In a trailer: whether the current line is empty so far.
    Trailer {
        empty: bool,
    },
}

impl Reader {
    /// Takes what arrived; breaks with the response once it is complete or long enough.
    pub fn push(&mut self, bytes: &[u8]) -> Result<ControlFlow<Response>, BadResponse> {
        if self.body.is_some() {
            return self.skip(bytes);
        }
        if self.head.is_empty() {
            return self.heads(bytes);
        }
        // A head that comes in pieces is read again only when it may have become complete, so that
        // a server that drips bytes does not make us read everything once per byte.
        let fresh = self.head.len().saturating_sub(3);
        self.head.extend_from_slice(bytes);
        if !has_blank_line(&self.head[fresh..]) {
            return self.limit_head();
        }
        let head = std::mem::take(&mut self.head);
        self.heads(&head)
    }

    /// The server has closed the connection.
    pub fn end(&mut self) -> Result<Response, BadResponse> {
        match self.body.take() {
            Some(Body {
                response,
                framing: Framing::UntilEnd,
            }) => Ok(response),
            Some(_) => Err(BadResponse::Truncated),
            None if self.head.is_empty() => Err(BadResponse::Truncated),
            None => Err(BadResponse::Malformed),
        }
    }

    /// Reads heads until one is not informational.
    fn heads(&mut self, mut bytes: &[u8]) -> Result<ControlFlow<Response>, BadResponse> {
        while !bytes.is_empty() {
            let Some(used) = self.parse(bytes)? else {
                self.head.extend_from_slice(bytes);
                return self.limit_head();
            };
            bytes = &bytes[used..];
            if self.body.is_some() {
                return self.skip(bytes);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn limit_head(&self) -> Result<ControlFlow<Response>, BadResponse> {
        if self.head.len() > MAX_HEAD {
            return Err(BadResponse::LargeHead);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads a head; says how long it is if it is complete.
    fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadResponse> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut head = httparse::Response::new(&mut fields);
        let used = match head.parse(bytes) {
            Ok(httparse::Status::Complete(used)) => used,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(BadResponse::Malformed),
        };
        let status = head.code.unwrap_or(0);
        if (100..200).contains(&status) && status != 101 {
            return Ok(Some(used));
        }
        let field = |name: &str| {
            let named = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
            head.headers.iter().find(named).map(|field| field.value)
        };
        let framing = if status == 204 || status == 304 || status == 101 {
            Framing::Length(0)
        } else if field("transfer-encoding")
            .is_some_and(|value| value.to_ascii_lowercase().ends_with(b"chunked"))
        {
            Framing::Chunked(Chunks::Size {
                size: 0,
                any: false,
                over: false,
            })
        } else if let Some(length) = field("content-length") {
            let length = std::str::from_utf8(length)
                .ok()
                .and_then(|text| text.trim().parse().ok());
            Framing::Length(length.ok_or(BadResponse::Malformed)?)
        } else {
            Framing::UntilEnd
        };
        let mut response = Response {
            status,
            location: None,
            body: Vec::new(),
        };
        if response.is_redirect() {
            response.location = field("location").map(|value| String::from_utf8_lossy(value).into_owned());
        }
        self.body = Some(Body { response, framing });
        Ok(Some(used))
    }

    fn skip(&mut self, bytes: &[u8]) -> Result<ControlFlow<Response>, BadResponse> {
        let Some(body) = &mut self.body else {
            return Ok(ControlFlow::Continue(()));
        };
        self.skipped += bytes.len() as u64;
        let complete = match &mut body.framing {
            Framing::Length(length) => {
                let taken = (*length).min(bytes.len() as u64);
                body.response.keep(&bytes[..taken as usize]);
                *length -= taken;
                *length == 0
            }
            Framing::Chunked(chunks) => chunks.skip(bytes, &mut body.response)?,
            Framing::UntilEnd => {
                body.response.keep(bytes);
                false
            }
        };
        if !complete && self.skipped < MAX_BODY {
            return Ok(ControlFlow::Continue(()));
        }
        let body = self.body.take().expect("the body was read above");
        Ok(ControlFlow::Break(body.response))
    }
}

impl Chunks {
    /// Takes more of a chunked body; true at its end.
    fn skip(&mut self, mut bytes: &[u8], response: &mut Response) -> Result<bool, BadResponse> {
        while let [first, rest @ ..] = bytes {
            if let Chunks::Data(left) = *self {
                let taken = left.min(bytes.len() as u64);
                response.keep(&bytes[..taken as usize]);
                bytes = &bytes[taken as usize..];
                *self = if taken == left {
                    Chunks::End
                } else {
                    Chunks::Data(left - taken)
                };
                continue;
            }
            bytes = rest;
            *self = match (*self, *first) {
                (Chunks::Size { any: false, .. } | Chunks::Size { over: false, .. }, b'\r') => *self,
                (
                    Chunks::Size {
                        size: 0, any: true, ..
                    },
                    b'\n',
                ) => Chunks::Trailer { empty: true },
                (Chunks::Size { size, any: true, .. }, b'\n') => Chunks::Data(size),
                (Chunks::Size { size, any: true, .. }, b';' | b' ' | b'\t') => Chunks::Size {
                    size,
                    any: true,
                    over: true,
                },
                (Chunks::Size { over: true, .. }, _) => *self,
                (Chunks::Size { size, .. }, digit) => {
                    let digit = char::from(digit).to_digit(16).ok_or(BadResponse::Malformed)?;
                    let size = size
                        .checked_mul(16)
                        .and_then(|size| size.checked_add(u64::from(digit)));
                    Chunks::Size {
                        size: size.ok_or(BadResponse::Malformed)?,
                        any: true,
                        over: false,
                    }
                }
                (Chunks::End, b'\r') => Chunks::End,
                (Chunks::End, b'\n') => Chunks::Size {
                    size: 0,
                    any: false,
                    over: false,
                },
                (Chunks::End, _) => return Err(BadResponse::Malformed),
                (Chunks::Trailer { empty: true }, b'\n') => return Ok(true),
                (Chunks::Trailer { empty }, b'\r') => Chunks::Trailer { empty },
                (Chunks::Trailer { .. }, byte) => Chunks::Trailer { empty: byte == b'\n' },
                (Chunks::Data(_), _) => unreachable!("data was taken above"),
            };
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
