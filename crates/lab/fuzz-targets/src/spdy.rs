//! Connections of streams, as clients of exec and port-forward make them.

use pointsman_spdy::{Decoder, Encoder, Frame, HEADERS_MAX};

/// Frames are the same in whatever pieces they come, data is no longer than what came, and what was read is read again
/// from what we would write.
pub(crate) fn run(input: &[u8]) {
    let (whole, in_pieces) = (read(input, input.len().max(1)), read(input, 7));
    assert_eq!(joined(&whole), joined(&in_pieces));
    let carried: usize = whole.iter().map(data).sum();
    assert!(carried <= input.len(), "{carried} bytes out of {}", input.len());
    // We compress with less patience than others may, and write no headers of our own.
    if whole.iter().any(|frame| headers(frame) > 4096) {
        return;
    }
    let (mut encoder, mut written) = (Encoder::default(), Vec::new());
    whole.iter().for_each(|frame| encoder.write(frame, &mut written));
    let again = read(&written, written.len().max(1));
    assert_eq!(joined(&again), joined(&whole));
}

fn read(input: &[u8], pieces: usize) -> Vec<Frame> {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for piece in input.chunks(pieces) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return frames,
            }
        }
    }
    for frame in &frames {
        // A letter in lower case may be longer.
        assert!(headers(frame) <= 4 * HEADERS_MAX);
    }
    frames
}

fn headers(frame: &Frame) -> usize {
    match frame {
        Frame::Open { headers, .. } => headers.iter().map(|(name, value)| name.len() + value.len()).sum(),
        _ => 0,
    }
}

fn data(frame: &Frame) -> usize {
    match frame {
        Frame::Data { bytes, .. } => bytes.len(),
        _ => 0,
    }
}

/// Pieces of data without what depends on where they were cut.
fn joined(frames: &[Frame]) -> Vec<Frame> {
    let mut joined: Vec<Frame> = Vec::new();
    for frame in frames {
        match (joined.last_mut(), frame) {
            (
                Some(Frame::Data { stream, bytes, last }),
                Frame::Data {
                    stream: same,
                    bytes: more,
                    last: end,
                },
            ) if stream == same => {
                bytes.extend_from_slice(more);
                *last |= end;
            }
            (_, frame) => joined.push(frame.clone()),
        }
    }
    joined
}
