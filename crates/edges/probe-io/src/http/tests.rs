use super::*;
use crate::url::Scheme;
use proptest::prelude::*;

fn url() -> Url {
    Url {
        scheme: Scheme::Http,
        host: "10.0.0.1".into(),
        port: 8080,
        target: "/healthz".into(),
    }
}

fn headers(given: &[(&str, &str)]) -> String {
    let given: Vec<(String, String)> = given
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    String::from_utf8(request(&url(), &given, "kube-probe/1.33")).unwrap_or_default()
}

/// Reads a response that arrives in pieces of this size and ends there.
fn read(text: &[u8], piece: usize) -> Result<Response, BadResponse> {
    let mut reader = Reader::default();
    for part in text.chunks(piece) {
        if let ControlFlow::Break(response) = reader.push(part)? {
            return Ok(response);
        }
    }
    reader.end()
}

fn status(text: &str) -> Result<u16, BadResponse> {
    let whole = read(text.as_bytes(), usize::MAX).map(|response| response.status);
    assert_eq!(
        read(text.as_bytes(), 1).map(|response| response.status),
        whole,
        "in pieces"
    );
    whole
}

#[test]
fn without_headers_a_server_sees_only_the_defaults() {
    assert_eq!(
        headers(&[]),
        "GET /healthz HTTP/1.1\r\nHost: 10.0.0.1:8080\r\nUser-Agent: kube-probe/1.33\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
}

#[test]
fn own_headers_replace_defaults_and_empty_ones_remove_them() {
    assert_eq!(
        headers(&[
            ("host", "web.local"),
            ("user-agent", ""),
            ("accept", "text/html"),
            ("x-a", "1"),
            ("X-A", "2")
        ]),
        "GET /healthz HTTP/1.1\r\nHost: web.local\r\nAccept: text/html\r\nX-A: 1\r\nX-A: 2\r\n\
         Connection: close\r\n\r\n"
    );
    assert!(!headers(&[("Accept", "")]).contains("Accept"));
}

#[test]
fn headers_cannot_smuggle_lines_or_change_the_framing() {
    let text = headers(&[
        ("X-A", "1\r\nEvil: 2"),
        ("Content-Length", "7"),
        ("connection", "keep-alive"),
        ("a b", "c"),
    ]);
    assert!(text.contains("X-A: 1  Evil: 2\r\n"));
    assert_eq!(text.matches("\r\n").count(), 7, "{text}");
    assert!(!text.contains("Content-Length") && !text.contains("keep-alive") && !text.contains("a b"));
}

#[test]
fn every_framing_has_its_end() {
    assert_eq!(status("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), Ok(200));
    assert_eq!(status("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), Ok(200));
    assert_eq!(
        status("HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n"),
        Ok(503)
    );
    assert_eq!(status("HTTP/1.0 200 OK\r\n\r\nuntil the end"), Ok(200));
    assert_eq!(status("HTTP/1.1 204 None\r\nContent-Length: 9\r\n\r\n"), Ok(204));
    assert_eq!(
        status(
            "HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"
        ),
        Ok(404)
    );
}

#[test]
fn a_body_is_waited_for_only_up_to_ten_kibibytes() {
    for framing in ["Content-Length: 1000000", "Transfer-Encoding: chunked", "X: y"] {
        let body = if framing.contains("chunked") {
            format!("ffff\r\n{}", "x".repeat(20_000))
        } else {
            "x".repeat(20_000)
        };
        let text = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{body}");
        let mut reader = Reader::default();
        let taken = text
            .as_bytes()
            .chunks(100)
            .position(|part| matches!(reader.push(part), Ok(ControlFlow::Break(_))));
        assert!(
            taken.is_some_and(|pieces| (102..106).contains(&pieces)),
            "{framing}: {taken:?}"
        );
    }
}

#[test]
fn answers_that_end_early_or_are_not_http_are_bad() {
    assert_eq!(status(""), Err(BadResponse::Truncated));
    assert_eq!(
        status("HTTP/1.1 200 OK\r\nContent-Le"),
        Err(BadResponse::Malformed)
    );
    assert_eq!(
        status("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok"),
        Err(BadResponse::Truncated)
    );
    assert_eq!(
        status("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nok"),
        Err(BadResponse::Malformed)
    );
    assert_eq!(
        status("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        Err(BadResponse::Malformed)
    );
    assert_eq!(
        status("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n"),
        Err(BadResponse::Malformed)
    );
    assert_eq!(
        read(b"SSH-2.0-OpenSSH_9.2\r\n", usize::MAX),
        Err(BadResponse::Malformed)
    );
    let large = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(70_000));
    assert_eq!(read(large.as_bytes(), 1000), Err(BadResponse::LargeHead));
}

#[test]
fn many_informational_answers_in_one_piece_are_read_in_turn() {
    let text = "HTTP/1.1 102 Wait\r\n\r\n".repeat(3000) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        read(text.as_bytes(), usize::MAX).map(|response| response.status),
        Ok(200)
    );
}

#[test]
fn only_redirects_have_a_location() {
    let location = |code: &str| {
        let text = format!("HTTP/1.1 {code}\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n");
        read(text.as_bytes(), usize::MAX)
            .ok()
            .and_then(|response| response.location)
    };
    assert_eq!(location("302 Found"), Some("/x".to_owned()));
    assert_eq!(location("201 Created"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_read_without_panic_and_alike_in_any_pieces(
        noise in prop::collection::vec(any::<u8>(), 0..400), piece in 1usize..50, begins_well: bool
    ) {
        let mut text = if begins_well { b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec() } else { Vec::new() };
        text.extend(noise);
        let whole = read(&text, usize::MAX);
        let parts = read(&text, piece);
        prop_assert_eq!(whole.is_ok(), parts.is_ok());
    }

    #[test]
    fn chunked_bodies_end_exactly_at_their_end(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..20), piece in 1usize..60
    ) {
        let mut text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in &chunks {
            text.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
            text.extend(chunk);
            text.extend(b"\r\n");
        }
        text.extend(b"0\r\n\r\n");
        prop_assert!(read(&text, piece).is_ok());
        prop_assert_eq!(read(&text[..text.len() - 1], piece), Err(BadResponse::Truncated));
    }
}
