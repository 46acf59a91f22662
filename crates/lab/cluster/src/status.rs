//! `pointsman status`: one screen of health.

use crate::claim::{self, Known, NodeRecord, Record};
use crate::nodes::PROXY_HEALTH_PORT;
use crate::plain_http;
use crate::progress::Output;
use crate::rootless;
use anyhow::Context;
use jiff::Timestamp;
use pointsman_api_client::{ApiError, Client, Patch, Resource, Source, connect};
use pointsman_fabric::Netns;
use pointsman_http::{Target, unverified};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

/// How long a part may take to answer before it is called unwell.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is written to see whether writes are accepted.
const LEASE: &str = "pointsman-status";
/// The exit code if something is not well.
const UNWELL: u8 = 3;

/// What is known about one cluster.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    name: String,
    running: bool,
    well: bool,
    pid: u32,
    data_dir: std::path::PathBuf,
    kubeconfig: std::path::PathBuf,
    server: String,
    page: Option<String>,
    api_server: State,
    controllers: State,
    collector: State,
    dns: State,
    nodes: Vec<NodeHealth>,
    pods: Pods,
    memory_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeHealth {
    name: String,
    address: std::net::Ipv4Addr,
    namespace: String,
    namespace_exists: bool,
    ready: State,
    proxy: State,
    pods: usize,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Pods {
    total: usize,
    running: usize,
    ready: usize,
}

/// How a part is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "why")]
enum State {
    Ok,
    /// There is no such part here.
    Absent,
    Failed(String),
}

impl State {
    fn is_well(&self) -> bool {
        !matches!(self, Self::Failed(_))
    }

    fn word(&self) -> String {
        match self {
            Self::Ok => "ok".to_owned(),
            Self::Absent => "-".to_owned(),
            Self::Failed(why) => format!("FAILED ({why})"),
        }
    }
}

/// Prints the health of one cluster, or of all on this machine, and returns a code that says whether all is well.
pub async fn run(name: Option<&str>, output: Output) -> anyhow::Result<ExitCode> {
    let names = match name {
        Some(name) => vec![name.to_owned()],
        None => claim::names(),
    };
    let mut all = Vec::new();
    for name in &names {
        all.push(match claim::look_up(name)? {
            Known::Running(record) => match record.elsewhere() {
                Some(pid) => ask_inside(pid, name)?,
                None => examine(record).await,
            },
            Known::Dead(record) => dead(record, name),
            Known::Unknown => dead(Record::default(), name),
        });
    }
    let text = match output {
        Output::Json => serde_json::to_string_pretty(&all)? + "\n",
        Output::Text if all.is_empty() => "no cluster runs here; `pointsman up` starts one\n".to_owned(),
        Output::Text => all.iter().map(render).collect::<Vec<_>>().join("\n"),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    let is_well = !all.is_empty() && all.iter().all(|health| health.well);
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(UNWELL)
    })
}

/// What this command says where the cluster lives.
fn ask_inside(pid: u32, name: &str) -> anyhow::Result<Health> {
    let arguments = ["status", "--output", "json", "--name", name].map(OsString::from);
    let said = rootless::inside(pid, arguments)?
        .stderr(Stdio::inherit())
        .output()?;
    let all: Vec<Health> = serde_json::from_slice(&said.stdout).context("asking inside its namespaces")?;
    all.into_iter()
        .next()
        .context("nothing is known inside its namespaces")
}

