//! What about this node shapes every rule?

use std::fmt;

use pointsman_model::{Address, Cidr, Protocol};

/// What both backends need to know about the node and the operator's choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings<A> {
    /// The packet mark that asks for masquerading.
    pub masquerade: MasqueradeMark,
    /// Masquerade everything sent to a cluster address.
    pub masquerade_all: bool,
    /// How to tell that a packet comes from a pod of this node or cluster.
    pub local: LocalDetector<A>,
    /// On which of the node's addresses node ports answer.
    pub node_ports: NodePortAddresses<A>,
    /// The node's address, compared with source ranges.
    pub node_ip: Option<A>,
    /// Node ports also answer on 127.0.0.1 (iptables and IPv4 only).
    pub localhost_node_ports: bool,
    /// What becomes of connections to node ports of a loopback address (nftables only).
    pub localhost: Localhost,
    /// The kernel accepts out-of-window TCP packets, so invalid ones need not be dropped.
    pub conntrack_liberal: bool,
    /// The kernel has counters that rules may name (nfacct; iptables only).
    pub named_counters: bool,
    /// The ranges cluster addresses are taken from; unused addresses of them are dropped (nftables only).
    pub service_cidrs: Box<[Cidr<A>]>,
}

impl<A: Address> Default for Settings<A> {
    fn default() -> Self {
        Self {
            masquerade: MasqueradeMark::default(),
            masquerade_all: false,
            local: LocalDetector::Nothing,
            node_ports: NodePortAddresses::All,
            node_ip: None,
            localhost_node_ports: true,
            localhost: Localhost::Ignored,
            conntrack_liberal: false,
            named_counters: false,
            service_cidrs: Box::default(),
        }
    }
}

/// One bit of the packet mark, 0 to 31.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasqueradeMark(u32);

impl MasqueradeMark {
    /// The mark with only this bit set; `None` beyond bit 31.
    pub const fn from_bit(bit: u8) -> Option<Self> {
        if bit < 32 { Some(Self(1 << bit)) } else { None }
    }

    /// The mark as a number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for MasqueradeMark {
    /// Bit 14, the upstream default.
    fn default() -> Self {
        Self(1 << 14)
    }
}

impl fmt::Display for MasqueradeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for MasqueradeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The name of a network interface, or its beginning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(Box<str>);

/// A text that cannot name a Linux interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an interface name of at most 15 characters")]
pub struct BadInterfaceName(pub String);

impl InterfaceName {
    /// Checks what the kernel would check (IFNAMSIZ, no slash, no white space), and refuses the
    /// characters that mean something to packet filter programs.
    pub fn try_new(text: &str) -> Result<Self, BadInterfaceName> {
        let allowed =
            |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'+' | b'*' | b'"' | b'\\' | b'!');
        if text.is_empty() || text.len() > 15 || text == "." || text == ".." || !text.bytes().all(allowed) {
            return Err(BadInterfaceName(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How to tell that a packet comes from a pod (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetector<A> {
    /// There is no way to tell: nothing counts as a pod, and off-cluster clients of cluster addresses
    /// are not masqueraded.
    Nothing,
    /// The source lies in the pod range (modes `ClusterCIDR` and `NodeCIDR`).
    Source(Cidr<A>),
    /// The packet comes in through the pods' bridge.
    Bridge(InterfaceName),
    /// The packet comes in through an interface whose name begins so.
    InterfacePrefix(InterfaceName),
}

impl<A: Address> LocalDetector<A> {
    /// The detector for a list of ranges: the first of this family counts, none means no detection.
    pub fn from_ranges<'a>(ranges: impl IntoIterator<Item = &'a str>) -> Self {
        ranges
            .into_iter()
            .find_map(|range| Cidr::parse(range.trim()).ok().flatten())
            .map_or(Self::Nothing, Self::Source)
    }

    /// Whether pods can be told apart at all.
    pub fn is_some(&self) -> bool {
        *self != Self::Nothing
    }
}

/// What nftables mode does about connections to node ports of 127.0.0.1 and ::1 (KEP-6032).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Localhost {
    /// Nothing: the feature is off.
    #[default]
    Ignored,
    /// Node ports do not answer on loopback addresses, and say so.
    Refused,
    /// Listeners carry TCP to endpoints; they cannot carry anything else.
    Served,
}

impl Localhost {
    /// The protocols that are refused, and counted.
    pub const fn refused(self) -> &'static [Protocol] {
        match self {
            Self::Ignored => &[],
            Self::Refused => &[Protocol::Tcp, Protocol::Udp, Protocol::Sctp],
            Self::Served => &[Protocol::Udp, Protocol::Sctp],
        }
    }
}

/// On which of the node's addresses node ports answer (`nodePortAddresses`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses<A> {
    /// On all that the kernel calls local.
    All,
    Only(Box<[A]>),
}

/// `nodePortAddresses` as configured, before looking at the node's interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortRanges {
    /// CIDRs, or `primary`, `localhost`, `all`; empty means unset.
    pub entries: Vec<String>,
}

