//! Streams as other clients than kubectl use them, and as some abuse them.

use crate::lab::{Lab, on_a_node, pod_path};
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, Method};
use pointsman_harness::eventually;
use pointsman_http::{IDLE, OnUpgrade, Proof, Target, Upgraded, upgraded, with_any_certificate};
use pointsman_spdy::{Decoder, Encoder, Frame};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

/// How long a client waits on a busy machine.
const SOON: Duration = Duration::from_secs(30);

const SOCKET: [(&str, &str); 4] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];
const SPDY: [(&str, &str); 3] = [
    ("connection", "Upgrade"),
    ("upgrade", "SPDY/3.1"),
    ("x-stream-protocol-version", "portforward.k8s.io"),
];

/// Somebody who may edit in the namespace.
struct Client {
    target: Target,
    token: String,
}

impl Client {
    async fn new(lab: &Lab) -> Self {
        let http = &lab.http;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "editor" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
            "subjects": [{ "kind": "ServiceAccount", "name": "default", "namespace": "default" }],
        });
        let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
        http.post(path, &binding).await.expect(201);
        let asked = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let answer = http.post(path, &asked).await.expect(201);
        let tls = Arc::new(with_any_certificate(Proof::Key));
        Self {
            target: Target::secure(lab.server.address().parse().unwrap(), tls),
            token: answer["status"]["token"].as_str().unwrap().to_owned(),
        }
    }

    /// A connection of streams, or the code of the refusal.
    async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Upgraded, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        map.insert("authorization", format!("Bearer {}", self.token).parse().unwrap());
        let answer = self.target.pass(method, path, map, Default::default()).await;
        let mut answer = answer.unwrap();
        match answer.status().as_u16() {
            101 => {
                let upgrade = answer.extensions_mut().remove::<OnUpgrade>().unwrap();
                Ok(upgraded(upgrade, IDLE).await.unwrap())
            }
            code => Err(code),
        }
    }

    async fn exec(&self, protocol: &str, query: &str) -> WebSocketStream<Upgraded> {
        let path = format!("{}/exec?{query}", pod_path("host"));
        let mut headers = SOCKET.to_vec();
        headers.push(("sec-websocket-protocol", protocol));
        let stream = self.open(Method::GET, &path, &headers).await.unwrap();
        WebSocketStream::from_raw_socket(stream, Role::Client, None).await
    }

    async fn forward(&self) -> Result<Upgraded, u16> {
        let path = format!("{}/portforward", pod_path("host"));
        self.open(Method::POST, &path, &SPDY).await
    }
}

/// What came on a channel until the end, and the code that closed the connection.
async fn rest(socket: &mut WebSocketStream<Upgraded>) -> (Vec<u8>, Value, u16) {
    let (mut out, mut status, mut code) = (Vec::new(), Value::Null, 0);
    while let Some(Ok(message)) = timeout(SOON, socket.next()).await.expect("the connection ends") {
        match message {
            Message::Binary(bytes) if bytes.first() == Some(&1) => out.extend_from_slice(&bytes[1..]),
            Message::Binary(bytes) if bytes.first() == Some(&3) => {
                status = serde_json::from_slice(&bytes[1..]).unwrap();
            }
            Message::Close(Some(close)) => code = close.code.into(),
            _ => {}
        }
    }
    (out, status, code)
}

async fn lab_with_a_pod(lab: &Lab) -> Client {
    lab.pod("host", json!({ "command": ["sleep", "3600"] })).await;
    lab.ready("host").await;
    Client::new(lab).await
}