async fn examine(record: Record) -> Health {
    let source = Source::Kubeconfig(record.kubeconfig.clone());
    let client = connect::connect(&source, "pointsman-status").await.ok();
    let (nodes, pods, written) = tokio::join!(
        list(client.as_ref(), "/api/v1/nodes"),
        list(client.as_ref(), "/api/v1/pods"),
        write(client.as_ref())
    );
    let api_server = match (&nodes, written) {
        (Err(why), _) => State::Failed(why.clone()),
        (Ok(_), Err(why)) => State::Failed(format!("it refuses writes: {why}")),
        (Ok(_), Ok(())) => State::Ok,
    };
    let pods = pods.unwrap_or_default();
    let objects = nodes.unwrap_or_default();
    let mut node_healths = Vec::new();
    for node in &record.nodes {
        node_healths.push(examine_node(node, &objects, &pods).await);
    }
    let controllers = match record.controllers {
        None => State::Absent,
        Some(address) => ask(&Target::secure(address, unverified()), "/readyz").await,
    };
    let page = record.page.as_deref().and_then(|page| {
        let address = page.strip_prefix("http://")?.trim_end_matches('/');
        address.parse::<SocketAddr>().ok()
    });
    let collector = match page {
        None => State::Absent,
        Some(address) => ask(&Target::at(address), "/healthz").await,
    };
    let dns = match record.dns {
        None => State::Absent,
        Some(address) => ask(&Target::secure(address, unverified()), "/readyz").await,
    };
    let parts = [&api_server, &controllers, &collector, &dns];
    let is_well = record.ready
        && parts.iter().all(|state| state.is_well())
        && node_healths
            .iter()
            .all(|node| node.namespace_exists && node.ready.is_well() && node.proxy.is_well());
    Health {
        running: true,
        well: is_well,
        pid: record.pid,
        memory_bytes: memory_of(&record),
        api_server,
        controllers,
        collector,
        dns,
        nodes: node_healths,
        pods: count(&pods),
        name: record.name,
        data_dir: record.data_dir,
        kubeconfig: record.kubeconfig,
        server: record.server,
        page: record.page,
    }
}

fn dead(record: Record, name: &str) -> Health {
    let absent = || State::Absent;
    Health {
        name: name.to_owned(),
        running: false,
        well: false,
        pid: record.pid,
        data_dir: record.data_dir,
        kubeconfig: record.kubeconfig,
        server: record.server,
        page: record.page,
        api_server: absent(),
        controllers: absent(),
        collector: absent(),
        dns: absent(),
        nodes: Vec::new(),
        pods: Pods::default(),
        memory_bytes: 0,
    }
}

async fn examine_node(node: &NodeRecord, objects: &[Value], pods: &[Value]) -> NodeHealth {
    let object = objects
        .iter()
        .find(|object| object["metadata"]["name"] == node.name.as_str());
    let on_node = pods
        .iter()
        .filter(|pod| pod["spec"]["nodeName"] == node.name.as_str());
    let health = SocketAddr::new(node.address.into(), PROXY_HEALTH_PORT);
    NodeHealth {
        name: node.name.clone(),
        address: node.address,
        namespace: node.namespace.clone(),
        namespace_exists: Netns::named(&node.namespace).is_ok(),
        ready: object.map_or(State::Failed("no such Node".into()), readiness),
        proxy: ask(&Target::at(health), "/healthz").await,
        pods: on_node.count(),
    }
}

fn readiness(node: &Value) -> State {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    match ready.next() {
        Some(condition) if condition["status"] == "True" => State::Ok,
        Some(condition) => State::Failed(condition["reason"].as_str().unwrap_or("NotReady").to_owned()),
        None => State::Failed("not ready yet".to_owned()),
    }
}

fn count(pods: &[Value]) -> Pods {
    let is_ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
        ready
            .next()
            .is_some_and(|condition| condition["status"] == "True")
    };
    Pods {
        total: pods.len(),
        running: pods
            .iter()
            .filter(|pod| pod["status"]["phase"] == "Running")
            .count(),
        ready: pods.iter().filter(is_ready).count(),
    }
}

async fn ask(target: &Target, path: &str) -> State {
    match plain_http::ask(target, path, PATIENCE).await {
        Ok((200, _)) => State::Ok,
        Ok((status, _)) => State::Failed(format!("{path} says {status}")),
        Err(error) => State::Failed(error.to_string()),
    }
}

async fn list(client: Option<&Client>, path: &str) -> Result<Vec<Value>, String> {
    let client = client.ok_or("its kubeconfig cannot be used")?;
    let listed = tokio::time::timeout(PATIENCE, client.get_path::<Value>(path)).await;
    let mut list = listed
        .map_err(|_| "no answer".to_owned())?
        .map_err(|error| error.to_string())?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Ok(Vec::new()),
    }
}

