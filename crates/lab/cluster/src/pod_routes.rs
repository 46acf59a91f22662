//! Through which node does the fabric reach each pod?
//!
//! Nodes get their pod ranges from the controllers, so the fabric learns them from the API like everybody.

use super::network::route_pods;
use super::plan::Plan;
use pointsman_api_client::{Client, Event, Resource, Scope, Watcher};
use pointsman_fabric::Prefix;
use pointsman_objects::Node;
use std::collections::BTreeMap;
use std::net::IpAddr;

type Routes = Vec<(Prefix, IpAddr)>;

/// Keeps the fabric's routes to pods right, for ever.
pub async fn keep(client: Client, plan: Plan) {
    let mut watcher = Watcher::<Node>::new(client, Scope::all(Resource::NODES));
    let mut nodes: BTreeMap<String, Routes> = BTreeMap::new();
    let mut is_complete = false;
    loop {
        match watcher.next().await {
            Event::Init => is_complete = false,
            Event::Applied { key, object, .. } => {
                nodes.insert(key.name().to_owned(), routes_of(&object));
            }
            Event::Deleted { key, .. } => drop(nodes.remove(key.name())),
            Event::Synced(_) => is_complete = true,
        }
        if !is_complete {
            continue;
        }
        let wanted: Routes = nodes.values().flatten().copied().collect();
        let plan = plan.clone();
        // Entering a namespace takes a thread of its own.
        let written = tokio::task::spawn_blocking(move || route_pods(&plan, &wanted)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "the fabric's routes to pods are not up to date");
        }
    }
}

fn routes_of(node: &Node) -> Routes {
    let Some(address) = node.internal_addresses().next() else {
        return Vec::new();
    };
    let ranges = node.pod_cidrs.iter();
    ranges
        .filter_map(|range| range.parse::<Prefix>().ok())
        .filter(|range| range.address().is_ipv4() == address.is_ipv4())
        .map(|range| (range, address))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn routes(node: Value) -> Routes {
        routes_of(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn a_nodes_ranges_lead_to_its_internal_address_of_the_same_family() {
        let node = json!({
            "spec": {"podCIDRs": ["10.1.1.0/24", "fd00::/64", "nonsense"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "n1"},
                {"type": "InternalIP", "address": "10.0.0.11"},
            ]},
        });
        let expected: Routes = vec![("10.1.1.0/24".parse().unwrap(), "10.0.0.11".parse().unwrap())];
        assert_eq!(routes(node), expected);
        assert_eq!(routes(json!({"spec": {"podCIDRs": ["10.1.1.0/24"]}})), Vec::new());
    }
}
