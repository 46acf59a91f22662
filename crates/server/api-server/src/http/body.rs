//! How are answers sent without copying the cluster into one buffer?

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A stream of bytes that ends when the watch does.
pub type ByteStream = Pin<Box<dyn futures::Stream<Item = Bytes> + Send>>;

/// The body of an answer.
pub struct Body(Content);

enum Content {
    Whole(Option<Bytes>),
    /// Many pieces that are joined into frames of about [`FRAME`] bytes while they are sent, so a list
    /// of any size needs one frame of memory beside the objects themselves.
    Pieces {
        /// What is left to send.
        pieces: std::vec::IntoIter<Bytes>,
        /// The sum of what is left.
        left: u64,
    },
    /// An open stream; each item is flushed at once.
    Stream(ByteStream),
}

/// About what is sent at a time.
pub const FRAME: usize = 64 << 10;

impl Body {
    /// A body of one piece.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Content::Whole(Some(bytes.into())))
    }

    /// A body of many pieces.
    pub fn pieces(pieces: Vec<Bytes>) -> Self {
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self(Content::Pieces {
            pieces: pieces.into_iter(),
            left,
        })
    }

    /// A body whose end is not known.
    pub fn stream(stream: ByteStream) -> Self {
        Self(Content::Stream(stream))
    }

    /// Whether its end is not known.
    pub fn is_stream(&self) -> bool {
        matches!(self.0, Content::Stream(_))
    }

    /// The bytes of a body of one piece; others are given back.
    pub fn into_whole(self) -> Result<Bytes, Self> {
        match self.0 {
            Content::Whole(bytes) => Ok(bytes.unwrap_or_default()),
            other => Err(Self(other)),
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut self.get_mut().0 {
            Content::Whole(bytes) => bytes.take().filter(|bytes| !bytes.is_empty()),
            Content::Pieces { pieces, left } => {
                let frame = next_frame(pieces);
                *left -= frame.as_ref().map_or(0, |frame| frame.len() as u64);
                frame
            }
            Content::Stream(stream) => match stream.as_mut().poll_next(cx) {
                Poll::Ready(bytes) => bytes,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Pieces { left, .. } => SizeHint::with_exact(*left),
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

fn next_frame(pieces: &mut std::vec::IntoIter<Bytes>) -> Option<Bytes> {
    let first = pieces.next()?;
    if first.len() >= FRAME || pieces.len() == 0 {
        return Some(first);
    }
    let mut frame = BytesMut::with_capacity(FRAME + first.len());
    frame.put(first);
    while frame.len() < FRAME {
        match pieces.next() {
            Some(piece) => frame.put(piece),
            None => break,
        }
    }
    Some(frame.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn pieces_arrive_whole_and_in_order_in_few_frames() {
        let pieces: Vec<Bytes> = (0..10_000).map(|n| Bytes::from(format!("{n},"))).collect();
        let expected: Vec<u8> = pieces.concat();
        let body = Body::pieces(pieces);
        assert_eq!(
            http_body::Body::size_hint(&body).exact(),
            Some(expected.len() as u64)
        );
        assert_eq!(body.collect().await.unwrap().to_bytes(), expected);
    }
}
