use super::*;
use proptest::prelude::*;

fn settings() -> Vec<u8> {
    let mut out = Vec::new();
    frame(SETTINGS, 0, 0, &[], &mut out);
    out
}

fn headers(fields: &[(&str, &str)], flags: u8, out: &mut Vec<u8>) {
    let mut block = Vec::new();
    for (name, value) in fields {
        hpack::literal(None, name, value, &mut block);
    }
    frame(HEADERS, flags, 1, &block, out);
}

/// The answer of a server whose service has this status.
fn answer(status: u8) -> Vec<u8> {
    let mut out = settings();
    headers(
        &[(":status", "200"), ("content-type", "application/grpc")],
        END_HEADERS,
        &mut out,
    );
    let body: &[u8] = if status == 0 {
        &[0, 0, 0, 0, 0]
    } else {
        &[0, 0, 0, 0, 2, 8, status]
    };
    frame(DATA, 0, 1, body, &mut out);
    headers(&[("grpc-status", "0")], END_HEADERS | END_STREAM, &mut out);
    out
}

fn read(bytes: &[u8], piece: usize) -> Result<Health, BadAnswer> {
    let mut reader = Reader::default();
    let mut reply = Vec::new();
    for part in bytes.chunks(piece) {
        if let ControlFlow::Break(health) = reader.push(part, &mut reply)? {
            return Ok(health);
        }
    }
    Err(reader.end())
}

#[test]
fn serving_is_healthy_and_nothing_else_is() {
    assert_eq!(read(&answer(1), usize::MAX), Ok(Health::Serving));
    assert_eq!(read(&answer(1), 1), Ok(Health::Serving));
    assert_eq!(read(&answer(2), 7), Ok(Health::NotServing(2)));
    assert_eq!(read(&answer(0), 7), Ok(Health::NotServing(0)));
    assert_eq!(
        Health::NotServing(2).to_string(),
        "service unhealthy (responded with \"NOT_SERVING\")"
    );
}

#[test]
fn refusals_carry_code_and_message() {
    let mut out = settings();
    let fields = [
        (":status", "200"),
        ("grpc-status", "12"),
        ("grpc-message", "unknown service"),
    ];
    headers(&fields, END_HEADERS | END_STREAM, &mut out);
    let health = read(&out, usize::MAX);
    assert_eq!(
        health,
        Ok(Health::Refused {
            code: 12,
            message: "unknown service".to_owned()
        })
    );
}

#[test]
fn servers_that_do_not_speak_grpc_are_told_apart() {
    assert_eq!(
        read(b"HTTP/1.1 400 Bad Request\r\n\r\n", usize::MAX),
        Err(BadAnswer::Malformed)
    );
    assert_eq!(read(b"", 1), Err(BadAnswer::Truncated));
    let mut out = settings();
    headers(&[(":status", "404")], END_HEADERS | END_STREAM, &mut out);
    assert_eq!(read(&out, 3), Err(BadAnswer::Status(404)));
    let mut out = settings();
    frame(RST_STREAM, 0, 1, &[0, 0, 0, 2], &mut out);
    assert_eq!(read(&out, 3), Err(BadAnswer::Reset));
    let mut out = settings();
    frame(GOAWAY, 0, 0, &[0; 8], &mut out);
    assert_eq!(read(&out, 3), Err(BadAnswer::Reset));
}

#[test]
fn a_success_without_a_whole_message_is_none() {
    let mut out = settings();
    headers(&[(":status", "200")], END_HEADERS, &mut out);
    frame(DATA, 0, 1, &[0, 0, 0, 0, 9, 8, 1], &mut out);
    headers(&[("grpc-status", "0")], END_HEADERS | END_STREAM, &mut out);
    assert_eq!(read(&out, usize::MAX), Err(BadAnswer::Malformed));
}

#[test]
fn settings_and_pings_are_acknowledged_and_padding_and_continuations_understood() {
    let mut out = settings();
    frame(PING, 0, 0, b"12345678", &mut out);
    let mut block = Vec::new();
    hpack::literal(None, ":status", "200", &mut block);
    frame(HEADERS, 0, 1, &block[..3], &mut out);
    frame(CONTINUATION, END_HEADERS, 1, &block[3..], &mut out);
    frame(DATA, PADDED, 1, &[3, 0, 0, 0, 0, 2, 8, 1, 0, 0, 0], &mut out);
    headers(&[("grpc-status", "0")], END_HEADERS | END_STREAM, &mut out);
    let (mut reader, mut reply) = (Reader::default(), Vec::new());
    assert_eq!(
        reader.push(&out, &mut reply),
        Ok(ControlFlow::Break(Health::Serving))
    );
    let mut expected = Vec::new();
    frame(SETTINGS, ACK, 0, &[], &mut expected);
    frame(PING, ACK, 0, b"12345678", &mut expected);
    assert_eq!(reply, expected);
}

#[test]
fn floods_are_cut_off() {
    let mut pings = settings();
    for _ in 0..1000 {
        frame(PING, 0, 0, b"12345678", &mut pings);
    }
    assert_eq!(read(&pings, usize::MAX), Err(BadAnswer::TooLarge));
    let mut data = settings();
    headers(&[(":status", "200")], END_HEADERS, &mut data);
    for _ in 0..100 {
        frame(DATA, 0, 1, &[0; 1000], &mut data);
    }
    assert_eq!(read(&data, 999), Err(BadAnswer::TooLarge));
    let mut headers = settings();
    frame(HEADERS, 0, 1, &[0; 10_000], &mut headers);
    frame(CONTINUATION, 0, 1, &[0; 10_000], &mut headers);
    assert_eq!(read(&headers, 999), Err(BadAnswer::TooLarge));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_read_without_panic(
        noise in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..50, greeted: bool
    ) {
        let mut bytes = if greeted { settings() } else { Vec::new() };
        bytes.extend(noise);
        prop_assert_eq!(read(&bytes, piece), read(&bytes, usize::MAX));
    }

    #[test]
    fn any_frames_are_read_without_panic(
        frames in prop::collection::vec(
            (0u8..11, any::<u8>(), 0u32..3, prop::collection::vec(any::<u8>(), 0..40)), 0..20)
    ) {
        let mut bytes = settings();
        for (kind, flags, stream, payload) in frames {
            frame(kind, flags, stream, &payload, &mut bytes);
        }
        let _ = read(&bytes, 13);
    }

    #[test]
    fn a_damaged_answer_is_never_serving_by_accident_of_pieces(at in 0usize..80, byte: u8, piece in 1usize..40) {
        let mut bytes = answer(2);
        let at = at % bytes.len();
        bytes[at] = byte;
        prop_assert_eq!(read(&bytes, piece), read(&bytes, usize::MAX));
    }
}