#[test]
fn channels_of_both_versions_carry_a_command() {
    on_a_node(async |lab| {
        let client = lab_with_a_pod(lab).await;
        let message = |bytes: &[u8]| Message::Binary(bytes.to_vec().into());
        let mut newer = client
            .exec(
                "v4.channel.k8s.io,v5.channel.k8s.io",
                "command=cat&stdin=1&stdout=1",
            )
            .await;
        newer.send(message(b"\0hello ")).await.unwrap();
        newer.send(message(b"\0there")).await.unwrap();
        // The end of the input.
        newer.send(message(b"\xff\0")).await.unwrap();
        let (out, status, code) = rest(&mut newer).await;
        assert_eq!(
            (out.as_slice(), &status["status"], code),
            (&b"hello there"[..], &json!("Success"), 1000)
        );

        let query = "command=sh&command=-c&command=read+a%3B+echo+%24a%3B+exit+5&stdin=true&stdout=true";
        let mut older = client.exec("v4.channel.k8s.io", query).await;
        older.send(message(b"\0word\n")).await.unwrap();
        let (out, status, code) = rest(&mut older).await;
        assert_eq!((out.as_slice(), code), (&b"word\n"[..], 1000));
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            status["details"]["causes"],
            json!([{ "reason": "ExitCode", "message": "5" }])
        );

        // Who breaks the rules hears which one, and his command ends.
        for (bytes, expected) in [
            (vec![0; (1 << 20) + 1], 1009),
            (b"\x09hello".to_vec(), 1002),
            (Vec::new(), 1002),
        ] {
            let mut wrong = client
                .exec("v5.channel.k8s.io", "command=cat&stdin=1&stdout=1")
                .await;
            let _ = wrong.send(message(&bytes)).await;
            assert_eq!(rest(&mut wrong).await.2, expected, "{} bytes", bytes.len());
        }
        let refused = async |protocol: &'static str, query: &str| {
            let path = format!("{}/exec?{query}", pod_path("host"));
            let mut headers = SOCKET.to_vec();
            headers.push(("sec-websocket-protocol", protocol));
            client.open(Method::GET, &path, &headers).await.err()
        };
        assert_eq!(
            refused("channel.k8s.io", "command=true&stdout=1").await,
            Some(400)
        );
        assert_eq!(refused("v5.channel.k8s.io", "stdout=1").await, Some(400));
        assert_eq!(refused("v5.channel.k8s.io", "command=true").await, Some(400));
        assert_eq!(
            refused("v5.channel.k8s.io", "command=true&stdout=1&container=x").await,
            Some(400)
        );
    });
}

fn half(stream: u32) -> Frame {
    let header = |name: &str, value: String| (name.to_owned(), value);
    Frame::Open {
        stream,
        headers: vec![
            header("streamtype", "data".into()),
            header("port", "80".into()),
            header("requestid", stream.to_string()),
        ],
        last: false,
    }
}

/// Frames until the connection ends or `enough` of them have come.
async fn frames(stream: &mut Upgraded, enough: impl Fn(&[Frame]) -> bool) -> Vec<Frame> {
    let (mut decoder, mut frames, mut buffer) = (Decoder::default(), Vec::new(), vec![0; 4096]);
    while !enough(&frames) {
        let read = timeout(SOON, stream.read(&mut buffer)).await;
        let length = read.expect("something comes").unwrap_or(0);
        if length == 0 {
            break;
        }
        decoder.push(&buffer[..length]);
        while let Some(frame) = decoder.next().unwrap() {
            frames.push(frame);
        }
    }
    frames
}

#[test]
fn no_client_gets_more_than_its_share_of_streams() {
    on_a_node(async |lab| {
        let client = lab_with_a_pod(lab).await;
        // Halves of connections, whose other halves never come.
        let mut greedy = client.forward().await.unwrap();
        let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
        for number in 0..150 {
            encoder.write(&half(2 * number + 1), &mut bytes);
        }
        encoder.write(&Frame::Ping(7), &mut bytes);
        greedy.write_all(&bytes).await.unwrap();
        let is_reset = |frame: &&Frame| matches!(frame, Frame::Reset { .. });
        let resets = |frames: &[Frame]| frames.iter().filter(is_reset).count();
        let got = frames(&mut greedy, |frames| {
            resets(frames) == 50 && frames.contains(&Frame::Ping(7))
        })
        .await;
        assert_eq!(resets(&got), 50, "{got:?}");

        // What is no SPDY, or too large, ends the connection.
        for bytes in [
            &b"\x80\x03\0\x01\0\xff\xff\xff"[..],
            b"GET / HTTP/1.1\r\n\r\n\x80\x01xxxxxxxxxxxxxxxxxxxx\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            let mut wrong = client.forward().await.unwrap();
            wrong.write_all(bytes).await.unwrap();
            let _ = wrong.shutdown().await;
            frames(&mut wrong, |_| false).await;
        }

        // Connections that do nothing: there is an end to them, and a place again when they go.
        let mut held = Vec::new();
        let refused = loop {
            match client.forward().await {
                Ok(stream) => held.push(stream),
                Err(code) => break code,
            }
            assert!(held.len() <= 256, "there is no end to them");
        };
        assert!(matches!(refused, 429 | 503), "{refused}");
        drop(held);
        eventually("there is a place again", async || {
            client.forward().await.ok().map(drop)
        })
        .await;
    });
}

