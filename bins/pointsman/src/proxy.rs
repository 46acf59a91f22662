//! `pointsman proxy`.

mod config;
mod file;

use crate::shutdown::run_until_signal;
use crate::{config_file, duration};
use anyhow::Context;
use clap::{ArgAction, Args, ValueEnum};
use file::File;
use pointsman_kernel::iptables_backend::allow_localhost_node_ports;
use pointsman_kernel::{ipvs, sysctl};
use pointsman_proxy::{Config, Mode, OwnRules, clean_up, clean_up_own, run as run_proxy};
use pointsman_telemetry::Registry;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// Flags keep kube-proxy's names and formats. What the file given with --config sets wins over flags, but
/// for --hostname-override.
#[derive(Args, Default)]
#[command(args_override_self = true)]
pub struct Flags {
    /// A KubeProxyConfiguration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to reach the API server; without it, the pod's own service account is used.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The name of this machine's Node; by default the host's name.
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// How rules are written; by default iptables.
    #[arg(long, value_enum)]
    proxy_mode: Option<ModeFlag>,
    /// The ranges of the cluster's pods: one, or one of each family.
    #[arg(long, value_name = "CIDR[,CIDR]")]
    cluster_cidr: Option<String>,
    /// How pods are told from other clients: ClusterCIDR (default), NodeCIDR, BridgeInterface or
    /// InterfaceNamePrefix.
    #[arg(long, value_name = "MODE")]
    detect_local_mode: Option<String>,
    /// The bridge of the pods, for BridgeInterface.
    #[arg(long, value_name = "NAME")]
    pod_bridge_interface: Option<String>,
    /// The beginning of the names of the pods' interfaces, for InterfaceNamePrefix.
    #[arg(long, value_name = "NAME")]
    pod_interface_name_prefix: Option<String>,
    /// Where /healthz and /livez are served; `off` serves nothing. By default 0.0.0.0:10256.
    #[arg(long, value_name = "ADDR:PORT")]
    healthz_bind_address: Option<String>,
    /// Where /metrics and /watermark are served; `off` serves nothing. By default 127.0.0.1:10249.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics_bind_address: Option<String>,
    #[command(flatten)]
    metrics_access: crate::metrics_access::MetricsAccess,
    /// End if an address cannot be listened on, instead of trying again.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    bind_address_hard_fail: Option<bool>,
    /// The node's own address, instead of the one its Node names. Nothing listens on it.
    #[arg(long, value_name = "IP")]
    bind_address: Option<String>,
    /// Masquerade everything sent to a cluster address.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    masquerade_all: Option<bool>,
    /// The bit of the packet mark that asks for masquerading, 0 to 31; by default 14.
    #[arg(long, value_name = "N")]
    iptables_masquerade_bit: Option<u8>,
    /// Let node ports answer on 127.0.0.1 in iptables mode; by default true.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    iptables_localhost_nodeports: Option<bool>,
    /// How often rules are checked, and how long a retry waits at most, in both modes; by default 30s.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    iptables_sync_period: Option<Duration>,
    /// The least time between two syncs, in both modes. By default 0s: a lone change is written at once,
    /// and changes that come during a write are merged.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    iptables_min_sync_period: Option<Duration>,
    /// Addresses that node ports and health check node ports answer on: ranges, `primary`, `localhost` or
    /// `all`; by default all in iptables mode, and the node's primary address in nftables mode.
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    nodeport_addresses: Option<Vec<String>>,
    /// The score by which the kernel chooses whom to end when memory runs out, -1000 to 1000.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    oom_score_adj: Option<i32>,
    /// What to do where the kernel cannot hold the table of nftables mode; by default the proxy ends with
    /// the reason.
    #[arg(long, value_enum, value_name = "MODE")]
    nftables_fallback: Option<Fallback>,
    /// Ranges of IPVS virtual servers that stay when this proxy takes over from kube-proxy's IPVS mode.
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    ipvs_exclude_cidrs: Option<Vec<String>>,
    /// Behaviours to switch, as `Name=true,Other=false`. MinimizeIPTablesRestore=false writes all rules with each
    /// sync of iptables mode; gates that only kube-proxy knows are named in the log.
    #[arg(long, value_name = "GATES")]
    feature_gates: Option<String>,
    /// Ask other nodes whether they are there, and say who does not answer in this node's Lease in this namespace, where
    /// `pointsman controllers --peer-lease-namespace` reads it. For nodes of kubelets; by default nobody is asked.
    #[arg(long, value_name = "NAMESPACE")]
    peer_lease_namespace: Option<String>,
    /// Reset connections to the pods of a node that the controllers have withdrawn, because its peers do not reach it, and
    /// that has not answered this one either, both for so long (3s or more; we propose 10s). By default, and with 0s, they are
    /// left to time out.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    reset_dead_connections: Option<Duration>,
    /// Write nothing: follow the rules that kube-proxy writes on this node, in the mode named, and say how far they are.
    #[arg(long, conflicts_with_all = ["cleanup", "cleanup_own", "init_only", "reset_dead_connections"])]
    observe: bool,
    #[command(flatten)]
    conntrack: ConntrackFlags,
    /// Remove all rules of ours and of kube-proxy, and end.
    #[arg(long)]
    cleanup: bool,
    /// Remove what only Pointsman makes, after kube-proxy has taken over, and end. Rules of kube-proxy stay.
    #[arg(long, conflicts_with = "cleanup")]
    cleanup_own: bool,
    /// Do what needs the most privileges (kernel settings), and end. Run again afterwards with CAP_NET_ADMIN.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    init_only: Option<bool>,
    /// Write the configuration that these flags make to a file, and end.
    #[arg(long, value_name = "FILE")]
    write_config_to: Option<PathBuf>,
    #[command(flatten)]
    ignored: Ignored,
}

