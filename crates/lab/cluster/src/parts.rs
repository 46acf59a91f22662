//! How does each part start, with which arguments?

use super::claim::{NodeRecord, Record};
use super::containers::RuntimeKind;
use super::plan::{Plan, joined};
use super::progress::Progress;
use super::supervise::Supervisor;
use super::{demo, dns, nodes, pod_routes};
use crate::up::{Config, Opinions, PEER_LEASES, absolute};
use anyhow::{Context, bail};
use pointsman_api_client::{ApiError, Client, Patch, Resource, Source, connect};
use pointsman_api_server::auth::kubeconfig::local_url;
use pointsman_collector::{Config as CollectorConfig, Running as Collector};
use pointsman_latency_profile::Tolerations;
use pointsman_objects::config_node;
use serde::de::IgnoredAny;
use serde_json::json;
use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often nodes report if nobody wants to wait 40 s for a lost node to be noticed.
const IMPATIENT_REPORTS: Duration = Duration::from_secs(1);

/// The collector with its page on a loopback address and its gate where nodes reach it.
pub async fn start_collector(config: &Config, plan: &Plan, progress: &Progress) -> anyhow::Result<Collector> {
    let started = Instant::now();
    let kubeconfig = config.data_dir.join("kubeconfigs/sli.kubeconfig");
    let usual = CollectorConfig {
        gate_listen: Some(SocketAddr::new(plan.host_address().address(), 10270)),
        data_dir: Some(config.data_dir.join("sli")),
        programmers: vec![dns::programmer(plan)],
        programmer_port: nodes::PROXY_METRICS_PORT,
        programmer_credentials: Some(nodes::reader(&config.data_dir)),
        ..CollectorConfig::new(Source::Kubeconfig(kubeconfig))
    };
    let listen = match config.page {
        Some(page) => page,
        // Another cluster may have the usual port.
        None => match std::net::TcpListener::bind(usual.listen) {
            Ok(_) => usual.listen,
            Err(_) => SocketAddr::new(usual.listen.ip(), 0),
        },
    };
    let first = CollectorConfig {
        listen,
        ..usual.clone()
    };
    let running = match pointsman_collector::start(first).await {
        Ok(running) => running,
        // Another cluster that starts as well may have been faster.
        Err(_) => {
            let listen = SocketAddr::new(listen.ip(), 0);
            pointsman_collector::start(CollectorConfig { listen, ..usual }).await?
        }
    };
    progress.ready("collector", started, format_args!("http://{}/", running.address));
    Ok(running)
}

/// Asks for the profile before anybody looks: components start with its values, so that nothing has to change in a
/// new cluster.
pub async fn request_profile(config: &Config, kubeconfig: &Path, progress: &Progress) -> anyhow::Result<()> {
    const CONFIG_NODES: Resource = Resource::new("config.openshift.io", "v1", "nodes");
    let Some(profile) = config.latency_profile else {
        return Ok(());
    };
    let started = Instant::now();
    let client = connect::connect(&Source::Kubeconfig(kubeconfig.to_owned()), "pointsman-up").await?;
    let requests = client.api(CONFIG_NODES, None);
    let mut request = json!({ "spec": { "workerLatencyProfile": profile.name } });
    let patch = Patch::Merge(request.to_string().into_bytes());
    match requests.patch::<IgnoredAny>(config_node::NAME, patch).await {
        // Somebody deleted it.
        Err(ApiError::NotFound(_)) => {
            request["metadata"] = json!({ "name": config_node::NAME });
            requests.create::<IgnoredAny>(request.to_string()).await.map(drop)
        }
        patched => patched.map(drop),
    }
    .context("asking for the latency profile")?;
    progress.ready("latency profile", started, profile.name);
    Ok(())
}

/// What nodes need of the API server.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
}

/// What is needed of running nodes.
pub struct Nodes {
    client: Client,
    program: PathBuf,
    /// Keeps the fabric's routes to pods.
    _routes: Aborting,
}

