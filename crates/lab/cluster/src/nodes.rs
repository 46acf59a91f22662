//! What runs on each node, and when does it serve?

use super::containers::{self, RuntimeKind};
use super::plan::{NodePlan, Plan, joined};
use super::supervise::{Spec, Supervisor};
use crate::plain_http;
use crate::up::{Opinions, PEER_LEASES, absolute};
use anyhow::Context;
use pointsman_api_client::{Client, Resource};
use pointsman_api_server::auth::kubeconfig;
use pointsman_api_server::auth::pki::{CertifiedPair, Identity, Pki};
use pointsman_fabric::Netns;
use pointsman_http::{Credentials as Shown, Target};
use pointsman_objects::Node;
use pointsman_objects::condition::ConditionStatus;
use pointsman_objects::names::{NOT_READY_TAINT, UNREACHABLE_TAINT, ZONE_LABEL};
use pointsman_objects::node::ConditionKind;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Where a proxy serves its health, on all addresses of its node.
pub const PROXY_HEALTH_PORT: u16 = 10256;
/// Where a proxy serves metrics and watermarks, on its node's address.
pub const PROXY_METRICS_PORT: u16 = 10249;
/// Where an observer beside kube-proxy says how it is, as `deploy/` has it.
const OBSERVER_HEALTH: &str = "--healthz-bind-address=127.0.0.1:10272";
/// How long a part may take before the start is called failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The files that programs on nodes need.
pub struct Credentials {
    proxy: PathBuf,
    /// Of the certificates that readers of metrics show.
    authority: PathBuf,
    agents: BTreeMap<String, Agent>,
}

/// The files of one agent.
struct Agent {
    kubeconfig: PathBuf,
    /// What its own server shows.
    serving: CertifiedPair,
}

impl Credentials {
    /// Writes kubeconfigs that name the server as nodes reach it.
    pub fn write(data_dir: &Path, plan: &Plan, server: &str) -> anyhow::Result<Self> {
        let now = SystemTime::now();
        let pki = Pki::open(&data_dir.join("pki"), now)?;
        let identity = Identity::proxy();
        let pair = pki.client("proxy", &identity, now)?;
        let text = kubeconfig::render(server, pki.ca_pem(), &identity.name, &pair);
        let proxy = proxy_kubeconfig(data_dir);
        write_secret(&proxy, &text).with_context(|| format!("writing {}", proxy.display()))?;
        let mut agents = BTreeMap::new();
        for node in plan.nodes() {
            let kubeconfig = kubeconfig::write_node(&pki, data_dir, &node.name, server, pki.ca_pem(), now)?;
            let serving = pki.node_serving(&node.name, &node.addresses(), now)?;
            agents.insert(node.name, Agent { kubeconfig, serving });
        }
        Ok(Self {
            proxy,
            authority: pki.ca_path(),
            agents,
        })
    }
}

/// The collector's certificate, by which proxies know who reads their metrics and watermarks.
pub fn reader(data_dir: &Path) -> Shown {
    let file = |name: &str| data_dir.join("pki").join(name);
    Shown::Certificate {
        certificate: file("sli.crt"),
        key: file("sli.key"),
    }
}

/// What the proxy of the node at this address measures, for those who know the cluster's data.
pub fn measuring(data_dir: &Path, node: impl Into<IpAddr>) -> Target {
    let address = SocketAddr::new(node.into(), PROXY_METRICS_PORT);
    Target::at(address).with_credentials(reader(data_dir))
}

/// How proxies, and whoever looks at them, reach the API server from their nodes.
pub fn proxy_kubeconfig(data_dir: &Path) -> PathBuf {
    data_dir.join("kubeconfigs/node-proxies.kubeconfig")
}

/// Starts what runs on a node.
pub async fn start(
    plan: &Plan,
    node: &NodePlan,
    credentials: &Credentials,
    settings: &Settings,
    supervisor: &mut Supervisor,
) -> anyhow::Result<()> {
    let namespace = Netns::named(&node.namespace)?;
    let agent = credentials.agents.get(&node.name);
    let agent = agent.with_context(|| format!("{} has no kubeconfig", node.name))?;
    let mut of_agent = agent_arguments(plan, node, agent, settings);
    if settings.runtime == RuntimeKind::Containerd {
        let files = containers::prepare(&settings.roots.join(&node.name))?;
        of_agent.push(format!("--container-runtime-endpoint={}", files.endpoint()).into());
        let log = settings.log(&node.name, "containerd");
        supervisor.keep(containers::keep(&node.name, &namespace, &files, log));
        let well = containers::wait(files).await;
        well.with_context(|| format!("{}: {}", node.name, settings.last_words(&node.name, "containerd")))?;
    }
    let mut programs = vec![
        (
            "proxy",
            &settings.program,
            proxy_arguments(plan, node, credentials, settings),
        ),
        ("node", &settings.program, of_agent),
    ];
    for (role, _, arguments) in &mut programs {
        arguments.insert(0, (*role).into());
    }
    if let Some(program) = &settings.kube_proxy {
        programs.push((
            "kube-proxy",
            program,
            kube_proxy_arguments(plan, node, credentials, settings),
        ));
    }
    for (role, program, arguments) in programs {
        let (namespace, program) = (namespace.clone(), program.clone());
        supervisor.keep(Spec {
            label: format!("{} {role}", node.name),
            command: Box::new(move || {
                let mut command = namespace.command(&program);
                command.args(&arguments);
                command
            }),
            log: settings.log(&node.name, role),
        });
    }
    Ok(())
}