/// Settings of connection tracking; 0 leaves the kernel's.
#[derive(Args, Default)]
struct ConntrackFlags {
    /// Tracked connections for each processor; by default 32768.
    #[arg(long, value_name = "N")]
    conntrack_max_per_core: Option<u64>,
    /// Tracked connections at least; by default 131072.
    #[arg(long, value_name = "N")]
    conntrack_min: Option<u64>,
    /// How long a silent TCP connection is remembered; by default 24h.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    conntrack_tcp_timeout_established: Option<Duration>,
    /// How long a half-closed TCP connection is remembered; by default 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    conntrack_tcp_timeout_close_wait: Option<Duration>,
    /// How long a UDP flow without an answer is remembered.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    conntrack_udp_timeout: Option<Duration>,
    /// How long a UDP flow with answers is remembered.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    conntrack_udp_timeout_stream: Option<Duration>,
    /// Accept TCP packets outside of the window.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    conntrack_tcp_be_liberal: Option<bool>,
}

/// Flags that may stand in a DaemonSet and have no effect here; each use is logged. Those of the second
/// list may stand without a value.
macro_rules! ignored {
    ([$($flag:ident)*] [$($switch:ident)*]) => {
        #[derive(Args, Default)]
        struct Ignored {
            $(#[arg(long, hide = true, value_name = "VALUE")]
            $flag: Option<String>,)*
            $(#[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
            $switch: Option<String>,)*
            #[arg(short = 'v', long = "v", hide = true)]
            verbosity: Option<String>,
        }

        impl Ignored {
            fn warn(&self) {
                let flags = [
                    $((stringify!($flag), &self.$flag),)*
                    $((stringify!($switch), &self.$switch),)*
                    ("v", &self.verbosity),
                ];
                for (flag, _) in flags.iter().filter(|(_, value)| value.is_some()) {
                    let flag = flag.replace('_', "-");
                    tracing::warn!(flag, "this flag of kube-proxy has no effect here");
                }
            }
        }
    };
}

ignored! {
    [
        kube_api_burst kube_api_qps kube_api_content_type config_sync_period
        show_hidden_metrics_for_version master
        logging_format log_flush_frequency log_json_info_buffer_size log_text_info_buffer_size vmodule
        ipvs_min_sync_period ipvs_scheduler ipvs_sync_period ipvs_tcp_timeout
        ipvs_tcpfin_timeout ipvs_udp_timeout
    ]
    [profiling log_json_split_stream log_text_split_stream ipvs_strict_arp]
}

/// What else may be done where nftables mode cannot work.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fallback {
    /// Write rules by the iptables programs.
    Iptables,
    /// Nothing: end with the reason.
    None,
}

/// How rules are written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeFlag {
    /// By the iptables programs.
    Iptables,
    /// By netlink into nf_tables; Linux 5.13 or later.
    Nftables,
    /// As nftables, for configurations of kube-proxy's IPVS mode; what differs is named in the log.
    Ipvs,
}

