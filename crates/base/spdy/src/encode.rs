//! Which bytes say this frame?

use crate::dictionary::dictionary;
use crate::{FLAG_FIN, Frame, GOAWAY, PING, RST_STREAM, SYN_REPLY, SYN_STREAM, VERSION};
use flate2::{Compress, Compression, FlushCompress};

/// Writes one side of a connection.
#[derive(Debug)]
pub struct Encoder {
    deflate: Compress,
}

impl Default for Encoder {
    fn default() -> Self {
        let mut deflate = Compress::new(Compression::fast(), true);
        deflate
            .set_dictionary(&dictionary())
            .expect("nothing was compressed before");
        Self { deflate }
    }
}

impl Encoder {
    /// Appends a frame. Data has to be shorter than 16 MiB.
    pub fn write(&mut self, frame: &Frame, out: &mut Vec<u8>) {
        match frame {
            Frame::Open {
                stream,
                headers,
                last,
            } => {
                let mut body = stream.to_be_bytes().to_vec();
                body.extend_from_slice(&[0; 6]);
                self.headers(headers, &mut body);
                control(SYN_STREAM, *last, &body, out);
            }
            Frame::Opened { stream } => {
                let mut body = stream.to_be_bytes().to_vec();
                self.headers(&[], &mut body);
                control(SYN_REPLY, false, &body, out);
            }
            Frame::Data { stream, bytes, last } => {
                out.extend_from_slice(&stream.to_be_bytes());
                length(*last, bytes.len(), out);
                out.extend_from_slice(bytes);
            }
            Frame::Reset { stream, status } => {
                let body = [stream.to_be_bytes(), status.to_be_bytes()].concat();
                control(RST_STREAM, false, &body, out);
            }
            Frame::Ping(number) => control(PING, false, &number.to_be_bytes(), out),
            Frame::GoAway => control(GOAWAY, false, &[0; 8], out),
        }
    }

    fn headers(&mut self, headers: &[(String, String)], out: &mut Vec<u8>) {
        let mut block = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend_from_slice(&(text.len() as u32).to_be_bytes());
            block.extend_from_slice(text.as_bytes());
        }
        let mut rest = block.as_slice();
        loop {
            out.reserve(rest.len() + 64);
            let before = self.deflate.total_in();
            self.deflate
                .compress_vec(rest, out, FlushCompress::Sync)
                .expect("the state of compression is whole");
            rest = &rest[(self.deflate.total_in() - before) as usize..];
            // Room that is left says that the flush is complete.
            if rest.is_empty() && out.len() < out.capacity() {
                return;
            }
        }
    }
}

fn control(kind: u16, last: bool, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(0x8000 | VERSION).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    length(last, body.len(), out);
    out.extend_from_slice(body);
}

fn length(last: bool, length: usize, out: &mut Vec<u8>) {
    let word = (length as u32 & 0x00ff_ffff) | u32::from(if last { FLAG_FIN } else { 0 }) << 24;
    out.extend_from_slice(&word.to_be_bytes());
}
