//! `pointsman proxy`.

mod file;

use crate::{duration, stop_signal};
use anyhow::{Context, bail};
use clap::{ArgAction, Args, ValueEnum};
use file::File;
use pointsman_api_client::Source;
use pointsman_dataplane::settings::NodePortRanges;
use pointsman_dataplane::{InterfaceName, MasqueradeMark};
use pointsman_proxy::{Config, LocalMode, Mode, clean_up, run as run_proxy};
use pointsman_telemetry::Registry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// Flags keep kube-proxy's names and formats. What the file given with --config sets wins over flags, but
/// for --hostname-override.
#[derive(Args)]
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
    /// Addresses that node ports answer on: ranges, `primary`, `localhost` or `all`.
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    nodeport_addresses: Option<Vec<String>>,
    /// The score by which the kernel chooses whom to end when memory runs out, -1000 to 1000.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    oom_score_adj: Option<i32>,
    /// Remove all rules of ours and of kube-proxy, and end.
    #[arg(long)]
    cleanup: bool,
    #[command(flatten)]
    ignored: Ignored,
}

/// Flags that may stand in a DaemonSet and have no effect here; each use is told in the log.
#[derive(Args)]
struct Ignored {
    #[arg(long, hide = true)]
    feature_gates: Option<String>,
    #[arg(long, hide = true)]
    kube_api_burst: Option<String>,
    #[arg(long, hide = true)]
    kube_api_qps: Option<String>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    config_sync_period: Option<String>,
    #[arg(long, hide = true)]
    conntrack_max_per_core: Option<String>,
    #[arg(long, hide = true)]
    conntrack_min: Option<String>,
    #[arg(long, hide = true)]
    conntrack_tcp_timeout_established: Option<String>,
    #[arg(long, hide = true)]
    conntrack_tcp_timeout_close_wait: Option<String>,
    #[arg(short = 'v', long = "v", hide = true)]
    verbosity: Option<String>,
}

impl Ignored {
    fn warn(&self) {
        let flags = [
            ("feature-gates", &self.feature_gates),
            ("kube-api-burst", &self.kube_api_burst),
            ("kube-api-qps", &self.kube_api_qps),
            ("kube-api-content-type", &self.kube_api_content_type),
            ("config-sync-period", &self.config_sync_period),
            ("conntrack-max-per-core", &self.conntrack_max_per_core),
            ("conntrack-min", &self.conntrack_min),
            (
                "conntrack-tcp-timeout-established",
                &self.conntrack_tcp_timeout_established,
            ),
            (
                "conntrack-tcp-timeout-close-wait",
                &self.conntrack_tcp_timeout_close_wait,
            ),
            ("v", &self.verbosity),
        ];
        for (flag, _) in flags.iter().filter(|(_, value)| value.is_some()) {
            tracing::warn!(flag, "this flag of kube-proxy has no effect here");
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeFlag {
    /// By the iptables programs.
    Iptables,
    /// By netlink into nf_tables; Linux 5.13 or later.
    Nftables,
}

/// Runs the proxy until a signal stops it; the rules stay.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    if flags.cleanup {
        return tokio::task::spawn_blocking(|| {
            let four = clean_up::<Ipv4Addr>();
            clean_up::<Ipv6Addr>()?;
            Ok(four?)
        })
        .await?;
    }
    flags.ignored.warn();
    let file = match &flags.config {
        Some(path) => {
            let (file, unread) = File::read(path)?;
            for field in unread {
                tracing::warn!(field, "this field of the configuration file has no effect here");
            }
            file
        }
        None => File::default(),
    };
    if let Some(score) = file.oom_score_adj.or(flags.oom_score_adj)
        && let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        tracing::warn!(%error, score, "the OOM score cannot be set");
    }
    let config = config(flags, file)?;
    let (stop, stopping) = watch::channel(false);
    let running = run_proxy(config, Registry::new(), stopping);
    tokio::pin!(running);
    tokio::select! {
        outcome = &mut running => return Ok(outcome?),
        signal = stop_signal() => signal?,
    }
    stop.send_replace(true);
    Ok(running.await?)
}