/// What all nodes have in common.
pub struct Settings {
    /// Our own program.
    pub program: PathBuf,
    /// Where logs go.
    pub logs: PathBuf,
    /// How proxies write rules.
    pub proxy_mode: String,
    /// Who writes the rules, with our proxy as an observer beside it.
    pub kube_proxy: Option<PathBuf>,
    /// Where agents keep what they run.
    pub roots: PathBuf,
    /// Where agents ask whether a pod may be stopped.
    pub gate: Option<SocketAddr>,
    /// Whether containers are refused whose limits cannot be enforced.
    pub enforce_limits: bool,
    /// How long the leases of nodes last.
    pub lease_seconds: u32,
    /// Where pods ask about names.
    pub dns: IpAddr,
    /// How often agents report.
    pub report_every: Option<Duration>,
    /// What runs the nodes' pods.
    pub runtime: RuntimeKind,
    /// Who says which nodes are not reached.
    pub opinions: Opinions,
    /// When proxies reset connections to pods of a node that is gone.
    pub reset_dead_connections: Option<Duration>,
    /// The zone of each node, if it is in one.
    pub zones: BTreeMap<String, String>,
}

impl Settings {
    fn log(&self, node: &str, role: &str) -> PathBuf {
        self.logs.join(format!("{node}-{role}.log"))
    }

    /// The last line that a program said, for people who wonder.
    pub fn last_words(&self, node: &str, role: &str) -> String {
        let path = self.log(node, role);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        match last {
            Some(line) => format!("{line} (more in {})", path.display()),
            None => format!("it said nothing in {}", path.display()),
        }
    }
}

/// Waits until a node's proxy and agent serve; returns the Node, or why they do not.
pub async fn wait(client: &Client, node: &NodePlan, settings: &Settings) -> Result<Node, String> {
    wait_for_proxy(node, settings).await?;
    wait_for_agent(client, node, settings).await
}

