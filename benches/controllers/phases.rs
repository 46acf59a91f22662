//! What is measured.

use crate::cluster::Bench;
use pointsman_api_client::{Client, Event, Patch, Resource, Scope, Watcher};
use pointsman_objects::EndpointSlice;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How large everything is.
pub struct Sizes {
    pub services: usize,
    pub pods: usize,
    pub flips: usize,
    pub large: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            services: 10_000,
            pods: 5,
            flips: 1_000,
            large: 10_000,
        }
    }
}

const FILLERS: usize = 32;
const NODES: usize = 20;

/// A slice as a watcher saw it, and when.
type Seen = (Instant, EndpointSlice);

pub async fn run(bench: &mut Bench, sizes: &Sizes) {
    let empty = fill(bench, sizes).await;
    let mut slices = watch(&bench.client);
    from_nothing(bench, sizes, &mut slices, empty).await;
    one_flip(bench, sizes, &mut slices).await;
    many_flips(bench, sizes, &mut slices).await;
    large_service(bench, sizes, &mut slices).await;
}

/// Follows slices as any consumer would.
fn watch(client: &Client) -> mpsc::UnboundedReceiver<Seen> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut watcher = Watcher::<EndpointSlice>::new(client.clone(), Scope::all(Resource::ENDPOINT_SLICES));
    tokio::spawn(async move {
        loop {
            if let Event::Applied { object, .. } = watcher.next().await
                && sender.send((Instant::now(), object)).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// Creates nodes, Services and ready pods; returns the contender's memory before there was anything.
async fn fill(bench: &mut Bench, sizes: &Sizes) -> f64 {
    bench.launch();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let empty = bench.usage().rss_bytes;
    bench.halt().await;
    for number in 0..NODES {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": {
            "name": format!("n{number}"), "labels": { "topology.kubernetes.io/zone": format!("z{}", number % 3) },
        } });
        let api = bench.client.api(Resource::NODES, None);
        let _: IgnoredAny = api.create(node.to_string().into_bytes()).await.unwrap();
    }
    let began = Instant::now();
    let pods = sizes.pods;
    in_parallel(sizes.services, &bench.client, move |client, number| async move {
        service(&client, &format!("s{number}")).await;
        for pod in 0..pods {
            self::pod(&client, &format!("s{number}"), number * pods + pod).await;
        }
    })
    .await;
    eprintln!("filled in {:.0} s", began.elapsed().as_secs_f64());
    empty
}

async fn in_parallel<F: Future<Output = ()> + Send + 'static>(
    count: usize,
    client: &Client,
    work: impl Fn(Client, usize) -> F,
) {
    let mut running = JoinSet::new();
    for number in 0..count {
        if running.len() >= FILLERS {
            running.join_next().await.unwrap().unwrap();
        }
        running.spawn(work(client.clone(), number));
    }
    running.join_all().await;
}

async fn service(client: &Client, name: &str) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "clusterIP": "None", "selector": { "app": name }, "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    });
    let api = client.api(Resource::SERVICES, Some("default"));
    let _: IgnoredAny = api.create(service.to_string().into_bytes()).await.unwrap();
}

