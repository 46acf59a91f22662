//! How does a stream of bytes become lines?

use crate::error::ApiError;
use bytes::BytesMut;
use http_body_util::BodyExt;
use kube::client::Body;

/// Longest line that is read; API servers refuse objects of a tenth of that.
const LONGEST: usize = 64 << 20;

/// The lines of a body as it arrives.
pub(super) struct Lines {
    body: Body,
    buffer: BytesMut,
    /// How far the buffer was searched for the end of a line.
    searched: usize,
}

impl Lines {
    pub fn new(body: Body) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            searched: 0,
        }
    }

    /// The next complete line, `None` at the end of the stream. A last line without an end was cut off
    /// in the middle and is dropped: the watch resumes before it. Can be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<BytesMut>, ApiError> {
        loop {
            if let Some(line) = self.arrived() {
                return Ok(Some(line));
            }
            if self.searched > LONGEST {
                return Err(ApiError::Unreadable(format!(
                    "a line of more than {LONGEST} bytes"
                )));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The next line if all of it is here already.
    pub fn arrived(&mut self) -> Option<BytesMut> {
        let Some(end) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            return None;
        };
        let mut line = self.buffer.split_to(self.searched + end + 1);
        line.truncate(line.len() - 1);
        self.searched = 0;
        Some(line)
    }
}
