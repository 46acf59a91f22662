//! What is a chain called?
//!
//! Per-Service chains carry upstream's names, which operators grep for: a prefix and the first 16
//! characters of the base32 form of a SHA-256. Those 16 characters are exactly 80 bits, so a name is
//! kept as ten bytes and spelled out when printed.

use std::fmt;

use pointsman_model::{Address, Backend, ServicePortName};
use sha2::{Digest, Sha256};

/// A table of the packet filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Accepts and drops.
    Filter,
    /// Translates addresses of new connections.
    Nat,
    /// Only holds a canary here.
    Mangle,
}

impl Table {
    /// All tables we touch, in the order of a restore input.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Mangle => "mangle",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.as_str() == text)
    }
}

/// The 80 bits that tell Services and endpoints apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash([u8; 10]);

impl NameHash {
    /// The hash of a Service port.
    pub fn of_port(name: &ServicePortName) -> Self {
        Self::of(&format!("{name}{}", name.protocol))
    }

    /// The hash of one endpoint of a Service port.
    pub fn of_endpoint<A: Address>(name: &ServicePortName, backend: Backend<A>) -> Self {
        Self::of(&format!("{name}{}{backend}", name.protocol))
    }

    fn of(text: &str) -> Self {
        let digest = Sha256::digest(text.as_bytes());
        let mut bytes = [0; 10];
        bytes.copy_from_slice(&digest[..10]);
        Self(bytes)
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text
            .bytes()
            .map(|byte| BASE32.iter().position(|digit| *digit == byte));
        let mut value: u128 = 0;
        let mut count = 0;
        for digit in digits {
            value = value << 5 | digit? as u128;
            count += 1;
        }
        let mut bytes = [0; 10];
        bytes.copy_from_slice(&value.to_be_bytes()[6..]);
        (count == 16).then_some(Self(bytes))
    }
}

/// RFC 4648.
const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

impl fmt::Display for NameHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wide = [0; 16];
        wide[6..].copy_from_slice(&self.0);
        let value = u128::from_be_bytes(wide);
        let mut text = [0; 16];
        for (position, slot) in text.iter_mut().enumerate() {
            *slot = BASE32[(value >> (75 - 5 * position)) as usize & 31];
        }
        f.write_str(std::str::from_utf8(&text).expect("base32 is ASCII"))
    }
}

impl fmt::Debug for NameHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A chain the kernel brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Builtin {
    /// Packets that just came in.
    Prerouting,
    /// Packets for this node.
    Input,
    /// Packets passing through.
    Forward,
    /// Packets this node sends.
    Output,
    /// Packets about to leave.
    Postrouting,
}

impl Builtin {
    const ALL: [Self; 5] = [
        Self::Prerouting,
        Self::Input,
        Self::Forward,
        Self::Output,
        Self::Postrouting,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
}

/// A chain of which there is one, whatever the Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Top {
    /// Finds the Service of a packet (nat), or refuses one without endpoints (filter).
    Services,
    /// Finds the Service of a node port (nat), or lets health checks in (filter).
    NodePorts,
    /// Refuses packets from outside for Services without usable endpoints.
    ExternalServices,
    /// Lets translated traffic through.
    Forward,
    /// Drops what a Service's source ranges do not allow.
    ProxyFirewall,
    /// Shared with the kubelet: protects localhost.
    Firewall,
    /// Masquerades marked packets.
    Postrouting,
    /// Marks packets for masquerading.
    MarkMasq,
    /// Holds nothing; its absence shows that somebody flushed the tables.
    Canary,
}

impl Top {
    const ALL: [Self; 9] = [
        Self::Services,
        Self::NodePorts,
        Self::ExternalServices,
        Self::Forward,
        Self::ProxyFirewall,
        Self::Firewall,
        Self::Postrouting,
        Self::MarkMasq,
        Self::Canary,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Services => "KUBE-SERVICES",
            Self::NodePorts => "KUBE-NODEPORTS",
            Self::ExternalServices => "KUBE-EXTERNAL-SERVICES",
            Self::Forward => "KUBE-FORWARD",
            Self::ProxyFirewall => "KUBE-PROXY-FIREWALL",
            Self::Firewall => "KUBE-FIREWALL",
            Self::Postrouting => "KUBE-POSTROUTING",
            Self::MarkMasq => "KUBE-MARK-MASQ",
            Self::Canary => "KUBE-PROXY-CANARY",
        }
    }
}

/// A chain that only kube-proxy's IPVS mode makes, known so that it can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpvsChain {
    NodePort,
    LoadBalancer,
    SourceRanges,
    Filter,
    OutFilter,
}

impl IpvsChain {
    const ALL: [Self; 5] = [
        Self::NodePort,
        Self::LoadBalancer,
        Self::SourceRanges,
        Self::Filter,
        Self::OutFilter,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NodePort => "KUBE-NODE-PORT",
            Self::LoadBalancer => "KUBE-LOAD-BALANCER",
            Self::SourceRanges => "KUBE-SOURCE-RANGES-FIREWALL",
            Self::Filter => "KUBE-IPVS-FILTER",
            Self::OutFilter => "KUBE-IPVS-OUT-FILTER",
        }
    }
}

/// What a per-Service chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Chooses among the cluster set.
    Cluster,
    /// Chooses among the local set.
    Local,
    /// Receives traffic from outside.
    External,
    /// Checks source ranges.
    Firewall,
    /// Sends to one endpoint.
    Endpoint,
}

