use super::*;
use crate::{Credentials, Target, get, text};
use http::StatusCode;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};

const SOON: Duration = Duration::from_secs(20);

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Both ends of TLS with a certificate of their own.
fn tls() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

#[tokio::test]
async fn questions_are_answered_with_and_without_tls() {
    let (server, client) = tls();
    for (tls, client) in [(None, None), (Some(server), Some(client))] {
        let (listener, address) = listener().await;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let server = Server {
            tls,
            ..Server::default()
        };
        let serving = tokio::spawn(server.serve_forever(listener, |peer| {
            assert!(peer.address.ip().is_loopback());
            |request: Request<Incoming>| async move { text(StatusCode::OK, request.uri().to_string()) }
        }));
        let target = match client {
            Some(client) => Target::secure(address, client),
            None => Target::parse(&format!("http://{address}/p")).unwrap(),
        };
        let answer = target.get("/a?b=c", 64, SOON).await.unwrap();
        assert!(answer.ends_with(b"/a?b=c"), "{answer:?}");
        // Nobody vouches for this server here.
        let url = format!("{scheme}://{address}/d").parse().unwrap();
        let got = get(&url, &[], 64, SOON).await.unwrap();
        assert_eq!(got, (StatusCode::OK, "/d".into()));
        serving.abort();
    }
}

#[tokio::test]
async fn open_requests_are_finished_at_the_end_and_idle_connections_closed() {
    let (listener, address) = listener().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let (asked, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (entered, released) = (asked.clone(), release.clone());
    let serving = tokio::spawn(
        Server::default().serve(listener, async { drop(stopped.await) }, move |_| {
            let (entered, released) = (entered.clone(), released.clone());
            move |_| {
                let (entered, released) = (entered.clone(), released.clone());
                async move {
                    entered.notify_one();
                    released.notified().await;
                    text(StatusCode::OK, "done")
                }
            }
        }),
    );
    let uri = format!("http://{address}/").parse().unwrap();
    let request = tokio::spawn(async move { get(&uri, &[], 64, SOON).await.unwrap() });
    asked.notified().await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    stop.send(()).unwrap();
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap(), 0);
    release.notify_one();
    assert_eq!(request.await.unwrap().1, "done");
    serving.await.unwrap();
}

#[tokio::test]
async fn a_server_of_single_requests_answers_all_who_connected() {
    let (listener, address) = listener().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = Arc::new(AtomicBool::new(false));
    let seen = ended.clone();
    let server = Server {
        requests: Requests::One,
        drain: SOON,
        ..Server::default()
    };
    let serving = tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        let answer = |_: &Peer| |_| async { text(StatusCode::OK, "here") };
        server.serve(listener, stopped, answer).await;
        seen.store(true, Ordering::SeqCst);
    });
    let mut late = TcpStream::connect(address).await.unwrap();
    stop.send(()).unwrap();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!ended.load(Ordering::SeqCst));
    late.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    late.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("here"), "{answer}");
    // Those that connected only to see whether somebody still listens are gone, too.
    serving.await.unwrap();
}

/// The beginning of HTTP/2: a preface and empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn ok(_: &Peer) -> impl Fn(Request<Incoming>) -> std::future::Ready<Response<crate::Body>> + use<> {
    |_| std::future::ready(text(StatusCode::OK, "here"))
}

/// Waits until the server closes the connection.
async fn is_closed(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    let closed = timeout(SOON, stream.read_to_end(&mut rest)).await;
    // Being reset is being closed, too.
    let _ = closed.expect("the connection stays open");
    assert!(!rest.ends_with(b"here"));
}

#[tokio::test]
async fn clients_that_say_nothing_or_too_little_are_dropped() {
    for said in [&b""[..], b"G", b"P", b"GET / HT"] {
        let (listener, address) = listener().await;
        let server = Server {
            head: Duration::from_millis(30),
            ..Server::default()
        };
        let serving = tokio::spawn(server.serve_forever(listener, ok));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(said).await.unwrap();
        is_closed(&mut slow).await;
        serving.abort();
    }
}

#[tokio::test]
async fn a_handshake_alone_holds_no_connection_open() {
    let (server_tls, client_tls) = tls();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    for (protocol, said) in [
        ("http/1.1", &b""[..]),
        ("http/1.1", b"P"),
        ("h2", b""),
        ("h2", b"P"),
        ("h2", HTTP2),
    ] {
        let (mut server_tls, mut client_tls) =
            (ServerConfig::clone(&server_tls), ClientConfig::clone(&client_tls));
        server_tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        client_tls.alpn_protocols = vec![protocol.into()];
        let (listener, address) = listener().await;
        let server = Server {
            tls: Some(Arc::new(server_tls)),
            head: Duration::from_millis(200),
            ..Server::default()
        };
        let serving = tokio::spawn(server.serve_forever(listener, ok));
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client_tls));
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector.connect(name.clone(), stream).await.unwrap();
        stream.write_all(said).await.unwrap();
        is_closed(&mut stream).await;
        serving.abort();
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_stream_goes_on() {
    let (listener, address) = listener().await;
    let server = Server {
        idle: Duration::from_millis(100),
        ..Server::default()
    };
    let serving = tokio::spawn(server.serve_forever(listener, |_| {
        |request: Request<Incoming>| {
            let ticks = futures::stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Some((Bytes::from_static(b"tick\n"), ()))
            });
            std::future::ready(match request.uri().path() {
                "/watch" => crate::stream("text/plain", ticks),
                _ => text(StatusCode::OK, "once"),
            })
        }
    }));
    let watching = tokio::spawn(async move {
        let mut answer = Target::at(address).follow("/watch", SOON).await.unwrap().1;
        let mut ticks = 0;
        while ticks < 20 {
            assert!(answer.next(|_| ticks += 1).await.unwrap());
        }
    });
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    is_closed(&mut idle).await;
    watching.await.unwrap();
    serving.abort();
}

