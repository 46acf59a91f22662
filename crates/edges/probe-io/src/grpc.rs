//! Is a gRPC service healthy?
//!
//! One `grpc.health.v1.Health/Check` over HTTP/2, by hand: everything we say fits into one packet
//! that is made once per probe, and of the answer only the status matters.

use crate::hpack;
use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD: usize = 9;
/// The largest frame that a server may send, because we do not ask for more.
const MAX_FRAME: usize = 16 << 10;
/// The largest header block and the largest message that we read.
const MAX_BLOCK: usize = 16 << 10;
const MAX_MESSAGE: usize = 4 << 10;
/// Answers to settings and pings that may wait for a server that does not read.
const MAX_WAITING: usize = 4 << 10;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The service serves.
    Serving,
    /// The service exists and does not serve; the number is upstream's enumeration.
    NotServing(u64),
    /// The call failed.
    Refused {
        /// A gRPC status code.
        code: u32,
        /// The server's explanation.
        message: String,
    },
}

impl fmt::Display for Health {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Serving => out.write_str("service healthy"),
            Health::NotServing(status) => {
                let name = match status {
                    0 => "UNKNOWN",
                    2 => "NOT_SERVING",
                    3 => "SERVICE_UNKNOWN",
                    _ => return write!(out, "service unhealthy (responded with \"{status}\")"),
                };
                write!(out, "service unhealthy (responded with \"{name}\")")
            }
            Health::Refused { code: 12, message } => write!(
                out,
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            ),
            Health::Refused { code, message } => {
                write!(
                    out,
                    "error: health rpc probe failed: rpc error: code = {code} desc = {message}"
                )
            }
        }
    }
}

/// Why an answer is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// Not HTTP/2, or a protocol error.
    #[error("malformed HTTP/2 answer")]
    Malformed,
    /// The stream was reset or the connection given up.
    #[error("the server gave up the call")]
    Reset,
    #[error("unexpected HTTP status {0}")]
    Status(u16),
    /// Larger than any health answer.
    #[error("the answer is too large")]
    TooLarge,
    /// The connection ended too early.
    #[error("unexpected EOF")]
    Truncated,
}

