//! How long from an application's change of mind to the API server's knowledge of it?
//!
//! An API server, an agent and 200 pods whose containers only pretend to run, in one process; their HTTP probes are
//! real, run every 200 ms (policy `always`) and ask a server in the same process, where 100 applications change
//! their mind every second. Each change is timed twice: from the moment that the application begins to answer
//! differently, and from the probe's answer that changed the verdict, to the moment that a watcher of the API server
//! sees the pod's new readiness.

#![expect(clippy::print_stdout, reason = "the output is the point")]

use jiff::Timestamp;
use pointsman_api_client::{Event, Resource, Scope, Watcher};
use pointsman_harness::agent::Cluster;
use pointsman_probe_io::Policy;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const PODS: usize = 200;
const ROUNDS: usize = 5;

/// One change as a watcher saw it.
struct Seen {
    pod: usize,
    ready: bool,
    /// When the probe's answer was complete.
    answered: Timestamp,
    /// When the watcher saw it.
    at: Timestamp,
}

#[tokio::main]
async fn main() {
    println!("| period | change | application to API p50 / p99 | probe's answer to API p50 / p99 |");
    println!("|---|---|---|---|");
    bench().await;
}

async fn bench() {
    let healthy: Arc<[AtomicBool]> = (0..PODS).map(|_| AtomicBool::new(false)).collect();
    let port = serve(healthy.clone()).await;
    let mut cluster = Cluster::start().await;
    cluster.probes.policy = Policy::Always;
    let agent = cluster.agent().await;
    cluster.give_range("10.9.0.0/16").await;
    for pod in 0..PODS {
        cluster.create(&object(pod, port)).await;
    }
    let mut seen = watch(&cluster);
    for pod in 0..PODS {
        cluster
            .pod_when(&format!("p{pod}"), |pod| pod["status"]["phase"] == "Running")
            .await;
    }
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS * 2 {
        let ready = round % 2 == 0;
        let mut changed = BTreeMap::new();
        for pod in 0..PODS {
            changed.insert(pod, Timestamp::now());
            healthy[pod].store(ready, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        while !changed.is_empty() {
            let Some(change) = seen.recv().await else { return };
            if change.ready == ready
                && let Some(began) = changed.remove(&change.pod)
            {
                let since = |then: Timestamp| change.at.duration_since(then).as_secs_f64() * 1e3;
                times[usize::from(ready)].push((since(began), since(change.answered)));
            }
        }
    }
    for (name, times) in [("503 to 200", &times[1]), ("200 to 503", &times[0])] {
        let whole = quantiles(times.iter().map(|(whole, _)| *whole));
        let last = quantiles(times.iter().map(|(_, last)| *last));
        println!("| 200 ms | {name} | {whole} | {last} |");
    }
    agent.stop().await;
}

/// A pod whose probe asks our own server.
fn object(pod: usize, port: u16) -> Value {
    let probe = json!({
        "httpGet": { "host": "127.0.0.1", "port": port, "path": format!("/{pod}") },
        "periodSeconds": 1, "periodMilliseconds": -800, "failureThreshold": 1,
    });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("p{pod}") },
        "spec": { "nodeName": "n1", "containers": [
            { "name": "c", "image": "host", "command": ["x"], "readinessProbe": probe },
        ] },
    })
}

/// Answers 200 or 503 by the number in the path.
async fn serve(healthy: Arc<[AtomicBool]>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let healthy = healthy.clone();
            tokio::spawn(async move {
                let mut request = [0; 1024];
                let read = stream.read(&mut request).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                let pod = request
                    .split(' ')
                    .nth(1)
                    .and_then(|path| path[1..].parse::<usize>().ok());
                let well = pod.is_some_and(|pod| healthy[pod].load(Ordering::SeqCst));
                let line = if well { "200 OK" } else { "503 Unavailable" };
                let answer = format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    port
}

/// Follows all pods and tells every change of readiness.
fn watch(cluster: &Cluster) -> mpsc::UnboundedReceiver<Seen> {
    let mut watcher = Watcher::<Value>::new(cluster.client.clone(), Scope::all(Resource::PODS));
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut known = BTreeMap::new();
        loop {
            let Event::Applied { key, object, .. } = watcher.next().await else {
                continue;
            };
            let at = Timestamp::now();
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
            let ready = ready
                .next()
                .is_some_and(|condition| condition["status"] == "True");
            let stamp = object["metadata"]["annotations"]["pointsman.io/last-change-time"].as_str();
            let (Some(answered), Ok(pod)) = (
                stamp.and_then(|stamp| stamp.parse().ok()),
                key.name()[1..].parse(),
            ) else {
                continue;
            };
            if known.insert(pod, ready) != Some(ready)
                && sender
                    .send(Seen {
                        pod,
                        ready,
                        answered,
                        at,
                    })
                    .is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn quantiles(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values.get(((values.len() as f64 * share) as usize).min(values.len() - 1));
    match (at(0.5), at(0.99)) {
        (Some(half), Some(most)) => format!("{half:.1} ms / {most:.1} ms"),
        _ => "nothing".into(),
    }
}
