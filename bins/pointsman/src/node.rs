//! `pointsman node`.

mod file;
mod probe_only;

use crate::config_file::{self, Kind};
use crate::duration;
use crate::shutdown::run_until_signal;
use anyhow::{Context, bail};
use clap::Args;
use file::File;
use pointsman_api_client::Source;
use pointsman_api_client::kubeconfig::Cluster;
use pointsman_fabric::Prefix;
use pointsman_model::{Feature, FeatureGates};
use pointsman_node_agent::gate::Gate;
use pointsman_node_agent::node::{Frequency, Identity};
use pointsman_node_agent::{ClusterDns, Config, run as run_agent};
use pointsman_probe_io::{Config as ProbeConfig, Policy, Reading};
use pointsman_runtime::cri::{self, CriRuntime};
use pointsman_runtime::process::{Config as RuntimeConfig, ProcessRuntime};
use pointsman_runtime::{AddressRange, Runtime};
use pointsman_telemetry::{BuildInfo, Registry, register_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The version that `kubectl get nodes` shows.
const VERSION: &str = concat!("v1.33.0+pointsman-", env!("CARGO_PKG_VERSION"));

/// Flags that the kubelet also has keep its names and formats.
#[derive(Args)]
pub struct Flags {
    /// How to reach the API server, as this node (user system:node:NAME of group system:nodes).
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The node's name; by default the machine's host name.
    #[arg(long, visible_alias = "hostname-override", value_name = "NAME")]
    node_name: Option<String>,
    /// Where the node's files live: pods, logs, addresses in use.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/pointsman/node")]
    root_dir: PathBuf,
    /// Socket of the container runtime that runs pods from images, such as unix:///run/containerd/containerd.sock.
    /// Without one, containers are processes of this host, and the only image is `host`.
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// The node's addresses, the primary one first; by default the one that the kernel would use to reach the API
    /// server.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    node_ip: Vec<IpAddr>,
    /// Address to serve on.
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Port to serve logs, metrics and health on, over HTTPS; 0 serves nothing. [default: 10250]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Authority of the client certificates that the server accepts; by default the one of the kubeconfig.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Certificate that the server shows, for the node's name and addresses, by the authority that the API server
    /// knows; without it the API server gets no logs.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// A KubeletConfiguration file; fields that have no effect here are named in a warning.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Labels to register the node with.
    #[arg(long, value_name = "KEY=VALUE,...", value_delimiter = ',', value_parser = label)]
    node_labels: Vec<(String, String)>,
    /// Taints to register the node with.
    #[arg(long, value_name = "KEY=VALUE:EFFECT,...", value_delimiter = ',', value_parser = taint)]
    register_with_taints: Vec<Value>,
    /// The most pods on this node. [default: 110]
    #[arg(long, value_name = "N")]
    max_pods: Option<u32>,
    /// Addresses for pods; by default those of the Node's spec.podCIDRs, once it has some.
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pod_cidr: Option<String>,
    /// The ranges of all pods of the cluster. Routes to other nodes' pods are kept within these only, and none without.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    cluster_cidr: Vec<Prefix>,
    /// The cluster's name servers, for pods with the DNS policy ClusterFirst; without any, all pods have those of the
    /// node.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    /// The domain of the cluster's names, in which pods search. [default: cluster.local]
    #[arg(long, value_name = "DOMAIN", value_parser = crate::dns::domain)]
    cluster_domain: Option<String>,
    /// Refuse containers with CPU or memory limits that this machine cannot enforce; otherwise they run without, and an
    /// event says so.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    enforce_limits: bool,
    /// How often the node's status is computed. Setting it sets the report frequency too. The ConfigMap
    /// kube-system/pointsman-node wins and can be changed at run time. [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    node_status_update_frequency: Option<Duration>,
    /// How often an unchanged status is sent nevertheless. [default: 5m0s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    node_status_report_frequency: Option<Duration>,
    /// How long the node's Lease is good for; it is renewed four times as often. [default: 40]
    #[arg(long, value_name = "SECONDS")]
    node_lease_duration_seconds: Option<u32>,
    /// Where a pod that has to end waits until every node has taken it out of its rules, such as
    /// http://10.0.0.1:10270 (`pointsman sli`). Without it, or when it cannot be reached, nobody waits.
    #[arg(long, value_name = "URL")]
    gate_url: Option<http::Uri>,
    /// The longest wait at the gate.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    gate_bound: Duration,
    /// When sub-second probe periods apply: until-first-success (as specified), while-waiting-for-success, always.
    #[arg(long, value_name = "POLICY", default_value = "until-first-success")]
    sub_second_probes: Policy,
    /// Keep routes to the pods of other nodes in this network namespace.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    manage_routes: bool,
    /// Optional behaviours: SubSecondProbes (on by default).
    #[arg(long, value_name = "A=true,B=false")]
    feature_gates: Option<String>,
    /// Run no pods: only probe those of this node, beside its kubelet, that list the readiness gate
    /// pointsman.io/ready and say how in the annotation probe.pointsman.io/readiness, and set that condition.
    #[arg(long)]
    probe_only: bool,
    /// With --probe-only: where /metrics and /healthz are served, over plain HTTP; `off` serves nothing.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:10271")]
    probe_only_listen: String,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn taint(text: &str) -> Result<Value, String> {
    let (pair, effect) = text.split_once(':').ok_or("a taint is KEY=VALUE:EFFECT")?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Ok(json!({ "key": key, "value": value, "effect": effect }))
}

/// Runs the agent until a signal stops it.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    if flags.probe_only {
        return run_probe_only(flags).await;
    }
    let enforces_limits = flags.enforce_limits;
    let (mut config, endpoint) = resolve(flags).await?;
    let registry = Registry::new();
    let build = BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        revision: "",
        role: "node",
    };
    register_process(&registry, build);
    let runtime: Arc<dyn Runtime> = match endpoint {
        Some(endpoint) => {
            let runtime = CriRuntime::open(cri::Config::new(&config.root_dir, endpoint)).await;
            let runtime = runtime.context("opening the runtime")?;
            runtime.version().clone_into(&mut config.identity.runtime);
            tracing::info!(version = runtime.version(), "the container runtime is there");
            Arc::new(runtime)
        }
        None => {
            let mut settings = RuntimeConfig::new(&config.root_dir);
            settings.node_addresses.clone_from(&config.identity.addresses);
            let runtime = ProcessRuntime::open(settings)
                .await
                .context("opening the runtime")?;
            let abilities = runtime.abilities();
            tracing::info!(?abilities, "the runtime is open");
            config.lenient = (!enforces_limits).then_some(abilities);
            Arc::new(runtime)
        }
    };
    run_until_signal(|stopping| run_agent(config, runtime, registry, stopping)).await
}