fn config(flags: Flags, file: File) -> anyhow::Result<Config> {
    for gate in file.feature_gates.iter().flatten() {
        tracing::warn!(gate = gate.0, "this feature gate has no effect here");
    }
    let mode = match file.mode.as_deref() {
        None => flags.proxy_mode.unwrap_or(ModeFlag::Iptables),
        Some("iptables") => ModeFlag::Iptables,
        Some("nftables") => ModeFlag::Nftables,
        Some(other) => bail!("mode {other:?} is neither iptables nor nftables"),
    };
    let mode = match mode {
        ModeFlag::Iptables => Mode::Iptables,
        ModeFlag::Nftables => Mode::Nftables,
    };
    let (all, bit, least, period) = match mode {
        Mode::Iptables => (
            file.iptables.masquerade_all,
            file.iptables.masquerade_bit,
            file.iptables.min_sync_period,
            file.iptables.sync_period,
        ),
        Mode::Nftables => (
            file.nftables.masquerade_all,
            file.nftables.masquerade_bit,
            file.nftables.min_sync_period,
            file.nftables.sync_period,
        ),
    };
    let bit = bit.or(flags.iptables_masquerade_bit).unwrap_or(14);
    let sync_period = time(period)?
        .or(flags.iptables_sync_period)
        .unwrap_or(Duration::from_secs(30));
    let min_sync_period = time(least)?
        .or(flags.iptables_min_sync_period)
        .unwrap_or_default();
    if sync_period.is_zero() || min_sync_period > sync_period {
        bail!("the sync period must be greater than zero and not less than the least one");
    }
    let node_ports = NodePortRanges {
        entries: file
            .node_port_addresses
            .or(flags.nodeport_addresses)
            .unwrap_or_default(),
    };
    node_ports.validate()?;
    let local = local_mode(
        file.detect_local_mode.or(flags.detect_local_mode).as_deref(),
        file.cluster_cidr.or(flags.cluster_cidr),
        file.detect_local.bridge_interface.or(flags.pod_bridge_interface),
        file.detect_local
            .interface_name_prefix
            .or(flags.pod_interface_name_prefix),
    )?;
    let healthz = file.healthz_bind_address.or(flags.healthz_bind_address);
    let metrics = file.metrics_bind_address.or(flags.metrics_bind_address);
    Ok(Config {
        source: Source::from_flag(file.client_connection.kubeconfig.or(flags.kubeconfig)),
        node: node_name(flags.hostname_override.or(file.hostname_override))?,
        mode,
        min_sync_period,
        sync_period,
        masquerade: MasqueradeMark::from_bit(bit).context("the masquerade bit must be at most 31")?,
        masquerade_all: all.or(flags.masquerade_all).unwrap_or(false),
        local,
        node_ports,
        localhost_node_ports: file
            .iptables
            .localhost_node_ports
            .or(flags.iptables_localhost_nodeports)
            .unwrap_or(true),
        node_ip: node_ip(file.bind_address.or(flags.bind_address).as_deref())?,
        healthz: address(healthz.as_deref(), "0.0.0.0:10256", 10256)?,
        metrics: address(metrics.as_deref(), "127.0.0.1:10249", 10249)?,
        bind_or_fail: file
            .bind_address_hard_fail
            .or(flags.bind_address_hard_fail)
            .unwrap_or(false),
    })
}

fn time(text: Option<String>) -> anyhow::Result<Option<Duration>> {
    text.map(|text| duration::parse(&text).map_err(anyhow::Error::msg))
        .transpose()
}

