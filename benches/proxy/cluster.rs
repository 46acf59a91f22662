//! The API server, and what it is filled with.

use crate::Size;
use pointsman_api_client::{ApiError, Client, DeleteOptions, Resource};
use pointsman_benches::server as benches;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;
use tokio::task::JoinSet;

/// Where the server listens; each contender's namespace has a route there.
pub const SERVER: &str = "10.200.0.1";
/// Requests at once while filling.
const FILLERS: usize = 64;

/// A filled API server.
pub struct Server {
    server: benches::Server,
    pub client: Client,
    pub size: Size,
    links: usize,
    /// How often each Service's first endpoint was replaced, so that every change is one.
    replaced: Mutex<HashMap<usize, usize>>,
}

impl Server {
    pub async fn start(program: &str, size: Size) -> Self {
        ip(&format!("addr replace {SERVER}/32 dev lo"));
        let range = "--service-cluster-ip-range=10.96.0.0/12";
        let server = benches::Server::start_at(program, format!("{SERVER}:6443"), &[range]).await;
        let server = Self {
            client: server.client.clone(),
            server,
            size,
            links: 0,
            replaced: Mutex::default(),
        };
        server.fill().await;
        server
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig()
    }

    /// A file beside the server's data.
    pub fn file(&self, name: &str) -> PathBuf {
        self.server.file(name)
    }

    /// A number for one more namespace.
    pub fn next_link(&mut self) -> usize {
        self.links += 1;
        self.links
    }

    pub async fn stop(mut self) {
        self.server.process.kill().await.unwrap();
    }

    async fn fill(&self) {
        let began = Instant::now();
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
            "status": { "addresses": [{ "type": "InternalIP", "address": "192.168.0.2" }] } });
        self.create(Resource::NODES, None, node).await;
        let mut running = JoinSet::new();
        for number in 0..self.size.services {
            if running.len() >= FILLERS {
                running.join_next().await.unwrap().unwrap();
            }
            let (client, endpoints) = (self.client.clone(), self.size.endpoints);
            running.spawn(async move {
                create(&client, Resource::SERVICES, Some("default"), service(number)).await;
                create(
                    &client,
                    Resource::ENDPOINT_SLICES,
                    Some("default"),
                    slice(number, endpoints, 0),
                )
                .await;
            });
        }
        running.join_all().await;
        eprintln!("{}: filled in {:.1} s", self.size, began.elapsed().as_secs_f64());
    }

    async fn create(&self, resource: Resource, namespace: Option<&str>, object: Value) {
        create(&self.client, resource, namespace, object).await;
    }

    /// Replaces one endpoint of a Service; returns the version of the write.
    pub async fn change_endpoint(&self, number: usize) -> u64 {
        let round = {
            let mut replaced = self.replaced.lock().unwrap();
            let round = replaced.entry(number).or_default();
            *round += 1;
            *round
        };
        let slices = self.client.api(Resource::ENDPOINT_SLICES, Some("default"));
        let body = slice(number, self.size.endpoints, round).to_string().into_bytes();
        let written: Value = slices.replace(&format!("s{number}-x"), body).await.unwrap();
        version(&written)
    }

    /// Adds a Service whose slice is already there; returns the version of the write.
    pub async fn add_service(&self, number: usize) -> u64 {
        let slice = slice(number, self.size.endpoints, 0);
        self.create(Resource::ENDPOINT_SLICES, Some("default"), slice)
            .await;
        let services = self.client.api(Resource::SERVICES, Some("default"));
        let written: Value = services
            .create(service(number).to_string().into_bytes())
            .await
            .unwrap();
        version(&written)
    }

    /// Removes a Service.
    pub async fn remove_service(&self, number: usize) {
        let services = self.client.api(Resource::SERVICES, Some("default"));
        let options = DeleteOptions::default();
        services.delete(&format!("s{number}"), &options).await.unwrap();
    }
}

async fn create(client: &Client, resource: Resource, namespace: Option<&str>, object: Value) {
    let api = client.api(resource, namespace);
    let created: Result<Value, ApiError> = api.create(object.to_string().into_bytes()).await;
    match created {
        Ok(_) | Err(ApiError::AlreadyExists(_)) => {}
        Err(error) => panic!("creating: {error}"),
    }
}

pub fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// The cluster address of a Service.
pub fn address(number: usize) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from_bits(0x0a60_0100 + number as u32)
}

fn service(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": format!("s{number}"), "labels": { "app": format!("s{number}") } },
        "spec": {
            "clusterIP": address(number).to_string(), "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
        },
    })
}

/// A Service's slice; `round` tells its first endpoint from those of other rounds.
fn slice(number: usize, endpoints: usize, round: usize) -> Value {
    let endpoint = |at: usize| {
        let shift = if at == 0 { round % 8 } else { 0 };
        let bits = 0x0b00_0000 + ((number * endpoints + at) as u32) * 8 + shift as u32;
        json!({
            "addresses": [std::net::Ipv4Addr::from_bits(bits).to_string()],
            "nodeName": if at == 0 && number.is_multiple_of(400) { "n1" } else { "n2" },
            "conditions": { "ready": true, "serving": true, "terminating": false },
        })
    };
    let now = jiff::Timestamp::now();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("s{number}-x"),
            "labels": { "kubernetes.io/service-name": format!("s{number}") },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": now.to_string() },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
    })
}

/// Runs `ip` in the bench's own namespace.
pub fn ip(arguments: &str) {
    let status = std::process::Command::new("ip")
        .args(arguments.split_whitespace())
        .status();
    assert!(status.expect("iproute2 is installed").success(), "ip {arguments}");
}