async fn run_probe_only(flags: Flags) -> anyhow::Result<()> {
    let gates = gates(flags.feature_gates.as_deref(), &File::default())?;
    let listen = match flags.probe_only_listen.as_str() {
        "off" => None,
        text => Some(
            text.parse::<SocketAddr>()
                .context("--probe-only-listen is neither ADDR:PORT nor `off`")?,
        ),
    };
    let config = pointsman_probe_only::Config {
        node_name: node_name(flags.node_name)?,
        probes: probes(flags.sub_second_probes),
        reading: reading(&gates),
    };
    probe_only::run(config, &Source::from_flag(flags.kubeconfig), listen).await
}

/// The name that was given, or the machine's.
fn node_name(given: Option<String>) -> anyhow::Result<String> {
    Ok(match given {
        Some(name) => name,
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")?
            .trim()
            .to_lowercase(),
    })
}

/// Flags, then the file, then defaults. Returns the container runtime's endpoint besides, if there is one.
async fn resolve(flags: Flags) -> anyhow::Result<(Config, Option<String>)> {
    let file: File = config_file::read(flags.config.as_deref())?;
    let gates = gates(flags.feature_gates.as_deref(), &file)?;
    let kubeconfig = flags.kubeconfig.as_deref();
    let addresses = addresses(flags.node_ip, kubeconfig).await?;
    let dns = cluster_dns(flags.cluster_dns, flags.cluster_domain, &file)?;
    let port = flags.port.or(file.port).unwrap_or(10250);
    let own = file.address.as_deref().map(str::parse).transpose();
    let own = own.context("address of --config")?;
    let serving = SocketAddr::new(flags.address.or(own).unwrap_or(IpAddr::from([0, 0, 0, 0])), port);
    let client_ca = flags.client_ca_file.or(file.authentication.x509.client_ca_file);
    let report = flags
        .node_status_report_frequency
        .or(file.node_status_report_frequency);
    let update = flags
        .node_status_update_frequency
        .or(file.node_status_update_frequency);
    let lease = flags
        .node_lease_duration_seconds
        .or(file.node_lease_duration_seconds)
        .unwrap_or(40);
    let taints = match flags.register_with_taints.is_empty() {
        true => file.register_with_taints.unwrap_or_default(),
        false => flags.register_with_taints,
    };
    let endpoint = flags
        .container_runtime_endpoint
        .or(file.container_runtime_endpoint);
    let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty());
    let own = flags.tls_cert_file.zip(flags.tls_private_key_file);
    let mut config = Config {
        serving: own.or(file.tls_cert_file.zip(file.tls_private_key_file)),
        lenient: None,
        cluster_ranges: flags.cluster_cidr,
        dns,
        client_ca: client_authority(client_ca.as_deref(), kubeconfig, port)?,
        source: Source::from_flag(flags.kubeconfig),
        identity: Identity {
            name: node_name(flags.node_name)?,
            addresses,
            port,
            labels: flags.node_labels.into_iter().collect::<BTreeMap<_, _>>(),
            taints,
            max_pods: flags.max_pods.or(file.max_pods).unwrap_or(110),
            version: VERSION.into(),
            runtime: concat!("pointsman://", env!("CARGO_PKG_VERSION")).into(),
        },
        root_dir: flags.root_dir,
        listen: (port != 0).then_some(serving),
        pod_ranges: ranges(flags.pod_cidr.or(file.pod_cidr).as_deref())?,
        frequency: Frequency::of(update, report),
        own_report_period: report,
        lease_duration: Duration::from_secs(lease.max(1).into()),
        refresh: file.sync_frequency.unwrap_or(Duration::from_secs(60)),
        gate: flags.gate_url.map(|url| Gate {
            url,
            bound: flags.gate_bound,
        }),
        asks_peers: gates.enabled(Feature::PeerReachability),
        routes: flags.manage_routes,
        probes: probes(flags.sub_second_probes),
        reading: reading(&gates),
        shown: Value::Null,
    };
    config.shown = shown(&config, serving);
    Ok((config, endpoint))
}

