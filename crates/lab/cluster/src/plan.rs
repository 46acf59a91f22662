//! Which names and addresses does a cluster on this machine have?
//!
//! Every cluster gets one block out of 10.128.0.0/9, so that a single route on the host leads to all of it:
//!
//! ```text
//! 10.b.0.0/14       the block; b is 128, 132, ... 252
//!   10.b.0.1        the fabric's bridge, next hop of every node
//!   10.b.0.11 ...   nodes n1, n2, ...
//!   10.b.255.0/30   the cable between the host (.1) and the fabric (.2)
//!   10.b+1.0.0/16   cluster addresses of Services
//!   10.b+2.0.0/16   pods, a /24 for each node
//! ```
//!
//! A cluster of both families has a block of IPv6 addresses besides, which belongs to the other one:
//!
//! ```text
//! fd50:4d00:x::/48          the block; x is (b - 128) / 4
//!   fd50:4d00:x::1          the bridge
//!   fd50:4d00:x::b ...      nodes n1, n2, ...
//!   fd50:4d00:x:ff::/126    the cable, as above
//!   fd50:4d00:x:1::/112     cluster addresses of Services
//!   fd50:4d00:x:200::/56    pods, a /64 for each node
//! ```
//!
//! Everything here is computed from the cluster's name and what is in use; nothing is looked at or changed.

use pointsman_fabric::Prefix;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The number of blocks.
const BLOCKS: u8 = 32;
/// Most nodes on one machine; the last byte of an address has to hold them.
pub const MOST_NODES: u8 = 100;

/// The names and addresses of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The cluster's name.
    pub name: String,
    /// Which of the blocks.
    pub block: Block,
    /// The number of nodes.
    pub nodes: u8,
    /// Which addresses nodes, pods and Services have.
    pub family: IpFamily,
}

/// Which addresses a cluster has, with the words that kind uses for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpFamily {
    #[default]
    Ipv4,
    /// Those of both families, of which IPv4 is the first one.
    Dual,
}

impl IpFamily {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Dual => "dual",
        }
    }

    /// The family of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ipv4, Self::Dual]
            .into_iter()
            .find(|family| family.as_str() == name)
    }
}

/// One of the blocks of 10.128.0.0/9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block(u8);

/// One node of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    /// The name of the Node.
    pub name: String,
    /// The network namespace it lives in.
    pub namespace: String,
    pub address: Ipv4Addr,
    /// Its address of the other family, in a cluster of both.
    pub second: Option<Ipv6Addr>,
    /// The link in the fabric that leads to it.
    pub port: String,
}

impl NodePlan {
    /// Its addresses, the first one first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let second = self.second.map(IpAddr::from);
        [self.address.into()].into_iter().chain(second).collect()
    }
}

/// Ranges as flags take them.
pub fn joined<T: ToString>(parts: &[T]) -> String {
    let parts: Vec<String> = parts.iter().map(T::to_string).collect();
    parts.join(",")
}

/// A name that cannot be a cluster's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot name a cluster: use up to 32 small letters, digits and inner dashes")]
pub struct BadName(pub String);

/// Checks a cluster's name, which becomes part of the names of files, namespaces and links.
pub fn check_name(name: &str) -> Result<String, BadName> {
    let fits = (1..=32).contains(&name.len());
    let letters = name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fits && letters && !name.starts_with('-') && !name.ends_with('-') {
        Ok(name.to_owned())
    } else {
        Err(BadName(name.to_owned()))
    }
}

impl Block {
    /// The block of this number, if there is one.
    pub fn try_new(number: u8) -> Option<Self> {
        (number < BLOCKS).then_some(Self(number))
    }

    pub fn number(self) -> u8 {
        self.0
    }

    /// All its addresses.
    pub fn range(self) -> Prefix {
        Prefix::new(self.address(0, 0, 0), 14)
    }