#[tokio::test]
async fn silent_connections_make_room_and_more_than_a_share_is_refused() {
    let (listener, address) = listener().await;
    let limits = Limits {
        total: 64,
        kept: 0,
        source: 8,
    };
    let registry = pointsman_telemetry::Registry::new();
    let server = Server {
        slots: crate::Connections::register(&registry).slots("test", limits),
        ..Server::default()
    };
    let serving = tokio::spawn(server.serve_forever(listener, ok));
    // Two silent ones may stay.
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    for stream in &mut silent[..8] {
        is_closed(stream).await;
    }
    let ask = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        (stream, String::from_utf8(head.into()).unwrap())
    };
    let mut open = Vec::new();
    for _ in 0..8 {
        let (stream, head) = ask().await;
        assert_eq!(head, "HTTP/1.1 200");
        open.push(stream);
    }
    assert_eq!(ask().await.1, "HTTP/1.1 429");
    let text = registry.render();
    for line in [
        r#"pointsman_http_connections{listener="test",state="anonymous"} 8"#,
        r#"pointsman_http_connections_closed_total{listener="test",reason="source_limit"}"#,
    ] {
        assert!(text.contains(line), "{text}");
    }
    drop(open);
    while ask().await.1 != "HTTP/1.1 200" {
        tokio::task::yield_now().await;
    }
    serving.abort();
}

#[tokio::test]
async fn a_token_is_sent_over_tls_and_to_nobody_else() {
    let file = std::env::temp_dir().join(format!("token-{}", std::process::id()));
    std::fs::write(&file, "secret\n").unwrap();
    let (server_tls, _) = tls();
    for (tls, expected) in [(Some(server_tls), "Bearer secret"), (None, "nothing")] {
        let (listener, address) = listener().await;
        let server = Server {
            tls,
            ..Server::default()
        };
        let serving = tokio::spawn(server.serve_forever(listener, |_| {
            |request: Request<Incoming>| {
                let shown = request.headers().get(header::AUTHORIZATION);
                let shown = shown
                    .map_or("nothing", |shown| shown.to_str().unwrap())
                    .to_owned();
                std::future::ready(text(StatusCode::OK, shown))
            }
        }));
        let target = Target::at(address).with_credentials(Credentials::Token(file.clone()));
        let answer = target.get("/", 64, SOON).await.unwrap();
        assert_eq!(std::str::from_utf8(&answer).unwrap(), expected);
        serving.abort();
    }
    std::fs::remove_file(file).unwrap();
}

/// Asks over HTTP/2, all on one connection.
async fn http2(
    address: SocketAddr,
    client_tls: &ClientConfig,
) -> hyper::client::conn::http2::SendRequest<http_body_util::Empty<Bytes>> {
    let mut client_tls = client_tls.clone();
    client_tls.alpn_protocols = vec![b"h2".to_vec()];
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client_tls));
    let stream = TokioIo::new(connector.connect(name, stream).await.unwrap());
    let executor = hyper_util::rt::TokioExecutor::new();
    let (client, connection) = hyper::client::conn::http2::handshake(executor, stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_one_connection_neither_wait_for_each_other_nor_fall_together() {
    let (mut server_tls, client_tls) = tls();
    Arc::make_mut(&mut server_tls).alpn_protocols = vec![b"h2".to_vec()];
    let (listener, address) = listener().await;
    let server = Server {
        tls: Some(server_tls),
        ..Server::default()
    };
    let (computing, (go_on, goes_on)) = (Arc::new(Notify::new()), std::sync::mpsc::channel());
    let (began, goes_on) = (computing.clone(), Arc::new(std::sync::Mutex::new(goes_on)));
    let serving = tokio::spawn(server.serve_forever(listener, move |_| {
        let (began, goes_on) = (began.clone(), goes_on.clone());
        move |request: Request<Incoming>| {
            let (began, goes_on) = (began.clone(), goes_on.clone());
            async move {
                match request.uri().path() {
                    "/computes" => {
                        began.notify_one();
                        goes_on.lock().unwrap().recv().unwrap();
                    }
                    "/panics" => panic!("as asked"),
                    _ => {}
                }
                text(StatusCode::OK, "here")
            }
        }
    }));
    let client = http2(address, &client_tls).await;
    let ask_by = |method: &str, path: &str| {
        let uri = format!("https://{address}{path}");
        let request = Request::builder().method(method).uri(uri);
        let request = request.body(http_body_util::Empty::new()).unwrap();
        client.clone().send_request(request)
    };
    let ask = |path: &str| ask_by("GET", path);
    let slow = tokio::spawn(ask("/computes"));
    computing.notified().await;
    let head = ask_by("HEAD", "/").await.unwrap();
    assert_eq!(head.headers()["content-length"], "4");
    let body = BodyExt::collect(head.into_body()).await;
    assert!(body.expect("the stream ends well").to_bytes().is_empty());
    assert_eq!(ask("/").await.unwrap().status(), 200);
    assert_eq!(ask("/panics").await.unwrap().status(), 500);
    go_on.send(()).unwrap();
    assert_eq!(slow.await.unwrap().unwrap().status(), 200);
    serving.abort();
}
