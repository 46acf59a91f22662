//! Does a receiver of OTLP get each change as a trace, and does the histogram lead to it?

use std::collections::HashMap;

use pointsman_harness::SOON;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::programmer::Programmer;
use crate::site::{Site, ask};

/// A field of a message: what is of interest here is lengths and fixed numbers.
enum Field<'a> {
    Bytes(&'a [u8]),
    Number(u64),
}

/// Reads a message as every reader of protocol buffers does, knowing nothing of our encoder.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (number, rest) = bytes.split_at(8);
                bytes = rest;
                Field::Number(u64::from_le_bytes(number.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (text, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(text)
            }
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn inner(message: &[u8], number: u64) -> Vec<&[u8]> {
    let fields = fields(message).into_iter();
    let of = |(found, field)| match field {
        Field::Bytes(bytes) if found == number => Some(bytes),
        _ => None,
    };
    fields.filter_map(of).collect()
}

fn number(message: &[u8], wanted: u64) -> u64 {
    let fields = fields(message).into_iter();
    let mut of = fields.filter_map(|(found, field)| match field {
        Field::Number(value) if found == wanted => Some(value),
        _ => None,
    });
    of.next().unwrap_or(0)
}

struct Span {
    trace: String,
    parent: Vec<u8>,
    name: String,
    took: u64,
    attributes: HashMap<String, String>,
}

/// The spans of an export request, by the numbers of OTLP's own definition.
fn spans(request: &[u8]) -> Vec<Span> {
    let resources = inner(request, 1).into_iter();
    let scopes = resources.flat_map(|it| inner(it, 2));
    let spans = scopes.flat_map(|it| inner(it, 2));
    spans.map(span).collect()
}

fn span(message: &[u8]) -> Span {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let attributes = inner(message, 9).into_iter().map(|pair| {
        let value = inner(pair, 2).first().map_or(Vec::new(), |it| inner(it, 1));
        (
            text(inner(pair, 1)[0]),
            value.first().map_or(String::new(), |it| text(it)),
        )
    });
    Span {
        trace: inner(message, 1)[0]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
        parent: inner(message, 4).first().map_or(Vec::new(), |it| it.to_vec()),
        name: text(inner(message, 5)[0]),
        took: number(message, 8) - number(message, 7),
        attributes: attributes.collect(),
    }
}

/// Takes one request, answers it, and gives its head and body.
async fn receive(listener: &TcpListener) -> (String, Vec<u8>) {
    let (mut stream, _): (TcpStream, _) = listener.accept().await.unwrap();
    let mut received = Vec::new();
    let end = loop {
        assert!(stream.read_buf(&mut received).await.unwrap() > 0, "the head ends");
        if let Some(end) = received.windows(4).position(|it| it == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.unwrap().parse().unwrap();
    while received.len() < end + length {
        assert!(stream.read_buf(&mut received).await.unwrap() > 0, "the body ends");
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    (head, received[end..].to_vec())
}

#[tokio::test]
async fn a_change_becomes_a_trace_whose_stages_add_up_and_the_histogram_leads_to_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (one, two) = (Programmer::start("n1").await, Programmer::start("n2").await);
    let site = Site::start(&[&one, &two], |config| {
        config.otlp = Some(url);
        config.trace_share = 1.0;
    })
    .await;
    site.metric_becomes("pointsman_sli_programmers{state=\"live\"}", 2.0)
        .await;
    let (version, _) = site.endpoint("a").await;
    one.commit(version);
    two.commit(version);
    let (head, body) = tokio::time::timeout(SOON, receive(&listener))
        .await
        .expect("a trace comes");
    if let Ok(file) = std::env::var("POINTSMAN_OTLP_REQUEST") {
        std::fs::write(file, &body).unwrap();
    }
    assert!(
        head.starts_with("post /v1/traces ") && head.contains("application/x-protobuf"),
        "{head}"
    );
    let spans = spans(&body);
    let (whole, below) = spans.split_first().unwrap();
    assert_eq!(whole.name, "change ready");
    assert_eq!(whole.attributes["k8s.service.name"], "web");
    assert_eq!(whole.attributes["k8s.pod.name"], "a");
    let stages = below
        .iter()
        .filter(|it| it.attributes.contains_key("pointsman.stage"));
    assert_eq!(stages.map(|it| it.took).sum::<u64>(), whole.took, "stages add up");
    let nodes: Vec<&str> = below
        .iter()
        .filter_map(|it| it.attributes.get("k8s.node.name"))
        .map(String::as_str)
        .collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    assert!(nodes.contains(&"n1") && nodes.contains(&"n2"), "{nodes:?}");
    assert!(
        below
            .iter()
            .all(|it| it.trace == whole.trace && !it.parent.is_empty())
    );
    let state = site.json("/api/v1/state").await;
    let took = state["changes"][0]["allAfterSeconds"].as_f64().unwrap();
    assert!(
        (took - whole.took as f64 / 1e9).abs() < 1e-6,
        "{took} {}",
        whole.took
    );
    site.metric_becomes("pointsman_sli_traces_total{result=\"sent\"}", 1.0)
        .await;

    let request = "GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n";
    let (_, text) = ask(site.address(), request).await.unwrap();
    let exemplar = format!("# {{trace_id=\"{}\"}}", whole.trace);
    let line = text.lines().find(|line| line.contains(&exemplar));
    assert!(
        line.is_some_and(|it| it.starts_with("pointsman_sli_change_reached_seconds_bucket{share=\"1\"")),
        "{line:?}"
    );
    assert!(text.ends_with("# EOF\n"));
    if let Ok(file) = std::env::var("POINTSMAN_OTLP_REQUEST") {
        std::fs::write(format!("{file}.metrics"), &text).unwrap();
    }
}