/// Runs the proxy until a signal stops it; the rules stay.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    if flags.cleanup {
        return tokio::task::spawn_blocking(|| {
            let four = clean_up::<Ipv4Addr>();
            let six = clean_up::<Ipv6Addr>();
            // Sets can be destroyed once no chain looks into them.
            let ipvs = ipvs::remove_all();
            four.and(six)
                .map_err(anyhow::Error::from)
                .and(ipvs.map_err(Into::into))
        })
        .await?;
    }
    if flags.cleanup_own {
        let taken_over = tokio::task::spawn_blocking(clean_up_own).await??;
        anyhow::ensure!(
            taken_over == OwnRules::Removed,
            "packets still go through rules of ours: start kube-proxy, wait until its /healthz answers 200, then try again"
        );
        return Ok(());
    }
    flags.ignored.warn();
    let file: File = config_file::read(flags.config.as_deref())?;
    let score = file.oom_score_adj.or(flags.oom_score_adj);
    if let Some(score) = score
        && let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        tracing::warn!(%error, score, "the OOM score cannot be set");
    }
    let (init_only, write_to) = (flags.init_only == Some(true), flags.write_config_to.clone());
    let conntrack = config::conntrack(&flags.conntrack, &file.conntrack)?;
    let shown = config::shown_conntrack(&flags.conntrack, &file.conntrack, &conntrack);
    let mut config = config::resolve(flags, file)?;
    config.shown["conntrack"] = shown;
    config.shown["oomScoreAdj"] = score.into();
    if let Some(path) = write_to {
        let text = serde_saphyr::to_string(&config.shown)?;
        return std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()));
    }
    let settings = match config.observe {
        true => Vec::new(),
        false => sysctl::apply(&conntrack),
    };
    for (setting, error) in settings {
        tracing::warn!(setting, %error, "a setting of connection tracking cannot be changed");
    }
    if init_only {
        return initialise(&config);
    }
    run_until_signal(|stopping| run_proxy(config, Registry::new(), stopping)).await
}

/// The rest of what needs privileges that a proxy without `--init-only` does as it goes.
fn initialise(config: &Config) -> anyhow::Result<()> {
    if config.mode == Mode::Iptables && config.localhost_node_ports {
        allow_localhost_node_ports().context("letting node ports answer on localhost")?;
    }
    tracing::info!("kernel settings are in place");
    Ok(())
}

/// What `pointsman explain` knows about a proxy.
pub struct ExplainFlags {
    pub kubeconfig: Option<PathBuf>,
    pub node: Option<String>,
    pub mode: Option<ModeFlag>,
    pub cluster_cidr: Option<String>,
    pub detect_local_mode: Option<String>,
    pub node_ports: Option<Vec<String>>,
}

/// The configuration a proxy with these flags and this file would have.
pub fn config_for_explain(file: Option<PathBuf>, flags: ExplainFlags) -> anyhow::Result<Config> {
    let mut file: File = config_file::read(file.as_deref())?;
    if flags.kubeconfig.is_some() {
        file.client_connection.kubeconfig = None;
    }
    let flags = Flags {
        kubeconfig: flags.kubeconfig,
        hostname_override: flags.node,
        proxy_mode: flags.mode,
        cluster_cidr: flags.cluster_cidr,
        detect_local_mode: flags.detect_local_mode,
        nodeport_addresses: flags.node_ports,
        ..Flags::default()
    };
    config::resolve(flags, file)
}

impl ExplainFlags {
    /// Takes what is not given from a proxy that runs.
    pub fn fill(&mut self, running: RunningProxy) {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        self.mode = self.mode.or(mode_named(&running.mode));
        self.node_ports = self.node_ports.take().or(running.node_port_addresses);
        self.node = self.node.take().or(some(running.hostname_override));
        self.cluster_cidr = self.cluster_cidr.take().or(some(running.cluster_cidr));
        // Other ways need the name of an interface, too.
        let plain =
            some(running.detect_local_mode).filter(|mode| matches!(&**mode, "ClusterCIDR" | "NodeCIDR"));
        self.detect_local_mode = self.detect_local_mode.take().or(plain);
    }
}

/// The mode of this name.
pub fn mode_named(name: &str) -> Option<ModeFlag> {
    ModeFlag::from_str(name, true).ok()
}

/// What the proxy that runs on this machine says of itself, where it usually does; kube-proxy says the same.
#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunningProxy {
    mode: String,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: String,
    detect_local_mode: String,
    hostname_override: String,
    node_port_addresses: Option<Vec<String>>,
}

impl RunningProxy {
    /// Asks for its configuration.
    pub fn ask() -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Configz {
            #[serde(rename = "kubeproxy.config.k8s.io")]
            proxy: RunningProxy,
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10249));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        let request = "GET /configz HTTP/1.0\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        Some(serde_json::from_str::<Configz>(body).ok()?.proxy)
    }
}
