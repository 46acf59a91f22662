use super::*;
use proptest::prelude::*;

/// All frames that come out, pieces of data put together again.
fn read(decoder: &mut Decoder, bytes: &[u8], pieces: usize) -> Result<Vec<Frame>, SpdyError> {
    let mut frames: Vec<Frame> = Vec::new();
    for piece in bytes.chunks(pieces) {
        decoder.push(piece);
        while let Some(frame) = decoder.next()? {
            match (frames.last_mut(), frame) {
                (
                    Some(Frame::Data {
                        stream,
                        bytes,
                        last: last @ false,
                    }),
                    Frame::Data {
                        stream: same,
                        bytes: more,
                        last: end,
                    },
                ) if *stream == same => {
                    bytes.extend(more);
                    *last = end;
                }
                (_, frame) => frames.push(frame),
            }
        }
    }
    Ok(frames)
}

fn frame() -> impl Strategy<Value = Frame> {
    let stream = 1_u32..0x7fff_ffff;
    let pair = ("[a-z-]{1,12}", "[ -~]{0,40}");
    prop_oneof![
        (stream.clone(), prop::collection::vec(pair, 0..6), any::<bool>()).prop_map(
            |(stream, headers, last)| Frame::Open {
                stream,
                headers,
                last
            }
        ),
        stream.clone().prop_map(|stream| Frame::Opened { stream }),
        // Ended, so that neighbours are not put together.
        (stream.clone(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(stream, bytes)| {
            Frame::Data {
                stream,
                bytes,
                last: true,
            }
        }),
        (stream, any::<u32>()).prop_map(|(stream, status)| Frame::Reset { stream, status }),
        any::<u32>().prop_map(Frame::Ping),
        Just(Frame::GoAway),
    ]
}

proptest! {
    #[test]
    fn what_was_written_is_read_in_whatever_pieces_it_comes(
        frames in prop::collection::vec(frame(), 0..12),
        pieces in 1_usize..64,
    ) {
        let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
        frames.iter().for_each(|frame| encoder.write(frame, &mut bytes));
        prop_assert_eq!(read(&mut Decoder::default(), &bytes, pieces), Ok(frames));
    }

    #[test]
    fn anything_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600), pieces in 1_usize..64) {
        let _ = read(&mut Decoder::default(), &bytes, pieces);
    }
}

/// Section 2.6.10.1 has 1423 bytes; what zlib says of them is in the first block of every connection.
#[test]
fn the_dictionary_is_the_one_of_the_draft() {
    assert_eq!(dictionary::dictionary().len(), 1423);
    let mut bytes = Vec::new();
    Encoder::default().write(&Frame::Opened { stream: 1 }, &mut bytes);
    // Eight bytes of head, four of the stream, two of zlib's own.
    assert_eq!(bytes[14..18], 0xe3c6_a7c2_u32.to_be_bytes());
}

#[test]
fn the_length_of_data_costs_nothing() {
    let mut decoder = Decoder::default();
    decoder.push(&[0, 0, 0, 1, 1, 0xff, 0xff, 0xff, b'x']);
    let piece = |decoder: &mut Decoder| decoder.next().unwrap();
    let data = |text: &[u8]| Frame::Data {
        stream: 1,
        bytes: text.to_vec(),
        last: false,
    };
    assert_eq!(piece(&mut decoder), Some(data(b"x")));
    assert_eq!(piece(&mut decoder), None);
    decoder.push(b"yz");
    assert_eq!(piece(&mut decoder), Some(data(b"yz")));
}

#[test]
fn what_is_too_large_or_no_spdy_is_refused() {
    let refused = |bytes: &[u8]| read(&mut Decoder::default(), bytes, 64).unwrap_err();
    assert_eq!(
        refused(&[0x80, 3, 0, 1, 0, 0x10, 0, 0]),
        SpdyError::TooLong(0x10_0000)
    );
    assert_eq!(refused(&[0x80, 2, 0, 1, 0, 0, 0, 0]), SpdyError::Version(2));
    assert_eq!(refused(&[0x80, 3, 0, 1, 0, 0, 0, 2, 0, 0]), SpdyError::Short(1));
    assert_eq!(
        refused(b"\x80\x03\0\x01\0\0\0\x0e\0\0\0\x01\0\0\0\0\0\0none"),
        SpdyError::Compression
    );
}

#[test]
fn headers_that_grow_when_they_are_inflated_are_refused() {
    let large = |size: usize| {
        let headers = vec![("a".to_owned(), "b".repeat(size))];
        let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
        let frame = Frame::Open {
            stream: 1,
            headers,
            last: false,
        };
        encoder.write(&frame, &mut bytes);
        read(&mut Decoder::default(), &bytes, 4096)
    };
    assert!(large(HEADERS_MAX / 2).is_ok());
    assert_eq!(large(1 << 20), Err(SpdyError::TooManyHeaders));
    let headers = (0..=PAIRS_MAX).map(|number| (format!("n{number}"), String::new()));
    let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
    let frame = Frame::Open {
        stream: 1,
        headers: headers.collect(),
        last: false,
    };
    encoder.write(&frame, &mut bytes);
    assert_eq!(
        read(&mut Decoder::default(), &bytes, 4096),
        Err(SpdyError::TooManyHeaders)
    );
}