/// An entry of `nodePortAddresses` that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNodePortRange {
    /// Neither a range nor a keyword.
    #[error("nodePortAddresses: {0:?} is neither an address range nor one of primary, localhost, all")]
    Unreadable(String),
    /// A keyword or range given twice.
    #[error("nodePortAddresses: {0:?} is listed twice")]
    Duplicate(String),
}

impl NodePortRanges {
    /// Checks every entry.
    pub fn validate(&self) -> Result<(), BadNodePortRange> {
        for (position, entry) in self.entries.iter().enumerate() {
            if self.entries[..position].contains(entry) {
                return Err(BadNodePortRange::Duplicate(entry.clone()));
            }
            let keyword = matches!(entry.as_str(), "primary" | "localhost" | "all");
            if !keyword && Cidr::<std::net::Ipv4Addr>::parse(entry).is_err() {
                return Err(BadNodePortRange::Unreadable(entry.clone()));
            }
        }
        Ok(())
    }

    /// The ranges of one family; entries that do not parse are left out.
    ///
    /// `primary` stands for the node's address. A family without any entry answers everywhere,
    /// even if the other family is restricted, as upstream decides.
    fn ranges<A: Address>(&self, primary: Option<A>) -> Vec<Cidr<A>> {
        let mut ranges = Vec::new();
        for entry in &self.entries {
            match entry.as_str() {
                "primary" => {
                    // A loopback address stands for "not known yet" (upstream's placeholder).
                    let known = primary.filter(|ip| !A::LOOPBACK.contains(*ip));
                    ranges.extend(known.map(Cidr::host));
                }
                "localhost" => ranges.push(A::LOOPBACK),
                "all" => ranges.extend(Cidr::parse("0.0.0.0/0").ok().flatten()),
                text => ranges.extend(Cidr::parse(text).ok().flatten()),
            }
            if entry == "all" {
                ranges.extend(Cidr::parse("::/0").ok().flatten());
            }
        }
        ranges
    }

    /// Where the feature is on: served if an entry of the family means loopback and nothing else. A range that happens
    /// to contain it, such as all addresses, does not ask for it.
    pub fn localhost<A: Address>(&self) -> Localhost {
        let is_loopback = |range: &Cidr<A>| A::LOOPBACK.contains(range.network());
        match self.ranges(None).iter().any(is_loopback) {
            true => Localhost::Served,
            false => Localhost::Refused,
        }
    }