/// The proxy serves once it has written its rules.
async fn wait_for_proxy(node: &NodePlan, settings: &Settings) -> Result<(), String> {
    let started = Instant::now();
    let health = SocketAddr::new(node.address.into(), PROXY_HEALTH_PORT);
    loop {
        let answer = plain_http::get(health, "/healthz", Duration::from_secs(1)).await;
        if matches!(answer, Ok((200, _))) {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            let seen = match answer {
                Ok((status, _)) => format!("its health is {status}"),
                Err(error) => error.to_string(),
            };
            return Err(format!("{seen}; {}", settings.last_words(&node.name, "proxy")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The agent serves once it has said that the node is ready and the controllers have taken note.
async fn wait_for_agent(client: &Client, node: &NodePlan, settings: &Settings) -> Result<Node, String> {
    let started = Instant::now();
    loop {
        let object = client.api(Resource::NODES, None).get::<Node>(&node.name).await;
        let seen = match object {
            Ok(object) if !can_run_pods(&object) => "the Node is not ready".to_owned(),
            Ok(object) if is_shunned(&object) => "the Node still has the taint of one that is not".to_owned(),
            Ok(object) => return Ok(object),
            Err(error) => error.to_string(),
        };
        if started.elapsed() > PATIENCE {
            return Err(format!("{seen}; {}", settings.last_words(&node.name, "node")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Pods can run once the agent has said so and the Node has addresses for them.
fn can_run_pods(node: &Node) -> bool {
    node.is_ready() && !node.pod_cidrs.is_empty()
}

/// Whether the controllers still keep pods away from a node that was not ready or silent before.
/// Taints that people set are none of our business here.
fn is_shunned(node: &Node) -> bool {
    let mut taints = node.taints.iter();
    taints.any(|taint| matches!(&*taint.key, NOT_READY_TAINT | UNREACHABLE_TAINT))
}

/// What keeps pods away from nodes that serve, and what to do about it. All nodes share a machine, and so what it lacks.
pub fn pressures(nodes: &[Node], data_dir: &Path) -> Vec<String> {
    let lacking = [
        (
            ConditionKind::DiskPressure,
            "free some of the disk of",
            " or choose another with --data-dir",
        ),
        (ConditionKind::MemoryPressure, "free some memory for", ""),
        (ConditionKind::PidPressure, "end some processes beside", ""),
    ];
    let lacking = lacking.into_iter().filter_map(|(kind, remedy, or)| {
        let held = |node: &&Node| {
            let condition = node.condition(kind);
            condition.is_some_and(|condition| condition.status == ConditionStatus::True)
        };
        let count = nodes.iter().filter(held).count();
        (count > 0).then(|| {
            let (kind, place) = (kind.name(), data_dir.display());
            format!(
                "warning: {count} of {} nodes have {kind}, and pods stay Pending until that is over: {remedy} {place}{or}",
                nodes.len()
            )
        })
    });
    lacking.collect()
}

/// The root directory of a node's agent.
pub fn root_dir(data_dir: &Path, node: &str) -> PathBuf {
    data_dir.join("nodes").join(node)
}

fn agent_arguments(plan: &Plan, node: &NodePlan, agent: &Agent, settings: &Settings) -> Vec<OsString> {
    let mut arguments = vec![
        format!("--node-name={}", node.name).into(),
        format!("--node-ip={}", joined(&node.addresses())).into(),
        "--kubeconfig".into(),
        absolute(&agent.kubeconfig).into(),
        "--tls-cert-file".into(),
        absolute(&agent.serving.certificate_path).into(),
        "--tls-private-key-file".into(),
        absolute(&agent.serving.key_path).into(),
        format!("--cluster-cidr={}", joined(&plan.pod_ranges())).into(),
        format!("--cluster-dns={}", settings.dns).into(),
        format!("--enforce-limits={}", settings.enforce_limits).into(),
        "--root-dir".into(),
        settings.roots.join(&node.name).into(),
        format!("--node-lease-duration-seconds={}", settings.lease_seconds).into(),
    ];
    if let Some(gate) = settings.gate {
        arguments.push(format!("--gate-url=http://{gate}").into());
    }
    if let Some(period) = settings.report_every {
        arguments.push(format!("--node-status-update-frequency={}s", period.as_secs()).into());
    }
    if let Some(zone) = settings.zones.get(&node.name) {
        arguments.push(format!("--node-labels={ZONE_LABEL}={zone}").into());
    }
    if settings.opinions != Opinions::OfAgents {
        arguments.push("--feature-gates=PeerReachability=false".into());
    }
    arguments
}

fn proxy_arguments(
    plan: &Plan,
    node: &NodePlan,
    credentials: &Credentials,
    settings: &Settings,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = [
        format!("--hostname-override={}", node.name),
        format!("--proxy-mode={}", settings.proxy_mode),
        format!("--cluster-cidr={}", joined(&plan.pod_ranges())),
        format!("--bind-address={}", node.address),
        format!("--metrics-bind-address={}:{PROXY_METRICS_PORT}", node.address),
        "--kubeconfig".to_owned(),
    ]
    .map(OsString::from)
    .into();
    arguments.push(credentials.proxy.clone().into());
    // kube-proxy has the port of health itself, and that of metrics on loopback.
    arguments.extend(match settings.kube_proxy {
        Some(_) => ["--observe", OBSERVER_HEALTH].map(OsString::from).to_vec(),
        None => vec![format!("--healthz-bind-address=0.0.0.0:{PROXY_HEALTH_PORT}").into()],
    });
    arguments.push("--client-ca-file".into());
    arguments.push(absolute(&credentials.authority).into());
    if settings.opinions == Opinions::OfProxies {
        arguments.push(format!("--peer-lease-namespace={PEER_LEASES}").into());
    }
    if let Some(bound) = settings.reset_dead_connections {
        arguments.push(format!("--reset-dead-connections={}ms", bound.as_millis()).into());
    }
    arguments
}

/// What kube-proxy is like where nobody configured it, but for settings of the whole machine.
fn kube_proxy_arguments(
    plan: &Plan,
    node: &NodePlan,
    credentials: &Credentials,
    settings: &Settings,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = [
        format!("--hostname-override={}", node.name),
        format!("--proxy-mode={}", settings.proxy_mode),
        format!("--cluster-cidr={}", joined(&plan.pod_ranges())),
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-tcp-timeout-established=0s".to_owned(),
        "--conntrack-tcp-timeout-close-wait=0s".to_owned(),
        "--kubeconfig".to_owned(),
    ]
    .map(OsString::from)
    .into();
    arguments.push(absolute(&credentials.proxy).into());
    arguments
}

/// Replaces a file that only its owner may read.
fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let draft = path.with_extension("new");
    let mut file = std::fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&draft, path)
}
