//! Where are the other nodes' pods, and which addresses may ours have?

use pointsman_fabric::{Netns, Network, Prefix, Route};
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

/// Each range by the node's address of the same family.
fn routes(node: &Node) -> Vec<(Prefix, IpAddr)> {
    let ranges = node
        .pod_cidrs
        .iter()
        .filter_map(|text| text.parse::<Prefix>().ok());
    ranges
        .filter_map(|range| {
            let same = |ip: &IpAddr| ip.is_ipv4() == range.address().is_ipv4();
            Some((range, node.internal_addresses().find(same)?))
        })
        .collect()
}

/// Keeps routes to the pods of all other nodes.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    wanted: BTreeMap<String, Vec<(Prefix, IpAddr)>>,
    /// Destinations and gateways that we have set.
    set: BTreeSet<(String, IpAddr)>,
}

impl Neighbours {
    /// Another node as it is now, or gone.
    pub(crate) fn see(&mut self, name: &str, node: Option<&Node>) {
        match node.map(routes).filter(|routes| !routes.is_empty()) {
            Some(routes) => drop(self.wanted.insert(name.to_owned(), routes)),
            None => drop(self.wanted.remove(name)),
        }
    }

    /// What has to be set and what has to go so that the kernel has what is wanted.
    fn plan(&self) -> (Vec<Route>, Vec<(String, IpAddr)>) {
        let wanted: BTreeMap<(String, IpAddr), Prefix> = self
            .wanted
            .values()
            .flatten()
            .map(|(range, gateway)| ((range.to_string(), *gateway), *range))
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
        (add.collect(), remove.cloned().collect())
    }

    /// Carries the plan out; what fails is tried again with the next change.
    pub(crate) fn apply(&mut self) {
        let (add, remove) = self.plan();
        if add.is_empty() && remove.is_empty() {
            return;
        }
        let mut network = match Netns::current().and_then(|here| here.network()) {
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
        serde_json::from_value(json!({
            "spec": { "podCIDR": ranges.first(), "podCIDRs": ranges },
            "status": { "addresses": [
                { "type": "Hostname", "address": "n" },
                { "type": "InternalIP", "address": ip },
                { "type": "InternalIP", "address": "fd00::2" },
            ] },
        }))
        .unwrap()
    }

    fn shown(neighbours: &Neighbours) -> (Vec<String>, usize) {
        let (add, remove) = neighbours.plan();
        (add.iter().map(Route::to_string).collect(), remove.len())
    }

    #[test]
    fn every_range_goes_by_the_address_of_its_family() {
        let mut neighbours = Neighbours::default();
        let other = node(&["10.244.1.0/24", "fd01::/64"], "192.0.2.2");
        assert_eq!(pod_ranges(&other).len(), 2);
        neighbours.see("n2", Some(&other));
        let expected = ["10.244.1.0/24 via 192.0.2.2", "fd01::/64 via fd00::2"];
        assert_eq!(shown(&neighbours), (expected.map(String::from).to_vec(), 0));
    }

    #[test]
    fn a_node_that_moved_is_replaced_and_one_that_left_is_removed() {
        let mut neighbours = Neighbours::default();
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
}
