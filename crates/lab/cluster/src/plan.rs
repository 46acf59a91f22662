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
//! Everything here is computed from the cluster's name and what is in use; nothing is looked at or changed.

use pointsman_fabric::Prefix;
use std::net::Ipv4Addr;

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
    /// The link in the fabric that leads to it.
    pub port: String,
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

    /// Chooses a block for a cluster that has none: the same for the same name, unless it is in use.
    pub fn choose(name: &str, in_use: &[Prefix]) -> Option<Self> {
        let first = hash(name) % u32::from(BLOCKS);
        (0..u32::from(BLOCKS))
            .filter_map(|step| u8::try_from((first + step) % u32::from(BLOCKS)).ok())
            .map(Self)
            .find(|block| block.conflict(in_use).is_none())
    }

    /// A range in use that has addresses of this block.
    pub fn conflict(self, in_use: &[Prefix]) -> Option<Prefix> {
        in_use
            .iter()
            .copied()
            // A default route leads to everywhere and claims nothing.
            .find(|prefix| prefix.length() > 0 && prefix.overlaps(self.range()))
    }

    fn address(self, part: u8, third: u8, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 128 + 4 * self.0 + part, third, last)
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

    /// The fabric's address on the cable.
    pub fn fabric_address(&self) -> Prefix {
        Prefix::new(self.block.address(0, 255, 2), 30)
    }

    /// The bridge's address, next hop of every node.
    pub fn gateway(&self) -> Prefix {
        Prefix::new(self.block.address(0, 0, 1), 24)
    }

    /// Cluster addresses of Services.
    pub fn service_range(&self) -> Prefix {
        Prefix::new(self.block.address(1, 0, 0), 16)
    }

    /// Where pods find the DNS: the tenth cluster address.
    pub fn dns_address(&self) -> Ipv4Addr {
        self.block.address(1, 0, 10)
    }

    /// Addresses of all pods.
    pub fn pod_range(&self) -> Prefix {
        Prefix::new(self.block.address(2, 0, 0), 16)
    }

    /// The nodes, in order.
    pub fn nodes(&self) -> Vec<NodePlan> {
        let node = |number: u8| NodePlan {
            name: format!("n{number}"),
            namespace: format!("{}-n{number}", self.name),
            address: self.block.address(0, 0, 10 + number),
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
            block: Block::choose(name, &[]).unwrap(),
            nodes: 3,
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
                plan.host_address(),
                plan.gateway(),
                plan.service_range(),
                plan.pod_range(),
            ];
            for (at, part) in parts.iter().enumerate() {
                assert!(plan.block.range().contains(part.address()), "{part}");
                assert!(
                    parts[at + 1..].iter().all(|other| !part.overlaps(*other)),
                    "{part}"
                );
            }
            for node in plan.nodes() {
                assert!(plan.gateway().contains(node.address.into()));
                assert_ne!(plan.gateway().address(), node.address);
            }
        }
        assert_eq!(Block::try_new(BLOCKS), None);
    }

    #[test]
    fn a_cluster_keeps_its_block_unless_it_is_in_use() {
        let first = Block::choose("pointsman", &[]).unwrap();
        let default: Prefix = "0.0.0.0/0".parse().unwrap();
        assert_eq!(Block::choose("pointsman", &[default]), Some(first));
        let second = Block::choose("pointsman", &[default, first.range()]).unwrap();
        assert_ne!(first, second);
        let everything = ["10.0.0.0/8".parse().unwrap()];
        assert_eq!(Block::choose("pointsman", &everything), None);
        assert_eq!(first.conflict(&everything), Some(everything[0]));
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