    /// All its addresses of these families.
    pub fn ranges(self, family: IpFamily) -> Vec<Prefix> {
        family.of(self.range(), Prefix::new(self.second(0, 0), 48))
    }

    /// Chooses a block for a cluster that has none: the same for the same name, unless it is in use.
    pub fn choose(name: &str, family: IpFamily, in_use: &[Prefix]) -> Option<Self> {
        let first = hash(name) % u32::from(BLOCKS);
        (0..u32::from(BLOCKS))
            .filter_map(|step| u8::try_from((first + step) % u32::from(BLOCKS)).ok())
            .map(Self)
            .find(|block| block.conflict(family, in_use).is_none())
    }

    /// A range in use that has addresses of this block.
    pub fn conflict(self, family: IpFamily, in_use: &[Prefix]) -> Option<Prefix> {
        let own = self.ranges(family);
        let overlaps = |prefix: &Prefix| own.iter().any(|own| own.overlaps(*prefix));
        in_use
            .iter()
            .copied()
            // A default route leads to everywhere and claims nothing.
            .find(|prefix| prefix.length() > 0 && overlaps(prefix))
    }

    fn address(self, part: u8, third: u8, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 128 + 4 * self.0 + part, third, last)
    }

    fn second(self, subnet: u16, last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfd50, 0x4d00, self.0.into(), subnet, 0, 0, 0, last)
    }
}

impl IpFamily {
    /// What a cluster of this family has of both.
    fn of(self, four: Prefix, six: Prefix) -> Vec<Prefix> {
        match self {
            Self::Ipv4 => vec![four],
            Self::Dual => vec![four, six],
        }
    }
}

impl Plan {
    /// The namespace with the bridge.
    pub fn fabric_namespace(&self) -> String {
        format!("{}-fabric", self.name)
    }

    /// The host's end of the cable to the fabric.
    pub fn host_link(&self) -> String {
        host_link(&self.name)
    }

    /// The host's address on the cable, where nodes reach the API server.
    pub fn host_address(&self) -> Prefix {
        Prefix::new(self.block.address(0, 255, 1), 30)
    }

    /// The host's addresses on the cable.
    pub fn host_addresses(&self) -> Vec<Prefix> {
        let six = Prefix::new(self.block.second(0xff, 1), 126);
        self.family.of(self.host_address(), six)
    }

    /// The fabric's addresses on the cable.
    pub fn fabric_addresses(&self) -> Vec<Prefix> {
        let four = Prefix::new(self.block.address(0, 255, 2), 30);
        self.family.of(four, Prefix::new(self.block.second(0xff, 2), 126))
    }

    /// The bridge's addresses, next hops of every node.
    pub fn gateways(&self) -> Vec<Prefix> {
        let four = Prefix::new(self.block.address(0, 0, 1), 24);
        self.family.of(four, Prefix::new(self.block.second(0, 1), 64))
    }

    /// Cluster addresses of Services.
    pub fn service_ranges(&self) -> Vec<Prefix> {
        let four = Prefix::new(self.block.address(1, 0, 0), 16);
        self.family.of(four, Prefix::new(self.block.second(1, 0), 112))
    }

    /// Where pods find the DNS: the tenth cluster address.
    pub fn dns_address(&self) -> Ipv4Addr {
        self.block.address(1, 0, 10)
    }

    /// Addresses of all pods.
    pub fn pod_ranges(&self) -> Vec<Prefix> {
        let four = Prefix::new(self.block.address(2, 0, 0), 16);
        self.family.of(four, Prefix::new(self.block.second(0x200, 0), 56))
    }

    /// The nodes, in order.
    pub fn nodes(&self) -> Vec<NodePlan> {
        let node = |number: u8| NodePlan {
            name: format!("n{number}"),
            namespace: format!("{}-n{number}", self.name),
            address: self.block.address(0, 0, 10 + number),
            second: (self.family == IpFamily::Dual).then(|| self.block.second(0, 10 + u16::from(number))),
            port: format!("n{number}"),
        };
        (1..=self.nodes).map(node).collect()
    }
}

