//! Where are the other nodes' pods, and which addresses may ours have?

use pointsman_api_client::events::{News, Recorder, Severity, Subject};
use pointsman_fabric::{Claim, Disbelief, Network, Prefix, Route, settle};
use pointsman_model::Moment;
use pointsman_objects::Node;
use pointsman_runtime::AddressRange;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The ranges that a runtime may give the node's pods addresses of.
pub(crate) fn pod_ranges(node: &Node) -> Vec<AddressRange> {
    node.pod_cidrs
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect()
}

/// A node as routes to its pods need it.
#[derive(Debug)]
struct Seen {
    created: Option<Moment>,
    ranges: Vec<Prefix>,
    addresses: Vec<IpAddr>,
}

impl Seen {
    fn of(node: &Node) -> Self {
        let ranges = node.pod_cidrs.iter();
        Self {
            created: node.metadata.created,
            ranges: ranges
                .filter_map(|text| text.parse::<Prefix>().ok())
                .map(Prefix::network)
                .collect(),
            addresses: node.internal_addresses().collect(),
        }
    }
}

/// Keeps routes to the pods of all other nodes. Ranges are believed by the rules of [`settle`], older nodes first.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// Our own name.
    own: String,
    /// The ranges of all pods.
    cluster: Vec<Prefix>,
    /// All nodes, our own too: its range is nobody else's.
    nodes: BTreeMap<String, Seen>,
    /// Destinations and gateways that we have set.
    set: BTreeSet<(String, IpAddr)>,
    /// What was said about ranges that are not believed.
    said: BTreeSet<String>,
}

/// What has to be done so that the kernel has what is wanted.
#[derive(Debug, Default)]
struct Plan {
    add: Vec<Route>,
    remove: Vec<(String, IpAddr)>,
    /// Ranges that get no route, with the reason.
    disbelieved: Vec<(Claim, Disbelief)>,
}

impl Neighbours {
    pub(crate) fn new(own: &str, cluster: &[Prefix]) -> Self {
        Self {
            own: own.to_owned(),
            cluster: cluster.to_vec(),
            ..Self::default()
        }
    }

    /// A node as it is now, or gone.
    pub(crate) fn see(&mut self, name: &str, node: Option<&Node>) {
        match node.map(Seen::of) {
            Some(seen) => drop(self.nodes.insert(name.to_owned(), seen)),
            None => drop(self.nodes.remove(name)),
        }
    }

    fn plan(&self) -> Plan {
        let mut nodes: Vec<_> = self.nodes.iter().collect();
        nodes.sort_by_key(|(name, seen)| (seen.created.is_none(), seen.created, *name));
        let claims = nodes.iter().flat_map(|(name, seen)| {
            seen.ranges.iter().map(|range| Claim {
                holder: (*name).clone(),
                range: *range,
            })
        });
        let (believed, disbelieved) = settle(claims.collect(), &self.cluster);
        let wanted: BTreeMap<(String, IpAddr), Prefix> = believed
            .iter()
            .filter(|claim| claim.holder != self.own)
            .filter_map(|Claim { holder, range }| {
                let same = |ip: &&IpAddr| ip.is_ipv4() == range.address().is_ipv4();
                let gateway = self.nodes.get(holder)?.addresses.iter().find(same)?;
                Some(((range.to_string(), *gateway), *range))
            })
            .collect();
        let add = wanted
            .iter()
            .filter(|(key, _)| !self.set.contains(*key))
            .map(|((_, gateway), range)| Route::via(*range, *gateway));
        let kept: BTreeSet<&str> = wanted.keys().map(|(range, _)| range.as_str()).collect();
        // A range that moved to another gateway is replaced, not deleted.
        let remove = self
            .set
            .iter()
            .filter(|(range, _)| !kept.contains(range.as_str()));
        Plan {
            add: add.collect(),
            remove: remove.cloned().collect(),
            disbelieved,
        }
    }

    /// Says once about each range that it gets no route, as long as that is so.
    fn tell(&mut self, disbelieved: &[(Claim, Disbelief)], events: &Recorder) {
        let mut saying = BTreeSet::new();
        for (claim, why) in disbelieved {
            let Claim { holder, range } = claim;
            let words = format!("{holder} {range}: {why}");
            if !self.said.contains(&words) {
                tracing::warn!(node = holder, %range, %why, "no route to the pods of a node");
                events.record(News {
                    subject: Subject {
                        api_version: "v1".into(),
                        kind: "Node".into(),
                        namespace: String::new(),
                        name: holder.clone(),
                        // As kubelets write it, by which `kubectl describe node` finds it.
                        uid: holder.clone(),
                    },
                    severity: Severity::Warning,
                    reason: "PodRangeNotRouted".into(),
                    message: format!("{} has no route to its pod range {range}: {why}", self.own),
                });
            }
            saying.insert(words);
        }
        self.said = saying;
    }

