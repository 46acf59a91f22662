//! What do flags and file say together?

use super::file::{self, File, Writing};
use super::{ConntrackFlags, Fallback, Flags, ModeFlag};
use crate::duration;
use anyhow::{Context, bail};
use pointsman_api_client::Source;
use pointsman_dataplane::settings::NodePortRanges;
use pointsman_dataplane::{InterfaceName, MasqueradeMark, Restores};
use pointsman_fabric::Prefix;
use pointsman_kernel::sysctl;
use pointsman_model::duration::go;
use pointsman_model::{Feature, FeatureGates};
use pointsman_node_health::peers::gone;
use pointsman_proxy::{Config, LocalMode, Mode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// What the file and the flags say together; the file wins but for the node's name, as in kube-proxy.
pub(super) fn resolve(flags: Flags, file: File) -> anyhow::Result<Config> {
    let gates = gates(flags.feature_gates.as_deref(), file.feature_gates)?;
    let asked = mode_flag(file.mode.as_deref(), flags.proxy_mode)?;
    let mode = match asked {
        ModeFlag::Iptables => Mode::Iptables,
        ModeFlag::Nftables => Mode::Nftables,
        ModeFlag::Ipvs => {
            tracing::warn!("{IPVS_DIFFERS}");
            Mode::Nftables
        }
    };
    let Writing {
        masquerade_all,
        masquerade_bit,
        min_sync_period,
        sync_period,
    } = match asked {
        ModeFlag::Iptables => file.iptables.writing,
        ModeFlag::Nftables => file.nftables,
        // IPVS mode takes from there what it shares, and has periods of its own.
        ModeFlag::Ipvs => Writing {
            masquerade_all: file.iptables.writing.masquerade_all,
            masquerade_bit: file.iptables.writing.masquerade_bit,
            ..file.nftables
        },
    };
    let (min_sync_period, sync_period) = sync_periods(
        time(min_sync_period)?.or(flags.iptables_min_sync_period),
        time(sync_period)?.or(flags.iptables_sync_period),
    )?;
    let bit = masquerade_bit.or(flags.iptables_masquerade_bit).unwrap_or(14);
    let node_ports = node_ports(asked, file.node_port_addresses.or(flags.nodeport_addresses))?;
    let local = local_mode(
        file.detect_local_mode.or(flags.detect_local_mode).as_deref(),
        file.cluster_cidr.or(flags.cluster_cidr),
        file.detect_local.bridge_interface.or(flags.pod_bridge_interface),
        file.detect_local
            .interface_name_prefix
            .or(flags.pod_interface_name_prefix),
    )?;
    // The file of an observer is kube-proxy's, which listens there itself.
    let (file_healthz, file_metrics) = match flags.observe {
        true => (None, None),
        false => (file.healthz_bind_address, file.metrics_bind_address),
    };
    let healthz = file_healthz.or(flags.healthz_bind_address);
    let metrics = file_metrics.or(flags.metrics_bind_address);
    let localhost_node_ports = file.iptables.localhost_node_ports;
    let bind_or_fail = file.bind_address_hard_fail.or(flags.bind_address_hard_fail);
    let mut config = Config {
        source: Source::from_flag(file.client_connection.kubeconfig.or(flags.kubeconfig)),
        node: node_name(flags.hostname_override.or(file.hostname_override))?,
        mode,
        observe: flags.observe,
        min_sync_period,
        sync_period,
        restores: match gates.enabled(Feature::MinimizeIPTablesRestore) {
            true => Restores::Minimal,
            false => Restores::Complete,
        },
        masquerade: MasqueradeMark::from_bit(bit).context("the masquerade bit must be at most 31")?,
        masquerade_all: masquerade_all.or(flags.masquerade_all).unwrap_or(false),
        local,
        node_ports,
        localhost_node_ports: localhost_node_ports
            .or(flags.iptables_localhost_nodeports)
            .unwrap_or(true),
        nftables_localhost_node_ports: gates.enabled(Feature::KubeProxyNFTablesLocalhostNodePorts),
        node_ip: node_ip(file.bind_address.or(flags.bind_address).as_deref())?,
        healthz: address(healthz.as_deref(), "0.0.0.0:10256", 10256)?,
        metrics: address(metrics.as_deref(), "127.0.0.1:10249", 10249)?,
        guard: flags.metrics_access.settings()?,
        bind_or_fail: bind_or_fail.unwrap_or(false),
        ipvs_exclude: ranges(file.ipvs.exclude_cidrs.or(flags.ipvs_exclude_cidrs))?,
        fall_back_to_iptables: flags.nftables_fallback == Some(Fallback::Iptables),
        peer_leases: peer_leases(flags.peer_lease_namespace, &gates)?,
        reset_dead_connections: resets(
            time(file.reset_dead_connections)?.or(flags.reset_dead_connections),
            &gates,
        )?,
        shown: Value::Null,
    };
    config.shown = shown(&config);
    Ok(config)
}

/// What a DaemonSet or a ConfigMap switches. Many gates of kube-proxy mean nothing here.
fn gates(flag: Option<&str>, file: Option<BTreeMap<String, bool>>) -> anyhow::Result<FeatureGates> {
    let mut listed = Vec::new();
    for item in flag
        .unwrap_or_default()
        .split(',')
        .filter(|item| !item.trim().is_empty())
    {
        let on = item
            .split_once('=')
            .map(|(name, on)| (name.trim().to_owned(), on.trim().parse()));
        match on {
            Some((name, Ok(on))) => listed.push((name, on)),
            _ => bail!("feature gate {item:?} is not of the form Name=true or Name=false"),
        }
    }
    let mut gates = FeatureGates::default();
    for (name, on) in listed.into_iter().chain(file.into_iter().flatten()) {
        match Feature::ALL.into_iter().find(|gate| gate.name() == name) {
            Some(feature) => gates = gates.with(feature, on),
            None => tracing::warn!(gate = name, "this feature gate has no effect here"),
        }
    }
    Ok(gates)
}

/// An empty name switches it off, as it does where a chart's values leave it out.
fn peer_leases(namespace: Option<String>, gates: &FeatureGates) -> anyhow::Result<Option<String>> {
    let namespace = namespace.filter(|name| !name.is_empty() && gates.enabled(Feature::PeerReachability));
    if namespace.as_deref() == Some("kube-node-lease") {
        bail!(
            "--peer-lease-namespace: Leases in kube-node-lease are heartbeats of the nodes' agents; name another"
        );
    }
    Ok(namespace)
}

/// The bound; zero switches it off, and too short a one cannot be kept.
fn resets(bound: Option<Duration>, gates: &FeatureGates) -> anyhow::Result<Option<Duration>> {
    let bound = bound.filter(|bound| !bound.is_zero() && gates.enabled(Feature::PeerReachability));
    if let Some(bound) = bound.filter(|bound| *bound < gone::LEAST) {
        bail!(
            "--reset-dead-connections: {} is less than {}",
            go(bound),
            go(gone::LEAST)
        );
    }
    Ok(bound)
}

fn ranges(texts: Option<Vec<String>>) -> anyhow::Result<Vec<Prefix>> {
    let texts = texts.unwrap_or_default().into_iter();
    let parsed = texts.map(|text| {
        text.parse()
            .with_context(|| format!("ipvs.excludeCIDRs: {text:?} is no range"))
    });
    parsed.collect()
}

/// What an operator who comes from IPVS mode has to know.
const IPVS_DIFFERS: &str = "mode ipvs: rules are written in nftables mode instead. Connections are spread at random, \
     whatever ipvs.scheduler says; cluster addresses are no longer addresses of this node (they do not answer ping, and \
     programs of the node cannot listen on them); strictARP, ipvs timeouts and ipvs sync periods have no effect \
     (conntrack's timeouts hold; arp_ignore and arp_announce stay as they are, for load balancers that need them); \
     kube-ipvs0, KUBE- ipsets and virtual servers outside of ipvs.excludeCIDRs are removed once our rules stand; set \
     mode: nftables to say what you want";

fn mode_flag(file: Option<&str>, flag: Option<ModeFlag>) -> anyhow::Result<ModeFlag> {
    Ok(match file {
        None => flag.unwrap_or(ModeFlag::Iptables),
        Some("iptables") => ModeFlag::Iptables,
        Some("nftables") => ModeFlag::Nftables,
        Some("ipvs") => ModeFlag::Ipvs,
        Some(other) => bail!("mode {other:?} is none of iptables, nftables and ipvs"),
    })
}

/// Nobody asked for ports on all addresses by choosing nftables mode: kube-proxy's default is narrower there.
///
/// IPVS mode's is not, and a node that leaves it goes on answering where it did.
fn node_ports(mode: ModeFlag, entries: Option<Vec<String>>) -> anyhow::Result<NodePortRanges> {
    let mut entries = entries.unwrap_or_default();
    if entries.is_empty() && mode == ModeFlag::Nftables {
        entries.push("primary".to_owned());
    }
    let ranges = NodePortRanges { entries };
    ranges.validate()?;
    Ok(ranges)
}

/// The least and the usual time between two syncs.
fn sync_periods(least: Option<Duration>, usual: Option<Duration>) -> anyhow::Result<(Duration, Duration)> {
    let (least, usual) = (
        least.unwrap_or_default(),
        usual.unwrap_or(Duration::from_secs(30)),
    );
    if usual.is_zero() || least > usual {
        bail!("the sync period must be greater than zero and not less than the least one");
    }
    Ok((least, usual))
}

/// Connections that are tracked for each core, and the least for all (upstream's numbers).
const MAX_PER_CORE: u64 = 32_768;
const LEAST: u64 = 131_072;

/// Settings of connection tracking with upstream's defaults; zero leaves the kernel's.
pub(super) fn conntrack(flags: &ConntrackFlags, file: &file::Conntrack) -> anyhow::Result<sysctl::Conntrack> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let set = |duration: Duration| Some(duration).filter(|duration| !duration.is_zero());
    let from = |text: &Option<String>, flag: Option<Duration>, usual: u64| {
        let value = time(text.clone())?.or(flag).unwrap_or(Duration::from_secs(usual));
        Ok::<_, anyhow::Error>(set(value))
    };
    let per_core = file.max_per_core.or(flags.conntrack_max_per_core);
    let least = file.min.or(flags.conntrack_min);
    Ok(sysctl::Conntrack {
        max: sysctl::conntrack_limit(per_core.unwrap_or(MAX_PER_CORE), least.unwrap_or(LEAST), cores),
        tcp_established: from(
            &file.tcp_established_timeout,
            flags.conntrack_tcp_timeout_established,
            86_400,
        )?,
        tcp_close_wait: from(
            &file.tcp_close_wait_timeout,
            flags.conntrack_tcp_timeout_close_wait,
            3_600,
        )?,
        udp: from(&file.udp_timeout, flags.conntrack_udp_timeout, 0)?,
        udp_stream: from(&file.udp_stream_timeout, flags.conntrack_udp_timeout_stream, 0)?,
        tcp_be_liberal: file
            .tcp_be_liberal
            .or(flags.conntrack_tcp_be_liberal)
            .unwrap_or(false),
    })
}