/// The host's end of the cable to a cluster's fabric: the name, or its hash if it is too long for a link.
pub fn host_link(name: &str) -> String {
    match name.len() {
        ..=12 => format!("pm-{name}"),
        _ => format!("pm-{:08x}", hash(name)),
    }
}

/// Whether a network namespace is the fabric or a node of the cluster.
pub fn is_namespace_of(cluster: &str, namespace: &str) -> bool {
    let Some(rest) = namespace
        .strip_prefix(cluster)
        .and_then(|rest| rest.strip_prefix('-'))
    else {
        return false;
    };
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    rest == "fabric" || rest.strip_prefix('n').is_some_and(is_number)
}

/// FNV-1a: the same in every build.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(name: &str) -> Plan {
        Plan {
            name: name.to_owned(),
            block: Block::choose(name, IpFamily::Dual, &[]).unwrap(),
            nodes: MOST_NODES,
            family: IpFamily::Dual,
        }
    }

    #[test]
    fn everything_lies_in_the_block_and_nothing_overlaps() {
        for number in 0..BLOCKS {
            let plan = Plan {
                block: Block::try_new(number).unwrap(),
                ..plan("pointsman")
            };
            let parts = [
                plan.host_addresses(),
                plan.gateways(),
                plan.service_ranges(),
                plan.pod_ranges(),
            ]
            .concat();
            let blocks = plan.block.ranges(plan.family);
            for (at, part) in parts.iter().enumerate() {
                assert!(blocks.iter().any(|block| part.is_within(*block)), "{part}");
                assert!(
                    parts[at + 1..].iter().all(|other| !part.overlaps(*other)),
                    "{part}"
                );
            }
            for node in plan.nodes() {
                for (address, gateway) in node.addresses().into_iter().zip(plan.gateways()) {
                    assert!(gateway.contains(address));
                    assert_ne!(gateway.address(), address);
                }
            }
        }
        assert_eq!(Block::try_new(BLOCKS), None);
    }

    #[test]
    fn a_cluster_keeps_its_block_unless_it_is_in_use() {
        let choose = |in_use: &[Prefix]| Block::choose("pointsman", IpFamily::Ipv4, in_use);
        let first = choose(&[]).unwrap();
        let default: Prefix = "0.0.0.0/0".parse().unwrap();
        assert_eq!(choose(&[default]), Some(first));
        let second = choose(&[default, first.range()]).unwrap();
        assert_ne!(first, second);
        let everything = ["10.0.0.0/8".parse().unwrap()];
        assert_eq!(choose(&everything), None);
        assert_eq!(first.conflict(IpFamily::Ipv4, &everything), Some(everything[0]));
        // What a cluster does not have cannot be in its way.
        let local = ["fd00::/8".parse().unwrap()];
        assert_eq!(choose(&local), Some(first));
        assert_eq!(Block::choose("pointsman", IpFamily::Dual, &local), None);
    }

    #[test]
    fn names_are_checked_and_links_fit_the_kernel() {
        assert_eq!(check_name("a-1"), Ok("a-1".to_owned()));
        for bad in ["", "-a", "a-", "A", "a/b", "a.b", &"x".repeat(33)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert_eq!(host_link("pointsman"), "pm-pointsman");
        assert!(host_link("a-rather-long-name-of-a-cluster").len() <= 15);
    }

    #[test]
    fn namespaces_of_other_clusters_are_left_alone() {
        for ours in ["a-fabric", "a-n1", "a-n12"] {
            assert!(is_namespace_of("a", ours), "{ours}");
        }
        for other in ["a", "a-n", "a-nx", "a-n1-n1", "a-n1-fabric", "b-n1", "ab-n1"] {
            assert!(!is_namespace_of("a", other), "{other}");
        }
    }
}
