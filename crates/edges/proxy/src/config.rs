//! What can be set?

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pointsman_api_client::Source;
use pointsman_dataplane::schedule::Intervals;
use pointsman_dataplane::settings::NodePortRanges;
use pointsman_dataplane::{
    InterfaceName, LocalDetector, Localhost, MasqueradeMark, NodePortAddresses, Restores, Settings,
};
use pointsman_fabric::Prefix;
use pointsman_kernel::Mode;
use pointsman_model::{Address, Cidr};

/// Settings of a proxy.
#[derive(Clone, Debug)]
pub struct Config {
    pub source: Source,
    /// The name of the Node we are on.
    pub node: String,
    /// How rules are written.
    pub mode: Mode,
    /// Another program writes them, in this mode: write nothing, and follow what it writes.
    pub observe: bool,
    /// The least time between two syncs.
    pub min_sync_period: Duration,
    /// How often failures are retried at the latest, and how often the rules are checked.
    pub sync_period: Duration,
    /// How much is written at once in iptables mode.
    pub restores: Restores,
    /// The packet mark that asks for masquerading.
    pub masquerade: MasqueradeMark,
    /// Masquerade everything sent to a cluster address.
    pub masquerade_all: bool,
    /// How pods of the cluster are told from others.
    pub local: LocalMode,
    /// On which addresses node ports answer.
    pub node_ports: NodePortRanges,
    /// Node ports also answer on 127.0.0.1 (iptables mode).
    pub localhost_node_ports: bool,
    /// In nftables mode too, where `node_ports` names a loopback address (gate `KubeProxyNFTablesLocalhostNodePorts`).
    pub nftables_localhost_node_ports: bool,
    /// The node's address, instead of the one its Node names.
    pub node_ip: Option<IpAddr>,
    /// Where `/healthz` and `/livez` are served.
    pub healthz: Option<SocketAddr>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Who may read them.
    pub guard: pointsman_guard::Settings,
    /// Give up if an address cannot be listened on, instead of trying again.
    pub bind_or_fail: bool,
    /// Ranges of IPVS virtual servers that were never kube-proxy's, and stay when a node leaves that mode.
    pub ipvs_exclude: Vec<Prefix>,
    /// Write rules by iptables if the kernel cannot hold the table of nftables mode, instead of giving up.
    pub fall_back_to_iptables: bool,
    /// The namespace of the Lease in which this node says which others it does not reach, if the proxy is to say so.
    pub peer_leases: Option<String>,
    /// How long a node is withdrawn, and silent, before connections to its pods are reset; never if there is nothing.
    pub reset_dead_connections: Option<Duration>,
    /// The whole configuration as `/configz` shows it.
    pub shown: serde_json::Value,
}

/// How pods of the cluster are told from others (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// By these source ranges; none means that nobody can be told.
    ClusterCidr(Vec<String>),
    /// By the ranges that the Node names.
    NodeCidr,
    /// By the bridge they come through.
    Bridge(InterfaceName),
    /// By the beginning of the interface's name.
    InterfacePrefix(InterfaceName),
}

/// What the node says about itself; changes while we run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Its addresses, the most important first.
    pub addresses: Vec<IpAddr>,
    /// The ranges of its pods.
    pub pod_cidrs: Vec<String>,
    /// The addresses of its interfaces.
    pub interfaces: Vec<IpAddr>,
    /// Connection tracking accepts out-of-window packets.
    pub conntrack_liberal: bool,
    /// The kernel has counters that rules may name.
    pub named_counters: bool,
    /// The ranges that cluster addresses are taken from, of both families.
    pub service_cidrs: Vec<String>,
}

impl Config {
    /// When to sync.
    pub fn intervals(&self) -> Intervals {
        Intervals {
            // Who only looks has to know what is to come before it is written; the period in the file is the writer's.
            least: match self.observe {
                true => Duration::ZERO,
                false => self.min_sync_period,
            },
            longest_retry: self.sync_period,
            ..Intervals::default()
        }
    }

    /// How often somebody looks whether the rules are as we left them: mostly one question to the kernel.
    pub fn check_period(&self) -> Duration {
        self.sync_period.min(Duration::from_secs(1))
    }