#[test]
fn programs_are_asked_through_the_api_server() {
    on_a_node(async |lab| {
        let script = "import http.server\n\
                      class H(http.server.BaseHTTPRequestHandler):\n\
                      \x20def answer(s):\n\
                      \x20 n=int(s.headers.get('Content-Length') or 0)\n\
                      \x20 b=(s.command+' '+s.path+'\\n'+str(s.headers)+s.rfile.read(n).decode()).encode()\n\
                      \x20 page=s.path=='/page'\n\
                      \x20 if page: b=b'<p>/a <a class=x href=\"/a\">'\n\
                      \x20 s.send_response(203); s.send_header('X-Own','yes'); s.send_header('Location','/next')\n\
                      \x20 s.send_header('Content-Type','text/html; charset=utf-8' if page else 'text/odd')\n\
                      \x20 s.send_header('Content-Length',str(len(b))); s.end_headers(); s.wfile.write(b)\n\
                      \x20do_GET=do_POST=do_DELETE=answer\n\
                      \x20def log_message(*a): pass\n\
                      http.server.ThreadingHTTPServer(('0.0.0.0',8081),H).serve_forever()";
        let program = json!({
            "command": ["python3", "-c", script], "ports": [{ "containerPort": 8081 }],
            "readinessProbe": { "tcpSocket": { "port": 8081 } },
        });
        lab.pod("host", program).await;
        let pod = lab.ready("host").await;
        let http = &lab.http;
        let namespace = "/api/v1/namespaces/default";
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
            "spec": { "ports": [{ "name": "web", "port": 80, "targetPort": 8081 }] },
        });
        http.post(&format!("{namespace}/services"), &service)
            .await
            .expect(201);
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "s-1", "labels": { "kubernetes.io/service-name": "s" } },
            "ports": [{ "name": "web", "port": 8081 }],
            "endpoints": [{ "addresses": [pod["status"]["podIP"]], "conditions": { "ready": true } }],
        });
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        http.post(slices, &slice).await.expect(201);
        for place in [
            "pods/host",
            "pods/host:8081",
            "services/s",
            "services/http:s:web",
            "services/s:80",
        ] {
            let path = format!("{namespace}/{place}/proxy/a%2Fb/?x=%20y");
            let answer = http
                .raw(Method::POST, &path, &[("x-mine", "1")], b"body".to_vec())
                .await;
            assert_eq!((answer.code, answer.header("x-own")), (203, "yes"), "{place}");
            assert_eq!(answer.header("content-type"), "text/odd");
            let text = &answer.text;
            assert!(text.starts_with("POST /a%2Fb/?x=%20y\n"), "{text}");
            assert!(
                text.ends_with("body") && text.to_lowercase().contains("x-mine: 1"),
                "{text}"
            );
        }
        // Links lead through the API server again.
        for place in ["pods/host", "services/s:web"] {
            let prefix = format!("{namespace}/{place}/proxy");
            let page = http.get(&format!("{prefix}/page")).await;
            assert_eq!(page.text, format!("<p>/a <a class=x href=\"{prefix}/a\">"));
            assert_eq!(page.header("location"), format!("{prefix}/next"));
        }
        // Credentials are not for programs.
        let client = Client::new(lab).await;
        let path = format!("{namespace}/pods/host/proxy/");
        let credential = format!("Authorization: Bearer {}", client.token);
        let mut curl = Command::new("curl");
        curl.args(["-sk", "-H", &credential, "-H", "X-Mine: 1"]);
        curl.arg(format!("https://{}{path}", lab.server.address()));
        let body = String::from_utf8(curl.output().await.unwrap().stdout).unwrap();
        assert!(body.to_lowercase().contains("x-mine: 1"), "{body}");
        assert!(!body.contains(&client.token), "{body}");

        let metrics = lab
            .kubectl(&["get", "--raw", "/api/v1/nodes/n1/proxy/metrics"])
            .await;
        assert!(metrics.contains("kubelet_running_pods"));
        for node in ["n1", "n1:10250"] {
            let logs = format!("/api/v1/nodes/{node}/proxy/logs");
            assert_eq!(http.get(&logs).await.header("location"), "logs/");
            let listed = lab.kubectl(&["get", "--raw", &format!("{logs}/")]).await;
            assert!(listed.contains("<pre>"), "{listed}");
            let outside = http.get(&format!("{logs}/%2e%2e/%2e%2e/etc/passwd")).await;
            assert_eq!(outside.code, 404, "{}", outside.text);
        }
        let refused = async |path: &str, code: u16, reason: &str| {
            http.get(&format!("{path}/proxy/")).await.refused(code, reason);
        };
        refused("/api/v1/nodes/n1:22", 400, "BadRequest").await;
        refused(&format!("{namespace}/services/s:99"), 503, "ServiceUnavailable").await;
        refused(&format!("{namespace}/pods/host:9"), 503, "ServiceUnavailable").await;
        refused(&format!("{namespace}/pods/nobody"), 404, "NotFound").await;
        let upgrade = client.open(Method::GET, &path, &SOCKET).await;
        assert_eq!(upgrade.err(), Some(400), "connections are not upgraded there");
        let node = client
            .open(Method::GET, "/api/v1/nodes/n1/proxy/metrics", &[])
            .await;
        assert_eq!(
            node.err(),
            Some(403),
            "who may edit in a namespace may not ask nodes"
        );
    });
}
