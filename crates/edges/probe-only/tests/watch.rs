//! Reports of probes and answers to writes leave the watch of pods alone: it is opened once, however many pass.

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pointsman_api_client::connect::connect;
use pointsman_probe_io::{Config as ProbeConfig, Policy};
use pointsman_probe_only::{ANNOTATION, Config, GATE};
use pointsman_telemetry::Registry;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

const PODS: usize = 20;
const WRITES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// An API server with the pods of one node, and the application of all of them, which answers well and badly in
/// turn.
struct Script {
    address: SocketAddr,
    lists: AtomicUsize,
    watches: AtomicUsize,
    writes: AtomicUsize,
    checks: [AtomicUsize; PODS],
}

impl Script {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let script = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            lists: AtomicUsize::new(0),
            watches: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            checks: Default::default(),
        });
        let serving = script.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let script = serving.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let answer = script.answer(&request);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        script
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let uri = request.uri();
        let watches = uri.query().is_some_and(|query| query.contains("watch="));
        let parts: Vec<&str> = uri.path().split('/').skip(1).collect();
        match (request.method(), parts.as_slice()) {
            (_, ["check", index]) => {
                let checks = &self.checks[index.parse::<usize>().unwrap()];
                let well = checks.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
                let status = if well {
                    StatusCode::OK
                } else {
                    StatusCode::INTERNAL_SERVER_ERROR
                };
                respond(status, &json!({}))
            }
            (&Method::GET, ["api", "v1", "pods"]) if watches => {
                self.watches.fetch_add(1, Ordering::SeqCst);
                self.watch()
            }
            (&Method::GET, ["api", "v1", "pods"]) => {
                self.lists.fetch_add(1, Ordering::SeqCst);
                let items: Vec<Value> = (0..PODS).map(|index| self.pod(index, 1)).collect();
                respond(
                    StatusCode::OK,
                    &json!({"metadata": {"resourceVersion": "1"}, "items": items}),
                )
            }
            (&Method::PATCH, ["api", "v1", "namespaces", "default", "pods", name, "status"]) => {
                let index = name.strip_prefix("web-").unwrap().parse().unwrap();
                let version = self.writes.fetch_add(1, Ordering::SeqCst) + 2;
                respond(StatusCode::OK, &self.pod(index, version))
            }
            _ => respond(StatusCode::CREATED, &json!({"metadata": {"name": "event"}})),
        }
    }

    /// All pods, the end of the list, and then nothing more.
    fn watch(&self) -> Response<Body> {
        let line =
            |kind: &str, object: Value| Bytes::from(format!("{}\n", json!({"type": kind, "object": object})));
        let mut lines: Vec<Bytes> = (0..PODS).map(|index| line("ADDED", self.pod(index, 1))).collect();
        let metadata = json!({"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}});
        lines.push(line("BOOKMARK", json!({"kind": "Pod", "metadata": metadata})));
        let frames = futures::stream::iter(lines).chain(futures::stream::pending());
        let body = StreamBody::new(frames.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes))));
        Response::new(body.boxed_unsync())
    }

    fn pod(&self, index: usize, version: usize) -> Value {
        let probe = json!({
            "httpGet": {"port": self.address.port(), "path": format!("/check/{index}")},
            "periodSeconds": 1, "periodMilliseconds": -800, "failureThreshold": 1,
        });
        let name = format!("web-{index}");
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": version.to_string(),
                "annotations": {ANNOTATION: probe.to_string()}},
            "spec": {"nodeName": "n1", "readinessGates": [{"conditionType": GATE}], "containers": [{"name": "web"}]},
            "status": {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [
                {"name": "web", "containerID": "1", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
            ]},
        })
    }
}

fn respond(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = status;
    response
}

#[tokio::test]
async fn the_watch_of_pods_is_opened_once_however_many_reports_pass() {
    let script = Script::start().await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let server = format!("http://{}", script.address);
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let config = Config {
        node_name: "n1".to_owned(),
        probes: ProbeConfig {
            policy: Policy::Always,
            ..ProbeConfig::default()
        },
        reading: Default::default(),
    };
    let source = pointsman_api_client::Source::Kubeconfig(kubeconfig);
    let client = connect(&source, "pointsman-probe-only").await.unwrap();
    let (stop, stopping) = watch::channel(false);
    let running =
        tokio::spawn(
            async move { pointsman_probe_only::run(config, client, &Registry::new(), stopping).await },
        );
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while script.writes.load(Ordering::SeqCst) < WRITES {
        assert!(tokio::time::Instant::now() < deadline, "verdicts are written");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.send_replace(true);
    running.await.unwrap().unwrap();
    let asked = [&script.lists, &script.watches].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(
        asked,
        [0, 1],
        "lists and watches while {WRITES} verdicts were written"
    );
}
