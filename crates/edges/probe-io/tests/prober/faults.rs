//! Servers that misbehave.

use crate::lab::{Lab, Server, http_get, quick, read_head, respond};
use pointsman_probe_io::{Config, Verdict};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a probe with a timeout of 300 ms says about a server, and how long it takes.
async fn judge(server: &Server, handler: Value) -> (Verdict, String, Duration) {
    let mut lab = Lab::new();
    let begin = Instant::now();
    let mut probe = quick(handler);
    probe["timeoutMilliseconds"] = json!(-700);
    // Both kinds at once: readiness tells of success, liveness of failure.
    lab.run(
        &server.port().to_string(),
        json!({"readinessProbe": probe, "livenessProbe": probe}),
    );
    let (_, _, verdict, message) = lab.verdict().await;
    (verdict, message, begin.elapsed())
}

async fn fails(server: Server, says: &str) {
    let (verdict, message, took) = judge(&server, http_get(server.port())).await;
    assert_eq!(verdict, Verdict::Failure);
    assert!(message.contains(says), "{message}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn a_server_that_hangs_fails_by_its_timeout() {
    let server = Server::raw(|stream| {
        std::thread::sleep(Duration::from_secs(5));
        drop(stream);
    });
    let (verdict, message, took) = judge(&server, http_get(server.port())).await;
    assert_eq!(verdict, Verdict::Failure);
    assert!(message.ends_with("no complete answer within 300ms"), "{message}");
    assert!((290..1500).contains(&took.as_millis()), "{took:?}");
}

fn drip(stream: &mut TcpStream, text: &str) {
    for byte in text.bytes().chain(std::iter::repeat(b'x')) {
        if stream.write_all(&[byte]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn servers_that_drip_bytes_fail_in_the_head_and_in_the_body() {
    fails(
        Server::http(|_, stream| drip(stream, "HTTP/1.1 200 OK\r\nX: ")),
        "no complete answer",
    )
    .await;
    fails(
        Server::http(|_, stream| drip(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")),
        "no complete answer",
    )
    .await;
}

#[tokio::test]
async fn redirects_that_never_end_fail() {
    fails(
        Server::http(|_, stream| respond(stream, 302, "Location: /again\r\n", "")),
        "stopped after 10 redirects",
    )
    .await;
    fails(
        Server::http(|_, stream| respond(stream, 302, "Location: ftp://x/\r\n", "")),
        "unsupported protocol scheme",
    )
    .await;
}

#[tokio::test]
async fn an_endless_body_is_cut_off_and_its_status_counts() {
    let server = Server::http(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    assert_eq!(judge(&server, http_get(server.port())).await.0, Verdict::Success);
}

#[tokio::test]
async fn endless_heads_and_foreign_protocols_fail() {
    let head = Server::http(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream
            .write_all(b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n")
            .is_ok()
        {}
    });
    fails(head, "HTTP response").await;
    let long = Server::http(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    fails(long, "larger than 64 KiB").await;
    fails(
        Server::raw(|mut stream| drop(stream.write_all(b"220 mail.local ESMTP\r\n"))),
        "malformed HTTP response",
    )
    .await;
    fails(Server::raw(drop), "").await;
    fails(
        Server::http(|_, stream| {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"))
        }),
        "unexpected EOF",
    )
    .await;
}

#[tokio::test]
async fn broken_tls_fails() {
    let https = |server: &Server| json!({"httpGet": {"port": server.port(), "scheme": "HTTPS"}});
    for answer in [
        b"HTTP/1.1 400 Bad\r\n\r\n".to_vec(),
        vec![0x16, 3, 3, 0, 2, 99, 99],
        vec![0x15, 3, 3, 0, 2, 2, 40],
    ] {
        let server = Server::raw(move |mut stream| {
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(&answer);
            let _ = stream.read(&mut [0; 512]);
        });
        let (verdict, message, _) = judge(&server, https(&server)).await;
        assert_eq!(verdict, Verdict::Failure);
        assert!(message.starts_with("Get \"https://127.0.0.1:"), "{message}");
    }
    let silent = Server::raw(|mut stream| while stream.read(&mut [0; 512]).is_ok_and(|length| length > 0) {});
    let (verdict, message, _) = judge(&silent, https(&silent)).await;
    assert_eq!(verdict, Verdict::Failure);
    assert!(message.contains("no complete answer"), "{message}");
}

fn tls_server(answer: &'static [u8]) -> Server {
    let key = rcgen::generate_simple_self_signed(vec!["expired.invalid".to_owned()]).expect("a certificate");
    let private = rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("protocol versions")
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)
        .expect("a server");
    let config = Arc::new(config);
    Server::raw(move |mut stream| {
        let Ok(mut session) = rustls::ServerConnection::new(config.clone()) else {
            return;
        };
        let mut tls = rustls::Stream::new(&mut session, &mut stream);
        let _ = tls.read(&mut [0; 1024]);
        let _ = tls.write_all(answer);
        session.send_close_notify();
        let _ = session.complete_io(&mut stream);
    })
}

#[tokio::test]
async fn https_needs_no_certificate_that_anybody_vouches_for() {
    let server = tls_server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let https = json!({"httpGet": {"port": server.port(), "scheme": "HTTPS"}, "timeoutSeconds": 5});
    assert_eq!(judge(&server, https).await.0, Verdict::Success);
    let server = tls_server(b"HTTP/1.0 503 No\r\n\r\nuntil the end");
    let https = json!({"httpGet": {"port": server.port(), "scheme": "HTTPS"}, "timeoutSeconds": 5});
    let (verdict, message, _) = judge(&server, https).await;
    assert_eq!(
        (verdict, message.as_str()),
        (Verdict::Failure, "HTTP probe failed with statuscode: 503")
    );
}

#[tokio::test]
async fn plain_http_may_redirect_to_https() {
    let secure = tls_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let location = format!("Location: https://127.0.0.1:{}/\r\n", secure.port());
    let server = Server::http(move |_, stream| respond(stream, 301, &location, ""));
    let probe = json!({"httpGet": {"port": server.port()}, "timeoutSeconds": 5});
    assert_eq!(judge(&server, probe).await.0, Verdict::Success);
}

#[tokio::test]
async fn servers_that_hang_do_not_hold_up_the_others_even_when_connections_run_out() {
    let hanging = Server::raw(|stream| {
        let _ = read_head(&stream);
        std::thread::sleep(Duration::from_secs(20));
    });
    let good = Server::status(200);
    let config = Config {
        max_connections: 4,
        ..Config::default()
    };
    let mut lab = Lab::with(config, Arc::new(pointsman_probe_io::NoExec));
    for at in 0..12 {
        let mut probe = http_get(hanging.port());
        probe["timeoutMilliseconds"] = json!(-900);
        probe["failureThreshold"] = json!(1000);
        lab.run(&format!("hanging-{at}"), json!({"readinessProbe": probe}));
    }
    lab.run("good", json!({"readinessProbe": http_get(good.port())}));
    let (uid, _, verdict, _) = lab.verdict().await;
    assert_eq!((uid.as_str(), verdict), ("good", Verdict::Success));
    // Checks that wait for a connection have not begun, so their timeouts do not run.
    assert!(hanging.accepted() >= 12);
}
