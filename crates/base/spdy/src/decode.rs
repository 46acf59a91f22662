//! Which frames do these bytes say?

use crate::dictionary::dictionary;
use crate::{
    CONTROL_MAX, FLAG_FIN, Frame, GOAWAY, HEADERS_MAX, PAIRS_MAX, PING, RST_STREAM, SYN_REPLY, SYN_STREAM,
    SpdyError, VERSION,
};
use flate2::{Decompress, FlushDecompress};

const HEAD: usize = 8;

/// Reads one side of a connection.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// The frame of data whose bytes come now.
    open: Option<Open>,
    inflate: Decompress,
}

#[derive(Debug)]
struct Open {
    stream: u32,
    left: usize,
    last: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            open: None,
            inflate: Decompress::new(true),
        }
    }
}

impl Decoder {
    /// Adds what has been read. Call [`next`](Self::next) until it returns none before adding more, so that no more is
    /// kept than the beginning of one frame.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, or piece of one, that is there.
    #[expect(clippy::should_implement_trait, reason = "more bytes may come after the end")]
    pub fn next(&mut self) -> Result<Option<Frame>, SpdyError> {
        loop {
            if self.open.is_some() {
                return Ok(self.data());
            }
            let Some(head) = self.bytes.first_chunk::<HEAD>() else {
                return Ok(None);
            };
            let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let flags = head[4];
            let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
            if word >> 31 == 0 {
                self.bytes.drain(..HEAD);
                self.open = Some(Open {
                    stream: word,
                    left: length,
                    last: flags & FLAG_FIN != 0,
                });
                continue;
            }
            let (version, kind) = ((word >> 16) as u16 & 0x7fff, word as u16);
            if version != VERSION {
                return Err(SpdyError::Version(version));
            }
            if length > CONTROL_MAX {
                return Err(SpdyError::TooLong(length));
            }
            if self.bytes.len() < HEAD + length {
                return Ok(None);
            }
            let body: Vec<u8> = self.bytes.drain(..HEAD + length).skip(HEAD).collect();
            if let Some(frame) = self.control(kind, flags, &body)? {
                return Ok(Some(frame));
            }
        }
    }

    fn data(&mut self) -> Option<Frame> {
        let open = self.open.as_mut()?;
        let length = open.left.min(self.bytes.len());
        if length == 0 && open.left > 0 {
            return None;
        }
        let bytes = self.bytes.drain(..length).collect();
        open.left -= length;
        let frame = Frame::Data {
            stream: open.stream,
            bytes,
            last: open.last && open.left == 0,
        };
        if open.left == 0 {
            self.open = None;
        }
        Some(frame)
    }

    /// A control frame; those that say nothing we act upon are skipped.
    fn control(&mut self, kind: u16, flags: u8, body: &[u8]) -> Result<Option<Frame>, SpdyError> {
        let number = |at: usize| {
            let bytes = body.get(at..).and_then(|rest| rest.first_chunk::<4>());
            bytes
                .map(|bytes| u32::from_be_bytes(*bytes))
                .ok_or(SpdyError::Short(kind))
        };
        let stream = || Ok(number(0)? & 0x7fff_ffff);
        Ok(Some(match kind {
            SYN_STREAM => {
                // The associated stream, the priority and the slot of a certificate come before the headers.
                let block = body.get(10..).ok_or(SpdyError::Short(kind))?;
                Frame::Open {
                    stream: stream()?,
                    headers: headers(&self.inflated(block)?)?,
                    last: flags & FLAG_FIN != 0,
                }
            }
            SYN_REPLY => {
                let block = body.get(4..).ok_or(SpdyError::Short(kind))?;
                // Both sides have to see all headers, or the next ones are not understood.
                headers(&self.inflated(block)?)?;
                Frame::Opened { stream: stream()? }
            }
            RST_STREAM => Frame::Reset {
                stream: stream()?,
                status: number(4)?,
            },
            PING => Frame::Ping(number(0)?),
            GOAWAY => Frame::GoAway,
            // HEADERS, the only other one with a block.
            8 => {
                self.inflated(body.get(4..).ok_or(SpdyError::Short(kind))?)?;
                return Ok(None);
            }
            _ => return Ok(None),
        }))
    }

    fn inflated(&mut self, mut block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut out = Vec::with_capacity(1024);
        loop {
            if out.len() == out.capacity() {
                if out.len() > HEADERS_MAX {
                    return Err(SpdyError::TooManyHeaders);
                }
                out.reserve(out.len());
            }
            let before = (self.inflate.total_in(), out.len());
            match self
                .inflate
                .decompress_vec(block, &mut out, FlushDecompress::Sync)
            {
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    let set = self.inflate.set_dictionary(&dictionary());
                    set.map_err(|_| SpdyError::Compression)?;
                }
                Err(_) => return Err(SpdyError::Compression),
            }
            let read = (self.inflate.total_in() - before.0) as usize;
            block = &block[read..];
            let is_stuck = read == 0 && out.len() == before.1;
            if block.is_empty() && out.len() < out.capacity() {
                return Ok(out);
            }
            if is_stuck && out.len() < out.capacity() {
                return Err(SpdyError::Compression);
            }
        }
    }
}

fn headers(mut block: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
    let count = take_number(&mut block)?;
    if count > PAIRS_MAX {
        return Err(SpdyError::TooManyHeaders);
    }
    let pair = |_| Ok((take_text(&mut block)?.to_lowercase(), take_text(&mut block)?));
    (0..count).map(pair).collect()
}

fn take_number(block: &mut &[u8]) -> Result<usize, SpdyError> {
    let (number, rest) = block.split_first_chunk::<4>().ok_or(SpdyError::Headers)?;
    *block = rest;
    Ok(u32::from_be_bytes(*number) as usize)
}

fn take_text(block: &mut &[u8]) -> Result<String, SpdyError> {
    let length = take_number(block)?;
    let (text, rest) = block.split_at_checked(length).ok_or(SpdyError::Headers)?;
    *block = rest;
    String::from_utf8(text.to_vec()).map_err(|_| SpdyError::Headers)
}
