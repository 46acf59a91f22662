//! A collector, its API server and what it answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pointsman_api_client::connect::connect;
use pointsman_api_client::{Client, Patch, Resource, Source};
use pointsman_collector::{Config, Running, start};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::programmer::Programmer;
use pointsman_harness::{SOON, Server};

/// Everything that a test needs.
pub struct Site {
    _server: Server,
    pub client: Client,
    pub config: Config,
    pub collector: Option<Running>,
}

impl Site {
    /// Starts an API server and a collector that knows these programmers.
    pub async fn start(programmers: &[&Programmer], change: impl FnOnce(&mut Config)) -> Self {
        let server = Server::start(&[]).await;
        let admin = server.kubeconfig();
        let client = connect(&Source::Kubeconfig(admin.clone()), "test").await.unwrap();
        let own = admin.with_file_name("kubeconfigs").join("sli.kubeconfig");
        let mut config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            programmers: programmers.iter().map(|it| it.listed()).collect(),
            scrape_interval: Duration::from_millis(200),
            ..Config::new(Source::Kubeconfig(own))
        };
        change(&mut config);
        let collector = start(config.clone()).await.unwrap();
        Self {
            _server: server,
            client,
            config,
            collector: Some(collector),
        }
    }

    /// Where the collector is.
    pub fn address(&self) -> SocketAddr {
        self.collector.as_ref().expect("the collector runs").address
    }

    /// Ends the collector as a service manager does.
    pub async fn stop_collector(&mut self) {
        self.collector.take().expect("the collector runs").stop().await;
    }

    /// Creates an object in `default`; returns its version.
    pub async fn create(&self, resource: Resource, object: Value) -> u64 {
        let api = self.client.api(resource, Some("default"));
        version(&api.create(object.to_string().into_bytes()).await.unwrap())
    }

    /// Changes a slice in `default`; returns its new version.
    pub async fn patch_slice(&self, name: &str, patch: Value) -> u64 {
        let api = self.client.api(Resource::ENDPOINT_SLICES, Some("default"));
        let patch = Patch::Merge(patch.to_string().into_bytes());
        version(&api.patch(name, patch).await.unwrap())
    }

    /// Creates a pod and a slice that says it is ready; returns the slice's version.
    pub async fn endpoint(&self, pod: &str) -> (u64, String) {
        let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod },
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "host" }] } });
        let api = self.client.api(Resource::PODS, Some("default"));
        let created: Value = api.create(object.to_string().into_bytes()).await.unwrap();
        let uid = created["metadata"]["uid"].as_str().unwrap().to_owned();
        let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": pod, "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4", "ports": [], "endpoints": endpoints(pod, &uid, true) });
        (self.create(Resource::ENDPOINT_SLICES, slice).await, uid)
    }

    /// Marks the endpoint of a pod as terminating; returns the slice's version.
    pub async fn terminate(&self, pod: &str, uid: &str) -> u64 {
        let patch = json!({ "endpoints": endpoints(pod, uid, false) });
        self.patch_slice(pod, patch).await
    }

    /// What a path answers: code and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        get(self.address(), path).await.unwrap()
    }

    /// The same as JSON; it has to succeed.
    pub async fn json(&self, path: &str) -> Value {
        let (code, body) = self.get(path).await;
        assert_eq!(code, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Waits until the state shows something.
    pub async fn until<T>(&self, what: &str, find: impl Fn(&Value) -> Option<T>) -> T {
        let deadline = Instant::now() + SOON;
        loop {
            let state = self.json("/api/v1/state").await;
            if let Some(found) = find(&state) {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}: {state:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The value of a series.
    pub async fn metric(&self, series: &str) -> f64 {
        let (_, text) = self.get("/metrics").await;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or(-1.0)
    }

    /// Waits until a series has this value.
    pub async fn metric_becomes(&self, series: &str, value: f64) {
        let deadline = Instant::now() + SOON;
        while self.metric(series).await != value {
            assert!(Instant::now() < deadline, "{series} did not become {value}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What a path at an address answers: code and body.
pub async fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    ask(address, &format!("GET {path} HTTP/1.0\r\n\r\n")).await
}

/// The same for a client that looks for this host.
pub async fn get_as(address: SocketAddr, host: &str, path: &str) -> std::io::Result<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    ask(address, &request).await
}

/// What a request is answered with: code and body.
pub async fn ask(address: SocketAddr, request: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
}

pub fn endpoints(pod: &str, uid: &str, ready: bool) -> Value {
    json!([{ "addresses": ["10.0.0.5"], "nodeName": "n1",
        "conditions": { "ready": ready, "serving": true, "terminating": !ready },
        "targetRef": { "kind": "Pod", "namespace": "default", "name": pod, "uid": uid } }])
}

fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap();
    text.parse().unwrap()
}