/// The settings of connection tracking as the configuration file has them.
pub(super) fn shown_conntrack(
    flags: &ConntrackFlags,
    file: &file::Conntrack,
    resolved: &sysctl::Conntrack,
) -> Value {
    let timeout = |value: Option<Duration>| go(value.unwrap_or_default());
    json!({
        "maxPerCore": file.max_per_core.or(flags.conntrack_max_per_core).unwrap_or(MAX_PER_CORE),
        "min": file.min.or(flags.conntrack_min).unwrap_or(LEAST),
        "tcpEstablishedTimeout": timeout(resolved.tcp_established),
        "tcpCloseWaitTimeout": timeout(resolved.tcp_close_wait),
        "udpTimeout": timeout(resolved.udp),
        "udpStreamTimeout": timeout(resolved.udp_stream),
        "tcpBeLiberal": resolved.tcp_be_liberal,
    })
}

/// The configuration as a KubeProxyConfiguration, which a proxy could be started with again. Fields of what is
/// not here (IPVS, Windows, profiling) are there with the values that mean "not set".
fn shown(config: &Config) -> Value {
    let (local, ranges, bridge, prefix) = match &config.local {
        LocalMode::ClusterCidr(ranges) => ("ClusterCIDR", ranges.join(","), String::new(), String::new()),
        LocalMode::NodeCidr => ("NodeCIDR", String::new(), String::new(), String::new()),
        LocalMode::Bridge(name) => ("BridgeInterface", String::new(), name.to_string(), String::new()),
        LocalMode::InterfacePrefix(name) => (
            "InterfaceNamePrefix",
            String::new(),
            String::new(),
            name.to_string(),
        ),
    };
    let kubeconfig = match &config.source {
        Source::Kubeconfig(path) => path.display().to_string(),
        Source::InCluster => String::new(),
    };
    let listen =
        |address: Option<SocketAddr>| address.map_or("off".to_owned(), |address| address.to_string());
    let writing = json!({
        "masqueradeAll": config.masquerade_all,
        "masqueradeBit": config.masquerade.get().trailing_zeros(),
        "minSyncPeriod": go(config.min_sync_period),
        "syncPeriod": go(config.sync_period),
    });
    let mut iptables = writing.clone();
    iptables["localhostNodePorts"] = json!(config.localhost_node_ports);
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": config.mode.as_str(),
        "clientConnection": {
            "kubeconfig": kubeconfig, "acceptContentTypes": "", "contentType": "", "qps": 0, "burst": 0,
        },
        "configSyncPeriod": "0s",
        "enableProfiling": false,
        "logging": { "flushFrequency": 0, "verbosity": 0, "options": {
            "json": { "infoBufferSize": 0 }, "text": { "infoBufferSize": 0 },
        } },
        "ipvs": {
            "syncPeriod": "0s", "minSyncPeriod": "0s", "scheduler": "", "excludeCIDRs": null, "strictARP": false,
            "tcpTimeout": "0s", "tcpFinTimeout": "0s", "udpTimeout": "0s",
        },
        "winkernel": {
            "networkName": "", "sourceVip": "", "enableDSR": false, "rootHnsEndpointName": "",
            "forwardHealthCheckVip": false,
        },
        "oomScoreAdj": null,
        "portRange": "",
        "showHiddenMetricsForVersion": "",
        "hostnameOverride": config.node,
        "clusterCIDR": ranges,
        "detectLocalMode": local,
        "detectLocal": { "bridgeInterface": bridge, "interfaceNamePrefix": prefix },
        "iptables": iptables,
        "nftables": writing,
        "nodePortAddresses": config.node_ports.entries,
        "bindAddress": config.node_ip.map(|ip| ip.to_string()).unwrap_or_default(),
        "bindAddressHardFail": config.bind_or_fail,
        "featureGates": {
            Feature::MinimizeIPTablesRestore.name(): config.restores == Restores::Minimal,
            Feature::KubeProxyNFTablesLocalhostNodePorts.name(): config.nftables_localhost_node_ports,
        },
        "resetDeadConnections": go(config.reset_dead_connections.unwrap_or_default()),
        "healthzBindAddress": listen(config.healthz),
        "metricsBindAddress": listen(config.metrics),
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
        resolve(Cli::try_parse_from(arguments)?.flags, file)
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
        assert_eq!(config.node_ports.entries, Vec::<String>::new());
        let nftables = parse(
            &["--hostname-override=n1", "--proxy-mode=nftables"],
            File::default(),
        )
        .unwrap();
        assert_eq!(nftables.node_ports.entries, ["primary"]);
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
    fn the_configuration_shown_makes_the_same_proxy() {
        let arguments = [
            "--hostname-override=n1",
            "--proxy-mode=nftables",
            "--cluster-cidr=10.0.0.0/16",
            "--iptables-sync-period=1500ms",
            "--metrics-bind-address=off",
            "--masquerade-all",
            "--reset-dead-connections=20s",
        ];
        let config = parse(&arguments, File::default()).unwrap();
        let text = serde_saphyr::to_string(&config.shown).unwrap();
        let (file, unread) = crate::config_file::parse::<File>(&text).unwrap();
        assert_eq!(unread, Vec::<String>::new());
        let again = parse(&[], file).unwrap();
        assert_eq!(again.shown, config.shown);
        assert_eq!(again.sync_period, Duration::from_millis(1500));
        assert_eq!(again.reset_dead_connections, Some(Duration::from_secs(20)));
        let off = parse(&["--reset-dead-connections=0s"], File::default()).unwrap();
        assert_eq!(off.reset_dead_connections, None);
    }

    #[test]
    fn connection_tracking_has_the_defaults_of_kube_proxy_and_zero_leaves_the_kernels() {
        let usual = conntrack(&ConntrackFlags::default(), &file::Conntrack::default()).unwrap();
        assert!(usual.max >= Some(131_072));
        assert_eq!(usual.tcp_established, Some(Duration::from_secs(86_400)));
        assert_eq!((usual.udp, usual.tcp_be_liberal), (None, false));
        let flags = ConntrackFlags {
            conntrack_max_per_core: Some(0),
            conntrack_tcp_timeout_established: Some(Duration::ZERO),
            ..ConntrackFlags::default()
        };
        let file = file::Conntrack {
            tcp_close_wait_timeout: Some("5m".into()),
            ..file::Conntrack::default()
        };
        let set = conntrack(&flags, &file).unwrap();
        assert_eq!((set.max, set.tcp_established), (None, None));
        assert_eq!(set.tcp_close_wait, Some(Duration::from_secs(300)));
    }

    #[test]
    fn the_arguments_of_a_daemon_set_are_accepted() {
        let arguments = [
            "--hostname-override=n0",
            // The last one counts, as for kube-proxy.
            "--hostname-override=n1",
            "--v=2",
            "--cluster-cidr=10.244.0.0/16",
            "--oom-score-adj=-998",
            "--kube-api-qps=20",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-be-liberal",
            "--iptables-localhost-nodeports=false",
            "--feature-gates=NFTablesProxyMode=true,MinimizeIPTablesRestore=false",
        ];
        let config = parse(&arguments, File::default()).unwrap();
        assert_eq!(config.restores, Restores::Complete);
        assert!(!config.localhost_node_ports);
        assert_eq!(config.node, "n1");
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
            ["--feature-gates=MinimizeIPTablesRestore"],
            ["--reset-dead-connections=2s"],
        ] {
            assert!(parse(&arguments, File::default()).is_err(), "{arguments:?}");
        }
    }
}