impl Role {
    const ALL: [Self; 5] = [
        Self::Cluster,
        Self::Local,
        Self::External,
        Self::Firewall,
        Self::Endpoint,
    ];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
            Self::External => "KUBE-EXT-",
            Self::Firewall => "KUBE-FW-",
            Self::Endpoint => "KUBE-SEP-",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// A chain of the kernel's.
    Builtin(Builtin),
    /// One of the fixed chains.
    Top(Top),
    /// The part of [`Top::Services`] for addresses that end in this byte.
    Bucket(u8),
    /// A chain of one Service port or endpoint.
    Service(Role, NameHash),
    /// A chain that IPVS mode left.
    Ipvs(IpvsChain),
}

impl ChainName {
    /// Reads a name; `None` for chains that are not ours to know.
    pub fn parse(text: &str) -> Option<Self> {
        let builtin = Builtin::ALL
            .into_iter()
            .find(|chain| chain.as_str() == text)
            .map(Self::Builtin);
        let top = || {
            Top::ALL
                .into_iter()
                .find(|chain| chain.as_str() == text)
                .map(Self::Top)
        };
        let bucket = || {
            let digits = text
                .strip_prefix(BUCKET_PREFIX)
                .filter(|digits| digits.len() == 2)?;
            let lower = digits.bytes().any(|byte| byte.is_ascii_lowercase());
            u8::from_str_radix(digits, 16)
                .ok()
                .filter(|_| !lower)
                .map(Self::Bucket)
        };
        let service = || {
            Role::ALL.into_iter().find_map(|role| {
                let hash = NameHash::parse(text.strip_prefix(role.prefix())?)?;
                Some(Self::Service(role, hash))
            })
        };
        let ipvs = || {
            let chain = IpvsChain::ALL.into_iter().find(|chain| chain.as_str() == text);
            chain.map(Self::Ipvs)
        };
        builtin
            .or_else(top)
            .or_else(bucket)
            .or_else(service)
            .or_else(ipvs)
    }

    /// Whether the chain comes and goes with Services or with another mode, so that an unneeded one is a leftover.
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Bucket(_) | Self::Service(..) | Self::Ipvs(_))
    }

    /// Whether it sends packets to one endpoint.
    pub const fn is_endpoint(self) -> bool {
        matches!(self, Self::Service(Role::Endpoint, _))
    }

    /// Whether each rule stands for one Service and their order means nothing.
    pub const fn is_dispatch(self) -> bool {
        let dispatching = matches!(
            self,
            Self::Top(Top::Services | Top::NodePorts | Top::ExternalServices | Top::ProxyFirewall)
        );
        dispatching || matches!(self, Self::Bucket(_))
    }
}

const BUCKET_PREFIX: &str = "KUBE-SERVICES-";

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin(chain) => f.write_str(chain.as_str()),
            Self::Top(chain) => f.write_str(chain.as_str()),
            Self::Bucket(bucket) => write!(f, "{BUCKET_PREFIX}{bucket:02X}"),
            Self::Service(role, hash) => write!(f, "{}{hash}", role.prefix()),
            Self::Ipvs(chain) => f.write_str(chain.as_str()),
        }
    }
}

impl fmt::Debug for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use pointsman_model::{Port, Protocol, ServiceName};

    use super::*;

    fn port(service: &str, port: &str, protocol: Protocol) -> ServicePortName {
        let (namespace, name) = service.split_once('/').unwrap();
        let service = ServiceName::new(namespace, name).unwrap();
        ServicePortName {
            service,
            port: port.into(),
            protocol,
        }
    }

    #[test]
    fn hashes_are_those_of_upstream() {
        let web = port("ns1/svc1", "p80", Protocol::Tcp);
        assert_eq!(NameHash::of_port(&web).to_string(), "XPGD46QRK7WJZT7O");
        let kubernetes = port("default/kubernetes", "https", Protocol::Tcp);
        assert_eq!(NameHash::of_port(&kubernetes).to_string(), "NPX46M4PTMTKRN6Y");
        let dns = port("kube-system/kube-dns", "dns", Protocol::Udp);
        assert_eq!(NameHash::of_port(&dns).to_string(), "TCOU7JCQXEZGVUNU");
        let four = Backend {
            address: "10.180.0.1".parse::<std::net::Ipv4Addr>().unwrap(),
            port: Port::new(80).unwrap(),
        };
        assert_eq!(NameHash::of_endpoint(&web, four).to_string(), "SXIVWICOYRO3J4NJ");
        let six = Backend {
            address: "fd00:10:180::1".parse::<std::net::Ipv6Addr>().unwrap(),
            port: Port::new(80).unwrap(),
        };
        assert_eq!(NameHash::of_endpoint(&web, six).to_string(), "OGYCNMB4EMRUSJ6N");
    }

    #[test]
    fn names_can_be_read_back_and_foreign_ones_are_not_ours() {
        let hash = NameHash::of("x");
        let mut names = vec![ChainName::Bucket(0), ChainName::Bucket(0xAB)];
        names.extend(Top::ALL.map(ChainName::Top));
        names.extend(Builtin::ALL.map(ChainName::Builtin));
        names.extend(Role::ALL.map(|role| ChainName::Service(role, hash)));
        names.extend(IpvsChain::ALL.map(ChainName::Ipvs));
        for name in names {
            assert_eq!(ChainName::parse(&name.to_string()), Some(name));
        }
        for foreign in [
            "KUBE-SVC-SHORT",
            "KUBE-SVC-XPGD46QRK7WJZT71",
            "KUBE-SERVICES-ab",
            "CNI-FORWARD",
            "",
        ] {
            assert_eq!(ChainName::parse(foreign), None, "{foreign:?}");
        }
    }
}
