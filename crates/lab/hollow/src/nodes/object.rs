//! What does a hollow node look like, and which addresses do it and its pods have?

use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};

/// Pods' addresses begin here, 256 for each node.
const FIRST_POD: u32 = Ipv4Addr::new(10, 64, 0, 0).to_bits();
/// Addresses that a node has for pods; the first and the last of its range are left out.
pub(super) const PODS_PER_NODE: u8 = 254;
/// Nodes' own addresses begin here.
const FIRST_NODE: u32 = Ipv4Addr::new(10, 0, 0, 1).to_bits();
/// More nodes would need more addresses than the ranges above have.
const MOST: u32 = 40_000;

/// So many hollow nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    count: u32,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNumber(u32);

impl Nodes {
    /// None if there are not as many addresses.
    pub fn try_new(count: usize) -> Option<Self> {
        let count = u32::try_from(count).ok().filter(|count| *count <= MOST)?;
        Some(Self { count })
    }

    pub fn count(self) -> usize {
        self.count as usize
    }

    /// All of them.
    pub fn all(self) -> impl Iterator<Item = NodeNumber> {
        (0..self.count).map(NodeNumber)
    }

    /// The node that comes after so many others, and from the first one again after the last.
    pub fn at(self, place: usize) -> NodeNumber {
        NodeNumber((place % self.count()) as u32)
    }

    /// The node of this name, if it is one of them.
    pub fn named(self, name: &str) -> Option<NodeNumber> {
        let number: u32 = name.strip_prefix("hollow-node-")?.parse().ok()?;
        let node = NodeNumber(number);
        (number < self.count && node.name() == name).then_some(node)
    }
}

impl NodeNumber {
    pub fn name(self) -> String {
        format!("hollow-node-{:05}", self.0)
    }

    /// Its own address.
    pub fn address(self) -> IpAddr {
        Ipv4Addr::from_bits(FIRST_NODE + self.0).into()
    }

    /// The address of one of its pods.
    pub(super) fn pod_address(self, slot: u8) -> IpAddr {
        Ipv4Addr::from_bits(FIRST_POD + self.0 * 256 + 1 + u32::from(slot)).into()
    }

    /// Which of its pods has this address.
    pub(super) fn slot_of(self, address: &str) -> Option<u8> {
        let address: Ipv4Addr = address.parse().ok()?;
        let slot = address.to_bits().checked_sub(FIRST_POD + self.0 * 256 + 1)?;
        u8::try_from(slot).ok().filter(|slot| *slot < PODS_PER_NODE)
    }

    /// Its object, with about what a kubelet says of itself, images included.
    pub(super) fn object(self) -> Value {
        let images: Vec<Value> = (0..20)
            .map(|image| {
                let name = format!("registry.example.org/team/service-{image}@sha256:{image:064}");
                json!({ "names": [name], "sizeBytes": 100_000_000 + image })
            })
            .collect();
        let resources =
            json!({ "cpu": "32", "memory": "131072Mi", "pods": "110", "ephemeral-storage": "500Gi" });
        let (name, zone) = (self.name(), format!("zone-{}", self.0 % 3));
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "region",
                // Nobody should take it for a node that runs anything.
                "pointsman.io/hollow": "true",
            } },
            "status": {
                "capacity": resources, "allocatable": resources, "conditions": conditions(), "images": images,
                "addresses": [{ "type": "InternalIP", "address": self.address().to_string() }],
                "nodeInfo": {
                    "kubeletVersion": "v1.37.0-hollow", "kernelVersion": "6.18.0", "osImage": "Linux", "architecture": "amd64",
                    "containerRuntimeVersion": "hollow://1", "operatingSystem": "linux", "bootID": "b",
                    "machineID": "m", "systemUUID": "s", "kubeProxyVersion": "",
                },
            },
        })
    }
}

/// What a node says of itself with every report.
pub(super) fn conditions() -> Value {
    let beat = format!("{:.0}", jiff::Timestamp::now());
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": beat,
            "lastTransitionTime": "2026-01-01T00:00:00Z", "message": format!("kubelet says {reason}"),
        })
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        condition("Ready", "True", "KubeletReady"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_addresses_lead_back_to_their_node_and_no_two_are_the_same() {
        let nodes = Nodes::try_new(600).unwrap();
        let mut addresses = HashSet::new();
        for node in nodes.all() {
            assert_eq!(nodes.named(&node.name()), Some(node));
            assert!(addresses.insert(node.address()));
            for slot in 0..PODS_PER_NODE {
                let address = node.pod_address(slot);
                assert!(addresses.insert(address), "{address}");
                assert_eq!(node.slot_of(&address.to_string()), Some(slot));
            }
        }
        for other in [
            "hollow-node-00600",
            "hollow-node-7",
            "hollow-node-+0007",
            "node-00007",
        ] {
            assert_eq!(nodes.named(other), None, "{other}");
        }
        assert_eq!(NodeNumber(0).slot_of("10.64.1.1"), None, "it is the next node's");
        assert_eq!(Nodes::try_new(MOST as usize + 1), None);
    }
}