/// Ends a task with the value.
struct Aborting(JoinHandle<()>);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts all nodes and returns once all serve.
pub async fn start_nodes(
    config: &Config,
    plan: &Plan,
    server: &Server,
    gate: Option<SocketAddr>,
    progress: &Progress,
    supervisor: &mut Supervisor,
) -> anyhow::Result<Nodes> {
    let started = Instant::now();
    let client = connect::connect(&Source::Kubeconfig(server.kubeconfig.clone()), "pointsman-up").await?;
    let routes = Aborting(tokio::spawn(pod_routes::keep(client.clone(), plan.clone())));
    let for_nodes = SocketAddr::new(plan.host_address().address(), server.address.port());
    let credentials = nodes::Credentials::write(&config.data_dir, plan, &local_url(for_nodes))?;
    let data_dir = absolute(&config.data_dir);
    let settings = nodes::Settings {
        program: std::env::current_exe().context("finding our own program")?,
        logs: data_dir.join("logs"),
        proxy_mode: config.proxy_mode.as_str().to_owned(),
        kube_proxy: config.kube_proxy.clone(),
        roots: data_dir.join("nodes"),
        dns: dns::publish(&client, plan).await?,
        gate,
        // Without root there are no cgroups, and a cluster to try things on is better than none.
        enforce_limits: config.inside.is_none(),
        lease_seconds: config.node_lease_duration_seconds,
        report_every: match config.latency_profile {
            Some(profile) => Some(profile.values.report.get()),
            None => config.is_impatient().then_some(IMPATIENT_REPORTS),
        },
        runtime: config.runtime,
        opinions: config.opinions,
        reset_dead_connections: config.reset_dead_connections,
        zones: plan
            .nodes()
            .into_iter()
            .map(|node| node.name)
            .zip(config.zones.iter().cycle().cloned())
            .collect(),
    };
    std::fs::create_dir_all(&settings.logs).with_context(|| format!("making {}", settings.logs.display()))?;
    for node in plan.nodes() {
        nodes::start(plan, &node, &credentials, &settings, supervisor).await?;
    }
    let (mut failed, mut serving) = (0, Vec::new());
    for node in plan.nodes() {
        let part = format!("node {}", node.name);
        match nodes::wait(&client, &node, &settings).await {
            Ok(object) => {
                serving.push(object);
                let writer = settings.kube_proxy.as_ref().map_or("proxy", |_| "kube-proxy");
                let detail = format_args!("{}, {} {writer}", joined(&node.addresses()), settings.proxy_mode);
                progress.ready(&part, started, detail);
            }
            Err(why) => {
                progress.failed(&part, why);
                failed += 1;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} nodes do not serve", plan.nodes);
    }
    for warning in nodes::pressures(&serving, &data_dir) {
        progress.note(warning);
    }
    Ok(Nodes {
        client,
        program: settings.program,
        _routes: routes,
    })
}

/// Plays the demonstration, if there is one, and waits for ever.
pub async fn demonstrate(
    config: &Config,
    plan: Option<&Plan>,
    nodes: Option<&Nodes>,
    progress: &Progress,
) -> Infallible {
    if let (true, Some(plan), Some(nodes)) = (config.demo, plan, nodes) {
        let stage = demo::Stage {
            client: nodes.client.clone(),
            plan: plan.clone(),
            program: nodes.program.clone(),
            kubeconfig: config.data_dir.join("admin.kubeconfig"),
        };
        if let Err(error) = demo::run(stage, progress).await {
            progress.failed("demo", format_args!("{error:#}"));
        }
        progress.note("\nthe cluster stays up; Ctrl-C stops it");
    }
    std::future::pending().await
}

/// The API server's config.
pub fn server_arguments(config: &Config, plan: Option<&Plan>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--data-dir".into(), config.data_dir.clone().into()];
    if let Some(Tolerations {
        not_ready,
        unreachable,
    }) = config.latency_profile.map(|it| it.values.tolerations)
    {
        arguments.push(format!("--default-not-ready-toleration-seconds={not_ready}").into());
        arguments.push(format!("--default-unreachable-toleration-seconds={unreachable}").into());
    }
    let Some(plan) = plan else {
        let listen = config.listen.map(|listen| format!("--listen={listen}").into());
        arguments.extend(listen);
        return arguments;
    };
    let for_nodes = plan.host_address().address();
    let listen = match config.listen {
        None => format!("{for_nodes}:6443"),
        Some(listen) if listen.ip().is_unspecified() || listen.ip() == for_nodes => listen.to_string(),
        // Nodes cannot reach the user's choice, so there is a second listener.
        Some(listen) => format!("{listen},{for_nodes}:0"),
    };
    arguments.push(format!("--listen={listen}").into());
    arguments.push(format!("--advertise-address={for_nodes}").into());
    arguments.push(format!("--service-cluster-ip-range={}", joined(&plan.service_ranges())).into());
    arguments
}

/// The controllers' config.
pub fn controller_arguments(config: &Config, plan: Option<&Plan>) -> Vec<OsString> {
    let kubeconfig = config.data_dir.join("kubeconfigs/controllers.kubeconfig");
    let metrics = plan.map_or("off".to_owned(), |plan| controllers_address(plan).to_string());
    let pods = plan.map_or("10.244.0.0/16".to_owned(), |plan| joined(&plan.pod_ranges()));
    let mut arguments = vec![
        "--kubeconfig".into(),
        kubeconfig.into(),
        // One process leads by itself.
        "--leader-elect=false".into(),
        format!("--metrics-listen={metrics}").into(),
        "--client-ca-file".into(),
        config.data_dir.join("pki/ca.crt").into(),
        "--allocate-node-cidrs".into(),
        format!("--cluster-cidr={pods}").into(),
    ];
    if let Some(profile) = config.latency_profile {
        arguments.push(format!("--node-monitor-grace-period={}", profile.values.grace).into());
    }
    if config.opinions == Opinions::OfProxies {
        arguments.push(format!("--peer-lease-namespace={PEER_LEASES}").into());
    }
    if config.is_impatient() {
        let patience = ["--node-monitor-period=500ms", "--node-monitor-grace-period=5s"];
        arguments.extend(patience.map(OsString::from));
    }
    arguments
}

/// What other commands need to know about this cluster.
pub fn record(config: &Config, plan: Option<&Plan>) -> Record {
    let nodes = plan.map(Plan::nodes).unwrap_or_default();
    Record {
        name: config.name.clone(),
        pid: config.inside.map_or_else(std::process::id, |doors| doors.pid),
        rootless: config.inside.is_some(),
        data_dir: absolute(&config.data_dir),
        kubeconfig: absolute(&config.data_dir.join("admin.kubeconfig")),
        merged: config.merge_into.clone(),
        nodes: nodes
            .into_iter()
            .map(|node| NodeRecord {
                name: node.name,
                namespace: node.namespace,
                address: node.address,
            })
            .collect(),
        controllers: plan.map(controllers_address),
        dns: plan.map(dns::health_address),
        containerd: config.runtime == RuntimeKind::Containerd,
        proxy_mode: config.proxy_mode.as_str().to_owned(),
        pod_range: plan.map(|plan| joined(&plan.pod_ranges())).unwrap_or_default(),
        ..Record::default()
    }
}

/// Where the controllers serve their health: on an address that no other cluster has.
pub fn controllers_address(plan: &Plan) -> SocketAddr {
    SocketAddr::new(plan.host_address().address(), 10257)
}