/// The whole request: preface, settings, headers and message.
pub fn request(authority: &str, service: &str, user_agent: &str, timeout: Duration) -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    // No header table, no pushes.
    frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0], &mut out);
    let mut block = vec![0x83, 0x86];
    hpack::literal(Some(4), ":path", "/grpc.health.v1.Health/Check", &mut block);
    hpack::literal(Some(1), ":authority", authority, &mut block);
    hpack::literal(Some(31), "content-type", "application/grpc", &mut block);
    hpack::literal(Some(58), "user-agent", user_agent, &mut block);
    hpack::literal(None, "te", "trailers", &mut block);
    hpack::literal(
        None,
        "grpc-timeout",
        &format!("{}m", timeout.as_millis().min(99_999_999)),
        &mut block,
    );
    frame(HEADERS, END_HEADERS, 1, &block, &mut out);
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        put_varint(service.len() as u64, &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    let mut body = vec![0];
    body.extend_from_slice(&(message.len() as u32).to_be_bytes());
    body.extend_from_slice(&message);
    frame(DATA, END_STREAM, 1, &body, &mut out);
    out
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Reads one answer.
#[derive(Debug, Default)]
pub struct Reader {
    /// A frame that has not come whole.
    partial: Vec<u8>,
    greeted: bool,
    block: Vec<u8>,
    /// A header block is being continued; true if the stream ends with it.
    continued: Option<bool>,
    message: Vec<u8>,
    http_status: u16,
    status: Option<u32>,
    explanation: String,
}

impl Reader {
    /// Takes what arrived and appends what has to be answered to `reply`; breaks once the call has
    /// ended.
    pub fn push(&mut self, bytes: &[u8], reply: &mut Vec<u8>) -> Result<ControlFlow<Health>, BadAnswer> {
        let mut held = std::mem::take(&mut self.partial);
        let mut rest = if held.is_empty() {
            bytes
        } else {
            held.extend_from_slice(bytes);
            held.as_slice()
        };
        while let Some((head, tail)) = rest.split_at_checked(HEAD) {
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            if length > MAX_FRAME {
                return Err(BadAnswer::Malformed);
            }
            let Some((payload, behind)) = tail.split_at_checked(length) else {
                break;
            };
            rest = behind;
            let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
            if self.take(head[3], head[4], stream, payload, reply)? {
                return self.conclude().map(ControlFlow::Break);
            }
        }
        self.partial = rest.to_vec();
        if reply.len() > MAX_WAITING {
            return Err(BadAnswer::TooLarge);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The server has closed the connection.
    pub fn end(&self) -> BadAnswer {
        BadAnswer::Truncated
    }

    /// Takes one frame; true if it ends our stream.
    fn take(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<bool, BadAnswer> {
        if !std::mem::replace(&mut self.greeted, true) && (kind != SETTINGS || flags & ACK != 0) {
            return Err(BadAnswer::Malformed);
        }
        if self.continued.is_some() && kind != CONTINUATION {
            return Err(BadAnswer::Malformed);
        }
        match (kind, stream) {
            (SETTINGS, 0) if flags & ACK == 0 => {
                frame(SETTINGS, ACK, 0, &[], reply);
                Ok(false)
            }
            (PING, 0) if flags & ACK == 0 && payload.len() == 8 => {
                frame(PING, ACK, 0, payload, reply);
                Ok(false)
            }
            (GOAWAY, 0) => {
                let last = payload.get(..4).ok_or(BadAnswer::Malformed)?;
                if last[0] & 0x7f == 0 && last[1..] == [0, 0, 0] {
                    Err(BadAnswer::Reset)
                } else {
                    Ok(false)
                }
            }
            (RST_STREAM, 1) => Err(BadAnswer::Reset),
            (HEADERS, 1) => {
                let mut block = unpadded(flags, payload)?;
                if flags & PRIORITY != 0 {
                    block = block.get(5..).ok_or(BadAnswer::Malformed)?;
                }
                self.block.clear();
                self.headers(block, flags & END_HEADERS != 0, flags & END_STREAM != 0)
            }
            (CONTINUATION, 1) => {
                let ends = self.continued.take().ok_or(BadAnswer::Malformed)?;
                self.headers(payload, flags & END_HEADERS != 0, ends)
            }
            (DATA, 1) => {
                self.message.extend_from_slice(unpadded(flags, payload)?);
                if self.message.len() > MAX_MESSAGE {
                    return Err(BadAnswer::TooLarge);
                }
                Ok(flags & END_STREAM != 0)
            }
            (PUSH_PROMISE | CONTINUATION | HEADERS | DATA, _) => Err(BadAnswer::Malformed),
            _ => Ok(false),
        }
    }

    fn headers(&mut self, part: &[u8], complete: bool, ends: bool) -> Result<bool, BadAnswer> {
        self.block.extend_from_slice(part);
        if self.block.len() > MAX_BLOCK {
            return Err(BadAnswer::TooLarge);
        }
        if !complete {
            self.continued = Some(ends);
            return Ok(false);
        }
        let block = std::mem::take(&mut self.block);
        let number = |value: &[u8]| {
            std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse::<u32>().ok())
        };
        let (mut http, mut status, mut explanation) = (None, None, None);
        let read = hpack::decode(&block, |name, value| match name {
            b":status" => http = number(value),
            b"grpc-status" => status = number(value),
            b"grpc-message" => explanation = Some(String::from_utf8_lossy(value).into_owned()),
            _ => {}
        });
        read.map_err(|_| BadAnswer::Malformed)?;
        self.http_status = http.map_or(self.http_status, |status| status.min(999) as u16);
        self.status = status.or(self.status);
        self.explanation = explanation.unwrap_or_else(|| std::mem::take(&mut self.explanation));
        Ok(ends)
    }

    fn conclude(&mut self) -> Result<Health, BadAnswer> {
        match self.status {
            _ if self.http_status != 200 => Err(BadAnswer::Status(self.http_status)),
            None => Err(BadAnswer::Malformed),
            Some(0) => match serving_status(&self.message).ok_or(BadAnswer::Malformed)? {
                1 => Ok(Health::Serving),
                other => Ok(Health::NotServing(other)),
            },
            Some(code) => Ok(Health::Refused {
                code,
                message: std::mem::take(&mut self.explanation),
            }),
        }
    }
}

fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], BadAnswer> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (&padding, rest) = payload.split_first().ok_or(BadAnswer::Malformed)?;
    let kept = rest
        .len()
        .checked_sub(usize::from(padding))
        .ok_or(BadAnswer::Malformed)?;
    Ok(&rest[..kept])
}

/// The field `status` of a HealthCheckResponse in its gRPC frame; absent is zero.
fn serving_status(message: &[u8]) -> Option<u64> {
    let (head, body) = message.split_at_checked(5)?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if head[0] != 0 || body.len() != length {
        return None;
    }
    let mut rest = body;
    let mut status = 0;
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let skipped = match key & 7 {
            0 => {
                let value = varint(&mut rest)?;
                if key >> 3 == 1 {
                    status = value;
                }
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut rest)?).ok()?,
            5 => 4,
            _ => return None,
        };
        rest = rest.get(skipped..)?;
    }
    Some(status)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests;
