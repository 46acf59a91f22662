//! Through which node does the fabric reach each pod?
//!
//! Nodes get their pod ranges from the controllers, so the fabric learns them from the API like everybody.

use super::network::route_pods;
use super::plan::Plan;
use pointsman_api_client::{Client, Event, Resource, Scope, Watcher};
use pointsman_fabric::{Claim, Prefix, settle};
use pointsman_objects::Node;
use std::collections::BTreeMap;
use std::net::IpAddr;

type Routes = Vec<(Prefix, IpAddr)>;

/// Keeps the fabric's routes to pods right, for ever.
pub async fn keep(client: Client, plan: Plan) {
    let mut watcher = Watcher::<Node>::new(client, Scope::all(Resource::NODES));
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let mut is_complete = false;
    loop {
        match watcher.next().await {
            Event::Init => is_complete = false,
            Event::Applied { key, object, .. } => {
                nodes.insert(key.name().to_owned(), object);
            }
            Event::Deleted { key, .. } => drop(nodes.remove(key.name())),
            Event::Synced(_) => is_complete = true,
        }
        if !is_complete {
            continue;
        }
        let wanted = routes(&nodes, &plan.pod_ranges());
        let plan = plan.clone();
        // Entering a namespace takes a thread of its own.
        let written = tokio::task::spawn_blocking(move || route_pods(&plan, &wanted)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "the fabric's routes to pods are not up to date");
        }
    }
}

/// Ranges inside of those of the cluster by the addresses of their nodes, of which the older come first; agents decide alike.
fn routes(nodes: &BTreeMap<String, Node>, cluster: &[Prefix]) -> Routes {
    let mut sorted: Vec<_> = nodes.iter().collect();
    sorted.sort_by_key(|(name, node)| (node.metadata.created.is_none(), node.metadata.created, *name));
    let claims = sorted.into_iter().flat_map(|(name, node)| {
        let ranges = node
            .pod_cidrs
            .iter()
            .filter_map(|range| range.parse::<Prefix>().ok());
        ranges.map(|range| Claim {
            holder: name.clone(),
            range: range.network(),
        })
    });
    let (believed, _) = settle(claims.collect(), cluster);
    let route = |claim: &Claim| {
        let mut addresses = nodes.get(&claim.holder)?.internal_addresses();
        let same = |address: &IpAddr| address.is_ipv4() == claim.range.address().is_ipv4();
        Some((claim.range, addresses.find(same)?))
    };
    believed.iter().filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_objects::node::AddressKind;
    use serde_json::{Value, json};

    fn node(ranges: &[&str], address: &str, created: &str) -> Node {
        let node: Value = json!({
            "metadata": {"creationTimestamp": created},
            "spec": {"podCIDRs": ranges},
            "status": {"addresses": [
                {"type": "Hostname", "address": "n"},
                {"type": "InternalIP", "address": address},
            ]},
        });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn ranges_of_the_cluster_lead_to_the_oldest_node_that_has_them() {
        let nodes = BTreeMap::from([
            (
                "n1".to_owned(),
                node(
                    &["10.1.1.0/24", "fd00::/64", "nonsense"],
                    "10.0.0.11",
                    "2026-01-01T00:00:00Z",
                ),
            ),
            (
                "a".to_owned(),
                node(
                    &["0.0.0.0/0", "10.0.0.0/24", "10.1.1.0/24"],
                    "10.0.0.66",
                    "2026-01-02T00:00:00Z",
                ),
            ),
        ]);
        let expected: Routes = vec![("10.1.1.0/24".parse().unwrap(), "10.0.0.11".parse().unwrap())];
        assert_eq!(routes(&nodes, &["10.1.0.0/16".parse().unwrap()]), expected);
    }

    #[test]
    fn ranges_of_both_families_lead_to_addresses_of_theirs() {
        let mut both = node(&["10.1.1.0/24", "fd01::/64"], "10.0.0.11", "2026-01-01T00:00:00Z");
        let second = "fd00::b".parse().unwrap();
        both.addresses = [both.addresses[0], (AddressKind::Internal, second)].into();
        let cluster = ["10.1.0.0/16", "fd01::/56"].map(|range| range.parse().unwrap());
        let expected: Routes = vec![
            ("10.1.1.0/24".parse().unwrap(), "10.0.0.11".parse().unwrap()),
            ("fd01::/64".parse().unwrap(), second),
        ];
        assert_eq!(
            routes(&BTreeMap::from([("n1".to_owned(), both)]), &cluster),
            expected
        );
    }
}