/// Writes something: a server whose store takes no writes still answers from its memory, and nodes that cannot
/// report any more keep looking ready.
async fn write(client: Option<&Client>) -> Result<(), String> {
    let client = client.ok_or("its kubeconfig cannot be used")?;
    let leases = client.api(Resource::LEASES, Some("kube-system"));
    let spec =
        json!({ "holderIdentity": "pointsman status", "renewTime": format!("{:.6}", Timestamp::now()) });
    let patch = json!({ "spec": spec }).to_string();
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": LEASE }, "spec": spec });
    let attempt = async {
        match leases
            .patch::<Value>(LEASE, Patch::Merge(patch.into_bytes()))
            .await
        {
            Err(ApiError::NotFound(_)) => leases.create::<Value>(lease.to_string()).await.map(drop),
            written => written.map(drop),
        }
    };
    match tokio::time::timeout(PATIENCE, attempt).await {
        // Somebody else asks at the same time, and was served.
        Ok(Ok(()) | Err(ApiError::AlreadyExists(_) | ApiError::Conflict(_))) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// The memory of the cluster's own processes, each page shared by several counted once; that of pods is the
/// pods'.
fn memory_of(record: &Record) -> u64 {
    let mut namespaces: Vec<Netns> = record
        .nodes
        .iter()
        .filter_map(|node| Netns::named(&node.namespace).ok())
        .collect();
    if record.rootless {
        // Its number is another one in here, but it is alone with us in its network.
        namespaces.extend(Netns::current());
    }
    let mut pids = match namespaces.is_empty() {
        true => Vec::new(),
        false => Netns::processes(&namespaces).unwrap_or_default(),
    };
    if !record.rootless {
        pids.push(record.pid);
    }
    let others = pids.into_iter().filter(|pid| *pid != std::process::id());
    others.filter_map(memory).sum()
}

fn memory(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().ok()?;
    Some(kibibytes << 10)
}

fn render(health: &Health) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    let state = match (health.running, health.well) {
        (false, _) => "not running".to_owned(),
        (true, true) => format!("well, process {}", health.pid),
        (true, false) => format!("NOT WELL, process {}", health.pid),
    };
    line("cluster", &format!("{}: {state}", health.name));
    if !health.running {
        return text;
    }
    line("data", &health.data_dir.display().to_string());
    line("kubeconfig", &health.kubeconfig.display().to_string());
    line("page", health.page.as_deref().unwrap_or("-"));
    line(
        "API server",
        &format!("{} {}", health.api_server.word(), health.server),
    );
    line("controllers", &health.controllers.word());
    line("collector", &health.collector.word());
    line("DNS", &health.dns.word());
    let Pods {
        total,
        running,
        ready,
    } = health.pods;
    line("pods", &format!("{total}, {running} running, {ready} ready"));
    line(
        "memory",
        &format!("{} MiB without pods", health.memory_bytes >> 20),
    );
    if health.nodes.is_empty() {
        return text;
    }
    let _ = writeln!(
        text,
        "\n{:<6} {:<15} {:<5} {:<24} {:<20} PROXY",
        "NODE", "ADDRESS", "PODS", "NAMESPACE", "READY"
    );
    for node in &health.nodes {
        let namespace = match node.namespace_exists {
            true => node.namespace.clone(),
            false => format!("{} MISSING", node.namespace),
        };
        let _ = writeln!(
            text,
            "{:<6} {:<15} {:<5} {:<24} {:<20} {}",
            node.name,
            node.address,
            node.pods,
            namespace,
            node.ready.word(),
            node.proxy.word()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_counted_by_phase_and_readiness() {
        let pod = |phase: &str, ready: &str| {
            json!({"status": {"phase": phase, "conditions": [
                {"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready},
            ]}})
        };
        let pods = [
            pod("Running", "True"),
            pod("Running", "False"),
            pod("Pending", "False"),
            json!({}),
        ];
        let expected = Pods {
            total: 4,
            running: 2,
            ready: 1,
        };
        assert_eq!(count(&pods), expected);
    }

    #[test]
    fn a_node_is_unwell_for_the_reason_it_gives() {
        let node = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "R"}]}});
        assert_eq!(readiness(&node("True")), State::Ok);
        assert_eq!(readiness(&node("Unknown")), State::Failed("R".into()));
        assert!(!readiness(&json!({})).is_well());
    }
}