fn cluster_dns(servers: Vec<IpAddr>, domain: Option<String>, file: &File) -> anyhow::Result<ClusterDns> {
    let listed = || file.cluster_dns.clone().unwrap_or_default();
    let of_file = file.cluster_domain.as_deref().filter(|domain| !domain.is_empty());
    let of_file = of_file.map(crate::dns::domain).transpose();
    let of_file = of_file.map_err(|error| anyhow::anyhow!("clusterDomain of --config: {error}"))?;
    Ok(ClusterDns {
        servers: if servers.is_empty() { listed() } else { servers },
        domain: domain.or(of_file).unwrap_or(ClusterDns::default().domain),
    })
}

/// The configuration as a KubeletConfiguration, as `/configz` shows it.
fn shown(config: &Config, serving: SocketAddr) -> Value {
    json!({
        "apiVersion": File::API_VERSION,
        "kind": File::KIND,
        "address": serving.ip(),
        "port": serving.port(),
        "maxPods": config.identity.max_pods,
        "nodeStatusUpdateFrequency": format!("{}s", config.frequency.update.as_secs_f64()),
        "nodeStatusReportFrequency": format!("{}s", config.frequency.report.as_secs_f64()),
        "nodeLeaseDurationSeconds": config.lease_duration.as_secs(),
        "clusterDNS": config.dns.servers,
        "clusterDomain": config.dns.domain,
        "featureGates": { "SubSecondProbes": config.reading.sub_second },
    })
}