fn local_mode(
    mode: Option<&str>,
    cluster_cidr: Option<String>,
    bridge: Option<String>,
    prefix: Option<String>,
) -> anyhow::Result<LocalMode> {
    let name = |text: Option<String>, what: &str| {
        let text = text.with_context(|| format!("this way to detect local traffic needs {what}"))?;
        Ok::<_, anyhow::Error>(InterfaceName::try_new(&text)?)
    };
    Ok(match mode {
        None | Some("ClusterCIDR") => {
            let ranges = cluster_cidr.unwrap_or_default();
            let ranges: Vec<String> = ranges
                .split(',')
                .map(|range| range.trim().to_owned())
                .filter(|range| !range.is_empty())
                .collect();
            for range in &ranges {
                pointsman_model::Cidr::<Ipv4Addr>::parse(range).context("the cluster's range")?;
            }
            LocalMode::ClusterCidr(ranges)
        }
        Some("NodeCIDR") => LocalMode::NodeCidr,
        Some("BridgeInterface") => LocalMode::Bridge(name(bridge, "a bridge interface")?),
        Some("InterfaceNamePrefix") => LocalMode::InterfacePrefix(name(prefix, "an interface prefix")?),
        Some(other) => bail!("{other:?} is not a way to detect local traffic"),
    })
}

/// An unspecified address says nothing about the node.
fn node_ip(text: Option<&str>) -> anyhow::Result<Option<IpAddr>> {
    let Some(text) = text else { return Ok(None) };
    let address: IpAddr = text
        .parse()
        .with_context(|| format!("{text:?} is not an address"))?;
    Ok(Some(address).filter(|address| !address.is_unspecified()))
}

/// `ADDR:PORT`, or an address with the usual port.
fn address(text: Option<&str>, usual: &str, port: u16) -> anyhow::Result<Option<SocketAddr>> {
    let text = text.unwrap_or(usual);
    if text == "off" {
        return Ok(None);
    }
    let bare = || Some(SocketAddr::new(text.parse().ok()?, port));
    let address = text.parse().ok().or_else(bare);
    let address =
        address.with_context(|| format!("{text:?} is neither ADDR:PORT nor an address nor `off`"))?;
    Ok(Some(address))
}

fn node_name(given: Option<String>) -> anyhow::Result<String> {
    let name = match given {
        Some(name) => name,
        None => std::fs::read_to_string("/proc/sys/kernel/hostname").context("reading the host's name")?,
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        bail!("the host has no name; give one with --hostname-override");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: Flags,
    }

    fn parse(arguments: &[&str], file: File) -> anyhow::Result<Config> {
        let arguments = std::iter::once("proxy").chain(arguments.iter().copied());
        config(Cli::try_parse_from(arguments)?.flags, file)
    }

    #[test]
    fn defaults_are_those_of_kube_proxy_but_for_batching() {
        let config = parse(&["--hostname-override", " Node1 "], File::default()).unwrap();
        assert_eq!(config.node, "node1");
        assert_eq!(config.mode, Mode::Iptables);
        assert_eq!(config.min_sync_period, Duration::ZERO);
        assert_eq!(config.sync_period, Duration::from_secs(30));
        assert_eq!(config.healthz, Some("0.0.0.0:10256".parse().unwrap()));
        assert_eq!(config.metrics, Some("127.0.0.1:10249".parse().unwrap()));
        assert_eq!(config.local, LocalMode::ClusterCidr(Vec::new()));
    }

    #[test]
    fn what_the_file_sets_wins_over_flags_but_for_the_name() {
        let file = File {
            mode: Some("nftables".into()),
            hostname_override: Some("file".into()),
            metrics_bind_address: Some("0.0.0.0".into()),
            ..File::default()
        };
        let arguments = [
            "--proxy-mode=iptables",
            "--hostname-override=flag",
            "--masquerade-all",
        ];
        let config = parse(&arguments, file).unwrap();
        assert_eq!(config.mode, Mode::Nftables);
        assert_eq!(config.node, "flag");
        assert!(config.masquerade_all);
        assert_eq!(config.metrics, Some("0.0.0.0:10249".parse().unwrap()));
    }

    #[test]
    fn nonsense_is_refused() {
        for arguments in [
            ["--detect-local-mode=Sometimes"],
            ["--detect-local-mode=BridgeInterface"],
            ["--iptables-masquerade-bit=32"],
            ["--nodeport-addresses=eth0"],
            ["--cluster-cidr=10.0.0.0/99"],
            ["--iptables-min-sync-period=1m"],
            ["--metrics-bind-address=here"],
            ["--bind-address=here"],
        ] {
            assert!(parse(&arguments, File::default()).is_err(), "{arguments:?}");
        }
    }
}