    /// What shapes the rules of one family on a node.
    pub fn settings<A: Address>(&self, node: &NodeState) -> Settings<A> {
        let of_family = |addresses: &[IpAddr]| -> Vec<A> {
            addresses
                .iter()
                .filter_map(|address| A::narrow(*address))
                .collect()
        };
        let named = of_family(&node.addresses);
        let node_ip = self.node_ip.and_then(A::narrow).or(named.first().copied());
        let local = match &self.local {
            LocalMode::ClusterCidr(ranges) => LocalDetector::from_ranges(ranges.iter().map(String::as_str)),
            LocalMode::NodeCidr => LocalDetector::from_ranges(node.pod_cidrs.iter().map(String::as_str)),
            LocalMode::Bridge(name) => LocalDetector::Bridge(name.clone()),
            LocalMode::InterfacePrefix(name) => LocalDetector::InterfacePrefix(name.clone()),
        };
        let node_ports: NodePortAddresses<A> = self.node_ports.resolve(node_ip, &of_family(&node.interfaces));
        Settings {
            masquerade: self.masquerade,
            masquerade_all: self.masquerade_all,
            local,
            node_ports,
            node_ip,
            localhost_node_ports: self.localhost_node_ports && self.mode == Mode::Iptables,
            localhost: match self.mode == Mode::Nftables
                && self.nftables_localhost_node_ports
                && !self.observe
            {
                true => self.node_ports.localhost::<A>(),
                false => Localhost::Ignored,
            },
            conntrack_liberal: node.conntrack_liberal,
            named_counters: node.named_counters && self.mode == Mode::Iptables,
            service_cidrs: node
                .service_cidrs
                .iter()
                .filter_map(|range| Cidr::parse(range).ok().flatten())
                .collect(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    pub(crate) fn config() -> Config {
        Config {
            source: Source::InCluster,
            node: "n1".into(),
            mode: Mode::Iptables,
            observe: false,
            min_sync_period: Duration::ZERO,
            sync_period: Duration::from_secs(30),
            restores: Restores::Minimal,
            masquerade: MasqueradeMark::default(),
            masquerade_all: false,
            local: LocalMode::NodeCidr,
            node_ports: NodePortRanges::default(),
            localhost_node_ports: true,
            nftables_localhost_node_ports: false,
            node_ip: None,
            healthz: None,
            metrics: None,
            bind_or_fail: false,
            guard: pointsman_guard::Settings::default(),
            ipvs_exclude: Vec::new(),
            fall_back_to_iptables: false,
            peer_leases: None,
            reset_dead_connections: None,
            shown: serde_json::Value::Null,
        }
    }

    #[test]
    fn each_family_takes_its_own_part_of_what_the_node_says() {
        let node = NodeState {
            addresses: vec!["192.168.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            pod_cidrs: vec!["10.0.1.0/24".into(), "fd00:1::/64".into()],
            ..NodeState::default()
        };
        let four = config().settings::<Ipv4Addr>(&node);
        assert_eq!(four.node_ip, Some(Ipv4Addr::new(192, 168, 0, 2)));
        assert_eq!(four.local, LocalDetector::from_ranges(["10.0.1.0/24"]));
        let six = config().settings::<Ipv6Addr>(&node);
        assert_eq!(six.node_ip, Some("fd00::2".parse().unwrap()));
        assert_eq!(six.local, LocalDetector::from_ranges(["fd00:1::/64"]));
    }

    #[test]
    fn an_observer_does_not_wait_as_long_as_kube_proxy_does() {
        let waiting = Config {
            min_sync_period: Duration::from_secs(1),
            ..config()
        };
        assert_eq!(waiting.intervals().least, Duration::from_secs(1));
        let observing = Config {
            observe: true,
            ..waiting
        };
        assert_eq!(observing.intervals().least, Duration::ZERO);
    }

    #[test]
    fn node_ports_answer_on_localhost_in_iptables_mode_and_with_the_gate_in_nftables_mode() {
        let node = NodeState::default();
        assert!(config().settings::<Ipv4Addr>(&node).localhost_node_ports);
        let nftables = Config {
            mode: Mode::Nftables,
            ..config()
        };
        let settings = nftables.settings::<Ipv4Addr>(&node);
        assert!(!settings.localhost_node_ports);
        assert_eq!(settings.localhost, Localhost::Ignored);
        let with_gate = |mode| Config {
            mode,
            nftables_localhost_node_ports: true,
            node_ports: NodePortRanges {
                entries: vec!["localhost".into()],
            },
            ..config()
        };
        let of = |mode| with_gate(mode).settings::<Ipv4Addr>(&node).localhost;
        assert_eq!(of(Mode::Nftables), Localhost::Served);
        assert_eq!(of(Mode::Iptables), Localhost::Ignored);
    }
}