    /// The addresses to answer on, given the node's own address and those of all its interfaces.
    pub fn resolve<A: Address>(&self, primary: Option<A>, interfaces: &[A]) -> NodePortAddresses<A> {
        let ranges = self.ranges(primary);
        if ranges.is_empty() || ranges.iter().any(Cidr::is_everything) {
            return NodePortAddresses::All;
        }
        let mut chosen: Vec<A> = interfaces
            .iter()
            .copied()
            .filter(|ip| ranges.iter().any(|range| range.contains(*ip)))
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        NodePortAddresses::Only(chosen.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn entries(list: &[&str]) -> NodePortRanges {
        NodePortRanges {
            entries: list.iter().map(|entry| (*entry).to_owned()).collect(),
        }
    }

    #[test]
    fn an_unset_list_and_a_list_of_the_other_family_answer_everywhere() {
        let all = NodePortAddresses::<Ipv4Addr>::All;
        assert_eq!(entries(&[]).resolve(None, &["10.0.0.1".parse().unwrap()]), all);
        assert_eq!(
            entries(&["fd00::/8"]).resolve(None, &["10.0.0.1".parse().unwrap()]),
            all
        );
        assert_eq!(entries(&["10.0.0.0/8", "0.0.0.0/0"]).resolve(None, &[]), all);
    }

    #[test]
    fn ranges_pick_addresses_of_the_interfaces() {
        let interfaces: Vec<Ipv4Addr> = ["192.168.0.2", "10.0.0.1", "127.0.0.1"]
            .iter()
            .map(|ip| ip.parse().unwrap())
            .collect();
        let picked = entries(&["10.0.0.0/8", "localhost"]).resolve(None, &interfaces);
        let expected = ["10.0.0.1", "127.0.0.1"]
            .iter()
            .map(|ip| ip.parse().unwrap())
            .collect();
        assert_eq!(picked, NodePortAddresses::Only(expected));
    }

    #[test]
    fn primary_leaves_out_a_family_whose_address_is_unknown() {
        let six = entries(&["primary"]).ranges(Some(Ipv6Addr::LOCALHOST));
        assert!(six.is_empty());
        let four = entries(&["primary"]).ranges(Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(four[0].to_string(), "10.0.0.1/32");
    }

    #[test]
    fn localhost_is_served_where_an_entry_of_the_family_means_it_alone() {
        use Localhost::{Refused, Served};
        for (list, four, six) in [
            (&["primary", "localhost"][..], Served, Served),
            (&["127.0.0.1/32"], Served, Refused),
            (&["10.0.0.0/8", "::1/128"], Refused, Served),
            (&["all"], Refused, Refused),
            (&["126.0.0.0/7", "::/127"], Refused, Refused),
            (&["primary"], Refused, Refused),
        ] {
            let found = entries(list);
            assert_eq!(
                (found.localhost::<Ipv4Addr>(), found.localhost::<Ipv6Addr>()),
                (four, six),
                "{list:?}"
            );
        }
    }

    #[test]
    fn doubled_and_unreadable_entries_are_refused() {
        assert!(entries(&["primary", "10.0.0.0/8", "fd00::/8"]).validate().is_ok());
        assert_eq!(
            entries(&["all", "all"]).validate(),
            Err(BadNodePortRange::Duplicate("all".into()))
        );
        assert_eq!(
            entries(&["eth0"]).validate(),
            Err(BadNodePortRange::Unreadable("eth0".into()))
        );
    }

    #[test]
    fn a_detector_uses_the_first_range_of_its_family() {
        let ranges = ["fd00::/64", "10.0.0.0/16", "10.1.0.0/16"];
        let four = LocalDetector::<Ipv4Addr>::from_ranges(ranges);
        assert_eq!(
            four,
            LocalDetector::Source(Cidr::parse("10.0.0.0/16").unwrap().unwrap())
        );
        assert!(!LocalDetector::<Ipv4Addr>::from_ranges(["fd00::/64"]).is_some());
    }

    #[test]
    fn interface_names_are_what_the_kernel_takes() {
        assert!(InterfaceName::try_new("veth").is_ok());
        for bad in ["", "sixteencharacter", "a/b", "a b", "avp+"] {
            assert!(InterfaceName::try_new(bad).is_err(), "{bad:?}");
        }
    }
}
