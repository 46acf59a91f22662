//! Who creates Services and pods?

use pointsman_api_client::{Client, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Requests under way at the same time.
const CREATORS: usize = 32;

/// How large everything is.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub nodes: usize,
    pub pods: usize,
    pub services: usize,
    /// Pods are created for all Services in turn.
    pub in_turn: bool,
}

pub async fn services(client: &Client, sizes: &Sizes) {
    create(client, Resource::SERVICES, sizes.services, |number| {
        let name = service_name(number);
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "clusterIP": "None", "selector": { "app": name }, "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
        })
    })
    .await;
}

/// Creates all pods; returns how long it took until the last answer.
pub async fn pods(client: Client, sizes: Sizes) -> Duration {
    let began = Instant::now();
    let each = sizes.pods.div_ceil(sizes.services);
    create(&client, Resource::PODS, sizes.pods, move |number| {
        let service = match sizes.in_turn {
            true => number % sizes.services,
            false => number / each,
        };
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("p{number:06}"), "labels": {
                "app": service_name(service), "pod-template-hash": "5d8f9c7b6",
            } },
            "spec": { "containers": [{
                "name": "main", "image": "registry.example/team/app:1.2.3", "ports": [{ "name": "http", "containerPort": 8080 }],
                "env": [{ "name": "A", "value": "b" }], "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 } },
            }] },
        })
    })
    .await;
    began.elapsed()
}

fn service_name(number: usize) -> String {
    format!("s{number:05}")
}

async fn create(
    client: &Client,
    resource: Resource,
    count: usize,
    object: impl Fn(usize) -> Value + Copy + Send + Sync + 'static,
) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut creators = JoinSet::new();
    for _ in 0..CREATORS {
        let (next, api) = (next.clone(), client.api(resource, Some("default")));
        creators.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                let body = object(number).to_string().into_bytes();
                let _: IgnoredAny = api.create(body).await.expect("it can be created");
            }
        });
    }
    creators.join_all().await;
}
