//! The processes under measurement, and what they cost.

use crate::{Sizes, kubelet};
use pointsman_api_client::{Patch, Resource};
use pointsman_benches::process::usage;
use pointsman_benches::server::{Server, quiet};
use pointsman_testkit::netns::Namespace;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// Where the server listens; each proxy's namespace has a route there.
const SERVER: &str = "10.200.0.1";
/// One proxy each.
pub const MODES: [&str; 2] = ["nftables", "iptables"];
/// How long a rolling update may take.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Cluster {
    server: Server,
    controllers: Child,
    proxies: Vec<(Namespace, std::process::Child)>,
}

/// What was counted so far, or between two moments.
pub struct Costs {
    pub writes: f64,
    pub watch_bytes: f64,
    pub server_cpu: f64,
    pub controllers_cpu: f64,
    pub proxies: Vec<ProxyCosts>,
    pub seconds: f64,
    at: Instant,
}

pub struct ProxyCosts {
    pub cpu: f64,
    /// Samples of the latency up to a bound in milliseconds; only bounds at which the number changes.
    buckets: BTreeMap<u64, f64>,
}

impl Cluster {
    /// Starts everything with the gate on or off.
    pub async fn start(program: &str, gate: bool) -> Self {
        ip(&format!("addr replace {SERVER}/32 dev lo"));
        let gate = format!("--feature-gates=EndpointSliceTerminatingCondition={gate}");
        let server = Server::start_at(program, format!("{SERVER}:6443"), &[&gate]).await;
        let mut controllers = Command::new(program);
        controllers
            .args([
                "controllers",
                "--controllers=endpointslice,replicaset,deployment",
                &gate,
            ])
            .args([
                "--leader-elect=false",
                "--metrics-listen=off",
                "--log=warn",
                "--kubeconfig",
            ])
            .arg(server.kubeconfig());
        let proxies = (1..)
            .zip(MODES)
            .map(|(number, mode)| proxy(program, &server, number, mode));
        Self {
            controllers: quiet(&mut controllers),
            proxies: proxies.collect(),
            server,
        }
    }