    /// Carries the plan out; what fails is tried again with the next change.
    pub(crate) fn apply(&mut self, events: &Recorder) {
        let Plan {
            add,
            remove,
            disbelieved,
        } = self.plan();
        self.tell(&disbelieved, events);
        if add.is_empty() && remove.is_empty() {
            return;
        }
        let mut network = match Network::here() {
            Ok(network) => network,
            Err(error) => return tracing::warn!(%error, "cannot set routes to other nodes"),
        };
        for route in add {
            self.add(&mut network, &route);
        }
        for (range, gateway) in remove {
            if let Ok(destination) = range.parse::<Prefix>() {
                let gone = network.delete_route(&Route::via(destination, gateway));
                if let Err(error) = gone {
                    tracing::warn!(%error, "cannot remove a route to another node's pods");
                    continue;
                }
            }
            self.set.remove(&(range, gateway));
        }
    }

    fn add(&mut self, network: &mut Network, route: &Route) {
        let Some(gateway) = route.gateway else { return };
        match network.replace_route(route) {
            Ok(()) => {
                let range = route.destination.to_string();
                self.set.retain(|(other, _)| *other != range);
                self.set.insert((range, gateway));
            }
            Err(error) => tracing::warn!(%error, %route, "cannot set a route to another node's pods"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(ranges: &[&str], ip: &str) -> Node {
        born(ranges, ip, "2026-01-01T00:00:00Z")
    }

    fn born(ranges: &[&str], ip: &str, created: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "creationTimestamp": created },
            "spec": { "podCIDR": ranges.first(), "podCIDRs": ranges },
            "status": { "addresses": [
                { "type": "Hostname", "address": "n" },
                { "type": "InternalIP", "address": ip },
                { "type": "InternalIP", "address": "fd00::2" },
            ] },
        }))
        .unwrap()
    }

    fn neighbours() -> Neighbours {
        let cluster = ["10.244.0.0/16", "fd01::/32"].map(|range| range.parse().unwrap());
        Neighbours::new("n1", &cluster)
    }

    fn shown(neighbours: &Neighbours) -> (Vec<String>, usize) {
        let plan = neighbours.plan();
        (plan.add.iter().map(Route::to_string).collect(), plan.remove.len())
    }

    #[test]
    fn every_range_goes_by_the_address_of_its_family() {
        let mut neighbours = neighbours();
        let other = node(&["10.244.1.0/24", "fd01::/64"], "192.0.2.2");
        assert_eq!(pod_ranges(&other).len(), 2);
        neighbours.see("n2", Some(&other));
        let expected = ["10.244.1.0/24 via 192.0.2.2", "fd01::/64 via fd00::2"];
        assert_eq!(shown(&neighbours), (expected.map(String::from).to_vec(), 0));
    }

    #[test]
    fn a_node_that_moved_is_replaced_and_one_that_left_is_removed() {
        let mut neighbours = neighbours();
        let gateway = "192.0.2.2".parse().unwrap();
        neighbours.set.insert(("10.244.1.0/24".into(), gateway));
        neighbours.see("n2", Some(&node(&["10.244.1.0/24"], "192.0.2.3")));
        assert_eq!(
            shown(&neighbours),
            (vec!["10.244.1.0/24 via 192.0.2.3".to_owned()], 0)
        );
        neighbours.see("n2", None);
        assert_eq!(shown(&neighbours), (Vec::new(), 1));
    }

    #[test]
    fn a_node_takes_neither_the_default_route_nor_the_range_of_an_older_one() {
        let mut neighbours = neighbours();
        let ours = born(&["10.244.1.0/24"], "192.0.2.1", "2026-01-02T00:00:00Z");
        neighbours.see("n1", Some(&ours));
        neighbours.see(
            "n2",
            Some(&born(&["10.244.2.0/24"], "192.0.2.2", "2026-01-01T00:00:00Z")),
        );
        let greedy = [
            "0.0.0.0/0",
            "192.0.2.0/24",
            "10.244.0.0/16",
            "10.244.1.0/25",
            "10.244.2.0/24",
        ];
        // Its name comes first, but it came last.
        neighbours.see("a", Some(&born(&greedy, "192.0.2.66", "2026-01-03T00:00:00Z")));
        assert_eq!(
            shown(&neighbours),
            (vec!["10.244.2.0/24 via 192.0.2.2".to_owned()], 0)
        );
        assert_eq!(neighbours.plan().disbelieved.len(), greedy.len());
        // When the older ones have gone there is nothing in its way but the cluster's own bounds.
        neighbours.see("n2", None);
        assert_eq!(
            shown(&neighbours).0,
            ["10.244.2.0/24 via 192.0.2.66"].map(String::from)
        );
    }
}
