//! How is SPDY/3.1 read and written?
//!
//! Browsers have forgotten it, but it is what `kubectl exec` and `port-forward` speak, by itself or inside of a
//! WebSocket. Bytes in, frames out, and the other way round: no sockets, no clock.
//!
//! Invariants: a frame of data is handed on in the pieces that arrive, so that its length costs no memory; everything else
//! is small or refused ([`CONTROL_MAX`], [`HEADERS_MAX`], [`PAIRS_MAX`]). Flow control (WINDOW_UPDATE) is left to the
//! connection, as in the implementation that Kubernetes uses.

mod decode;
mod dictionary;
mod encode;

pub use decode::Decoder;
pub use encode::Encoder;

/// The longest frame that carries no data.
pub const CONTROL_MAX: usize = 16 << 10;
/// The longest block of headers, once it is inflated.
pub const HEADERS_MAX: usize = 32 << 10;
/// The most headers in one block.
pub const PAIRS_MAX: usize = 64;

/// The protocol's version, in every control frame.
const VERSION: u16 = 3;
const FLAG_FIN: u8 = 1;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;

/// What a connection carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A stream begins. Names of headers are in lower case.
    Open {
        stream: u32,
        headers: Vec<(String, String)>,
        /// Nothing comes on it from this side.
        last: bool,
    },
    /// The other side knows the stream.
    Opened { stream: u32 },
    /// Bytes of a stream, or a piece of them.
    Data {
        stream: u32,
        bytes: Vec<u8>,
        /// No more comes from this side.
        last: bool,
    },
    /// A stream ends before its time.
    Reset { stream: u32, status: u32 },
    /// To be sent back.
    Ping(u32),
    /// No streams begin any more.
    GoAway,
}

/// Why bytes are no frames. After it nothing of the connection can be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    #[error("the frame is of SPDY version {0}, and only 3 is spoken")]
    Version(u16),
    #[error("a control frame of {0} bytes is longer than the limit of {CONTROL_MAX}")]
    TooLong(usize),
    #[error("a control frame of kind {0} ends too early")]
    Short(u16),
    #[error("the headers of a stream are not compressed as they should be")]
    Compression,
    #[error(
        "the headers of a stream are longer than the limit of {HEADERS_MAX} bytes or {PAIRS_MAX} in number"
    )]
    TooManyHeaders,
    #[error("the headers of a stream are cut off or no text")]
    Headers,
}

#[cfg(test)]
mod tests;