    /// Makes Deployments with Services, and waits until all pods are ready.
    pub async fn fill(&self, sizes: Sizes) {
        tokio::spawn(kubelet::run(self.server.client.clone()));
        for number in 1..=MODES.len() {
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": format!("n{number}") },
                "status": { "addresses": [{ "type": "InternalIP", "address": format!("10.201.{number}.2") }] } });
            let api = self.server.client.api(Resource::NODES, None);
            let _: IgnoredAny = api.create(node.to_string().into_bytes()).await.unwrap();
        }
        for number in 0..sizes.deployments {
            let name = format!("d{number}");
            let service = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
                "spec": { "selector": { "app": name }, "ports": [{ "port": 80, "targetPort": 8080 }] },
            });
            let deployment = json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
                "spec": { "replicas": sizes.pods, "selector": { "matchLabels": { "app": name } }, "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "nodeName": format!("n{}", number % 2 + 1), "containers": [{ "name": "c", "image": "none" }] },
                } },
            });
            for (resource, object) in [(Resource::SERVICES, service), (Resource::DEPLOYMENTS, deployment)] {
                let api = self.server.client.api(resource, Some("default"));
                let _: IgnoredAny = api.create(object.to_string().into_bytes()).await.unwrap();
            }
        }
        self.wait(sizes, 0).await;
    }

    /// Replaces all pods of all Deployments.
    pub async fn roll(&self, sizes: Sizes, roll: usize) {
        let annotations = json!({ "roll": roll.to_string() });
        let patch = json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } });
        for number in 0..sizes.deployments {
            let patch = Patch::Merge(patch.to_string().into_bytes());
            let api = self.server.client.api(Resource::DEPLOYMENTS, Some("default"));
            let _: IgnoredAny = api.patch(&format!("d{number}"), patch).await.unwrap();
        }
        self.wait(sizes, roll).await;
    }

    /// Waits until exactly the pods of this roll are there, ready, and known to every kernel.
    async fn wait(&self, sizes: Sizes, roll: usize) {
        let (began, wanted) = (Instant::now(), sizes.deployments * sizes.pods);
        let annotation = |pod: &Value| match pod["metadata"]["annotations"]["roll"].as_str() {
            Some(text) => text.parse().ok(),
            None => Some(0),
        };
        loop {
            let client = &self.server.client;
            let pods: Value = client.get_path("/api/v1/namespaces/default/pods").await.unwrap();
            let pods = pods["items"].as_array().unwrap();
            let finished = |pod: &&Value| annotation(pod) == Some(roll) && pod["status"]["podIP"].is_string();
            if pods.len() == wanted && pods.iter().filter(finished).count() == wanted {
                let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name!%3Dkubernetes";
                let slices: Value = client.get_path(slices).await.unwrap();
                let endpoints = slices["items"].as_array().unwrap().iter();
                let endpoints =
                    endpoints.flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
                let ready = endpoints
                    .filter(|endpoint| endpoint["conditions"]["ready"] == true)
                    .count();
                let version =
                    slices["items"].as_array().unwrap().iter().filter_map(|slice| {
                        slice["metadata"]["resourceVersion"].as_str()?.parse::<f64>().ok()
                    });
                let version = version.fold(0.0, f64::max);
                let series = "pointsman_proxy_watermark_resource_version{resource=\"endpointslices\"}";
                let known =
                    (1..=MODES.len()).all(|number| value(&metrics(number), |line| line == series) >= version);
                if ready == wanted && known {
                    return;
                }
            }
            assert!(
                began.elapsed() < PATIENCE,
                "roll {roll} does not end: {} pods",
                pods.len()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What was used so far.
    pub fn costs(&self) -> Costs {
        let cpu = |id: Option<u32>| usage(id.expect("it runs")).unwrap().cpu_seconds;
        let server = server_metrics(&self.server);
        let writes = |line: &str| {
            let verbs = ["POST", "PUT", "PATCH", "DELETE"];
            line.starts_with("apiserver_request_total{")
                && line.contains("resource=\"endpointslices\"")
                && verbs
                    .iter()
                    .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
        };
        let sent = |line: &str| {
            line.starts_with("pointsman_apiserver_watch_bytes_total{")
                && line.contains("kind=\"EndpointSlice\"")
        };
        let proxies = (1..).zip(&self.proxies).map(|(number, (_, process))| ProxyCosts {
            cpu: with_children(process.id()),
            buckets: buckets(&metrics(number)),
        });
        Costs {
            writes: value(&server, writes),
            watch_bytes: value(&server, sent),
            server_cpu: cpu(self.server.process.id()),
            controllers_cpu: cpu(self.controllers.id()),
            proxies: proxies.collect(),
            seconds: 0.0,
            at: Instant::now(),
        }
    }

    pub async fn stop(mut self) {
        for (_, proxy) in &mut self.proxies {
            proxy.kill().unwrap();
            proxy.wait().unwrap();
        }
        self.controllers.kill().await.unwrap();
        self.server.process.kill().await.unwrap();
    }
}

impl Costs {
    pub fn since(self, before: &Self) -> Self {
        let proxies = self.proxies.into_iter().zip(&before.proxies);
        let proxies = proxies.map(|(after, before)| ProxyCosts {
            cpu: after.cpu - before.cpu,
            buckets: after
                .buckets
                .iter()
                .map(|(bound, count)| (*bound, count - before.up_to(*bound)))
                .collect(),
        });
        Self {
            writes: self.writes - before.writes,
            watch_bytes: self.watch_bytes - before.watch_bytes,
            server_cpu: self.server_cpu - before.server_cpu,
            controllers_cpu: self.controllers_cpu - before.controllers_cpu,
            proxies: proxies.collect(),
            seconds: (self.at - before.at).as_secs_f64(),
            at: self.at,
        }
    }
}

impl ProxyCosts {
    fn up_to(&self, bound: u64) -> f64 {
        self.buckets
            .range(..=bound)
            .next_back()
            .map_or(0.0, |(_, count)| *count)
    }

    pub fn samples(&self) -> f64 {
        self.up_to(u64::MAX)
    }

    /// The bound that this share of the samples keeps, in milliseconds.
    pub fn latency(&self, quantile: f64) -> f64 {
        let wanted = self.samples() * quantile;
        let bound = self.buckets.iter().find(|(_, count)| **count >= wanted);
        bound.map_or(f64::INFINITY, |(bound, _)| *bound as f64)
    }
}

/// A proxy in a namespace of its own, with a route to the server.
fn proxy(program: &str, server: &Server, number: usize, mode: &str) -> (Namespace, std::process::Child) {
    let space = Namespace::new().unwrap();
    ip(&format!(
        "link add to{number} type veth peer name uplink netns {}",
        space.thread_id()
    ));
    ip(&format!("addr add 10.201.{number}.1/30 dev to{number}"));
    ip(&format!("link set to{number} up"));
    space.ip(&format!("addr add 10.201.{number}.2/30 dev uplink"));
    space.ip("link set uplink up");
    space.ip(&format!("route add {SERVER}/32 via 10.201.{number}.1"));
    let mut command = std::process::Command::new(program);
    command
        .args([
            "proxy",
            "--log=warn",
            "--cluster-cidr=11.0.0.0/8",
            "--metrics-authentication=none",
        ])
        .args([
            &format!("--proxy-mode={mode}"),
            &format!("--hostname-override=n{number}"),
        ])
        .arg(format!("--metrics-bind-address=10.201.{number}.2:10249"))
        .args([
            "--iptables-min-sync-period=0s",
            "--conntrack-max-per-core=0",
            "--kubeconfig",
        ])
        .arg(server.kubeconfig())
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let process = space.run(move || command.spawn().unwrap());
    (space, process)
}

/// The metrics of a proxy; nothing if it does not answer yet.
fn metrics(number: usize) -> String {
    let mut text = String::new();
    let asked = TcpStream::connect(format!("10.201.{number}.2:10249")).and_then(|mut stream| {
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        stream.read_to_string(&mut text)
    });
    match asked {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

fn server_metrics(server: &Server) -> String {
    let mut command = std::process::Command::new("kubectl");
    let output = command
        .args(["get", "--raw", "/metrics", "--kubeconfig"])
        .arg(server.kubeconfig())
        .output();
    String::from_utf8(output.expect("kubectl is installed").stdout).unwrap()
}

/// The sum of all series that match.
fn value(metrics: &str, matches: impl Fn(&str) -> bool) -> f64 {
    let series = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    let matching = series.filter(|(name, _)| matches(name));
    matching.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
}

fn buckets(metrics: &str) -> BTreeMap<u64, f64> {
    let start = "pointsman_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"";
    let lines = metrics
        .lines()
        .filter_map(|line| line.strip_prefix(start)?.split_once("\"} "));
    let bound = |text: &str| match text {
        "+Inf" => Some(u64::MAX),
        seconds => Some((seconds.parse::<f64>().ok()? * 1e3).round() as u64),
    };
    lines
        .filter_map(|(le, count)| Some((bound(le)?, count.parse().ok()?)))
        .collect()
}

/// CPU seconds of a process and of those it waited for, such as iptables-restore.
fn with_children(id: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // utime, stime, cutime and cstime.
    let ticks: f64 = fields
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Runs `ip` in the bench's own namespace.
fn ip(arguments: &str) {
    let status = std::process::Command::new("ip")
        .args(arguments.split_whitespace())
        .status();
    assert!(status.expect("iproute2 is installed").success(), "ip {arguments}");
}
