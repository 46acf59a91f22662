//! What does the classic Endpoints object of a Service say, for readers that know nothing newer?

use std::collections::BTreeMap;

use pointsman_model::Labels;
use pointsman_objects::endpoint_slice::{AddressType, PodRef};
use pointsman_objects::endpoints::{Address, CONTROLLER_NAME, Endpoints, MANAGED_BY_LABEL, Subset};
use pointsman_objects::names::HEADLESS_LABEL;
use pointsman_objects::{Pod, Service};

use crate::desired::{PortSet, Withdrawals, hostname, ports};
use crate::node::Nodes;

/// Most addresses that one Endpoints object lists.
pub const MAX_ADDRESSES: usize = 1000;
/// What the Endpoints object of a Service should say; `None` when it is not ours to write.
pub fn desired(service: &Service, pods: &[&Pod], nodes: &Nodes) -> Option<Endpoints> {
    if !service.wants_slices() {
        return None;
    }
    let on_withdrawn = |pod: &Pod| {
        let node = pod.node_name.as_ref().and_then(|name| nodes.get(name));
        node.is_some_and(|node| node.withdrawn)
    };
    let mut withdrawals = Withdrawals::default();
    for pod in pods.iter().filter(|pod| pod.has_endpoint()) {
        withdrawals.count(pod, on_withdrawn(pod));
    }
    let avoid = withdrawals.apply(service);
    let mut by_ports: BTreeMap<PortSet, Subset> = BTreeMap::new();
    for pod in pods {
        let Some(address) = address(service, pod) else {
            continue;
        };
        let ports = ports(service, pod);
        // A pod that offers none of the ports is no endpoint here; without any ports, only a
        // headless Service has endpoints.
        if ports.is_empty() && !(service.ports.is_empty() && service.asks_for_no_cluster_ip()) {
            continue;
        }
        let subset = by_ports.entry(ports).or_insert_with_key(|ports| Subset {
            ports: ports.clone(),
            ..Subset::default()
        });
        let ready = pod.is_ready() && !(avoid && on_withdrawn(pod));
        if service.publish_not_ready || ready {
            subset.addresses.insert(address);
        } else {
            subset.not_ready.insert(address);
        }
    }
    let mut subsets: Vec<Subset> = by_ports.into_values().collect();
    let truncated = truncate(&mut subsets);
    let mirrored = service
        .metadata
        .labels
        .iter()
        .filter(|(key, _)| ![MANAGED_BY_LABEL, HEADLESS_LABEL].contains(key));
    let headless = service.is_headless().then_some((HEADLESS_LABEL, ""));
    Some(Endpoints {
        labels: Labels::new(
            mirrored
                .chain([(MANAGED_BY_LABEL, CONTROLLER_NAME)])
                .chain(headless),
        ),
        subsets: subsets.into_iter().collect(),
        truncated,
        ..Endpoints::default()
    })
}

fn address(service: &Service, pod: &Pod) -> Option<Address> {
    if !pod.has_endpoint() || (pod.is_terminating() && !service.publish_not_ready) {
        return None;
    }
    let family = service.families.first()?;
    Some(Address {
        ip: pod
            .ips
            .iter()
            .copied()
            .find(|ip| AddressType::of(*ip) == *family)?,
        hostname: hostname(pod, service).cloned(),
        node_name: pod.node_name.clone(),
        target: Some(PodRef {
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
        }),
    })
}

/// Cuts down to [`MAX_ADDRESSES`], ready ones first, each subset by its share.
fn truncate(subsets: &mut [Subset]) -> bool {
    let ready: usize = subsets.iter().map(|subset| subset.addresses.len()).sum();
    let not_ready: usize = subsets.iter().map(|subset| subset.not_ready.len()).sum();
    if ready + not_ready <= MAX_ADDRESSES {
        return false;
    }
    let cut_ready = ready > MAX_ADDRESSES;
    let (room, total) = if cut_ready {
        (MAX_ADDRESSES, ready)
    } else {
        (MAX_ADDRESSES - ready, not_ready)
    };
    let mut left = room;
    for subset in subsets {
        if cut_ready {
            subset.not_ready.clear();
        }
        let addresses = if cut_ready {
            &mut subset.addresses
        } else {
            &mut subset.not_ready
        };
        let share = (addresses.len() * room).div_ceil(total).min(left);
        let last = addresses.iter().nth(share).cloned();
        if let Some(last) = last {
            addresses.split_off(&last);
        }
        left -= addresses.len();
    }
    true
}