async fn pod(client: &Client, app: &str, number: usize) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("p{number}"), "labels": { "app": app, "pod-template-hash": "5d8f9c7b6" } },
        "spec": { "nodeName": format!("n{}", number % NODES), "containers": [{
            "name": "main", "image": "registry.example/team/app:1.2.3", "ports": [{ "name": "http", "containerPort": 8080 }],
            "env": [{ "name": "A", "value": "b" }], "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
        }] },
    });
    let api = client.api(Resource::PODS, Some("default"));
    let _: IgnoredAny = api.create(pod.to_string().into_bytes()).await.unwrap();
    let ip = format!(
        "10.{}.{}.{}",
        64 + number / 62_500,
        number / 250 % 250,
        number % 250 + 1
    );
    let status = json!({ "status": {
        "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }], "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    let patch = Patch::Strategic(status.to_string().into_bytes());
    let _: IgnoredAny = api.patch_status(&format!("p{number}"), patch).await.unwrap();
}

async fn flip(client: &Client, number: usize, ready: bool) -> Instant {
    let condition = json!({ "type": "Ready", "status": if ready { "True" } else { "False" } });
    let patch = json!({ "status": { "conditions": [condition] } });
    let api = client.api(Resource::PODS, Some("default"));
    let patch = Patch::Strategic(patch.to_string().into_bytes());
    let _: IgnoredAny = api.patch_status(&format!("p{number}"), patch).await.unwrap();
    Instant::now()
}

async fn next(slices: &mut mpsc::UnboundedReceiver<Seen>) -> Seen {
    let next = tokio::time::timeout(Duration::from_secs(120), slices.recv());
    next.await.expect("a slice within two minutes").unwrap()
}

async fn from_nothing(
    bench: &mut Bench,
    sizes: &Sizes,
    slices: &mut mpsc::UnboundedReceiver<Seen>,
    empty: f64,
) {
    let wanted = sizes.services * sizes.pods;
    let server = bench.server_cpu();
    bench.launch();
    let began = Instant::now();
    let (mut endpoints, mut writes) = (HashMap::new(), 0);
    let mut total = 0;
    while total < wanted {
        let (_, slice) = next(slices).await;
        writes += 1;
        total += slice.endpoints.len();
        total -= endpoints
            .insert(slice.metadata.name.clone(), slice.endpoints.len())
            .unwrap_or(0);
    }
    let (took, cpu) = (began.elapsed().as_secs_f64(), bench.usage().cpu_seconds);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let resident = bench.usage().rss_bytes;
    let pods = wanted.max(1) as u64;
    println!(
        "| {} Services x {} pods, from start to all slices seen | |",
        sizes.services, sizes.pods
    );
    println!("|---|---|");
    println!("| time | {took:.1} s |");
    println!("| slice writes (fewest possible {}) | {writes} |", sizes.services);
    println!("| CPU of the loops | {cpu:.1} s |");
    println!("| CPU of the API server | {:.1} s |", bench.server_cpu() - server);
    println!("| resident memory of the loops | {:.0} MB |", resident / 1e6);
    println!(
        "| memory per pod, its share of Services and slices included | {:.0} B |",
        (resident - empty).max(0.0) / pods as f64
    );
}

async fn one_flip(bench: &Bench, sizes: &Sizes, slices: &mut mpsc::UnboundedReceiver<Seen>) {
    let total = sizes.services * sizes.pods;
    let mut latencies = Vec::new();
    let mut writes = 0;
    let (sent, cpu) = (bench.bytes_sent(), bench.usage().cpu_seconds);
    for round in 0..sizes.flips {
        let number = round * 7919 % total;
        // Down and, later, up again when the same pod is hit a second time.
        let answered = flip(&bench.client, number, false).await;
        let name = format!("p{number}");
        loop {
            let (seen, slice) = next(slices).await;
            writes += 1;
            let target = |endpoint: &&pointsman_objects::endpoint_slice::Endpoint| {
                endpoint
                    .target
                    .as_ref()
                    .is_some_and(|target| *target.name == *name)
            };
            let shown = slice.endpoints.iter().find(target);
            if shown.is_some_and(|endpoint| endpoint.conditions.ready == Some(false)) {
                latencies.push(seen.saturating_duration_since(answered));
                break;
            }
        }
    }
    latencies.sort();
    let at = |quantile: f64| {
        let index = ((latencies.len() as f64 * quantile) as usize).min(latencies.len() - 1);
        latencies[index].as_secs_f64() * 1e3
    };
    println!(
        "\n| one pod of {total} flips, {} times, one after the other | |",
        sizes.flips
    );
    println!("|---|---|");
    println!(
        "| pod patch answered to slice seen on a watch, p50 | {:.2} ms |",
        at(0.5)
    );
    println!("| p99 | {:.2} ms |", at(0.99));
    println!(
        "| slice writes per flip | {:.2} |",
        writes as f64 / sizes.flips as f64
    );
    println!(
        "| bytes sent per flip, TLS and headers included | {} |",
        (bench.bytes_sent() - sent) / sizes.flips as u64
    );
    println!(
        "| CPU of the loops per flip | {:.2} ms |",
        (bench.usage().cpu_seconds - cpu) * 1e3 / sizes.flips as f64
    );
}

async fn many_flips(bench: &Bench, sizes: &Sizes, slices: &mut mpsc::UnboundedReceiver<Seen>) {
    let services = sizes.flips / sizes.pods;
    let pods: Vec<usize> = (0..services * sizes.pods).collect();
    // Those that the last phase took down come up first, so that every pod really flips.
    for number in &pods {
        flip(&bench.client, *number, true).await;
    }
    settle(slices).await;
    let began = Instant::now();
    let client = bench.client.clone();
    let count = pods.len();
    let flips = tokio::spawn(async move {
        in_parallel(count, &client, |client, number| async move {
            flip(&client, number, false).await;
        })
        .await;
        Instant::now()
    });
    let mut down: HashSet<String> = HashSet::new();
    let (mut writes, mut touched) = (0, BTreeSet::new());
    let last = loop {
        let (seen, slice) = next(slices).await;
        writes += 1;
        touched.insert(slice.metadata.name.clone());
        for endpoint in &slice.endpoints {
            if let Some(target) = endpoint
                .target
                .as_ref()
                .filter(|_| endpoint.conditions.ready == Some(false))
            {
                down.insert(target.name.to_string());
            }
        }
        if pods.iter().all(|number| down.contains(&format!("p{number}"))) {
            break seen;
        }
    };
    let patched = flips.await.unwrap();
    println!("\n| {} pods in {services} Services flip at once | |", pods.len());
    println!("|---|---|");
    println!(
        "| time to send all patches | {:.2} s |",
        (patched - began).as_secs_f64()
    );
    println!(
        "| first patch to last slice seen | {:.2} s |",
        (last - began).as_secs_f64()
    );
    println!(
        "| last patch answered to last slice seen | {:.1} ms |",
        last.saturating_duration_since(patched).as_secs_f64() * 1e3
    );
    println!("| slice writes (fewest possible {}) | {writes} |", touched.len());
}

/// Waits until no slice changed for a second.
async fn settle(slices: &mut mpsc::UnboundedReceiver<Seen>) {
    while let Ok(seen) = tokio::time::timeout(Duration::from_secs(1), slices.recv()).await {
        assert!(seen.is_some(), "the watch goes on");
    }
}

async fn large_service(bench: &Bench, sizes: &Sizes, slices: &mut mpsc::UnboundedReceiver<Seen>) {
    let first = sizes.services * sizes.pods;
    service(&bench.client, "large").await;
    in_parallel(sizes.large, &bench.client, move |client, number| async move {
        pod(&client, "large", first + number).await;
    })
    .await;
    let mut endpoints = HashMap::new();
    loop {
        let (_, slice) = next(slices).await;
        if slice.service_name() == Some("large") {
            endpoints.insert(
                slice.metadata.name.clone(),
                slice
                    .endpoints
                    .iter()
                    .filter(|e| e.conditions.ready == Some(true))
                    .count(),
            );
        }
        if endpoints.values().sum::<usize>() >= sizes.large {
            break;
        }
    }
    settle(slices).await;
    let (before, cpu) = (bench.bytes_sent(), bench.usage().cpu_seconds);
    let rounds = 20;
    let mut worst = Duration::ZERO;
    for round in 0..rounds {
        let answered = flip(&bench.client, first + round * 97 % sizes.large, false).await;
        let (seen, _) = next(slices).await;
        worst = worst.max(seen.saturating_duration_since(answered));
        settle(slices).await;
    }
    let list: Value = bench
        .client
        .get_path("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?limit=1&labelSelector=kubernetes.io%2Fservice-name%3Dlarge")
        .await
        .unwrap();
    println!(
        "\n| a Service with {} endpoints in {} slices, one flips | |",
        sizes.large,
        endpoints.len()
    );
    println!("|---|---|");
    println!(
        "| bytes sent per flip, TLS and headers included | {} |",
        (bench.bytes_sent() - before) / rounds as u64
    );
    println!(
        "| one slice as JSON, for comparison | {} B |",
        list["items"][0].to_string().len()
    );
    println!(
        "| CPU of the loops per flip | {:.2} ms |",
        (bench.usage().cpu_seconds - cpu) * 1e3 / rounds as f64
    );
    println!(
        "| pod patch answered to slice seen, longest of {rounds} | {:.1} ms |",
        worst.as_secs_f64() * 1e3
    );
}