fn probes(policy: Policy) -> ProbeConfig {
    ProbeConfig {
        policy,
        ..ProbeConfig::default()
    }
}

fn reading(gates: &FeatureGates) -> Reading {
    Reading {
        sub_second: gates.enabled(Feature::SubSecondProbes),
        ..Reading::default()
    }
}

/// The addresses that were given, or the one that the kernel would use to reach the API server.
async fn addresses(given: Vec<IpAddr>, kubeconfig: Option<&Path>) -> anyhow::Result<Vec<IpAddr>> {
    if given.is_empty() {
        return Ok(vec![own_address(kubeconfig).await?]);
    }
    let (four, six): (Vec<IpAddr>, Vec<IpAddr>) = given.iter().partition(|ip| ip.is_ipv4());
    if four.len() > 1 || six.len() > 1 {
        bail!("--node-ip takes one address of each family");
    }
    Ok(given)
}

/// The authority whose client certificates the agent's server accepts.
fn client_authority(file: Option<&Path>, kubeconfig: Option<&Path>, port: u16) -> anyhow::Result<Vec<u8>> {
    match (file, kubeconfig) {
        (Some(path), _) => std::fs::read(path).with_context(|| format!("reading {}", path.display())),
        (None, Some(path)) => authority(path),
        (None, None) if port == 0 => Ok(Vec::new()),
        (None, None) => bail!("--client-ca-file is needed without a kubeconfig"),
    }
}

/// The kubelet's file lists gates of every kind; only those that we know count.
fn gates(flag: Option<&str>, file: &File) -> anyhow::Result<FeatureGates> {
    if let Some(text) = flag {
        return Ok(FeatureGates::parse(text)?);
    }
    let listed = file.feature_gates.iter().flatten();
    let known = listed.filter_map(|(name, on)| {
        let gate = Feature::ALL.into_iter().find(|gate| gate.name() == name)?;
        Some((gate, *on))
    });
    Ok(known.fold(FeatureGates::default(), |gates, (gate, on)| gates.with(gate, on)))
}

fn ranges(text: Option<&str>) -> anyhow::Result<Vec<AddressRange>> {
    let parts = text.unwrap_or("").split(',').map(str::trim);
    let parts = parts.filter(|part| !part.is_empty());
    Ok(parts.map(str::parse).collect::<Result<_, _>>()?)
}

/// The cluster that a kubeconfig's current context names.
fn cluster(path: &Path) -> anyhow::Result<Cluster> {
    Cluster::read(path).with_context(|| format!("reading {}", path.display()))
}

/// The authority of the server's certificate, which also signs its clients'.
fn authority(path: &Path) -> anyhow::Result<Vec<u8>> {
    let authority = cluster(path)?.authority(path);
    authority.with_context(|| format!("reading {}", path.display()))
}

/// The address that the kernel would use to reach the API server.
async fn own_address(kubeconfig: Option<&Path>) -> anyhow::Result<IpAddr> {
    let path = kubeconfig.context("--node-ip is needed without a kubeconfig")?;
    let cluster = cluster(path)?;
    let server = cluster.server;
    let uri: http::Uri = server.parse().with_context(|| format!("server {server:?}"))?;
    let host = uri.host().unwrap_or("").trim_matches(['[', ']']).to_owned();
    let mut found = tokio::net::lookup_host((host.as_str(), uri.port_u16().unwrap_or(443)))
        .await
        .with_context(|| format!("looking up {host}"))?;
    let server = found.next().with_context(|| format!("{host} has no address"))?;
    let any: SocketAddr = if server.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    // Connecting a datagram socket sends nothing, but chooses a source address.
    let socket = tokio::net::UdpSocket::bind(any).await?;
    socket
        .connect(server)
        .await
        .with_context(|| format!("no route to {server}; use --node-ip"))?;
    Ok(socket.local_addr()?.ip())
}
